"""IncreLoRA: modules start at rank one and the important ones gain components, learned in advance.

    W x + s sum_i E_i b_i a_i x                      E: singular values, trained
    sensitivity of a module:  sum_ij |dW_ij dL/d(dW)_ij| / sqrt(m d)
    I <- b1 I + (1 - b1) sensitivity;  U <- b2 U + (1 - b2) |sensitivity - I|;  score = I U
    every `interval`: the best modules commit their reserve and get another one
    penalty: gamma * mean over committed a_i, b_i of | |a_i|^2 - 1 |

A reserve has a, b ~ N(0, 0.02^2) and E fixed at 1e-5: it hardly changes the output and its factors
are trained all the same (`advance`), because Adam's steps do not depend on a gradient's size, as
long as `eps` is far below it: hence 1e-12 where Adam's default is 1e-8. On commitment E is trained,
from 1e-5. At the budget all reserves are switched off. m, d: rows and columns of dW; gamma:
`penalty`; b1, b2: `score_beta1`, `score_beta2`.

`live_scale` (default, as in the code): s = alpha / (rank + 1e-5) with the module's rank of the
moment, so that all its components shrink as it grows. False: s = alpha / `rank` throughout.

Paper: Feiyu Zhang, Liangzhi Li, Junhao Chen, Zhouqiang Jiang, Bowen Wang, Yiming Qian, "IncreLoRA:
Incremental Parameter Allocation Method for Parameter-Efficient Fine-tuning",
https://arxiv.org/abs/2308.12043, 2023.
Reference code: https://github.com/FeiyuZhang98/IncreLoRA @ 51a2d734. Defaults of its GLUE scripts:
lr 8e-4, alpha 16, gamma .1, b1 = b2 = .85, average rank 2, and of 24 rounds (3 of 72 modules each)
one every 2 % of the run (1.5 % for CoLA, 2 % for SST-2).

Deviations:
- all components are held from the start and masked; a module holds at most `cap`.
- a late component's own clock is a warm-up of one interval on top of the protocol's schedule; the
  code also restarts the decay. Adam's moments count from the component's first gradient.
- ties never exceed the budget (the code takes every module at the threshold).
- the penalty leaves reserves out: its gradient is orders of magnitude larger than a reserve's own,
  which would then learn nothing but its length.
- with a batch in parts, a step's sensitivity is the sum over the parts.
- evaluations are of what is deployed, without the reserves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import AdapterContext, BuildContext
from levelfield.optimizers._adapter import (
    LowRankLinear,
    find_targets,
    inject,
    normal_,
    room_of,
)
from levelfield.optimizers._adapter_growth import Growing, ones, with_one
from levelfield.optimizers._adapter_scores import averages_bytes, growth_steps, period
from levelfield.optimizers._adapter_stepper import AdapterStepper
from levelfield.optimizers._adapter_values import check_values

RESERVE = 1e-5
"""Gain of a component in reserve."""


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Layers of `cap` components; the first has E = 0, so that nothing changes at first."""
    check_values(hparams)
    cap = room_of(hparams, len(find_targets(model, hparams["target"])))

    def make(base: nn.Linear) -> LowRankLinear:
        scale = hparams["alpha"] / hparams["rank"]
        layer = LowRankLinear(base, cap, scale, dropout=hparams["dropout"], gains=RESERVE)
        normal_(layer, ctx.generator, both=True)
        assert layer.lora_E is not None
        with torch.no_grad():
            layer.lora_E[0] = 0.0
        return layer

    return inject(model, ctx, hparams, make)


def sensitivity_of(layer: LowRankLinear, inputs: Tensor, grad: Tensor) -> Tensor:
    """sum |dW * G| / sqrt(m d), 0-dim, from the inputs [..., d] and the gradient of the update's
    output [..., m]: G = grad^T inputs is the gradient of dW, made here and dropped again."""
    flat = grad.reshape(-1, grad.shape[-1]).to(inputs.dtype)
    gradient = flat.mT @ inputs.reshape(-1, inputs.shape[-1])
    change = layer.delta() * gradient
    return change.abs().sum().float() / math.sqrt(change.numel())


class IncreLora(Growing):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        super().__init__(ctx, hparams, start=1)
        self.warmup = period(hparams, ctx.total_steps)
        self._seen: dict[int, Tensor] = {}
        for index, layer in enumerate(self.modules):
            layer.on_output = self._listener(index, layer)

    def _listener(self, index: int, layer: LowRankLinear) -> Any:
        def tell(inputs: Tensor, grad: Tensor) -> None:
            if self.plain["grows"]:
                with torch.no_grad():
                    found = sensitivity_of(layer, inputs, grad)
                    self._seen[index] = self._seen.get(index, 0.0) + found

        return tell

    def sensitivity(self) -> Tensor:
        found = torch.stack([self._seen[index] for index in range(len(self.modules))])
        self._seen.clear()
        return found

    def masks(self, deployed: bool) -> dict[str, list[list[float]]]:
        reserve = 0.0 if deployed else RESERVE
        fixed = [
            with_one(ones(0, self.cap), rank, reserve * held)
            for rank, held in zip(self.ranks, self.private, strict=True)
        ]
        return {"fixed": fixed, "learned": [ones(rank, self.cap) for rank in self.ranks]}

    def gains(self) -> int:
        return sum(self.ranks)

    def committed(self, module: int, component: int, step: int) -> None:
        if self.clock is not None:
            self.clock.born("gains", module, component, step + 1)
            if not self.hparams["advance"]:
                self.clock.born("factors", module, component, step + 1)

    def refresh(self) -> None:
        super().refresh()
        if self.hparams["live_scale"]:
            for layer, rank in zip(self.modules, self.ranks, strict=True):
                layer.scale.fill_(self.hparams["alpha"] / (rank + 1e-5))

    def before(self, step: int) -> None:
        super().before(step)
        with torch.no_grad():
            add_penalty_(self.modules, self.ranks, self.hparams["penalty"])


def add_penalty_(layers: list[LowRankLinear], ranks: list[int], gamma: float) -> None:
    """Add the gradient of gamma * mean_i ||v_i|^2 - 1| over the first `ranks` columns of each B and
    rows of each A to their gradients."""
    share = 2.0 * gamma / (2 * sum(ranks))
    for layer, rank in zip(layers, ranks, strict=True):
        for tensor, dim in ((layer.lora_A, 1), (layer.lora_B, 0)):
            if tensor.grad is None:
                continue
            sign = (tensor.square().sum(dim, keepdim=True) - 1.0).sign()
            part = slice(rank)
            where = (part, slice(None)) if dim else (slice(None), part)
            tensor.grad[where] += (share * sign * tensor)[where]


def penalty(layers: list[LowRankLinear], ranks: list[int], gamma: float) -> Tensor:
    """What `add_penalty_` is the gradient of, 0-dim."""
    lengths = [
        vectors.square().sum(1)
        for layer, rank in zip(layers, ranks, strict=True)
        for vectors in (layer.lora_A[:rank], layer.lora_B[:, :rank].mT)
    ]
    return gamma * (torch.cat(lengths) - 1.0).abs().mean()


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, IncreLora(ctx, hparams), "increlora")


SPEC = OptimizerSpec(
    name="increlora",
    family="adapter",
    summary="low-rank updates whose ranks grow module by module, learned in advance",
    paper="Zhang et al., IncreLoRA: Incremental Parameter Allocation Method for "
    "Parameter-Efficient Fine-tuning, 2023, https://arxiv.org/abs/2308.12043",
    code="https://github.com/FeiyuZhang98/IncreLoRA @ 51a2d734",
    build=build,
    adapter=adapt,
    inner="adamw",
    space={
        "lr": space.log(1e-4, 1e-1, default=8e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 2,
        "budget": None,
        "cap": 8,
        "alpha": 16.0,
        "dropout": 0.0,
        "target": "all-linear",
        "penalty": 0.1,
        "interval": 0.02,
        "share": 1 / 24,
        "advance": True,
        "signal": "both",
        "score_beta1": 0.85,
        "score_beta2": 0.85,
        "live_scale": True,
        "weight_decay": 0.0,
        "eps": 1e-12,
    },
    state_bytes=averages_bytes,
    refreshes="growth of the ranks",
    switches=growth_steps,
    cannot=("distributed", "sharding"),
)
