"""AdaFRUGAL's two controls over FRUGAL: a share that falls, a period that grows with the loss.

What they are and where they come from is told in `adafrugal_rho` and `adafrugal_t`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch.optim.optimizer import ParamsT

from levelfield.bench.spec import ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._frugal import Frugal, options
from levelfield.optimizers._frugal_parts import held_bytes, periods_over

REFRESH_RULES = ("modulus", "elapsed")
LOSS_CHANGES = ("signed", "absolute")

FRUGAL = {
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "selection": "column",
    "block_order": "descending",
    "block_seed": 0,
    "inactive_lr_scale": 1.0,
    "refresh_fraction": 0.04,
}
"""What `frugal` fixes, less rho; T begins shorter, so that its largest leaves 6 refreshes."""

FALLING_SHARE = {"rho_start": 0.25, "rho_end": 0.01, "decay_fraction": 0.8}

GROWING_PERIOD = {
    "max_fraction": 0.16,
    "growth": 2.0,
    "tau_low": 0.03,
    "loss_change": "signed",
    "refresh_rule": "modulus",
}


@dataclass(frozen=True, slots=True)
class LinearShare:
    """rho(k) = max(end, start - (start - end) k / over): linear, then constant."""

    start: float
    end: float
    over: float
    """Length of the way from start to end, in the unit of k."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.end <= self.start <= 1.0:
            raise ValueError(
                f"rho goes from {self.start} to {self.end}: "
                "0 <= rho_end <= rho_start <= 1 is needed"
            )
        if not self.over > 0.0:
            raise ValueError(f"rho falls over {self.over}: decay_fraction > 0 is needed")

    def __call__(self, moment: float) -> float:
        # Written so that the end is met without rounding.
        return self.end + (self.start - self.end) * max(0.0, 1.0 - moment / self.over)


def falling_share(hparams: Mapping[str, Any], total: float = 1.0) -> LinearShare:
    """The share as a function of progress, or of steps if there are `total` of them."""
    over = hparams["decay_fraction"] * total
    return LinearShare(hparams["rho_start"], hparams["rho_end"], over)


def stalls(before: float, now: float, tau: float, change: str) -> bool:
    """Whether (before - now) / before is below tau; `absolute`: whether its size is."""
    fall = before - now if change == "signed" else abs(before - now)
    return fall < tau * before


class LossAwareFrugal(Frugal):
    """FRUGAL with a period T that grows, never falls, where the control loss stalls.

    Args:
        max_period: T never grows beyond it.
        growth: factor on T.
        tau_low: T grows where the loss fell by less than this share of itself.
        loss_change: see `stalls`.
        refresh_rule: `modulus` or `elapsed`.
        options: of `Frugal`, `period` being the first T.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        max_period: float,
        growth: float = 2.0,
        tau_low: float = 0.03,
        loss_change: str = "signed",
        refresh_rule: str = "modulus",
        **options: Any,
    ) -> None:
        super().__init__(params, **options)
        if not growth >= 1.0:
            raise ValueError(f"growth is {growth}: growth >= 1 is needed, T never falls")
        if not max_period >= self.period:
            raise ValueError(
                f"T goes from {self.period} to {max_period}: "
                "refresh_fraction <= max_fraction is needed"
            )
        if loss_change not in LOSS_CHANGES:
            raise ValueError(f"loss_change {loss_change!r}: accepted: {', '.join(LOSS_CHANGES)}")
        if refresh_rule not in REFRESH_RULES:
            raise ValueError(f"refresh_rule {refresh_rule!r}: accepted: {', '.join(REFRESH_RULES)}")
        self.max_period = max_period
        self.growth = growth
        self.tau_low = tau_low
        self.loss_change = loss_change
        self.refresh_rule = refresh_rule
        self.last_loss: float | None = None
        """Of the last evaluation that was finite."""
        self.series["T"] = [[0, self.period]]

    def observe(self, control_loss: float) -> None:
        """Told the loss after every evaluation; over several processes it must be reduced first."""
        if not math.isfinite(control_loss):
            return
        before, self.last_loss = self.last_loss, control_loss
        if before is None or not stalls(before, control_loss, self.tau_low, self.loss_change):
            return
        period = min(self.max_period, self.period * self.growth)
        if period > self.period:
            self.period = period
            self.series["T"].append([self.clock, period])

    def _advance(self) -> int:
        if self.refresh_rule == "elapsed":
            return super()._advance()
        number = periods_over(self.clock + 1, self.period)
        passed = number - periods_over(self.clock, self.period)
        if passed > 0:
            self.anchor = number * self.period
        return passed

    def state_dict(self) -> dict[str, Any]:
        """FRUGAL's, and under `adafrugal` the last loss; T is FRUGAL's `period`."""
        return {**super().state_dict(), "adafrugal": {"last_loss": self.last_loss}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.last_loss = state_dict["adafrugal"]["last_loss"]


def build_loss_aware(
    ctx: BuildContext, hparams: Mapping[str, Any], **share: Any
) -> LossAwareFrugal:
    """Over the context's parameters; `share` is what says rho."""
    return LossAwareFrugal(
        ctx.groups(hparams),
        max_period=hparams["max_fraction"] * ctx.total_steps,
        growth=hparams["growth"],
        tau_low=hparams["tau_low"],
        loss_change=hparams["loss_change"],
        refresh_rule=hparams["refresh_rule"],
        **share,
        **options(ctx, hparams),
    )


def periods(hparams: Mapping[str, Any]) -> list[float]:
    """Every T that can come, in order, as shares of the run."""
    found, last = [hparams["refresh_fraction"]], hparams["max_fraction"]
    while found[-1] < last and hparams["growth"] > 1.0:
        found.append(min(last, found[-1] * hparams["growth"]))
    return found


def oldest_selection(hparams: Mapping[str, Any], progress: float) -> float:
    """When the selection in force at `progress` began, at the earliest.

    By `elapsed` it is no older than the largest T; nor by `modulus` where every T divides the
    next, as a multiple of the largest is then one of all. Where it does not, every growth may
    come just before a refresh and put it off to a multiple of the next T.
    """
    every = periods(hparams)
    ratios = [after / before for before, after in pairwise(every)]
    nested = all(abs(ratio - round(ratio)) < 1e-9 for ratio in ratios)
    oldest = every[-1] if nested or hparams["refresh_rule"] == "elapsed" else sum(every)
    return max(0.0, progress - oldest)


def held_at_most(
    params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float, rho: LinearShare
) -> int:
    """Bytes after the step that ends at `progress`, if the last refresh came as late as it can.

    Exact where rho no longer falls: at the start, and from decay_fraction + max_fraction on.
    """
    return held_bytes(params, hparams, rho(oldest_selection(hparams, progress)), None)
