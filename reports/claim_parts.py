"""What a claim rests on: comparisons turned so that positive means "as the paper says".

A claim holds if every part of it is shown, and fails if one part is shown to be the other way
round. A part is sampled (a test over studies or repetitions) or exact (counted bytes, counted
parameters); `claim_weigh` makes parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from levelfield.reports.text import signed

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
