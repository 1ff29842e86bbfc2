"""Tests of claims about families of methods: every ranked method of one against the baseline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from levelfield.bench.inference import compare
from levelfield.bench.metrics import step_s
from levelfield.bench.robustness import Basin, basin
from levelfield.bench.samples import Sample
from levelfield.bench.stats import Missing
from levelfield.reports import measure, merits
from levelfield.reports.claim_parts import (
    ADDED,
    DECADES,
    SAVED,
    SHARE,
    Absent,
    Finding,
    Part,
    Withheld,
)
from levelfield.reports.claim_tests import steps_comparison, time_comparison
from levelfield.reports.claim_weigh import evidence, sampled, settled
from levelfield.reports.text import clean, listed
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from levelfield.reports.claims import Claim


def members(view: View, family: str) -> list[Method]:
    """Ranked methods of a family, but the baseline."""
    return [
        m for m in view.contenders if m.spec.get("family") == family and m.name != view.baseline
    ]


def fewer_longer_steps(claim: Claim, view: View) -> Finding:
    """Every method of the family takes fewer steps than the baseline, and longer ones."""
    found, base = members(view, claim.families[0]), view.method(view.baseline)
    if not found:
        return Absent(f"no ranked {claim.families[0]} method")
    if base is None or base.rank is None:
        return Withheld(f"{clean(view.baseline)} has no place")
    parts: list[Part | Missing] = []
    for method in found:
        name = clean(method.name)
        parts.append(
            sampled(f"{name}: steps", steps_comparison(view, method, base), "lower", SAVED)
        )
        parts.append(sampled("step time", time_comparison(method, base), "higher", ADDED))
    return evidence(*parts, note=f"against {clean(view.baseline)}")


def narrower_basin(claim: Claim, view: View) -> Finding:
    """Decades of rate within 0.01 nats of the best, one family against another.

    The method is the unit: there is one sweep of each. A basin that reaches the end of its sweep
    has no width and is left out.
    """
    widths: list[dict[int, float]] = []
    for family in claim.families:
        named = [m for m in view.contenders if m.spec.get("family") == family]
        swept = [m for m in named if m.sweep]
        if not swept:
            return Absent(f"no sweep of a ranked {family} method")
        basins = [basin(merits.sweep(m)) for m in swept]
        closed = [b for b in basins if isinstance(b, Basin) and not (b.open_low or b.open_high)]
        widths.append({i: b.decades for i, b in enumerate(closed)})
    mine, theirs = widths
    if min(len(mine), len(theirs)) < 2:
        return Withheld("fewer than two methods of a family with a basin that ends in its sweep")
    item = compare(
        Sample(name=claim.families[1], values=theirs), Sample(name=claim.families[0], values=mine)
    )
    note = f"{len(mine)} {claim.families[0]} and {len(theirs)} {claim.families[1]} methods"
    return evidence(sampled("basin", item, claim.direction, DECADES, size=claim.size), note=note)


def steadier(claim: Claim, view: View) -> Finding:
    """Share of a study's runs, tuning and finals, that diverged or had a spike."""
    found, base = members(view, claim.families[0]), view.method(view.baseline)
    if not found:
        return Absent(f"no ranked {claim.families[0]} method")
    if base is None or base.rank is None:
        return Withheld(f"{clean(view.baseline)} has no place")
    theirs = _unsteady(base)
    shares = {method.name: _unsteady(method) for method in found}
    if not any(any(values.values()) for values in (theirs, *shares.values())):
        return Withheld("no run of either diverged or had a spike, so there is nothing to compare")
    parts = [
        sampled(
            clean(name),
            compare(Sample(name=base.name, values=theirs), Sample(name=name, values=values)),
            claim.direction,
            SHARE,
        )
        for name, values in shares.items()
    ]
    return evidence(*parts, note=f"runs that diverged or had a spike, against {clean(base.name)}")


def _unsteady(method: Method) -> dict[int, float]:
    """Study -> share of its runs that left the road."""
    by_study: dict[int, list[bool]] = {}
    for record in (*method.tune, *method.final):
        if record.status in ("ok", "undertrained", "diverged"):
            rough = record.status == "diverged" or bool(record.spikes)
            by_study.setdefault(record.study, []).append(rough)
    return {study: sum(values) / len(values) for study, values in by_study.items()}


def no_single_winner(claim: Claim, view: View) -> Finding:
    """For every ranked method another one is shown to be better in loss, memory or time.

    By the page's own tests: Holm over all pairs, bytes as counted, times that do not overlap.
    """
    ranked = view.contenders
    if len(ranked) < 3:
        return Absent(f"{len(ranked)} of the three ranked methods that it takes")
    unbeaten = [m for m in ranked if not any(_beats(view, other, m) for other in ranked)]
    winner = next(
        (m for m in unbeaten
         if all(view.winner(m.name, o.name) == m.name for o in ranked if o is not m)),
        None,
    )  # fmt: skip
    best = clean(ranked[0].name if winner is None else winner.name)
    small = min(ranked, key=lambda m: measure.known(measure.state_bytes(m)) or 0.0)
    quick = min(ranked, key=lambda m: measure.known(measure.step_s(m)) or math.inf)
    words = (
        f"{best} leads in loss, memory and time"
        if winner
        else f"lowest loss {clean(view.methods[0].name)}, least state {clean(small.name)}, "
        f"shortest step {clean(quick.name)}"
    )
    holds = None if unbeaten and winner is None else winner is None
    if holds is None:
        named = listed(clean(m.name) for m in unbeaten[:4])
        words = f"{named}: not shown to be best, nor behind any other in anything"
    return evidence(settled(words, holds, "by the page's own tests, Holm over all pairs"))


def _beats(view: View, one: Method, other: Method) -> bool:
    """Whether `one` is shown to be better than `other` in at least one of three."""
    if one is other:
        return False
    if view.winner(one.name, other.name) == one.name:
        return True
    state = [measure.known(measure.state_bytes(m)) for m in (one, other)]
    if state[0] is not None and state[1] is not None and state[0] < state[1]:
        return True
    times = [[s for r in m.timing if (s := step_s(r)) is not None] for m in (one, other)]
    return all(times) and max(times[0]) < min(times[1])
