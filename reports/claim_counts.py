"""Tests of claims about bytes and parameters: counted in the records, exact but for their size.

Figures that a paper prints for a model of a billion parameters are tested where a run trains that
model. Elsewhere the run says what it counts at its own size, and `levelfield memory --published`
computes the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from levelfield.bench.samples import MIN_STUDIES
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Missing
from levelfield.reports import measure
from levelfield.reports.claim_layers import gathered
from levelfield.reports.claim_parts import COUNTED, RANKS, SAVED, Finding, Part, Unit, Withheld
from levelfield.reports.claim_tests import (
    against_zero,
    compare_losses,
    failures,
    loss_part,
    loss_unit,
    no_worse_part,
    pair,
    protocol_margin,
    saved,
    subject,
)
from levelfield.reports.claim_weigh import counted, evidence, sampled, settled, within
from levelfield.reports.text import bytes_text, clean, fixed
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from levelfield.reports.claims import Claim

GB = Unit(" GB", 2, lambda size: size / 1e9)
PLANNER = "levelfield memory --published computes it"


# --- bytes ------------------------------------------------------------------------------------


def _bytes(method: Method, kinds: tuple[str, ...]) -> float | Missing:
    """Largest measured bytes of these kinds together."""
    found = [
        measure.state_bytes(method) if kind == "state" else measure.memory(method, kind)
        for kind in kinds
    ]
    gone = next((value for value in found if isinstance(value, Missing)), None)
    return gone or math.fsum(value for value in found if not isinstance(value, Missing))


def state_part(claim: Claim, view: View) -> Part | Missing:
    """Log of the other's bytes over the method's own; equal bytes hold."""
    held = [_bytes(method, claim.counts) for method in pair(claim, view)]
    gone = next((value for value in held if isinstance(value, Missing)), None)
    if gone is not None:
        return gone
    mine, theirs = (value for value in held if not isinstance(value, Missing))
    if mine <= 0 or theirs <= 0:
        return Missing("a method without any such bytes: no share to tell")
    return counted(f"{' + '.join(claim.counts)} saved", math.log(theirs / mine), SAVED)


def better_at_no_more_state(claim: Claim, view: View) -> Finding:
    """A better loss, with no more optimizer state than the other."""
    return evidence(loss_part(claim, view, claim.size), state_part(claim, view), note=claim.note)


def at_size(claim: Claim, view: View) -> bool:
    """Whether the run trains the model that the figure is of."""
    assert claim.at is not None
    hidden, layers = (view.setting("model", name) for name in ("hidden", "layers"))
    return (hidden, layers) == (claim.at.hidden, claim.at.layers)


def _size_of(view: View) -> str:
    hidden, layers = (view.setting("model", name) for name in ("hidden", "layers"))
    return f"this run's model (h = {hidden}, {layers} layers)"


def saves_at_size(claim: Claim, view: View) -> Finding:
    """Share of the other's bytes that is saved, on the model that the figure is of."""
    part = state_part(claim, view)
    if isinstance(part, Missing):
        return Withheld(part.reason)
    assert claim.at is not None
    if not at_size(claim, view):
        share = SAVED.text(part.effect)
        return Withheld(f"a figure of {claim.at.name}; {_size_of(view)} shows {share}; {PLANNER}")
    least = -math.log1p(-(claim.least if claim.least is not None else claim.size or 0.0))
    return evidence(counted(part.words, part.effect, SAVED, size=saved(claim), least=least))


def _held(method: Method) -> Iterator[tuple[float, float]]:
    """State at the first and at the last selection of every good final, bytes."""
    for record in method.good:
        points = record.series.get("state_bytes") or ()
        if len(points) > 1:
            yield float(points[0][1]), float(points[-1][1])


def _falls(method: Method, size: float | None = None) -> Part | Missing:
    held = list(_held(method))
    if not held:
        return Missing(f"{clean(method.name)} recorded no state over time")
    effect = min(math.log(first / last) if last > 0 else math.inf for first, last in held)
    return counted("state saved at the end", effect, SAVED, size=size, least=1e-12)


def state_falls(claim: Claim, view: View) -> Finding:
    """State at the last selection against the first, the least fall over the finals."""
    method = subject(claim, view)
    name = claim.at.name if claim.at else "another model"
    return evidence(
        _falls(method, saved(claim)), note=f"claimed of {name}; the peak stays at the start"
    )


def no_worse_while_state_falls(claim: Claim, view: View) -> Finding:
    """Both: a loss that is no worse by more than the claimed size, and state that falls."""
    return evidence(no_worse_part(claim, view), _falls(subject(claim, view)))


def frees_at_size(claim: Claim, view: View) -> Finding:
    """Bytes of state that are free at the end of a run, on the model that the figure is of."""
    method = subject(claim, view)
    assert claim.at is not None
    held = list(_held(method))
    if not held:
        return Withheld(f"{clean(method.name)} recorded no state over time")
    freed = min(first - last for first, last in held)
    if not at_size(claim, view):
        return Withheld(
            f"a figure of {claim.at.name}; {_size_of(view)} frees {bytes_text(freed)}; {PLANNER}"
        )
    least = claim.least if claim.least is not None else claim.size
    return evidence(counted("freed", freed, GB, size=claim.size, least=least or 0.0))


def state_of_parameters(claim: Claim, view: View) -> Finding:
    """State a parameter, which is the same at any size, times the claim's parameters."""
    method = view.method(claim.against)
    assert method is not None
    assert claim.at is not None
    assert claim.at.parameters is not None
    state, own = measure.state_bytes(method), measure.parameters(method)
    if isinstance(state, Missing) or isinstance(own, Missing):
        return Withheld("no state or no parameters were recorded")
    total = state / own * claim.at.parameters
    each = f"{fixed(state / own, 2)} bytes each of {claim.at.name} in {view.setting('precision')}"
    least = claim.least if claim.least is not None else claim.size
    return evidence(counted("state", total, GB, size=claim.size, least=least or 0.0),
                    note=f"{each}; {claim.note}")  # fmt: skip


def bounded_series(claim: Claim, view: View) -> Finding:
    """The largest value that the method recorded under the claim's quantity is at most `size`."""
    method = subject(claim, view)
    assert claim.size is not None
    values = [
        float(point[1]) for record in method.good for point in record.series.get(claim.quantity, ())
    ]
    if not values:
        return Withheld(f"{clean(method.name)} recorded no {claim.quantity}")
    most = max(values)
    words = f"largest {claim.quantity} {fixed(most, 3)}"
    return evidence(settled(words, most <= claim.size + 1e-6, COUNTED), note=claim.note)


# --- adapters ---------------------------------------------------------------------------------


def adapter(record: TrialRecord) -> Mapping[str, Any]:
    """What an adapter method recorded of itself; empty for other methods."""
    found: Mapping[str, Any] = getattr(record, "adapter", None) or {}
    return found


def fewer_parameters_at_equal_score(claim: Claim, view: View) -> Finding:
    """Scores equivalent within the protocol's margin, with fewer deployed parameters."""
    mine, theirs = pair(claim, view)
    sizes = [
        [float(n) for r in m.good if (n := adapter(r).get("deployed_parameters"))]
        for m in (mine, theirs)
    ]
    if not all(sizes):
        return Withheld("the records hold no number of deployed parameters")
    means = [math.fsum(values) / len(values) for values in sizes]
    equal = within(
        "score", compare_losses(claim, view), loss_unit(view), protocol_margin(view), sides="both",
        bar=failures(view, mine.name, theirs.name),
    )  # fmt: skip
    least = -math.log1p(-(claim.least or 0.0))
    fewer = counted("parameters", math.log(means[1] / means[0]), SAVED, size=saved(claim),
                    least=least)  # fmt: skip
    return evidence(equal, fewer, note=claim.note)


def ranks_gather(claim: Claim, view: View) -> Finding:
    """Mean rank in the last half of the layers less the first, and in feed-forward modules less
    the others, over studies."""
    method = subject(claim, view)
    by_study: dict[int, list[tuple[float, float]]] = {}
    for record in method.good:
        found = gathered(adapter(record).get("ranks") or {})
        if found is None:
            return Withheld("the records hold no ranks of layers with a feed-forward part")
        by_study.setdefault(record.study, []).append(found)
    if len(by_study) < MIN_STUDIES:
        return Withheld(f"{len(by_study)} of the {MIN_STUDIES} studies that a claim needs")
    parts = []
    for index, words in enumerate(("last half of the layers", "feed-forward")):
        means = {s: math.fsum(v[index] for v in vs) / len(vs) for s, vs in by_study.items()}
        item = against_zero(method.name, means).turned()
        parts.append(sampled(words, item, claim.direction, RANKS))
    return evidence(*parts)


def not_recorded(claim: Claim, view: View) -> Finding:
    """A claim that no record of a run can speak of."""
    return Withheld(claim.note)
