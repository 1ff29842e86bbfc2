"""Parallel deflation with advance learning: workers train before they publish.

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
    parallel_advance,
    passes_at,
    state_bytes,
)

SPEC = OptimizerSpec(
    name="deflation_parallel_advance",
    family="deflation",
    summary="parallel deflation whose workers train in private before their turn",
    paper="AdaPaD, 2026, https://arxiv.org/abs/2605.10741",
    build=partial(build, schedule=parallel_advance),
    space=SPACE,
    fixed=FIXED,
    state_bytes=state_bytes,
    passes_at=passes_at,
    passes=1.0,
    schedule="constant",
    tasks=("bilinear",),
    cannot=CANNOT,
)
