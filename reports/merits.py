"""How hard a method is to tune, where its gain comes from, what it is made of: frames of a `View`.

The statistics are those of `bench.merit`, `bench.robustness` and `bench.frontier`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from levelfield.bench import frontier, merit, robustness
from levelfield.bench.samples import sample
from levelfield.bench.stats import Estimate
from levelfield.reports.frames import frame
from levelfield.reports.measure import Measured, Missing
from levelfield.reports.text import clean
from levelfield.reports.view import MEASURED, Method, View

if TYPE_CHECKING:
    from pandas import DataFrame

    from levelfield.bench.inference import Comparison

LADDER = ("adamw_lr", "adamw_split_lr", "adamw_split")
"""Rungs below a method's own update rule; `adamw` stands for the first where that did not run."""


def shown(value: float | Missing | None, otherwise: str = "unknown") -> Measured:
    """A statistic as a cell: the number, or the reason why there is none."""
    return Missing(otherwise) if value is None else value


def initial_loss(method: Method) -> float | None:
    """Selection loss before the first step, the same for every trial of a seed."""
    return next((r.initial_loss for r in method.tune if r.initial_loss is not None), None)


def sweep(method: Method) -> dict[float, float]:
    """Rate -> mean selection loss of the sweep; empty where there was none."""
    cap = initial_loss(method)
    if cap is None or not method.sweep:
        return {}
    return robustness.sweep_losses(method.sweep, method.scale, cap)


TUNABILITY = (
    "method",
    "tuning_gain_nats",
    "expected_best_of_1_nats",
    "expected_best_of_half_nats",
    "expected_best_of_half_low",
    "expected_best_of_half_high",
    "exchangeable_trials",
    "lr_sensitivity_nats",
    "basin_decades",
    "basin",
    "diverged_share",
    "diverged_high",
    "censored",
)


def tunability(view: View) -> DataFrame:
    """One row a method: what tuning was worth and how much its rate may be off."""
    return frame(TUNABILITY, [_tunability(method, view) for method in view.methods])


def _tunability(method: Method, view: View) -> dict[str, Any]:
    cap = initial_loss(method)
    losses = _exchangeable(method, view, cap)
    swept = sweep(method)
    none = Missing("no sweep was run") if not method.sweep else Missing("no rate ended well")
    basin = robustness.basin(swept) if swept else none
    rate = robustness.divergence_rate((*method.tune, *method.final, *method.sweep))
    first: Measured
    half: Measured
    gain: Measured
    band: tuple[Measured, Measured]
    if isinstance(losses, Missing):
        first = half = gain = losses
        band = (losses, losses)
    else:
        first = shown(merit.expected_best(losses, 1))
        half = shown(merit.expected_best(losses, max(1, len(losses) // 2)))
        band = _band(losses, max(1, len(losses) // 2))
        gain = shown(merit.tuning_gain(losses))
    sensitivity = robustness.lr_sensitivity(swept, cap) if swept and cap is not None else None
    wide = basin if isinstance(basin, robustness.Basin) else None
    return {
        "method": clean(method.name),
        "tuning_gain_nats": gain,
        "expected_best_of_1_nats": first,
        "expected_best_of_half_nats": half,
        "expected_best_of_half_low": band[0],
        "expected_best_of_half_high": band[1],
        "exchangeable_trials": 0 if isinstance(losses, Missing) else len(losses),
        "lr_sensitivity_nats": shown(sensitivity, none.reason),
        "basin_decades": wide.decades if wide else Missing(getattr(basin, "reason", none.reason)),
        "basin": str(wide) if wide else "",
        "diverged_share": rate.value if isinstance(rate, Estimate) else Missing(rate.reason),
        "diverged_high": rate.high if isinstance(rate, Estimate) else Missing(rate.reason),
        "censored": ", ".join(f"{name} ({side})" for name, side in method.censored.items()),
    }


def _band(losses: list[float], k: int) -> tuple[Measured, Measured]:
    """The bootstrap band of the expected best of k trials."""
    curve = merit.expected_best_curve(losses)
    if isinstance(curve, Missing):
        return curve, curve
    none = Missing(curve[k - 1].note or "no band")
    low, high = curve[k - 1].low, curve[k - 1].high
    return (none if low is None else low, none if high is None else high)


def _exchangeable(method: Method, view: View, cap: float | None) -> list[float] | Missing:
    """Losses of the first study's trials that were drawn alike."""
    if cap is None or not method.first_study:
        return Missing("no tuning trials")
    space = method.spec.get("space") or {}
    kept = merit.exchangeable(
        method.first_study,
        kind=str(view.setting("tuner", "kind", default="bracket")),
        scale=method.scale,
        defaults={name: dim.get("default") for name, dim in space.items()},
        factor=float(view.setting("tuner", "factor", default=10**0.5)),
        reserve=int(view.setting("tuner", "reserve", default=0)),
        trials=int(view.setting("budget", "trials", default=len(method.first_study))),
    )
    if isinstance(kept, Missing):
        return kept
    if len(kept) < 2:
        return Missing("fewer than two exchangeable trials")
    return merit.trial_losses(kept, cap)


GAINS = ("method", "rung", "from", "step", "gain_nats", "gain_low_nats", "gain_high_nats", "p_holm")


def gains(view: View) -> DataFrame:
    """The ladder of every method that has its rungs in this run, one row a rung."""
    rows: list[dict[str, Any]] = []
    for method in view.methods:
        rungs = ladder(method, view)
        if len(rungs) < 2 or method.name in LADDER or method.name == "adamw":
            continue
        for (lower, upper), step in zip(itertools.pairwise(rungs), steps(rungs, view), strict=True):
            rows.append(_rung(method, step, added(upper, lower)))
    return frame(GAINS, rows)


def ladder(method: Method, view: View) -> list[Method]:
    """AdamW, its split rates, its beta2, the update rule, the compression: those that ran."""
    first = "adamw_lr" if view.method("adamw_lr") else "adamw"
    names = [first, *LADDER[1:]]
    parent = method.spec.get("parent")
    if parent and parent not in names:
        names.append(str(parent))
    found = [view.method(name) for name in [*names, method.name]]
    kept = [item for item in found if item is not None and item.study_values]
    return list({item.name: item for item in kept}.values())


def steps(rungs: list[Method], view: View) -> tuple[Comparison, ...]:
    """Differences between consecutive rungs, Holm over the steps of the ladder."""
    studies = int(view.setting("budget", "studies", default=1))
    samples = [sample(m.name, m.final, studies, bool(m.censored)) for m in rungs]
    return frontier.gain_ladder(samples)


def added(upper: Method, lower: Method) -> str:
    """What a rung adds, read off the two specs: a tuned dimension, a compression, or the rule."""
    parent = upper.spec.get("parent")
    if parent and parent == lower.name:
        return "its compression"
    if upper.spec.get("paper") == lower.spec.get("paper"):
        new = [name for name in upper.spec.get("space") or () if name not in lower.spec["space"]]
        if new:
            return f"{', '.join(map(clean, new))} tuned"
    return "its update rule"


def _rung(method: Method, step: Comparison, word: str) -> dict[str, Any]:
    none = Missing(step.reason or "fewer than two studies on a side")
    low_high = step.interval
    return {
        "method": clean(method.name),
        "rung": clean(step.a),
        "from": clean(step.b),
        "step": word,
        "gain_nats": none if step.difference is None else -step.difference,
        "gain_low_nats": -low_high[1] if low_high else none,
        "gain_high_nats": -low_high[0] if low_high else none,
        "p_holm": none if step.p_holm is None else step.p_holm,
    }


TRANSFER = ("method", "tuned_here_nats", "untuned_nats", "transfer_loss_nats", "seeds")


def transfer(view: View) -> DataFrame:
    """Report loss at another run's best points beside the loss when tuned here, same seeds."""
    rows = []
    for method in view.methods:
        if not method.transfer:
            continue
        moved = {r.seed: r.report_loss for r in method.transfer if r.status in MEASURED}
        shared = [(moved[s], own) for s, own in method.losses.items() if moved.get(s) is not None]
        none = Missing("no seed ended well both ways")
        here = sum(own for _, own in shared) / len(shared) if shared else none
        there = sum(float(m or 0.0) for m, _ in shared) / len(shared) if shared else none
        loss = there - here if isinstance(there, float) and isinstance(here, float) else none
        rows.append(
            {
                "method": clean(method.name),
                "tuned_here_nats": here,
                "untuned_nats": there,
                "transfer_loss_nats": loss,
                "seeds": len(shared),
            }
        )
    return frame(TRANSFER, rows)


def _most(method: Method, name: str) -> Measured:
    """The largest value of a record's field over the good finals."""
    values = [getattr(record, name) for record in method.good]
    known = [float(value) for value in values if value is not None]
    return max(known) if known else Missing("not recorded")


COMPLEXITY = (
    "method",
    "tuned",
    "fixed",
    "state_bytes_per_parameter",
    "state_tensors",
    "passes_a_step",
    "host_reads_a_step",
    "takes",
    "cannot",
    "needs",
    "implementation",
)


def complexity(view: View) -> DataFrame:
    """What a method is made of, from its record and its measurements."""
    rows = []
    for method in view.methods:
        spec = method.spec
        passes = [r.passes / r.steps for r in method.final if r.steps]
        state = [r.state_bytes / r.parameters for r in method.good
                 if r.state_bytes is not None and r.parameters]  # fmt: skip
        rows.append(
            {
                "method": clean(method.name),
                "tuned": len(spec.get("space") or ()),
                "fixed": len(spec.get("fixed") or ()),
                "state_bytes_per_parameter": max(state) if state else Missing("no good final"),
                "state_tensors": _most(method, "state_tensors"),
                "host_reads_a_step": _most(method, "host_reads"),
                "passes_a_step": max(passes) if passes else Missing("no final"),
                "takes": ", ".join(spec.get("roles") or ()),
                "cannot": ", ".join(spec.get("cannot") or ()),
                "needs": ", ".join(spec.get("requires") or ()),
                "implementation": clean(spec.get("implementation") or ""),
            }
        )
    return frame(COMPLEXITY, rows)
