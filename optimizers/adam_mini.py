"""Adam-mini: AdamW whose second moment is one number for a block of weights.

For every block B of a tensor:

    m   <- b1 m + (1 - b1) g
    v_B <- b2 v_B + (1 - b2) mean(g_B^2)
    p   <- (1 - lr wd) p
    p_B <- p_B - lr * (m_B / (1 - b1^t)) / (sqrt(v_B / (1 - b2^t)) + eps)

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; g: gradient; t: step, from 1. Blocks:

    embedding, head    a row: one token
    query, key         a head: the rows that `ParamInfo.heads` says belong together
    value              `value_blocks`: "row" (a neuron), "head", or "whole" (the tensor)
    other matrices     a row: one neuron
    bias               an element: plain Adam
    other vectors      the whole tensor

Paper: Yushun Zhang, Congliang Chen, Ziniu Li, Tian Ding, Chenwei Wu, Diederik P. Kingma, Yinyu Ye,
Zhi-Quan Luo, Ruoyu Sun, "Adam-mini: Use Fewer Learning Rates To Gain More",
https://arxiv.org/abs/2406.16793, 2024.
Reference code: https://github.com/zyushun/Adam-mini/blob/402aadfe/adam_mini/adam_mini.py (v1.1.1;
MIT by its setup.py).
Defaults: that code's: lr 1e-3, betas (.9, .999), eps 1e-8, weight decay 0, value by row. For runs
below 10-20k steps its README advises one block for the whole value: `value_blocks` "whole".

State: m in the parameter's shape, v one element a block, both in the parameter's dtype.

Deviations: roles and heads come from the model, not from parts of names; a value or a bias is told
by the last parts of its name. A head is shape[0] / heads rows, where the reference takes
dim^2 / n_heads elements: the same unless the size of a head is set apart from the width. A tensor
of more than two dimensions has rows along its first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adam_mini import VALUE_BLOCKS, count_blocks
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import decay_, descend_

__all__ = ["SPEC", "VALUE_BLOCKS", "AdamMini", "count_blocks"]


class AdamMini(torch.optim.Optimizer):
    """For parameters of every shape; every group carries the `infos` of its parameters.

    `lr` is AdamW's.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        value_blocks: str = "row",
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if value_blocks not in VALUE_BLOCKS:
            raise ValueError(f"value_blocks {value_blocks!r}: accepted: {', '.join(VALUE_BLOCKS)}")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, adam)
        self.value_blocks = value_blocks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param, info in zip(group["params"], group["infos"], strict=True):
                if param.grad is not None and info.numel > 0:
                    self._step_one(param, param.grad, info, group)
        return loss

    def _step_one(
        self, param: Tensor, grad: Tensor, info: ParamInfo, group: Mapping[str, Any]
    ) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = param.new_zeros(count_blocks(info, self.value_blocks))
        state["step"] += 1
        step, beta1, beta2 = state["step"], group["beta1"], group["beta2"]
        m, v = state["exp_avg"].lerp_(grad, 1 - beta1), state["exp_avg_sq"]
        v.lerp_(grad.reshape(v.numel(), -1).square().mean(dim=1), 1 - beta2)
        denominator = (v.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        denominator.mul_(1 - beta1**step)
        update = m.reshape(v.numel(), -1) / denominator.unsqueeze(1)
        decay_(param, group["lr"], group["weight_decay"])
        descend_(param, update.reshape_as(param), group["lr"])


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """A momentum of each parameter's shape and a number a block."""
    blocks = hparams["value_blocks"]
    return sum(info.nbytes + info.itemsize * count_blocks(info, blocks) for info in owners(params))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdamMini:
    return AdamMini(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        value_blocks=hparams["value_blocks"],
    )


SPEC = OptimizerSpec(
    name="adam_mini",
    parent="adamw_split",
    family="memory",
    summary="AdamW with one second moment for a block: a head, a neuron, a token",
    paper="Zhang et al., Adam-mini: Use Fewer Learning Rates To Gain More, 2024, "
    "https://arxiv.org/abs/2406.16793",
    code="https://github.com/zyushun/Adam-mini/blob/402aadfe/adam_mini/adam_mini.py",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={"beta1": 0.9, "eps": 1e-8, "weight_decay": 0.0, "value_blocks": "row"},
    state_bytes=state_bytes,
)
