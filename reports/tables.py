"""What is ranked, as pandas frames: leaderboard, every final, pairs, tokens to the reference.

Pure functions of a `View`. Units are in the column names; an empty cell has its reason in the last
column, `missing`. `facts.py` holds the frames of what stands around the ranking.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from levelfield.bench import power, stats
from levelfield.bench.inference import Comparison
from levelfield.bench.metrics import perplexity
from levelfield.reports import measure, units
from levelfield.reports.eligible import dig
from levelfield.reports.frames import finite_or, frame, per_parameter
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, exact
from levelfield.reports.view import Method, View, statuses

if TYPE_CHECKING:
    from pandas import DataFrame


LEADERBOARD = (
    "place",
    "method",
    "family",
    "report_loss_median_nats",
    "report_loss_mean_nats",
    "interval_low_nats",
    "interval_high_nats",
    "studies",
    "good_finals",
    "finals",
    "loss_minus_floor_nats",
    "difference_to_baseline_nats",
    "difference_low_nats",
    "difference_high_nats",
    "tokens_to_reference",
    "tuning_gain_nats",
    "step_s",
    "step_time_ratio",
    "state_bytes",
    "state_bytes_per_parameter",
    "peak_bytes",
    "failures",
    "best_hparams",
    "at_edge",
    "unranked_because",
)


def leaderboard(view: View) -> DataFrame:
    """One row a method, sorted by median report loss; nats a token, t intervals at 95 %."""
    return frame(LEADERBOARD, [_leader(method, view) for method in view.methods])


def _leader(method: Method, view: View) -> dict[str, Any]:
    interval = method.interval
    few = Missing(few_finals(method))
    state, parameters = measure.state_bytes(method), measure.parameters(method)
    return {
        "place": method.rank or Missing(method.unranked or "not ranked"),
        "method": clean(method.name),
        "family": clean(method.spec.get("family") or "") or Missing("not in the manifest"),
        "report_loss_median_nats": finite_or(method.median, few_finals(method)),
        "report_loss_mean_nats": finite_or(stats.mean(method.units), few_finals(method)),
        "interval_low_nats": interval[0] if interval else few,
        "interval_high_nats": interval[1] if interval else few,
        "studies": len(method.study_values),
        "good_finals": len(method.losses),
        "finals": len(method.final),
        "loss_minus_floor_nats": _above_floor(method, view),
        **_difference(method, view),
        "tokens_to_reference": measure.tokens_to_reference(method, view),
        "tuning_gain_nats": measure.tuning_gain(method),
        "step_s": measure.step_s(method),
        "step_time_ratio": measure.step_ratio(method, view.method(view.reference)),
        "state_bytes": state,
        "state_bytes_per_parameter": per_parameter(state, parameters),
        "peak_bytes": measure.memory(method, "total"),
        "failures": failures_text(method),
        "best_hparams": hparams_text(method),
        "at_edge": "; ".join(f"{k}: {v}" for k, v in measure.edges(method).items()),
        "unranked_because": clean(method.unranked or ""),
    }


def few_finals(method: Method) -> str:
    """Why a mean, a median or an interval of the finals is not there."""
    if not method.final:
        return method.unranked if method.unranked and "final" in method.unranked else "no finals"
    return f"{len(method.good)} good of {len(method.final)} finals"


def _above_floor(method: Method, view: View) -> measure.Measured:
    floor = dig(view.manifest, "data", "floor_loss_nats")
    if not stats.finite(floor):
        return Missing("the data has no known floor")
    middle = finite_or(method.median, few_finals(method))
    return middle if isinstance(middle, Missing) else middle - floor


def _difference(method: Method, view: View) -> dict[str, Any]:
    names = ("difference_to_baseline_nats", "difference_low_nats", "difference_high_nats")
    if method.name == view.baseline:
        return dict.fromkeys(names, Missing("claims are made against this one"))
    pair = view.pair(method.name, view.baseline)
    if pair is None or pair.difference is None or pair.interval is None:
        reason = method.unranked or "fewer than two studies here or of the baseline"
        return dict.fromkeys(names, Missing(reason))
    return dict(zip(names, (pair.difference, *pair.interval), strict=True))


def failures_text(method: Method) -> str:
    """2 diverged, 1 oom of 8 trials; 1 diverged of 5 finals."""
    parts = []
    for records, noun in (
        (method.calibrate, "calibrations"),
        (method.tune, "trials"),
        (method.final, "finals"),
        (method.transfer, "transfers"),
        (method.sweep, "sweep trials"),
        (method.timing, "timings"),
    ):
        bad = {status: n for status, n in sorted(statuses(records).items()) if status != "ok"}
        if bad:
            words = ", ".join(f"{n} {status}" for status, n in bad.items())
            parts.append(f"{words} of {len(records)} {noun}")
    return "; ".join(parts)


def hparams_text(method: Method) -> str:
    """The tuned values of the finals, in full: lr=0.0031622776601683794, embed_multiplier=2.0."""
    return ", ".join(
        f"{clean(name)}={exact(method.hparams[name])}"
        for name in method.tuned
        if name in method.hparams
    )


FINALS = (
    "method",
    "number",
    "seed",
    "status",
    "report_loss_nats",
    "perplexity",
    "selection_loss_nats",
    "tokens",
    "steps",
    "passes",
    "reason",
)


def finals(view: View) -> DataFrame:
    """One row a final record, failed ones too."""
    return frame(
        FINALS,
        [
            {
                "method": clean(method.name),
                "number": record.trial,
                "seed": record.seed,
                "status": record.status,
                "report_loss_nats": finite_or(record.report_loss, record.status),
                "perplexity": finite_or(perplexity(record), record.status)
                if units.reads_tokens(view)
                else Missing("the report loss is not nats a token"),
                "selection_loss_nats": finite_or(record.selection_loss, record.status),
                "tokens": record.tokens,
                "steps": record.steps,
                "passes": record.passes,
                "reason": clean(record.reason or ""),
            }
            for method in view.methods
            for record in method.final
        ],
    )


PAIRS = (
    "method",
    "other",
    "studies",
    "difference_nats",
    "interval_low_nats",
    "interval_high_nats",
    "p",
    "p_holm",
    "better",
    "because",
)


def pairs(view: View) -> DataFrame:
    """Every pair of ranked methods: difference of the means over studies, method - other."""
    few = Missing("fewer than two studies, or no spread between them")
    return frame(
        PAIRS,
        [
            {
                "method": clean(pair.a),
                "other": clean(pair.b),
                "studies": min(pair.n_a, pair.n_b),
                "difference_nats": few if pair.difference is None else pair.difference,
                "interval_low_nats": pair.interval[0] if pair.interval else few,
                "interval_high_nats": pair.interval[1] if pair.interval else few,
                "p": few if pair.p is None else pair.p,
                "p_holm": few if pair.p_holm is None else pair.p_holm,
                "better": clean(view.family.verdict(pair)[0] or "not distinguishable"),
                "because": clean(view.family.verdict(pair)[1]),
            }
            for pair in view.pairs
        ],
    )


EQUIVALENCE = (
    "method",
    "difference_nats",
    "studies_needed",
    "tost_power",
    "tost_p",
    "verdict",
)


def equivalence(view: View) -> DataFrame:
    """Every ranked method against the baseline: studies that its difference needs, TOST."""
    margin = float(view.setting("margin_nats", default=0.01))
    pairs = [view.pair(m.name, view.baseline) for m in view.contenders if m.name != view.baseline]
    return frame(EQUIVALENCE, [_equivalence(view, pair, margin) for pair in pairs if pair])


def _equivalence(view: View, pair: Comparison, margin: float) -> dict[str, Any]:
    none = Missing(pair.reason or "no spread between studies")
    row: dict[str, Any] = {
        "method": clean(pair.a),
        "difference_nats": none if pair.difference is None else pair.difference,
        **dict.fromkeys(("studies_needed", "tost_power", "tost_p"), none),
        "verdict": "unknown",
    }
    if pair.difference is None or not pair.se:
        return row
    sd = pair.se / math.sqrt(1 / pair.n_a + 1 / pair.n_b)
    needed = power.needed(pair.difference, sd) if pair.difference else None
    found = power.tost(pair.difference, pair.se, pair.df, margin, alpha=view.family.alpha)
    better = view.family.verdict(pair)[0]
    verdict = f"{clean(better)} is better" if better else "not distinguishable"
    if found.equivalent:
        verdict += "; equivalent within the margin" if better else ", equivalent within the margin"
    return {
        **row,
        "studies_needed": needed if isinstance(needed, int) else _reason(needed),
        "tost_power": none if found.power is None else found.power,
        "tost_p": none if found.p is None else found.p,
        "verdict": verdict,
    }


def _reason(value: object) -> Missing:
    return Missing(getattr(value, "reason", "the difference is exactly zero"))


TARGET = (
    "method",
    "share_of_reference_horizon",
    "target_loss_nats",
    "tokens",
    "steps",
    "seconds",
    "share_of_horizon",
    "seeds_reached",
    "finals",
)


def tokens_to_targets(view: View) -> DataFrame:
    """Tokens, steps and seconds to the reference's loss at the shares of its horizon that the
    protocol declares, median over the finals; one row a method and a target."""
    rows = []
    for share, target in measure.target_losses(view).items():
        for method in view.methods:
            rows.append(_to_target(method, view, share, target))
    return frame(TARGET, rows)


def _to_target(
    method: Method, view: View, share: float, target: measure.Measured
) -> dict[str, Any]:
    found = measure.to_target(method, view, share, target)
    row: dict[str, Any] = {
        "method": clean(method.name),
        "share_of_reference_horizon": share,
        "target_loss_nats": target,
        "finals": len(method.final),
    }
    if isinstance(found, Missing):
        lost = dict.fromkeys(("tokens", "steps", "seconds", "share_of_horizon"), found)
        return {**row, **lost, "seeds_reached": _seeds_reached(method, target)}
    horizon, step_s = measure.horizon_tokens(view, method), measure.step_s(method)
    return {
        **row,
        "tokens": found.tokens,
        "steps": found.steps,
        "seconds": step_s if isinstance(step_s, Missing) else found.seconds,
        "share_of_horizon": found.tokens / horizon if horizon else Missing("no horizon is known"),
        "seeds_reached": found.reached,
    }


def _seeds_reached(method: Method, target: measure.Measured) -> int | Missing:
    if isinstance(target, Missing):
        return target
    found = (stats.tokens_to_target(measure.curve(r), target) for r in method.final)
    return sum(tokens is not None for tokens in found)
