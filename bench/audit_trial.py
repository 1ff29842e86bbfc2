"""Rules on every trial: the same start, tokens, horizon, schedule and device for every method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from levelfield.bench import horizons
from levelfield.bench.audit_case import WHOLE, Case, Finding, label, ruled
from levelfield.bench.schedules import lr_factor
from levelfield.bench.spec import BenchError, TrialRecord
from levelfield.bench.train_request import UNTIMED_STEPS


def weights(case: Case) -> Iterator[Finding]:
    """One seed and size, one start: the initial weights of every method hash alike."""
    starts: dict[tuple[int, str | None], dict[str, list[TrialRecord]]] = {}
    for record in case.records:
        if record.weights_sha256 is not None:
            same = starts.setdefault((record.seed, case.size(record.optimizer)), {})
            same.setdefault(record.weights_sha256, []).append(record)
    unfair = [
        f"{label(record)} does not tell its weights"
        for record in case.records
        if record.weights_sha256 is None and record.status in WHOLE
    ]
    for (seed, _), by_hash in starts.items():
        for few in sorted(by_hash.values(), key=len)[:-1]:
            unfair.append(f"{label(few[0])} did not start from the weights of seed {seed}")
    yield from ruled("weights", f"one start for each of {len(starts)} seeds", unfair)


def batches(case: Case) -> Iterator[Finding]:
    """The batch order, drawn again from seed and data, hashes to what every trial saw."""
    import numpy as np

    # In a step that broke one batch more was drawn than steps were taken.
    counted = [r for r in case.records if r.status in (*WHOLE, "diverged")]
    seen = [r for r in counted if 0 < r.steps <= case.horizon(r.optimizer, r.phase)]
    if "tokens" not in case.manifest["data"]:  # a task with examples, or with numbers
        yield from _alike(seen)
        return
    length = int(case.manifest["data"]["tokens"]["train"])
    wanted: dict[int, set[int]] = {}
    for record in seen:
        wanted.setdefault(record.seed, set()).add(record.steps)
    drawn = {seed: _drawn(case, length, seed, steps) for seed, steps in wanted.items()}
    wrong = [
        f"{label(record)} saw other batches than its seed gives"
        for record in seen
        if record.batches_sha256 != drawn[record.seed][record.steps]
    ]
    then = case.manifest["environment"].get("numpy")
    fair = f"the order of each of {len(wanted)} seeds, drawn again"
    if wrong and then != np.__version__:
        changed = f"numpy {then} drew them, {np.__version__} drew them again"
        yield from ruled("batches", fair, unknown=[changed, *wrong])
    else:
        yield from ruled("batches", fair, wrong)


def _alike(seen: list[TrialRecord]) -> Iterator[Finding]:
    """One seed, one order: the batches of every method hash alike after as many steps."""
    hashes: dict[tuple[int, int], dict[str | None, TrialRecord]] = {}
    for record in seen:
        hashes.setdefault((record.seed, record.steps), {})[record.batches_sha256] = record
    unfair = [
        f"{label(next(iter(by_hash.values())))} saw other batches than another trial of its seed"
        for by_hash in hashes.values()
        if len(by_hash) > 1
    ]
    unfair += [f"{label(r)} does not tell its batches" for r in seen if r.batches_sha256 is None]
    yield from ruled(
        "batches", f"one order for each of {len({s for s, _ in hashes})} seeds", unfair
    )


def _drawn(case: Case, length: int, seed: int, steps: set[int]) -> Mapping[int, str]:
    """Hash of the batch order after each number of steps; the tokens themselves do not matter."""
    import numpy as np

    from levelfield.bench.digest import derive_seed
    from levelfield.bench.sources import BatchOrder

    tokens = np.broadcast_to(np.uint16(0), length)
    order = BatchOrder(tokens, case.protocol.data, derive_seed("batches", seed))
    found = {}
    for step in range(1, max(steps) + 1):
        order.next()
        if step in steps:
            found[step] = order.sha256
    return found


def horizon(case: Case) -> Iterator[Finding]:
    """Every whole trial has its method's horizon; the budget gives every method that horizon."""
    unfair, warnings, unknown = [], [], []
    watched = _control_share(case)
    for name, spec in case.specs.items():
        passes = [r.passes / r.steps for r in case.of("final", name) if r.status in WHOLE]
        if passes and not -0.05 <= max(passes) / spec.passes - 1 <= 0.05 + watched:
            warnings.append(f"{name} took {max(passes):.3g} passes a step and says {spec.passes:g}")
        if case.protocol.budget.unit == "steps" or not case.of("tune", name):
            continue
        if name not in case.horizons:
            unfair.append(f"{name} was trained without a horizon")
            continue
        try:
            bought = horizons.steps(case.protocol, spec, case.of("calibrate", name))
        except BenchError as error:
            unknown.append(str(error))
            continue
        if bought != case.horizons[name]:
            unfair.append(f"the budget buys {bought} steps of {name}, not {case.horizons[name]}")
    windows = _windows(case)
    for record in case.records:
        due = case.horizon(record.optimizer, record.phase)
        due = windows.get(record.optimizer, due) if record.phase == "timing" else due
        whole = record.status in WHOLE and record.phase != "calibrate"
        if record.steps > due or (whole and record.steps != due):
            unfair.append(f"{label(record)} took {record.steps} steps, due were {due}")
        tokens = record.steps * case.protocol.tokens_per_step
        if record.tokens != tokens:
            unfair.append(f"{label(record)} tells {record.tokens} tokens, its steps make {tokens}")
    steps = sorted({case.horizon(name) for name in case.specs})
    unit = case.protocol.budget.unit
    fair = f"{', '.join(map(str, steps))} steps a trial, from a budget in {unit}"
    yield from ruled("horizon", fair, unfair, warnings, unknown)


def _control_share(case: Case) -> float:
    """Passes a step that reading the control loss at every evaluation may add: a forward pass is a
    third of a whole one."""
    protocol, seen = case.protocol, case.protocol.evaluation
    steps = protocol.budget.steps
    tokens = seen.sequences * protocol.data.sequence * (steps // seen.every + 1)
    return tokens / protocol.tokens_per_step / 3 / steps


def _windows(case: Case) -> dict[str, int]:
    """Steps that every timing record of a method has: those of its longest one, which hold a
    window of the protocol at least. Methods differ: a window is a whole number of periods, and a
    controller is timed to the end."""
    found: dict[str, int] = {}
    for record in case.of("timing"):
        if record.status == "ok":
            least = min(case.horizon(record.optimizer), UNTIMED_STEPS + case.protocol.timing.steps)
            found[record.optimizer] = max(record.steps, found.get(record.optimizer, least))
    return found


def schedule(case: Case) -> Iterator[Finding]:
    """Every rate in every trace is the schedule's at its step."""
    unfair = []
    for record in case.records:
        spec, total = case.specs[record.optimizer], case.horizon(record.optimizer, record.phase)
        for step, factor in record.lr_trace:
            due = lr_factor(case.protocol.schedule, int(step), total)
            warmup = round(case.protocol.schedule.warmup * total)
            if spec.schedule == "own" or (spec.schedule == "constant" and step >= warmup):
                due = 1.0
            if not math.isclose(factor, due, rel_tol=0, abs_tol=2e-9):
                unfair.append(
                    f"{label(record)} had {factor:g} of its rate at step {int(step)}, due was "
                    f"{due:g}"
                )
                break
        else:
            ends = {int(step) for step, _ in record.lr_trace}
            if record.steps and not {0, record.steps - 1} <= ends:
                unfair.append(f"{label(record)} has no trace of its whole schedule")
    shape = case.protocol.schedule
    fair = f"{shape.shape} after {shape.warmup:.0%} of warm-up, in every trace"
    yield from ruled("schedule", fair, unfair)


def device(case: Case) -> Iterator[Finding]:
    """One kind of device, the manifest's; everything that is timed, on one device."""
    unfair = [
        f"{label(record)} ran on {record.device}, the run is on {case.device}"
        for record in case.records
        if record.device != case.device and record.device.partition(":")[0] != case.device
    ]
    timed = sorted({record.device for record in (*case.of("timing"), *case.of("calibrate"))})
    if len(timed) > 1:
        unfair.append(f"timed on {' and '.join(timed)}")
    used = sorted({record.device for record in case.records})
    yield from ruled("device", ", ".join(used) or case.device, unfair)


def timing(case: Case) -> Iterator[Finding]:
    """Methods were timed in turn, alone: no other record ends between those of a batch."""
    windows = case.protocol.timing.windows
    unfair: list[str] = []
    warnings: list[str] = []
    resumed = any(key.startswith("timing-") for key in case.interrupted)
    told = warnings if resumed else unfair
    places = {id(record): place for place, record in enumerate(case.run.records)}
    for number, names in enumerate(case.batches):
        batch = [record for record in case.of("timing") if record.trial // windows == number]
        if not batch:
            continue
        first, last = places[id(batch[0])], places[id(batch[-1])]
        within = [r for r in case.run.records[first:last] if r.phase != "timing"]
        if within:
            told.append(f"{label(within[0])} ended while batch {number} was being timed")
        turns = [record.trial for record in batch]
        if turns != sorted(turns):
            told.append(f"methods did not alternate in batch {number}")
        count = {name: sum(r.optimizer == name for r in batch) for name in names}
        for name, have in count.items():
            if 0 < have < windows:
                text = f"{name} was timed {have} of {windows} times in batch {number}"
                (warnings if case.under_way else unfair).append(text)
    due = len(case.batches) * windows
    unfair += [f"{label(r)} was never due" for r in case.of("timing") if r.trial >= due]
    yield from ruled(
        "timing", f"{windows} windows a method, in turn, nothing beside", unfair, warnings
    )
