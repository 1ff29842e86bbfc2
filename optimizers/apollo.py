"""APOLLO: the raw gradient, each channel scaled as Adam scales a random projection of it.

Shown for m >= n, where a channel j is a row; for m < n it is a column (see `_projection`):

    every T steps, and at the first:  P [r, n] <- random, elements from N(0, 1 / r)
    g = G P^T
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    N = m / (sqrt(v) + eps)
    S = diag(||N_j|| / (||g_j|| + 1e-8)) G         `scaling` = "channel"
    S = ||N|| / (||g|| + 1e-8) * G                 `scaling` = "tensor"
    f = max(||S|| / (q + 1e-8), gamma) / gamma;  S <- S / f;  q <- ||S||
    W <- W - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * sqrt(scale) * S
    W <- (1 - lr * weight_decay) W

r: `rank_fraction` of the smaller side; T: `refresh_fraction` of the run; gamma: `growth`, the most
that the norm of S may grow by from step to step (Fira's limiter), or None for no limit; q: the norm
that was let through last. The root of `scale` enters. Embedding, head and vectors get AdamW with
the same eps at lr without `scale`, the first two times `embed_multiplier`. Moments are neither
reset nor turned when P changes.

`projector` says what becomes of P between two refreshes, and nothing else: the numbers are the
same bits.

    regenerated   drawn anew from its seed at every step: 2 r max(m, n) elements of state a matrix
    kept          held, as in the reference code: r min(m, n) elements more

The default is `regenerated`: the paper counts no projector in its memory. q is one scalar more.

Paper: Hanqing Zhu, Zhenyu Zhang, Wenyan Cong, Xi Liu, Sem Park, Vikas Chandra, Bo Long, David Z.
Pan, Zhangyang Wang, Jinwon Lee, "APOLLO: SGD-like Memory, AdamW-level Performance",
https://arxiv.org/abs/2412.05270, 2024 (MLSys 2025).
Reference code: https://github.com/zhuhanqing/APOLLO @ 76b34725 (CC BY-NC 4.0; nothing of it is
here).
Defaults: that code's: betas (.9, .999), eps 1e-6, growth 1.01, weight decay 0, and its scripts':
lr .01, rank h/4, channels, scale 1.

T = `refresh_fraction` * total_steps, whole steps. The paper's T = 200 is a fiftieth of the 10k
steps at 60M and a five-hundredth of the 100k at 1B. A fiftieth of a short run is shorter than the
memory of the moments, so the default is a twentieth: 19 refreshes after the first projector.

`scale_front` puts sqrt(scale) before the limiter, as some of the scripts do. The limiter sees
ratios of norms, so that matters only beside its 1e-8 and to rounding. `decay_order` "after" the
update is the code's, "before" is torch's.

Deviations:
- Seeds follow from one number of the method's own generator, the parameter's position and the
  number of its projectors; the code's are the position alone, so equal in every run.
- The refresh follows the optimizer's steps, not each parameter's own.
- After a norm q of exactly 0 the limiter lets the next S pass, which the code would shrink to about
  1e-8 and let grow by 1 % a step from there.
- Norms are taken in float32 and q is kept so for bfloat16 parameters. No norm is read by the host.
- Projectors by singular vectors, the other sides and the quantised variant are left out.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._apollo import build, holds_projector
from levelfield.optimizers._projection import claim, refresh_steps

SPEC = OptimizerSpec(
    name="apollo",
    parent="adamw_split",
    family="memory",
    summary="Raw gradient, channels scaled as Adam scales a random projection",
    paper="Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, "
    "https://arxiv.org/abs/2412.05270",
    code="https://github.com/zhuhanqing/APOLLO @ 76b34725",
    licence="CC-BY-NC-4.0",
    build=build,
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.0,
        "rank_fraction": 0.25,
        "scale": 1.0,
        "scaling": "channel",
        "scale_front": False,
        "refresh_fraction": 0.05,
        "projector": "regenerated",
        "growth": 1.01,
        "decay_order": "after",
    },
    state_bytes=claim(projector=holds_projector),
    refreshes="new random projectors after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
