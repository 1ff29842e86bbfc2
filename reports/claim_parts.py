"""What a claim rests on: comparisons turned so that positive means "as the paper says".

A claim holds if every part of it is shown, and fails if one part is shown to be the other way
round. A part is sampled (a test over studies or repetitions) or exact (counted bytes, counted
parameters). Welch's test and TOST are those of `bench.inference` and `bench.power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from levelfield.bench import power
from levelfield.bench.inference import Comparison
from levelfield.bench.stats import Missing
from levelfield.reports.text import fixed, signed

Direction = Literal["lower", "higher"]
"""Which way the claim says that the method's quantity lies from the other's."""

POWER = 0.8
"""Probability with which an effect has to be found for a run to be able to speak of it."""

COUNTED = "counted, not sampled"


@dataclass(frozen=True, slots=True)
class Unit:
    """How an effect is written. `scale` is monotone."""

    name: str
    digits: int
    scale: Callable[[float], float] = float

    def text(self, effect: float) -> str:
        """With its sign and unit."""
        return f"{signed(self.scale(effect), self.digits)}{self.name}"


NATS = Unit(" nats", 3)
POINTS = Unit(" points", 2)
RANKS = Unit(" ranks", 2)
DECADES = Unit(" decades", 2)
SHARE = Unit(" %", 1, lambda share: 100 * share)
SAVED = Unit(" %", 1, lambda log_ratio: 100 * -math.expm1(-log_ratio))
"""log(theirs / mine) as the share of theirs that is saved."""
ADDED = Unit(" %", 1, lambda log_ratio: 100 * math.expm1(log_ratio))
"""log(mine / theirs) as the share of theirs that is added."""


@dataclass(frozen=True, slots=True)
class Power:
    """What a part of a run could have shown."""

    resolves: bool | None
    """Whether the claimed size would have been found; None where none is claimed or known."""
    words: str
    least: float | None = None
    """The smallest effect found with power .8, as the part's effect is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One comparison. `effect`, its interval and `size` are in one measure, positive as claimed."""

    words: str
    effect: float
    interval: tuple[float, float] | None
    unit: Unit | None
    """None: the words say it all."""
    size: float | None
    """What the paper claims; None where it names no number."""
    p_for: float
    """p value against "not as claimed"; 1 where a tie or a failure bars the claim."""
    p_against: float
    """p value against "as claimed"."""
    power: Callable[[float], Power]
    """Of a test at the given level."""
    bar: str = ""
    """Why nothing is claimed of it, whatever its p value."""
    exact: bool = False

    @property
    def text(self) -> str:
        """step time +14.2 % [+9.1 … +19.0]."""
        if self.unit is None:
            return self.words
        told = f"{self.words} {self.unit.text(self.effect)}"
        if self.interval is None:
            return told
        low, high = (signed(self.unit.scale(end), self.unit.digits) for end in self.interval)
        return f"{told} [{low} … {high}]"

    @property
    def claimed(self) -> str:
        """What the paper claims, and where that lies; empty where it names no number."""
        if self.size is None or self.unit is None:
            return ""
        told = f"claimed {self.unit.text(self.size)}"
        if self.interval is None:
            return told
        low, high = self.interval
        if low <= self.size <= high:
            return f"{told}: in the interval"
        return f"{told}: {'above' if self.size > high else 'below'} the interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Every part of a claim, the main one first."""

    parts: tuple[Part, ...]
    note: str = ""

    @property
    def p_for(self) -> float:
        """All parts must hold: the largest p value (intersection-union test)."""
        return max(part.p_for for part in self.parts)

    @property
    def p_against(self) -> float:
        """One part the other way round is enough: the smallest, Bonferroni over the parts."""
        return min(1.0, len(self.parts) * min(part.p_against for part in self.parts))

    @property
    def p(self) -> float:
        """Of the side that the data lean to: what Holm's correction over claims takes."""
        return min(self.p_for, self.p_against)

    @property
    def exact(self) -> bool:
        """Nothing in it is sampled."""
        return all(part.exact for part in self.parts)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Not testable in this run, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """This run has no data on the claim, and why."""

    reason: str


Finding = Evidence | Withheld | Absent


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
