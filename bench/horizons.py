"""Budgets in tokens, passes, device seconds or joules, turned into steps once a method.

Every trial of a method then has this horizon and decays its rate fully: neither the number of
slots nor a resume changes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from levelfield.bench.spec import BenchError, Budget, OptimizerSpec, Protocol, TrialRecord
from levelfield.bench.stats import median


def needs_clock(budget: Budget) -> bool:
    """Whether the unit is measured on the device rather than counted."""
    return budget.unit in ("seconds", "joules")


def steps(protocol: Protocol, spec: OptimizerSpec, calibration: Sequence[TrialRecord]) -> int:
    """Steps of one trial of a method under the protocol's budget.

    Args:
        calibration: the method's `calibrate` records, for a unit that is measured.

    Raises:
        BenchError: the unit cannot be measured here, or the budget buys no step after warm-up.
    """
    budget = protocol.budget
    if budget.unit == "steps" or budget.amount is None:
        return budget.steps
    cost = _cost_a_step(protocol, spec, calibration)
    bought = math.floor(budget.amount / cost * (1 + 1e-9))
    least = math.ceil(1 / protocol.schedule.warmup) if protocol.schedule.warmup > 0 else 2
    if bought < least:
        raise BenchError(
            f"{budget.amount:g} {budget.unit} buy {bought} steps of {spec.name}",
            f"at least {least} are needed: {math.ceil(least * cost):g} {budget.unit}",
        )
    return bought


def _cost_a_step(
    protocol: Protocol, spec: OptimizerSpec, calibration: Sequence[TrialRecord]
) -> float:
    unit = protocol.budget.unit
    if unit == "tokens":
        return float(protocol.tokens_per_step)
    if unit == "passes":
        return spec.passes
    if unit == "joules":
        # Energy is read over the timed steps alone, as the window is.
        joules = [
            r.joules / r.wall_s["step"] * window
            for r in calibration
            for window in r.wall_s.get("windows") or ()
            if r.joules is not None and r.wall_s.get("step")
        ]
        found = median(joules)
        if found is None:
            raise BenchError(
                f"energy of {spec.name} could not be measured on this device",
                "accepted here: budget.unit of steps, tokens, passes or seconds",
            )
        return found
    windows = [s for r in calibration if r.status == "ok" for s in r.wall_s.get("windows") or ()]
    found = median(windows)
    if found is None:
        reasons = {record.reason for record in calibration if record.reason}
        raise BenchError(
            f"a step of {spec.name} could not be timed: {'; '.join(sorted(reasons)) or 'no record'}"
        )
    return found
