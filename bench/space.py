"""Dimensions of a search space: plain data, turned into Optuna distributions when tuning.

A dimension knows its default (the paper's), its declared range and its scale. Samplers work in
its coordinate, in which the scale is uniform, so that a decade is a decade for every method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Scale = Literal["linear", "log", "log1m"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """One tuned hyper-parameter.

    Args:
        low, high: the range, both ends included.
        default: the paper's value; may lie outside the range, never outside the bounds.
        scale: `linear`, `log`, or `log1m` (logarithmic in 1 - x: for betas).
        bounds: natural bounds that a moved range never crosses; reaching one is no edge.
    """

    low: float
    high: float
    default: float
    scale: Scale = "linear"
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"range [{self.low}, {self.high}] is empty: low < high is needed")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, got {self.low}")
        if self.scale == "log1m" and self.high >= 1:
            raise ValueError(f"a log1m range needs high < 1, got {self.high}")
        if not self.bounds[0] <= self.default <= self.bounds[1]:
            raise ValueError(f"default {self.default} outside its bounds {self.bounds}")
        if self.low < self.bounds[0] or self.high > self.bounds[1]:
            raise ValueError(f"range [{self.low}, {self.high}] outside its bounds {self.bounds}")
        if self.scale == "log" and self.default <= 0:
            raise ValueError(f"a log dimension needs default > 0, got {self.default}")
        if self.scale == "log1m" and self.default >= 1:
            raise ValueError(f"a log1m dimension needs default < 1, got {self.default}")

    def coordinate(self, value: float) -> float:
        """Where the scale is uniform: log(x), -log(1 - x), or x itself."""
        if self.scale == "log":
            return math.log(value)
        return -math.log1p(-value) if self.scale == "log1m" else value

    def value(self, coordinate: float) -> float:
        """The inverse of `coordinate`, to six significant digits, inside the bounds.

        The default comes back as it is, whatever its digits.
        """
        if coordinate == self.coordinate(self.default):
            return self.default
        raw = coordinate
        if self.scale == "log":
            raw = math.exp(coordinate)
        elif self.scale == "log1m":
            raw = min(-math.expm1(-coordinate), 0.999999)  # more nines would round to one
        return min(max(float(f"{raw:.6g}"), self.bounds[0]), self.bounds[1])

    def at(self, share: float) -> float:
        """The value at a share in [0, 1] of the range."""
        low, high = self.coordinate(self.low), self.coordinate(self.high)
        return self.value(low + share * (high - low))

    def where(self, value: float) -> float:
        """The share of the range at which `value` lies; outside [0, 1] beyond the range."""
        low, high = self.coordinate(self.low), self.coordinate(self.high)
        return (self.coordinate(value) - low) / (high - low)

    def around(self, centre: float, decades: float) -> Dim:
        """The same dimension with a range `decades` wide around `centre`, inside the bounds."""
        if self.scale != "log":
            raise ValueError("only a log dimension has decades")
        half = 10 ** (decades / 2)
        low, high = max(centre / half, self.bounds[0]), min(centre * half, self.bounds[1])
        return replace(self, low=low, high=high)

    def edge(self, value: float) -> str | None:
        """`low` or `high` if `value` is in the outer tenth of the range; natural bounds exempt."""
        share = self.where(value)
        if share <= 0.1 and self.low > self.bounds[0]:
            return "low"
        if share >= 0.9 and self.high < self.bounds[1]:
            return "high"
        return None

    def distribution(self, wide: bool = False) -> BaseDistribution:
        """The Optuna distribution of the coordinate: the range, or anything if `wide`."""
        from optuna.distributions import FloatDistribution

        if wide:
            return FloatDistribution(-1e18, 1e18)
        return FloatDistribution(self.coordinate(self.low), self.coordinate(self.high))

    def to_json(self) -> dict[str, Any]:
        """Plain data for a digest: infinite bounds as None."""
        return {
            "low": self.low,
            "high": self.high,
            "default": self.default,
            "scale": self.scale,
            "bounds": [bound if math.isfinite(bound) else None for bound in self.bounds],
        }


def log(low: float, high: float, default: float, upper_bound: float = math.inf) -> Dim:
    """A logarithmic dimension, positive by nature."""
    return Dim(low=low, high=high, default=default, scale="log", bounds=(0.0, upper_bound))


def linear(low: float, high: float, default: float, bounds: tuple[float, float]) -> Dim:
    """A linear dimension with natural bounds."""
    return Dim(low=low, high=high, default=default, bounds=bounds)


def beta(low: float, high: float, default: float) -> Dim:
    """A decay rate: logarithmic in 1 - beta."""
    return Dim(low=low, high=high, default=default, scale="log1m", bounds=(0.0, 1.0))


def embed_multiplier() -> Dim:
    """Factor on the rate of embedding and head: the same two decades for every method.

    It is the largest confound there is between methods, so all but AdamW at one rate tune it.
    """
    return log(0.1, 10.0, default=1.0)
