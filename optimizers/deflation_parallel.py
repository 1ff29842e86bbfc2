"""Parallel deflation: K workers, a component each, all in every round from the one they join in.

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
    parallel,
    passes_at,
    state_bytes,
)

SPEC = OptimizerSpec(
    name="deflation_parallel",
    family="deflation",
    summary="rank-1 components trained at once, each against what the others published last",
    paper="AdaPaD, 2026, https://arxiv.org/abs/2605.10741",
    build=partial(build, schedule=parallel),
    space=SPACE,
    fixed=FIXED,
    state_bytes=state_bytes,
    passes_at=passes_at,
    passes=1.0,
    schedule="constant",
    tasks=("bilinear",),
    cannot=CANNOT,
)
