"""Sequential deflation at the work of the parallel one: R rounds a component, then frozen.

A step takes K rounds of one worker: on K devices, K times the wall-clock of parallel deflation.

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
    sequential_work,
    state_bytes,
)

SPEC = OptimizerSpec(
    name="deflation_sequential_work",
    family="deflation",
    summary="sequential deflation at equal work: as many rounds a component as the run has steps",
    paper="AdaPaD, 2026, https://arxiv.org/abs/2605.10741",
    build=partial(build, schedule=sequential_work),
    space=SPACE,
    fixed=FIXED,
    state_bytes=state_bytes,
    passes_at=passes_at,
    passes=1.0,
    schedule="constant",
    tasks=("bilinear",),
    cannot=CANNOT,
)
