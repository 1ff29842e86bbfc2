"""Cautious AdamW: AdamW that moves only where its update agrees with the current gradient.

    m <- b1 m + (1 - b1) g;   v <- b2 v + (1 - b2) g^2
    u    = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    mask = 1 where m g > 0, else 0
    p <- (1 - lr wd) p
    p <- p - lr * u * mask * scale

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; g: the current gradient; t: step, from 1. The scale
makes up for what the mask leaves out, for every tensor by itself. `mask_scale` says how:

    mean   1 / max(mean(mask), 1e-3)         the official code as it is now
    count  n / (sum(mask) + 1)               its first version, n: elements of the tensor
    none   1

Paper: Kaizhao Liang, Lizhang Chen, Bo Liu, Qiang Liu, "Cautious Optimizers: Improving Training
with One Line of Code", https://arxiv.org/abs/2411.16085, 2024.
Reference code: https://github.com/kyleliang919/C-Optim/blob/2c0517c4/c_adamw.py (MIT).
Defaults: that code's: lr 1e-3, betas (.9, .999), eps 1e-6, weight decay 0, scale `mean`.

State: m and v in the parameter's dtype, as AdamW. A row of the embedding without gradient does not
move, where AdamW would let its momentum run on.

Deviations: in one branch of the reference the mask multiplies the momentum with itself, so that it
is always 1 and the method plain AdamW; the paper's mask is taken. The paper prints the scale as
1 / (mean(mask) + eps); the clamp is the code's. Decay before the step and eps after the bias
correction are those of the code as it is now; its first version had both the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import adam_direction, decay_, descend_, moments_

MASK_SCALES = ("mean", "count", "none")


def cautious_mask(momentum: Tensor, grad: Tensor, scale: str) -> Tensor:
    """1 where momentum and gradient have one sign, 0 elsewhere, times the scale of the mask."""
    mask = (momentum * grad > 0).to(grad.dtype)
    if scale == "mean":
        return mask.div_(mask.mean().clamp_(min=1e-3))
    if scale == "count":
        return mask.mul_(mask.numel() / (mask.sum() + 1))
    return mask


class CautiousAdamW(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is AdamW's."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        mask_scale: str = "mean",
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if mask_scale not in MASK_SCALES:
            raise ValueError(f"mask_scale {mask_scale!r}: accepted: {', '.join(MASK_SCALES)}")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "mask_scale": mask_scale})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay, scale = group["lr"], group["weight_decay"], group["mask_scale"]
            beta1, beta2, eps = group["beta1"], group["beta2"], group["eps"]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                state["step"] += 1
                m, v = state["exp_avg"], state["exp_avg_sq"]
                moments_(m, v, grad, beta1, beta2)
                update = adam_direction(m, v, state["step"], beta1, beta2, eps)
                decay_(param, lr, weight_decay)
                descend_(param, update.mul_(cautious_mask(m, grad, scale)), lr)
        return loss


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> CautiousAdamW:
    return CautiousAdamW(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        mask_scale=hparams["mask_scale"],
    )


SPEC = OptimizerSpec(
    name="cautious_adamw",
    family="adaptive",
    summary="AdamW masked to where its update agrees with the current gradient",
    paper="Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024, "
    "https://arxiv.org/abs/2411.16085",
    code="https://github.com/kyleliang919/C-Optim/blob/2c0517c4/c_adamw.py",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={"beta1": 0.9, "eps": 1e-6, "weight_decay": 0.0, "mask_scale": "mean"},
    state_bytes=copies(2),
    cannot=("sharding",),
)
