"""FOAM: Adam on block means of the gradient, the rest of it added back without a state.

With s = 2^`level`, E the repetition of a block mean over its s columns, and for every matrix W
[m, n] with gradient G, in this order:

    g~ <- mean of G over blocks of s columns                        [m, ceil(n / s)]
    R  <- G - g~ E                                                  this step's only, never stored
    m~ <- beta1 m~ + (1 - beta1) g~
    v~ <- beta2 v~ + (1 - beta2) (mean of G^2 over the same blocks)  `mean_of_sq`, the code's form
       or beta2 v~ + (1 - beta2) g~^2                                `sq_of_mean`, the paper's form
    W  <- W - lr * alpha * c_t * (m~ E + R) / (sqrt(v~ E + R^2) + eps)
    W  <- (1 - lr * weight_decay) W,   c_t = sqrt(1 - beta2^t) / (1 - beta1^t)

The form of v~ is `second_moment`. Blocks lie along the last dimension, a linear layer's inputs;
the last block is filled up with zeros, which count in its mean. `level` 0 is Adam with rate
lr * alpha; with s >= n one number a row is kept. `residual` False leaves R out (an ablation).
Embedding, head and vectors get plain Adam (same place of eps) at the full `lr`, the first two
times `embed_multiplier`: matrices alone know `level` and `alpha`.

mean(G^2) = (mean G)^2 + variance inside the block, so the code's form takes smaller steps than the
paper's; they agree exactly where G is constant inside the blocks.

`series` holds `delta`, [step, ||R|| / ||G||] over all matrices together (0 if G is 0), at no more
than a hundred steps of a run: the share of the gradient that gets no momentum.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026).
Reference code: https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied).
Defaults: its pre-training scripts' lr 1e-2, alpha .25, level 2, eps 1e-8, weight decay 0. Its
scripts ask for beta2 .95, yet its driver never hands the betas on, so that .999 runs; which of the
two the paper's tables show is not known. Here .95: the residual carries c_t, and with .999 that is
.31 after 98 steps and .57 after 400, which hides it in short runs.
Deviations: none in the update. Its `res_scale` (1 there) is the switch `residual`; padding is never
longer than the row itself.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._foam import build, state_bytes

__all__ = ["SPEC", "build"]

SPEC = OptimizerSpec(
    name="foam",
    parent="adamw_split",
    family="memory",
    summary="Adam on block means of the gradient, the residual added back stateless",
    paper="Wen et al., FOAM: Blocked State Folding for Memory-Efficient LLM Training, 2025, "
    "https://arxiv.org/abs/2512.07112",
    code="https://github.com/zqOuO/FOAM @ 13769c73",
    licence="none stated",
    build=build,
    # No third dimension. alpha is a rate for matrices: against lr and embed_multiplier it would
    # only free the rate of the vectors. level is the memory that is asked for.
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "level": 2,
        "alpha": 0.25,
        "second_moment": "mean_of_sq",
        "residual": True,
    },
    state_bytes=state_bytes,
)
