"""APOLLO-Mini: the raw gradient, each matrix scaled as Adam scales one random projection of it.

APOLLO with a projection to rank 1 and one factor for the whole matrix; see there for the rule:

    g = G P^T,  P [1, n];  N from Adam's moments of g
    W <- W - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * sqrt(scale) * ||N|| / (||g|| + 1e-8) * G

with the norm-growth limiter before the rate. `scale` makes up for N, which has one element of
about size one a channel where Adam's own direction has k, the smaller side: ||N|| is too small by
about sqrt(k). The default suits k = 128.

State of a matrix: 2 max(m, n) elements and one norm; min(m, n) more if `projector` is "kept".

Paper: Hanqing Zhu, Zhenyu Zhang, Wenyan Cong, Xi Liu, Sem Park, Vikas Chandra, Bo Long, David Z.
Pan, Zhangyang Wang, Jinwon Lee, "APOLLO: SGD-like Memory, AdamW-level Performance",
https://arxiv.org/abs/2412.05270, 2024 (MLSys 2025).
Reference code: https://github.com/zhuhanqing/APOLLO @ 76b34725 (CC BY-NC 4.0; nothing of it is
here).
Defaults: as APOLLO's, with rank 1, one factor a matrix and scale 128, the scripts' of every size
but 130M (192, a quarter of its width). The paper's improved runs double lr to .02.

Deviations: APOLLO's.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._apollo import build, holds_projector
from levelfield.optimizers._projection import claim, refresh_steps

SPEC = OptimizerSpec(
    name="apollo_mini",
    parent="apollo",
    family="memory",
    summary="Raw gradient, each matrix scaled as Adam scales a projection to rank 1",
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
        "rank": 1,
        "scale": 128.0,
        "scaling": "tensor",
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
