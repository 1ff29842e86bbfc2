"""The statistics behind every number that a report compares. Pure functions over plain numbers.

Losses are mean nats a token and lower is better. One rule holds everywhere: a value that is None
or not finite never wins a comparison. scipy is imported inside the two functions that need the
t distribution, so that this module stays light.

References: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
Journal of Statistics 6 (1979) 65-70; Student's t as in any textbook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.bench.space import Dim
from levelfield.bench.spec import TrialRecord

SPIKE_SIGMAS = 7.0
SPIKE_WINDOW = 20
"""Fewest steps of the trailing window that `spikes` compares with."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a number is not there: what undefined statistics return instead of a number."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its interval, in the unit of what was estimated."""

    value: float
    low: float | None
    """Ends of the interval; None where there is none, for the reason in `note`."""
    high: float | None
    n: int
    """Independent values behind it."""
    note: str = ""


def known(value: float | Missing) -> float | None:
    """The number, or None where it is missing."""
    return None if isinstance(value, Missing) else value


def finite(value: object) -> bool:
    """Whether `value` is a real number that may be compared."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_better(value: float | None, other: float | None, lower_is_better: bool = True) -> bool:
    """Whether `value` beats `other`. None, NaN and infinities never win and always lose."""
    if value is None or not finite(value):
        return False
    if other is None or not finite(other):
        return True
    return value < other if lower_is_better else value > other


def best(
    records: Iterable[TrialRecord], key: Callable[[TrialRecord], float | None]
) -> TrialRecord | None:
    """The `ok` record with the lowest finite `key`; the earliest of equals; None if there is none.

    An `undertrained` record wins only where no `ok` one is. A diverged one may carry a finite
    loss: it is still never the best.
    """
    known = tuple(records)
    for status in ("ok", "undertrained"):
        winner: TrialRecord | None = None
        for record in known:
            best_so_far = None if winner is None else key(winner)
            if record.status == status and is_better(key(record), best_so_far):
                winner = record
        if winner is not None:
            return winner
    return None


def median(values: Iterable[float]) -> float | None:
    """The middle value, infinities included (a failed seed counts as +inf); None of nothing.

    NaN is read as +inf: an unknown loss must not make a median smaller.
    """
    ordered = sorted(math.inf if math.isnan(value) else value for value in values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing or of anything not finite."""
    if not values or not all(finite(value) for value in values):
        return None
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1); None below two values."""
    centre = mean(values)
    if centre is None or len(values) < 2:
        return None
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean; None below two values or with one that is not finite."""
    centre, spread = mean(values), deviation(values)
    if centre is None or spread is None:
        return None
    from scipy.stats import t

    reach = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * spread / math.sqrt(len(values))
    return centre - reach, centre + reach


def paired_t(differences: Sequence[float]) -> float | None:
    """Two-sided p value that the mean of `differences` is zero; None below two of them.

    Differences without any spread are certain: p = 1 if they are zero, else 0.
    """
    centre, spread = mean(differences), deviation(differences)
    if centre is None or spread is None:
        return None
    if spread <= 1e-15 * max(1.0, abs(centre)):
        return 1.0 if abs(centre) <= 1e-15 else 0.0
    from scipy.stats import t

    statistic = abs(centre) / (spread / math.sqrt(len(differences)))
    return float(2 * t.sf(statistic, len(differences) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given: reject where <= alpha."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for position, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = running
    return adjusted


def tokens_to_target(
    curve: Sequence[Sequence[float]], target: float, confirm: int = 2
) -> float | None:
    """Tokens after which a curve of [tokens, wall_s, loss] is at or below `target` to stay.

    The crossing counts once `confirm` consecutive evaluations are at or below; it is interpolated
    linearly in log tokens between the last evaluation above and the first one below (linearly in
    tokens if the former lies at 0 tokens). None if that never happens.
    """
    points = [(float(point[0]), float(point[-1])) for point in curve]
    for index in range(len(points) - confirm + 1):
        window = points[index : index + confirm]
        if not all(finite(loss) and loss <= target for _, loss in window):
            continue
        tokens, loss = points[index]
        if index == 0:
            return tokens
        before, above = points[index - 1]
        if not finite(above) or above == loss:
            return tokens
        share = (above - target) / (above - loss)
        if before <= 0:
            return before + share * (tokens - before)
        return math.exp(math.log(before) + share * (math.log(tokens) - math.log(before)))
    return None


def spikes_missing(steps: int) -> str | None:
    """Why `spikes` has no number for so many steps; None where it has one."""
    if steps >= 2 * SPIKE_WINDOW:
        return None
    return f"{steps} steps: a trend needs {SPIKE_WINDOW} and at least as many to compare with it"


def spikes(losses: Sequence[float]) -> int | None:
    """Steps whose training loss jumps out of its own recent past; None where `spikes_missing`.

    A step counts if its loss exceeds the trend of the trailing window (a straight line through
    its losses, read at the step) by more than 7 standard deviations of the window around that
    line; the window holds max(20, steps / 5) steps. A loss that is not finite counts and leaves
    no trace in the windows.

    Args:
        losses: one training loss a step, nats.
    """
    if spikes_missing(len(losses)) is not None:
        return None
    width = max(SPIKE_WINDOW, len(losses) // 5)
    kept: list[float] = []
    count = 0
    for loss in losses:
        if not finite(loss):
            count += 1
            continue
        if len(kept) >= width and loss > _trend_bound(kept[-width:]):
            count += 1
        kept.append(loss)
    return count


def _trend_bound(window: Sequence[float]) -> float:
    """The window's line one step ahead, plus 7 sigma of its residuals."""
    width = len(window)
    middle, centre = (width - 1) / 2, math.fsum(window) / width
    squares = width * (width * width - 1) / 12
    deviations = [value - centre for value in window]
    slope = math.fsum((i - middle) * d for i, d in enumerate(deviations)) / squares
    residual = math.fsum(d * d for d in deviations) - slope * slope * squares
    # A window without noise leaves only rounding: no step may count as a spike for that.
    sigma = max(math.sqrt(max(residual, 0.0) / (width - 2)), 1e-9 * max(1.0, abs(centre)))
    return centre + slope * (width - middle) + SPIKE_SIGMAS * sigma


def dim_edge(dim: Mapping[str, Any], value: float) -> str | None:
    """`low`, `high` or None: whether `value` lies at the edge of a dimension read from a manifest.

    Args:
        dim: `Dim.to_json()`: low, high, default, scale, bounds (None is infinite).
    """
    low, high = dim.get("bounds") or (None, None)
    read = Dim(
        low=dim["low"],
        high=dim["high"],
        default=dim["default"],
        scale=dim.get("scale", "linear"),
        bounds=(-math.inf if low is None else low, math.inf if high is None else high),
    )
    return read.edge(value)
