"""FOAM-Mini: FOAM with one fold a row, so that a matrix keeps two numbers a row.

The update is that of `foam` with blocks as long as a row: g~ and m~ are [m, 1], v~ is the mean of
G^2 over a row, R = G minus its row's mean. What is left of Adam is a rate for each row and the
momentum of its mean: nearly all of the gradient is R, which gets no momentum, and each of its
elements moves by at most about lr * alpha * c_t.

`series` holds `delta`, [step, ||R|| / ||G||]; see `foam`.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026).
Reference code: https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied). It
has no FOAM-Mini of its own, only levels; the name and its memory are from the paper's figures.
Defaults: those of `foam`, level aside: none of its scripts has so large a one in pre-training.
Deviations: `level` "row", blocks of exactly n columns. A level with 2^level >= n would give the
reference a block filled up with zeros that count, which makes m~ smaller by n / 2^level and v~
too: with n = 11008, by a third. It can still be asked for as a number.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._foam import build, state_bytes

__all__ = ["SPEC", "build"]

SPEC = OptimizerSpec(
    name="foam_mini",
    parent="foam",
    family="memory",
    summary="FOAM with one fold a row: two numbers a row, the rest of the gradient stateless",
    paper="Wen et al., FOAM: Blocked State Folding for Memory-Efficient LLM Training, 2025, "
    "https://arxiv.org/abs/2512.07112",
    code="https://github.com/zqOuO/FOAM @ 13769c73",
    licence="none stated",
    build=build,
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "level": "row",
        "alpha": 0.25,
        "second_moment": "mean_of_sq",
        "residual": True,
    },
    state_bytes=state_bytes,
)
