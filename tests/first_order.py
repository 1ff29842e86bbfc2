"""What the tests of first-order methods share: which these are, and how one is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from levelfield.bench.spec import OptimizerSpec, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import (
    adam_mini,
    ademamix,
    came,
    cautious_adamw,
    mars,
    muon_rms,
    prodigy,
    schedulefree_adamw,
    sgd,
    signum,
)
from levelfield.tests.optimizer_cases import SHAPES, context

STEPS = 24
TOTAL = 400
"""The horizon that shares of the run refer to; the first `STEPS` of it are taken."""
MODULES = (sgd, signum, ademamix, mars, cautious_adamw, adam_mini, came, muon_rms, prodigy)
SPECS: tuple[OptimizerSpec, ...] = (*(m.SPEC for m in MODULES), schedulefree_adamw.SPEC)
ALL_SHAPES: tuple[tuple[tuple[int, ...], Role], ...] = (*SHAPES, ((2, 3, 4), "matrix"))


def make(
    spec: OptimizerSpec, params: Sequence[Parameter], **changes: Any
) -> tuple[torch.optim.Optimizer, Mapping[str, Any]]:
    """The spec's optimizer, taken out of its stepper if it comes in one."""
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    built = spec.build(context(params, total_steps=TOTAL), hparams)
    if not isinstance(built, torch.optim.Optimizer):
        (built,) = built.optimizers
    return built, hparams
