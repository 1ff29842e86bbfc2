"""Muon's step and class, shared by `muon` and `muon_rms`. The rule is told in `muon`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._ops import decay_, descend_, newton_schulz, newton_schulz_dtype


def _original(rows: int, columns: int) -> float:
    return math.sqrt(max(1.0, rows / max(columns, 1)))


def _match_rms(rows: int, columns: int) -> float:
    return 0.2 * math.sqrt(max(rows, columns))


ADJUST: Mapping[str, Callable[[int, int], float]] = {
    "original": _original,
    "match_rms": _match_rms,
}
"""(rows, columns) -> factor on the rate."""


def muon_update(grad: Tensor, momentum: Tensor, beta: float, nesterov: bool, steps: int) -> Tensor:
    """The orthogonalised direction [rows, columns], ndim > 2 flattened to two.

    `momentum` is updated in place; `grad` is left alone. The result's dtype is that of the
    Newton-Schulz steps.
    """
    momentum.lerp_(grad, 1 - beta)
    mixed = grad.lerp(momentum, beta) if nesterov else momentum
    return newton_schulz(mixed.flatten(1), steps, newton_schulz_dtype(mixed))


class Muon(torch.optim.Optimizer):
    """For hidden matrices. `lr` is the spectral norm of a step, before `adjust`.

    State: one momentum in the parameter's dtype.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        adjust: str = "original",
        weight_decay: float = 0.0,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum is {momentum}: 0 <= momentum < 1 is needed")
        if adjust not in ADJUST:
            raise ValueError(f"adjust is {adjust!r}: accepted are {', '.join(ADJUST)}")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "steps": steps,
                "adjust": adjust,
                "weight_decay": weight_decay,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dim() < 2:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)}: Muon takes matrices, "
                    "give vectors to another optimizer"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            beta, nesterov, steps = group["momentum"], group["nesterov"], group["steps"]
            adjust = ADJUST[group["adjust"]]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                update = muon_update(grad, state["momentum"], beta, nesterov, steps)
                decay_(param, lr, weight_decay)
                descend_(param, update.reshape_as(param), lr * adjust(*update.shape))
        return loss


def build_muon(ctx: BuildContext, hparams: Mapping[str, Any]) -> Muon:
    """Muon over the context's parameters."""
    return Muon(
        ctx.groups(hparams),
        momentum=hparams["momentum"],
        nesterov=hparams["nesterov"],
        steps=hparams["steps"],
        adjust=hparams["adjust"],
    )
