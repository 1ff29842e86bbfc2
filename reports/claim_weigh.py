"""Comparisons and counts as parts of a claim: p values for and against, and power.

Welch's test and TOST are those of `bench.inference` and `bench.power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from levelfield.bench import power
from levelfield.bench.inference import Comparison
from levelfield.bench.stats import Missing
from levelfield.reports.claim_parts import (
    COUNTED,
    POWER,
    Direction,
    Evidence,
    Part,
    Power,
    Unit,
    Withheld,
)
from levelfield.reports.text import fixed


def sampled(
    words: str,
    item: Comparison,
    direction: Direction,
    unit: Unit,
    *,
    size: float | None = None,
    margin: float = 0.0,
    bar: str = "",
) -> Part | Missing:
    """A tested difference as a part.

    Args:
        item: theirs - mine, so that a lower value of mine is positive.
        margin: effects of this size and below are ties.
        bar: why nothing may be claimed of it.
    """
    turned = item if direction == "lower" else item.turned()
    if turned.difference is None or turned.p is None or turned.se is None:
        return Missing(turned.reason or "not tested")
    effect, p = turned.difference, 1.0 if bar else turned.p
    return Part(
        words=words,
        effect=effect,
        interval=turned.interval,
        unit=unit,
        size=size,
        p_for=p if effect > 0 else 1.0,
        p_against=p if effect < 0 else 1.0,
        power=_finds(item, unit, size, margin),
        bar=bar,
    )


def spread(item: Comparison) -> tuple[float, int]:
    """Standard deviation behind a comparison's standard error, and the values on a side."""
    if item.se is None:
        return math.nan, 0
    if item.test == "paired":
        return item.se * math.sqrt(item.n_a), item.n_a
    return item.se / math.sqrt(1 / item.n_a + 1 / item.n_b), min(item.n_a, item.n_b)


def _finds(
    item: Comparison, unit: Unit, size: float | None, margin: float
) -> Callable[[float], Power]:
    def at(alpha: float) -> Power:
        sd, n = spread(item)
        design: power.Design = "paired" if item.test == "paired" else "welch"
        found = power.detectable(sd, n, power=POWER, alpha=alpha, design=design)
        if isinstance(found, Missing):
            return Power(None, f"power unknown: {found.reason}")
        least = max(found, margin)
        return Power(
            None if size is None else size >= least,
            f"finds {unit.text(least)} with power {POWER:g}",
            least,
        )

    return at


def within(
    words: str,
    item: Comparison,
    unit: Unit,
    margin: float,
    *,
    sides: Literal["both", "worse"],
    bar: str = "",
) -> Part | Missing:
    """Equivalence (TOST), or that mine is not worse by more than `margin` (its one side).

    Args:
        item: theirs - mine of a quantity of which less is better: positive is better.
    """
    if item.difference is None or not item.se or item.df is None:
        return Missing(item.reason or "no spread between studies: nothing bounds the difference")
    from scipy.stats import nct, t

    difference, se, df = item.difference, item.se, item.df
    not_worse = float(t.sf((margin + difference) / se, df))
    not_better = float(t.sf((margin - difference) / se, df))
    beyond = [1 - not_worse, 1 - not_better][: 2 if sides == "both" else 1]
    p_for = not_worse if sides == "worse" else max(not_worse, not_better)

    def at(alpha: float) -> Power:
        if sides == "both":
            chance = power.tost(0.0, se, df, margin, alpha=alpha).power or 0.0
        else:
            chance = float(nct.sf(t.ppf(1 - alpha, df), df, margin / se))
        much = f"{fixed(unit.scale(margin), unit.digits)}{unit.name}"
        shown = f"lie within ± {much}" if sides == "both" else f"be no more than {much} worse"
        return Power(chance >= POWER, f"shows equals to {shown} with power {fixed(chance, 2)}")

    return Part(
        words=words,
        effect=difference,
        interval=item.interval,
        unit=unit,
        size=None,
        p_for=1.0 if bar else p_for,
        p_against=1.0 if bar else min(1.0, len(beyond) * min(beyond)),
        power=at,
        bar=bar,
    )


def counted(
    words: str, effect: float, unit: Unit, *, size: float | None = None, least: float = 0.0
) -> Part:
    """A quantity without sampling error: it holds from `least` on, exactly 0 included."""
    holds = effect >= least
    return Part(
        words=words,
        effect=effect,
        interval=None,
        unit=unit,
        size=size,
        p_for=0.0 if holds else 1.0,
        p_against=1.0 if holds else 0.0,
        power=lambda alpha: Power(None, COUNTED),
        exact=True,
    )


def settled(words: str, holds: bool | None, power: str) -> Part:
    """What is decided without a test here; None: it is not decided.

    Args:
        power: words for how.
    """
    return Part(
        words=words,
        effect=0.0,
        interval=None,
        unit=None,
        size=None,
        p_for=0.0 if holds else 1.0,
        p_against=0.0 if holds is False else 1.0,
        power=lambda alpha: Power(None, power),
        exact=True,
    )


def evidence(*parts: Part | Missing, note: str = "") -> Evidence | Withheld:
    """The parts together, or the first reason why one cannot be had."""
    gone = next((part for part in parts if isinstance(part, Missing)), None)
    if gone is not None:
        return Withheld(gone.reason)
    return Evidence(parts=tuple(p for p in parts if isinstance(p, Part)), note=note)
