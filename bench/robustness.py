"""How much a method forgives: learning-rate sensitivity, basin width, divergence rate.

Sensitivity and basin are read from `sweep` records: learning rates around the best point,
everything else as it is there, some seeds each. A failed run counts as the initial loss.

Source: M. Wortsman et al., "Small-scale proxies for large-scale Transformer training
instabilities", arXiv 2309.14322 (2023), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.bench.merit import BASIN_NATS, trial_losses
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Estimate, Missing, finite

FEWEST_RATES = 3
Sweep = Mapping[float, float]
"""Value of the scale dimension -> mean loss over its seeds, nats a token."""


def sweep_losses(records: Sequence[TrialRecord], scale: str, cap: float) -> dict[float, float]:
    """Mean selection loss of every rate of the sweep, failed seeds at the cap, rising rates.

    Args:
        records: of one method, any phases; only `sweep` ones are read.
        scale: name of the dimension that was swept.
        cap: the initial loss.
    """
    by_rate: dict[float, list[TrialRecord]] = {}
    for record in records:
        if record.phase == "sweep":
            by_rate.setdefault(float(record.hparams[scale]), []).append(record)
    return {
        rate: math.fsum(trial_losses(by_rate[rate], cap)) / len(by_rate[rate])
        for rate in sorted(by_rate)
    }


def lr_sensitivity(sweep: Sweep, initial_loss: float) -> float | Missing:
    """Mean over the rates of min(loss, initial loss) - lowest loss, nats.

    The value depends on the grid: only sweeps of equal width and spacing can be compared. The
    paper's grid is three decades around the optimum.
    """
    if reason := _unusable(sweep):
        return Missing(reason)
    if not finite(initial_loss):
        return Missing("the initial loss is not known")
    capped = [min(loss, initial_loss) for loss in sweep.values()]
    return math.fsum(capped) / len(capped) - min(capped)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basin:
    """Rates that are nearly as good as the best one."""

    decades: float
    """log10 of the ratio of its ends."""
    low: float
    high: float
    open_low: bool
    """The sweep ends before the loss rises: the basin may be wider on this side."""
    open_high: bool

    def __str__(self) -> str:
        at_least = ">= " if self.open_low or self.open_high else ""
        return f"{at_least}{self.decades:.2f} decades"


def basin(sweep: Sweep, within: float = BASIN_NATS) -> Basin | Missing:
    """The connected range of rates around the best with loss <= best + `within`.

    Its ends are interpolated linearly in log rate. A side that reaches the end of the sweep
    without rising is open: then `decades` is a lower bound.
    """
    if reason := _unusable(sweep):
        return Missing(reason)
    if not finite(within) or within < 0:
        return Missing(f"within = {within}")
    rates = sorted(sweep)
    logs, losses = [math.log10(rate) for rate in rates], [sweep[rate] for rate in rates]
    best = min(range(len(rates)), key=lambda index: losses[index])
    bound = losses[best] + within
    ends, is_open = [], []
    for step, last in ((-1, 0), (1, len(rates) - 1)):
        index = best
        while index != last and losses[index + step] <= bound:
            index += step
        is_open.append(index == last)
        end = logs[index]
        if index != last:
            share = (bound - losses[index]) / (losses[index + step] - losses[index])
            end += share * (logs[index + step] - logs[index])
        ends.append(end)
    return Basin(
        decades=ends[1] - ends[0],
        low=10 ** ends[0],
        high=10 ** ends[1],
        open_low=is_open[0],
        open_high=is_open[1],
    )


def _unusable(sweep: Sweep) -> str | None:
    if len(sweep) < FEWEST_RATES:
        return f"{len(sweep)} of the {FEWEST_RATES} rates that a sweep needs"
    if any(not finite(rate) or rate <= 0 for rate in sweep):
        return "a rate is not a positive number"
    if not all(finite(loss) for loss in sweep.values()):
        return "a loss is not finite: failed runs count as the initial loss"
    return None


def divergence_rate(records: Sequence[TrialRecord], confidence: float = 0.95) -> Estimate | Missing:
    """Share of runs that diverged, with the exact (Clopper-Pearson) binomial interval.

    Runs that broke for other reasons (out of memory, timeout, killed, error, unsupported) say
    nothing about stability and are left out. Trials of one study share seed and range, so over
    tuning trials the interval speaks of this range only.
    """
    told = [r for r in records if r.status in ("ok", "undertrained", "diverged")]
    if not told:
        return Missing("no run that trained to its end or diverged")
    return binomial(sum(r.status == "diverged" for r in told), len(told), confidence)


def binomial(hits: int, n: int, confidence: float = 0.95) -> Estimate | Missing:
    """A share with its exact (Clopper-Pearson) interval."""
    if n < 1 or not 0 <= hits <= n:
        return Missing(f"{hits} of {n}")
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return Estimate(value=hits / n, low=low, high=high, n=n)
