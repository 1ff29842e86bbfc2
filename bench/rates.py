"""The rates that are really set, against the schedule that was asked for."""

from __future__ import annotations

import math

from levelfield.bench.spec import BenchError, OptimizerSpec
from levelfield.bench.stepper import Stepper


def check_rates(stepper: Stepper, spec: OptimizerSpec, factor: float, step: int) -> None:
    """Refuse to go on with a wrong schedule: every group's rate over its base rate is the factor.

    Groups without a `base_lr` belong to steppers with rules of their own and are left alone; so is
    a method that keeps its own schedule.

    Args:
        factor: of the step that was just taken.
        step: which that was.

    Raises:
        BenchError: a rate that is another one.
    """
    if spec.schedule == "own":
        return
    for optimizer in stepper.optimizers:
        for group in optimizer.param_groups:
            base = group.get("base_lr")
            if not isinstance(base, float) or base == 0.0 or not isinstance(group["lr"], float):
                continue
            if not math.isclose(group["lr"], base * factor, rel_tol=1e-6, abs_tol=1e-30):
                raise BenchError(
                    f"the learning rate of step {step} is {group['lr']:g} where the schedule has "
                    f"{base * factor:g} ({factor:g} of {base:g})",
                    "a method must leave `lr` to its stepper, or declare schedule='own'",
                )
