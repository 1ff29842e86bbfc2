"""Every claim of the papers judged by one run, with Holm's correction over those it tests.

reproduced: every part is shown. not reproduced: a part is shown to be the other way round. Else
not testable here, where the run could not have found the claimed size with power .8, or not
distinguishable, where it could have or no size is claimed. no data: the methods or the task are
not those of the run. What is shown needs no power to be believed, so it comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from levelfield.bench.stats import holm
from levelfield.reports.claim_names import resolved, stands_for
from levelfield.reports.claim_parts import Absent, Evidence, Finding, Part, Power, Withheld
from levelfield.reports.claims import CLAIMS, Claim
from levelfield.reports.frames import frame
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, listed
from levelfield.reports.view import View

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal[
    "reproduced", "not reproduced", "not distinguishable", "not testable here", "no data"
]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced", "not reproduced", "not distinguishable", "not testable here", "no data",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A claim and what a run says of it."""

    claim: Claim
    verdict: Verdict
    figures: str = ""
    claimed: str = ""
    power: str = ""
    """What the run could have shown, or why it cannot test the claim."""
    part: Part | None = None
    """The main comparison."""
    least: float | None = None
    """The smallest effect of it that is found with power .8."""
    p_holm: float | None = None


def judge(view: View, claims: Sequence[Claim] = CLAIMS) -> tuple[Judged, ...]:
    """All claims, in their order."""
    found = [(claim, look(claim, view)) for claim in claims]
    tested = [f for _, f in found if isinstance(f, Evidence) and not f.exact]
    adjusted = dict(zip(map(id, tested), holm([item.p for item in tested]), strict=True))
    alpha = view.family.alpha
    shown = sum(p <= alpha for p in adjusted.values())
    judged = []
    for claim, finding in found:
        if isinstance(finding, Evidence):
            p = adjusted.get(id(finding), finding.p)
            # Had this claim been shown, Holm would have asked this of it beside the shown others.
            others = len(tested) - (shown - (p <= alpha and not finding.exact))
            item = _weigh(claim, finding, p, alpha, alpha / max(1, others))
            power = "; ".join(filter(None, (item.power, stands_for(claim, view))))
            judged.append(replace(item, power=power))
        else:
            verdict: Verdict = "no data" if isinstance(finding, Absent) else "not testable here"
            judged.append(Judged(claim=claim, verdict=verdict, power=finding.reason))
    return tuple(judged)


def look(claim: Claim, view: View) -> Finding:
    """What a run shows of a claim, or why it shows nothing."""
    claim = resolved(claim, view)
    kind = str(view.setting("task", "kind", default="causal_lm"))
    if claim.tasks and kind not in claim.tasks:
        return Absent(f"its task is {kind}")
    needed = [name for name in (*claim.methods, claim.against) if name]
    absent = [clean(name) for name in needed if view.method(name) is None]
    if absent:
        return Absent(f"no {listed(absent)}")
    if not view.ranked:
        return Withheld("this protocol ranks nothing")
    for name in needed:
        method = view.method(name)
        if method is not None and method.unranked:
            return Withheld(f"{clean(name)}: {method.unranked}")
    return claim.test(claim, view)


def _weigh(claim: Claim, found: Evidence, p: float, alpha: float, level: float) -> Judged:
    sure = p <= alpha
    open_parts = [part for part in found.parts if part.p_for > level]
    weak = [(part, part.power(level)) for part in open_parts]
    blind = [(part, power) for part, power in weak if power.resolves is False]
    verdict: Verdict
    if sure and found.p_for <= found.p_against:
        verdict = "reproduced"
    elif sure:
        verdict = "not reproduced"
    else:
        verdict = "not testable here" if blind else "not distinguishable"
    main = found.parts[0]
    power = (blind or weak or [(main, main.power(level))])[0][1]
    bars = [part.bar for part in found.parts if part.bar] if not sure else []
    return Judged(
        claim=claim,
        verdict=verdict,
        figures="; ".join(part.text for part in found.parts),
        claimed="; ".join(part.claimed for part in found.parts if part.claimed),
        power="; ".join(words for words in (power.words, *bars[:1], found.note) if words),
        part=main,
        least=_least(main, level),
        p_holm=None if found.exact else p,
    )


def _least(part: Part, level: float) -> float | None:
    power: Power = part.power(level)
    return power.least


def tally(judged: Sequence[Judged]) -> str:
    """3 reproduced, 1 not reproduced, 5 not distinguishable, 8 not testable here."""
    counts = Counter(item.verdict for item in judged)
    return ", ".join(f"{counts[v]} {v}" for v in VERDICTS[:-1] if counts[v])


COLUMNS = (
    "key",
    "claim",
    "paper",
    "verdict",
    "figures",
    "quantity",
    "effect",
    "low",
    "high",
    "claimed",
    "least_found",
    "unit",
    "p_holm",
    "because",
)


def table(judged: Sequence[Judged]) -> DataFrame:
    """One row a claim, those without data too; numbers in `unit`, positive as claimed."""
    return frame(COLUMNS, [_row(item) for item in judged])


def _row(item: Judged) -> dict[str, Any]:
    part = item.part
    none = Missing(item.power or "not tested")
    unit = part.unit if part is not None else None

    def scaled(value: float | None) -> Any:
        return none if value is None or unit is None else unit.scale(value)

    low, high = part.interval if part is not None and part.interval else (None, None)
    return {
        "key": item.claim.key,
        "claim": item.claim.text,
        "paper": f"{item.claim.paper.name}, arXiv:{item.claim.paper.arxiv}",
        "verdict": item.verdict,
        "figures": item.figures,
        "quantity": item.claim.quantity,
        "effect": scaled(None if part is None else part.effect),
        "low": scaled(low),
        "high": scaled(high),
        "claimed": scaled(None if part is None else part.size),
        "least_found": scaled(item.least),
        "unit": unit.name.strip() if unit else "",
        "p_holm": none if item.p_holm is None else item.p_holm,
        "because": item.power,
    }
