"""Schedule-Free AdamW: no decay of the rate, an average of the iterates instead of a momentum.

Three points: z takes the steps, x is its average and is evaluated, gradients are taken at y between
them. With lr_t = lr * min(1, t / W) and c = w_t / (w_1 + .. + w_t), w_t = t^r * max(lr_1..lr_t)^q:

    v <- b2 v + (1 - b2) g^2                              g: gradient at y
    u  = g / (sqrt(v / (1 - b2^t)) + eps) + wd y
    z <- z - lr_t u
    x <- (1 - c) x + c z
    y  = b1 x + (1 - b1) z

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; r: `power`; q: `lr_power`; W = `warmup` *
total_steps; t: step, from 1. The parameters hold y, and x in evaluations: x follows from y and z.

`schedule` is "own": the protocol's factor is 1 throughout and the warm-up W is inside. A factor
given all the same would multiply lr.

Paper: Aaron Defazio, Xingyu (Alice) Yang, Harsh Mehta, Konstantin Mishchenko, Ahmed Khaled, Ashok
Cutkosky, "The Road Less Scheduled", https://arxiv.org/abs/2405.15682, 2024.
Reference code:
https://github.com/facebookresearch/schedule_free/blob/70785b53/schedulefree/adamw_schedulefree.py
(Apache-2.0).
Defaults: that code's: lr 2.5e-3, betas (.9, .999), eps 1e-8, r 0, q 2, weight decay 0. Its README
recommends a warm-up (the class has none); a tenth of the run is what the protocols give to all
others. b1 is tuned: the README finds training more sensitive to it than to an ordinary momentum.

State: z and v in the parameter's dtype. An evaluation also holds a copy of y, when there are no
gradients and no activations of training: so y comes back bit for bit, and how often one evaluates
changes nothing. (The reference inverts the average, exact up to rounding.)

Deviations: that copy. `inner_momentum` (0 in the reference) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext, GradientStepper
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import descend_


def schedule_free_(
    y: Tensor, z: Tensor, update: Tensor, lr: float | Tensor, beta1: float, share: float | Tensor
) -> None:
    """Move z along `update`, its average by `share` towards z, and y with both, x never made."""
    if isinstance(share, Tensor):
        y.add_((z - y) * share)
    else:
        y.lerp_(z, share)
    descend_(y, update, lr * (1 - beta1 * (1 - share)))
    descend_(z, update, lr)


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is AdamW's, without a schedule.

    `warmup` is in steps. Every group counts its own steps and weights.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2.5e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup: float = 0.0,
        power: float = 0.0,
        lr_power: float = 2.0,
    ) -> None:
        if not 0.0 < beta1 <= 1.0:
            raise ValueError(f"beta1 is {beta1}: 0 < beta1 <= 1 is needed")
        if not 0.0 <= beta2 < 1.0:
            raise ValueError(f"beta2 is {beta2}: 0 <= beta2 < 1 is needed")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        own = {"warmup": warmup, "power": power, "lr_power": lr_power}
        super().__init__(params, {**adam, **own, "step": 0, "lr_max": 0.0, "weight_sum": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, share = _advance(group)
            beta1, beta2, weight_decay = group["beta1"], group["beta2"], group["weight_decay"]
            root = math.sqrt(1 - beta2 ** group["step"])
            for y in group["params"]:
                grad = y.grad
                if grad is None:
                    continue
                state = self.state[y]
                if not state:
                    state["z"] = y.detach().clone()
                    state["exp_avg_sq"] = torch.zeros_like(y)
                v = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denominator = (v.sqrt() / root).add_(group["eps"])
                update = torch.div(grad, denominator, out=denominator)
                if weight_decay != 0.0:
                    update.add_(y, alpha=weight_decay)
                schedule_free_(y, state["z"], update, lr, beta1, share)
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The parameters hold x inside, and y again after, bit for bit."""
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param in self.state:
                        kept.append((param, param.detach().clone()))
                        param.lerp_(self.state[param]["z"], 1 - 1 / group["beta1"])
        try:
            yield
        finally:
            with torch.no_grad():
                for param, y in kept:
                    param.copy_(y)


def _advance(group: dict[str, Any]) -> tuple[float | Tensor, float | Tensor]:
    """Count a step of a group; its rate, and the share of z in the average."""
    group["step"] += 1
    step: int = group["step"]
    lr = group["lr"] * (min(1.0, step / group["warmup"]) if group["warmup"] > 0.0 else 1.0)
    if isinstance(lr, Tensor):
        group["lr_max"] = torch.clamp(lr, min=group["lr_max"])
    else:
        group["lr_max"] = max(group["lr_max"], lr)
    weight = step ** group["power"] * group["lr_max"] ** group["lr_power"]
    group["weight_sum"] = total = group["weight_sum"] + weight
    if isinstance(total, Tensor):
        return lr, torch.where(total > 0.0, weight / total, 0.0)
    return lr, weight / total if total > 0.0 else 0.0


class ScheduleFreeStepper(GradientStepper):
    """A gradient step; evaluations see the average."""

    def __init__(
        self,
        optimizer: ScheduleFreeAdamW,
        rest: torch.optim.Optimizer | None,
        clip_norm: float | None,
    ) -> None:
        super().__init__([optimizer] if rest is None else [optimizer, rest], clip_norm=clip_norm)
        self._averaging = optimizer

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._averaging.averaged():
            yield


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> ScheduleFreeStepper:
    optimizer = ScheduleFreeAdamW(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        warmup=hparams["warmup"] * ctx.total_steps,
        power=hparams["power"],
        lr_power=hparams["lr_power"],
    )
    return ScheduleFreeStepper(optimizer, ctx.rest, ctx.clip_norm)


SPEC = OptimizerSpec(
    name="schedulefree_adamw",
    family="adaptive",
    summary="AdamW on an average of its iterates, without a decay of the rate",
    paper="Defazio et al., The Road Less Scheduled, 2024, https://arxiv.org/abs/2405.15682",
    code="https://github.com/facebookresearch/schedule_free/blob/70785b53/schedulefree/"
    "adamw_schedulefree.py",
    licence="Apache-2.0",
    build=build,
    schedule="own",
    space={
        "lr": space.log(1e-4, 1e-1, default=2.5e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta1": space.beta(0.8, 0.99, default=0.9),
    },
    fixed={
        "beta2": 0.999,
        "eps": 1e-8,
        "warmup": 0.1,
        "power": 0.0,
        "lr_power": 2.0,
        "weight_decay": 0.0,
    },
    state_bytes=copies(2),
)
