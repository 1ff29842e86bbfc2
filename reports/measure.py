"""What a method's records amount to: a number, or why there is none.

Only `timing` records speak of time, only `final` ones of the report loss, only `tune` ones of
tuning. A missing number is a `Missing` with its reason and never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from levelfield.bench import merit, stats
from levelfield.bench.metrics import step_s as record_step_s
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Missing as Missing
from levelfield.bench.stats import known as known
from levelfield.reports.eligible import dig
from levelfield.reports.text import clean
from levelfield.reports.view import MEASURED, Method, View, statuses

Measured = float | Missing

KINDS = ("weights", "gradients", "state", "activations", "temporary")
"""Parts of the peak, in the order of a stacked bar."""


def _given(value: float | None, otherwise: str) -> Measured:
    return Missing(otherwise) if value is None else value


# --- time: timing records only ----------------------------------------------------------------


def step_s(method: Method) -> Measured:
    """Median over repetitions of the median window, seconds a step."""
    by_repetition = _repetitions(method)
    if not by_repetition:
        return Missing(_no_timing(method))
    return _given(stats.median(by_repetition.values()), _no_timing(method))


def step_ratio(method: Method, reference: Method | None) -> Measured:
    """Step time over the reference's: median over the repetitions that both finished."""
    if reference is None:
        return Missing("the reference method is not part of this run")
    mine, theirs = _repetitions(method), _repetitions(reference)
    shared = [mine[n] / theirs[n] for n in sorted(set(mine) & set(theirs)) if theirs[n] > 0]
    if shared:
        return _given(stats.median(shared), _no_timing(method))
    if not mine:
        return Missing(_no_timing(method))
    return Missing("no timing repetition in common with the reference")


def _repetitions(method: Method) -> dict[int, float]:
    pairs = ((record.trial, record_step_s(record)) for record in method.timing)
    return {trial: value for trial, value in pairs if value is not None and math.isfinite(value)}


def _no_timing(method: Method) -> str:
    if not method.timing:
        return "no timing records"
    failed = next((r for r in method.timing if r.status != "ok"), None)
    if failed is None:
        return "the timing records hold no windows"
    return f"timing {failed.status}: {clean(failed.reason or 'no reason given')}"


# --- memory -----------------------------------------------------------------------------------


def memory(method: Method, kind: str) -> Measured:
    """Largest peak of one kind over the good finals (else the timing records), bytes."""
    return _largest(method, lambda record: record.peak_bytes.get(kind), f"peak_bytes.{kind}")


def state_bytes(method: Method) -> Measured:
    """Largest measured optimizer state over the good finals (else the timing records), bytes."""
    return _largest(method, lambda record: record.state_bytes, "state_bytes")


def parameters(method: Method) -> Measured:
    """Trainable parameters."""
    return _largest(method, lambda record: record.parameters, "parameters")


def _largest(method: Method, read: Callable[[TrialRecord], float | None], name: str) -> Measured:
    for records in (method.good, method.timing):
        values = [float(v) for v in map(read, records) if v is not None and stats.finite(v)]
        if values:
            return max(values)
    return Missing(why_missing((*method.good, *method.timing), name))


def why_missing(records: Iterable[TrialRecord], name: str) -> str:
    """The reason that a record gives for a measurement, or that there is none."""
    seen = False
    for record in records:
        seen = True
        reason = record.missing.get(name) or record.missing.get(name.split(".")[0])
        if reason:
            return clean(reason)
    return "not recorded, no reason given" if seen else "no good final and no timing record"


# --- tuning -----------------------------------------------------------------------------------


def tuning_gain(method: Method) -> Measured:
    """Selection loss at the paper's defaults (trial 0) minus the best trial's, nats."""
    first = next((record for record in method.first_study if record.trial == 0), None)
    if first is None:
        return Missing("no trial 0 at the paper's defaults")
    if first.status not in MEASURED or first.selection_loss is None:
        return Missing(f"the paper's defaults: {first.status}")
    best = method.best
    if best is None or best.selection_loss is None or not stats.finite(first.selection_loss):
        return Missing("no good tuning trial")
    return first.selection_loss - best.selection_loss


def edges(method: Method) -> dict[str, str]:
    """Tuned dimension -> in words, why its best value may not be a minimum.

    The scale is judged by what was tried: its best value is at an edge if no trial lay beyond.
    Where all trials beyond failed, the range was not cut short: the method's stability ends it.
    """
    best = method.best
    if best is None:
        return {}
    found: dict[str, str] = {}
    for name in best.tuned:
        value = best.hparams.get(name)
        if not isinstance(value, int | float) or not stats.finite(value):
            continue
        if name == method.scale:
            verdict = _scale_edge(method, name, float(value))
        else:
            dim = dig(method.spec, "space", name)
            side = stats.dim_edge(dim, float(value)) if dim else None
            verdict = side and f"in the outer tenth of its range ({side} end)"
        if verdict:
            found[name] = verdict
    return found


def _scale_edge(method: Method, name: str, value: float) -> str | None:
    tried = [(float(r.hparams[name]), r.status) for r in method.first_study if name in r.hparams]
    good = [tried_value for tried_value, status in tried if status in MEASURED]
    if len(set(good)) < 2:
        return "the only value that ran well"
    for side, beyond in (
        ("lowest", [status for v, status in tried if v < value]),
        ("highest", [status for v, status in tried if v > value]),
    ):
        if value != (min(good) if side == "lowest" else max(good)):
            continue
        if not beyond:
            return f"the {side} value tried"
        return f"the {side} value that ran well; beyond it: {', '.join(sorted(set(beyond)))}"
    return None


# --- tokens to the reference's loss -----------------------------------------------------------


def target_losses(view: View) -> dict[float, Measured]:
    """Share of the horizon -> the reference's loss there: the median over its finals, nats.

    The shares are the protocol's `targets`, and 1 beside them.
    """
    shares = sorted({1.0, *map(float, view.setting("targets", default=()) or ())})
    reference = view.method(view.reference)
    horizon = horizon_tokens(view)
    if reference is None or not reference.good:
        none = Missing(f"no good final of the reference, {clean(view.reference)}")
        return dict.fromkeys(shares, none)
    if horizon is None:
        return dict.fromkeys(shares, Missing("the protocol is not known"))
    return dict(merit.targets([curve(r) for r in reference.final], shares, horizon))


def curve(record: TrialRecord) -> Sequence[Sequence[float]]:
    """A final's curve; an empty one for a final that failed, which reaches nothing."""
    return record.curve if record.status == "ok" else ()


def target_loss(view: View) -> Measured:
    """The reference's loss at the end of its horizon, nats."""
    return target_losses(view)[1.0]


def to_target(
    method: Method, view: View, share: float, target: Measured
) -> merit.Reached | Missing:
    """What a method spends until `target`, the reference's loss at this share of the horizon."""
    if isinstance(target, Missing):
        return target
    if method.name == view.reference and share == 1.0:
        return Missing("this is the reference: its whole horizon, by definition")
    if not method.final:
        return Missing("no final records")
    per_step = (view.setting("data", "batch") or 0) * (view.setting("data", "sequence") or 0)
    curves = [curve(record) for record in method.final]
    return merit.to_target(curves, target, per_step, known(step_s(method)))


def tokens_to_reference(method: Method, view: View) -> Measured:
    """Median over the finals of tokens to the reference's loss; a seed never there is inf."""
    found = to_target(method, view, 1.0, target_loss(view))
    return found if isinstance(found, Missing) else found.tokens


def horizon_steps(view: View, method: Method | None = None) -> float | None:
    """Steps of one trial: the method's own where a budget was turned into steps, else the
    protocol's. Without a method, the reference's."""
    name = method.name if method is not None else view.reference
    own = dig(view.manifest, "horizons", name)
    steps = own if stats.finite(own) else view.setting("budget", "steps")
    return float(steps) if stats.finite(steps) else None


def horizon_tokens(view: View, method: Method | None = None) -> float | None:
    """Training tokens of one trial."""
    parts = [
        horizon_steps(view, method),
        view.setting("data", "batch"),
        view.setting("data", "sequence"),
    ]
    numbers = [float(part) for part in parts if part is not None and stats.finite(part)]
    return math.prod(numbers) if len(numbers) == len(parts) else None


# --- stability --------------------------------------------------------------------------------


def rate(records: Sequence[TrialRecord], status: str) -> Measured:
    """Share of `records` with a status."""
    if not records:
        return Missing("no records")
    return statuses(records)[status] / len(records)


def over_finals(method: Method, name: str) -> Measured:
    """Largest value of a record's field (spikes, max_grad_norm) over the finals."""
    values = [getattr(record, name) for record in method.final]
    numbers = [float(value) for value in values if value is not None and stats.finite(value)]
    return max(numbers) if numbers else Missing(why_missing(method.final, name))


# --- one number for memory, the same for all --------------------------------------------------


def total_measure(view: View) -> tuple[str, Callable[[Method], Measured]]:
    """What "memory" means on this page: the first measure that every ranked method has."""
    candidates: tuple[tuple[str, Callable[[Method], Measured]], ...] = (
        ("peak of all kinds", lambda method: memory(method, "total")),
        ("weights + gradients + state, each at its peak", _accounted),
    )
    methods = view.contenders or view.methods
    for label, measure in candidates:
        if all(known(measure(method)) is not None for method in methods):
            return label, measure
    return "optimizer state", state_bytes


def _accounted(method: Method) -> Measured:
    parts = [memory(method, kind) for kind in KINDS[:3]]
    missing = next((part for part in parts if isinstance(part, Missing)), None)
    return missing or math.fsum(part for part in parts if not isinstance(part, Missing))


def dominated_by(view: View) -> dict[str, list[str]]:
    """Ranked method -> methods that dominate it over loss, memory and, where timed, seconds.

    Dominance needs a loss interval that lies apart and no more bytes and seconds; the Pareto set
    is every method with an empty list.
    """
    from levelfield.bench.frontier import dominated_by as dominated

    _, amount = total_measure(view)
    timed = all(known(step_s(method)) is not None for method in view.contenders)
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for method in view.contenders:
        used, interval = known(amount(method)), method.interval
        if used is None or interval is None:
            continue
        rows[method.name] = {"loss": interval, "bytes": (used, used)}
        if timed:
            rows[method.name]["seconds"] = _spread(_repetitions(method))
    return dominated(rows)


def _spread(repetitions: dict[int, float]) -> tuple[float, float]:
    """Fastest and slowest repetition: times that overlap are not apart."""
    return min(repetitions.values()), max(repetitions.values())
