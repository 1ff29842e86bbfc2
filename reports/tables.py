"""What is ranked, as pandas frames: leaderboard, every final, pairs, tokens to the reference.

Pure functions of a `View`. Units are in the column names; an empty cell has its reason in the last
column, `missing`. `facts.py` holds the frames of what stands around the ranking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from levelfield.bench import stats
from levelfield.bench.metrics import perplexity
from levelfield.reports import measure
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
    "good_finals",
    "finals",
    "loss_minus_floor_nats",
    "difference_to_reference_nats",
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
    losses = list(method.losses.values())
    interval = stats.t_interval(losses)
    few = Missing(few_finals(method))
    state, parameters = measure.state_bytes(method), measure.parameters(method)
    return {
        "place": method.rank or Missing(method.unranked or "not ranked"),
        "method": clean(method.name),
        "family": clean(method.spec.get("family") or "") or Missing("not in the manifest"),
        "report_loss_median_nats": finite_or(method.median, few_finals(method)),
        "report_loss_mean_nats": finite_or(stats.mean(losses), few_finals(method)),
        "interval_low_nats": interval[0] if interval else few,
        "interval_high_nats": interval[1] if interval else few,
        "good_finals": len(losses),
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
    names = ("difference_to_reference_nats", "difference_low_nats", "difference_high_nats")
    if method.name == view.reference:
        return dict.fromkeys(names, Missing("this is the reference"))
    pair = view.pair(method.name, view.reference)
    if pair is None or pair.difference is None or pair.interval is None:
        reason = method.unranked or "fewer than two seeds in common with the reference"
        return dict.fromkeys(names, Missing(reason))
    return dict(zip(names, (pair.difference, *pair.interval), strict=True))


def failures_text(method: Method) -> str:
    """2 diverged, 1 oom of 8 trials; 1 diverged of 5 finals."""
    parts = []
    for records, noun in (
        (method.tune, "trials"),
        (method.final, "finals"),
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
                "perplexity": finite_or(perplexity(record), record.status),
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
    "shared_seeds",
    "difference_nats",
    "interval_low_nats",
    "interval_high_nats",
    "p",
    "p_holm",
    "better",
)


def pairs(view: View) -> DataFrame:
    """Every pair of ranked methods: mean difference method - other over the shared seeds."""
    few = Missing("fewer than two seeds in common")
    return frame(
        PAIRS,
        [
            {
                "method": clean(pair.a),
                "other": clean(pair.b),
                "shared_seeds": pair.n,
                "difference_nats": few if pair.difference is None else pair.difference,
                "interval_low_nats": pair.interval[0] if pair.interval else few,
                "interval_high_nats": pair.interval[1] if pair.interval else few,
                "p": few if pair.p is None else pair.p,
                "p_holm": few if pair.p_holm is None else pair.p_holm,
                "better": clean(pair.winner() or "not distinguishable"),
            }
            for pair in view.pairs
        ],
    )


TARGET = (
    "method",
    "target_loss_nats",
    "tokens",
    "steps",
    "share_of_horizon",
    "seeds_reached",
    "finals",
)


def tokens_to_reference(view: View) -> DataFrame:
    """Tokens and steps to the reference's final loss, median over the finals."""
    target = measure.target_loss(view)
    horizon = measure.horizon_tokens(view)
    per_step = (view.setting("data", "batch") or 0) * (view.setting("data", "sequence") or 0)
    rows = []
    for method in view.methods:
        tokens = measure.tokens_to_reference(method, view)
        lost = tokens if isinstance(tokens, Missing) else Missing("the protocol is not known")
        number = measure.known(tokens)
        rows.append(
            {
                "method": clean(method.name),
                "target_loss_nats": target,
                "tokens": tokens,
                "steps": number / per_step if number is not None and per_step else lost,
                "share_of_horizon": number / horizon if number is not None and horizon else lost,
                "seeds_reached": _reached(method, measure.known(target)),
                "finals": len(method.final),
            }
        )
    return frame(TARGET, rows)


def _reached(method: Method, target: float | None) -> int:
    if target is None:
        return 0
    found = (stats.tokens_to_target(record.curve, target) for record in method.good)
    return sum(tokens is not None for tokens in found)
