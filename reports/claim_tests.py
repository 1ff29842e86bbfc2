"""The tests of one method against another that claims share, all of them sampled.

Each reads methods, direction and size off the claim. Losses and scores go over tuning studies with
what bars a claim elsewhere on the page, step times over repetitions that both methods finished,
steps to a loss study by study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from levelfield.bench import merit, stats
from levelfield.bench.inference import Comparison, compare
from levelfield.bench.metrics import step_s
from levelfield.bench.samples import Sample
from levelfield.bench.stats import Missing
from levelfield.reports import measure
from levelfield.reports.claim_parts import (
    NATS,
    POINTS,
    SAVED,
    Absent,
    Finding,
    Part,
    Unit,
    Withheld,
)
from levelfield.reports.claim_weigh import evidence, sampled, within
from levelfield.reports.text import clean
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from levelfield.reports.claims import Claim


def subject(claim: Claim, view: View) -> Method:
    """The method that the claim is about."""
    mine = view.method(claim.methods[0])
    assert mine is not None
    return mine


def pair(claim: Claim, view: View) -> tuple[Method, Method]:
    """The claim's method and the one it is held against; `judge` has seen to it that both ran."""
    theirs = view.method(claim.against)
    assert theirs is not None
    return subject(claim, view), theirs


def against_zero(name: str, values: Mapping[int, float], reason: str = "") -> Comparison:
    """Values that are differences already, over studies: Student's t of their mean.

    Args:
        reason: why there are none.
    """
    zero = Sample(name="0", values=dict.fromkeys(values, 0.0))
    item = compare(Sample(name=name, values=values), zero, test="paired")
    return replace(item, reason=reason) if reason else item


# --- loss and score ---------------------------------------------------------------------------


def loss_unit(view: View) -> Unit:
    """Nats a token, or points of error where the task names a metric."""
    return POINTS if view.setting("task", "metric") else NATS


def compare_losses(claim: Claim, view: View) -> Comparison:
    """Mean report loss over studies, the other's less the method's own."""
    mine, theirs = pair(claim, view)
    samples = view.family.samples
    return compare(samples[theirs.name], samples[mine.name], test=view.family.test)


def loss_part(claim: Claim, view: View, size: float | None) -> Part | Missing:
    """The difference in loss, with everything that bars a claim elsewhere on the page."""
    item = compare_losses(claim, view)
    # At p = 0 only what does not depend on p is left: the A/A margin, censored and failed studies.
    winner, reason = view.family.verdict(replace(item, p_holm=0.0))
    margin = view.family.margin
    return sampled(
        "score" if loss_unit(view) is POINTS else "loss",
        item,
        claim.direction,
        loss_unit(view),
        size=size,
        margin=0.0 if isinstance(margin, Missing) else margin,
        bar="" if winner else reason,
    )


def better(claim: Claim, view: View) -> Finding:
    """The method's loss (or error) lies on the claimed side of the other's."""
    return evidence(loss_part(claim, view, claim.size))


def no_worse_part(claim: Claim, view: View) -> Part | Missing:
    """Not worse than the other by more than the claim's size, or else the protocol's margin."""
    return within(
        "loss",
        compare_losses(claim, view),
        loss_unit(view),
        claim.size if claim.size is not None else protocol_margin(view),
        sides="worse",
        bar=failures(view, claim.methods[0]),
    )


def failures(view: View, *names: str) -> str:
    """Why means that leave failed finals out are not called equal."""
    samples = [view.family.samples[name] for name in names]
    lost = [clean(s.name) for s in samples if s.failed or s.lost]
    return f"{lost[0]} has failed finals, which its mean leaves out" if lost else ""


def protocol_margin(view: View) -> float:
    """The equivalence margin that the protocol declares, in the unit of its losses."""
    return float(view.setting("margin_nats", default=0.01))


def transfers(claim: Claim, view: View) -> Finding:
    """Finals at another run's best points are no worse than finals tuned here, by the margin."""
    method = subject(claim, view)
    if not method.transfer:
        return Absent("no finals at another run's best points (run --tuned-from)")
    source = (view.manifest.get("transfer") or {}).get("protocol")
    if source == view.setting("name"):
        return Withheld("the points were tuned in the same protocol: no other text")
    by_study: dict[int, list[float]] = {}
    for record in method.transfer:
        own = method.losses.get(record.seed)
        moved = record.report_loss if record.status in ("ok", "undertrained") else None
        if own is None or moved is None or not stats.finite(moved):
            return Withheld("a final or a transferred one has no loss")
        by_study.setdefault(record.study, []).append(own - moved)
    values = {study: math.fsum(v) / len(v) for study, v in by_study.items()}
    if len(values) < 3:
        return Withheld(f"{len(values)} of the 3 studies that a claim needs")
    part = within(
        "untuned", against_zero(method.name, values), loss_unit(view), protocol_margin(view),
        sides="worse",
    )  # fmt: skip
    note = f"points tuned in {clean(source)}; that its text is of another language is not recorded"
    return evidence(part, note=note)


# --- seconds and steps ------------------------------------------------------------------------


def time_comparison(mine: Method, theirs: Method) -> Comparison:
    """log step time over repetitions that both finished, theirs - mine."""
    sides = [
        Sample(
            name=method.name,
            values={
                r.trial: math.log(seconds)
                for r in method.timing
                if (seconds := step_s(r)) is not None and seconds > 0
            },
        )
        for method in (theirs, mine)
    ]
    shared = sides[0].values.keys() & sides[1].values.keys()
    if len(shared) < 2:
        return against_zero(mine.name, {}, "fewer than two timing repetitions that both finished")
    return compare(*sides, test="paired")


def saved(claim: Claim) -> float | None:
    """The claimed share of the other's amount as log(theirs / mine)."""
    return None if claim.size is None else -math.log1p(-claim.size)


def less_time(claim: Claim, view: View) -> Finding:
    """Seconds a step; the size is the share of the other's time that is saved."""
    item = time_comparison(*pair(claim, view))
    return evidence(sampled("step time", item, claim.direction, SAVED, size=saved(claim)))


def steps_comparison(view: View, mine: Method, theirs: Method) -> Comparison:
    """log(steps of theirs / steps of mine) to a loss that one of them ends at, over studies.

    Study by study: tokens of mine to the median last loss of theirs, as a share of its horizon,
    and tokens of theirs to the median last loss of mine; a final that never gets there counts as
    the whole horizon. The value is the difference of the mean logs: 0 where neither is sooner.
    """
    horizon = measure.horizon_tokens(view, theirs)
    if horizon is None:
        return against_zero(mine.name, {}, "no horizon is known")
    values = {}
    for study in sorted(mine.study_values.keys() & theirs.study_values.keys()):
        ours = [measure.curve(r) for r in mine.final if r.study == study]
        others = [measure.curve(r) for r in theirs.final if r.study == study]
        values[study] = _log_share(ours, others, horizon) - _log_share(others, ours, horizon)
    return against_zero(mine.name, values).turned()


def _log_share(
    runners: Sequence[merit.Curve], setters: Sequence[merit.Curve], horizon: float
) -> float:
    """Mean log of the share of the horizon that `runners` need to the median last loss of
    `setters`; 0 for those that do not get there."""
    ends = [float(curve[-1][-1]) if curve else math.inf for curve in setters]
    target = stats.median(ends)
    found = [None if target is None else stats.tokens_to_target(curve, target) for curve in runners]
    logs = [0.0 if tokens is None else math.log(min(1.0, tokens / horizon)) for tokens in found]
    return math.fsum(logs) / len(logs)


def fewer_steps(claim: Claim, view: View) -> Finding:
    """Steps to the other's last loss."""
    item = steps_comparison(view, *pair(claim, view))
    return evidence(sampled("steps", item, claim.direction, SAVED, size=saved(claim)))


def sooner(claim: Claim, view: View) -> Finding:
    """Seconds to the other's last loss: steps times step time."""
    item = added(steps_comparison(view, *pair(claim, view)), time_comparison(*pair(claim, view)))
    return evidence(sampled("seconds", item, claim.direction, SAVED, size=saved(claim)))


def added(one: Comparison, other: Comparison) -> Comparison:
    """The sum of two independent differences, Welch-Satterthwaite degrees of freedom."""
    parts = [(c.difference, c.se, c.df) for c in (one, other)]
    if any(d is None or se is None or df is None for d, se, df in parts):
        return replace(one, difference=None, p=None, reason=one.reason or other.reason)
    known = [(float(d or 0), float(se or 0), float(df or 0)) for d, se, df in parts]
    difference = math.fsum(d for d, _, _ in known)
    square = math.fsum(se**2 for _, se, _ in known)
    if square == 0:
        return replace(one, difference=difference, se=0.0, p=None, reason="no spread to test with")
    from scipy.stats import t

    se, df = math.sqrt(square), square**2 / math.fsum(s**4 / f for _, s, f in known if s)
    reach = float(t.ppf(0.975, df)) * se
    return replace(
        one, difference=difference, interval=(difference - reach, difference + reach), se=se, df=df,
        p=float(2 * t.sf(abs(difference) / se, df)),
    )  # fmt: skip
