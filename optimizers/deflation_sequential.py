"""Sequential deflation at the wall-clock of the parallel one: R / K rounds each, then frozen.

A round is 1 / K of a pass: `passes` below is that of eight components.

The rounds, the local step, `series` and the sources: `optimizers/_deflation.py`.
"""

from __future__ import annotations

from functools import partial

from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._deflation import (
    CANNOT,
    FIXED,
    SPACE,
    build,
    passes_at,
    sequential,
    state_bytes,
)

SPEC = OptimizerSpec(
    name="deflation_sequential",
    family="deflation",
    summary="rank-1 components one after another, frozen after an equal share of the rounds",
    paper="AdaPaD, 2026, https://arxiv.org/abs/2605.10741",
    build=partial(build, schedule=sequential),
    space=SPACE,
    fixed=FIXED,
    state_bytes=state_bytes,
    passes_at=passes_at,
    passes=0.125,
    schedule="constant",
    tasks=("bilinear",),
    cannot=CANNOT,
)
