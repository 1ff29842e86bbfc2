"""Learning-rate factors: 1.0 at the peak, the same for every method under a protocol."""

from __future__ import annotations

import math

from levelfield.bench.spec import BenchError, Protocol, Schedule


def check_schedule(protocol: Protocol) -> None:
    """Refuse a schedule that has no room.

    Raises:
        BenchError: a share that is none, no step of warm-up where one is asked for, or no step
            left after it.
    """
    schedule, steps = protocol.schedule, protocol.budget.steps // max(1, protocol.schedule.cycles)
    if protocol.budget.steps == 0:
        return  # nothing is trained
    warmup = round(schedule.warmup * steps)
    for name in ("warmup", "floor", "decay"):
        share = getattr(schedule, name)
        if not 0 <= share <= 1:
            raise BenchError(f"schedule.{name}={share}", "accepted: a share between 0 and 1")
    decay = round(schedule.decay * steps) if schedule.shape == "wsd" else 0
    if schedule.warmup > 0 and warmup < 1:
        raise BenchError(
            f"no room for warm-up: {schedule.warmup:.0%} of {steps} steps is less than one",
            f"budget.steps of at least {math.ceil(1 / schedule.warmup)}, or schedule.warmup=0",
        )
    if warmup + decay >= steps:
        raise BenchError(
            f"no room after warm-up: {warmup} of {steps} steps warm up and {decay} decay",
            "lower schedule.warmup or schedule.decay, or raise budget.steps",
        )


def lr_factor(schedule: Schedule, step: int, total: int) -> float:
    """Factor of step `step` (0-based) of `total`: linear warm-up, then the shape down to its floor;
    the whole of it `cycles` times over, the last one the shortest where they do not divide `total`.

    Warm-up ends at 1.0 on its last step; the last step of all has exactly the floor (`constant`
    has none; a first step that is also the last has 1.0).
    """
    if schedule.cycles > 1:
        length = math.ceil(total / schedule.cycles)
        start = step // length * length
        step, total = step - start, min(length, total - start)
    warmup = round(schedule.warmup * total)
    if step < warmup:
        return (step + 1) / warmup
    if schedule.shape == "constant":
        return 1.0
    start = warmup if schedule.shape != "wsd" else total - round(schedule.decay * total)
    if step < start or total == 1:
        return 1.0
    share = (step - start) / (total - 1 - start) if start < total - 1 else 1.0
    fall = 0.5 * (1 + math.cos(math.pi * share)) if schedule.shape == "cosine" else 1.0 - share
    return schedule.floor + (1.0 - schedule.floor) * fall
