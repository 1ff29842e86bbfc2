"""ARD-LoRA-like: each module's rank is a trained number, made whole in the last part of a run.

    W x + scale B diag(gain) A x
    r_soft = clip(r0 a, 0, cap), a = softplus(E)
    gain_i = sigmoid((r_soft - i - 1/2) / temperature)
    objective: loss + lambda (|a|_1 + beta sum |a(t) - a(t-1)|)
    lambda <- max(0, lambda + dual_rate (sum r_soft / budget - 1))

i = 0, 1, ...: number of a component in its module; E: [1] a module, trained with A and B, from a
start at which r_soft is `rank`. The second term keeps ranks from jumping; lambda is driven to meet
the budget. `settle` of the horizon before the end, the budget's largest gains of all modules become
1 and the others 0: rounding r_soft at one common threshold, so that the budget is met exactly.

A reading of: "ARD-LoRA: Dynamic Rank Allocation for Parameter-Efficient Fine-Tuning of Foundation
Models with Heterogeneous Adaptation Needs", https://arxiv.org/abs/2506.18267, 2025. No public code
was found. Known of it: r(t) = r0 alpha(t) for each head and layer, and the objective. Chosen here:
one scale a linear layer instead of a head, softplus, the sigmoid and its temperature, the rule for
lambda, the rounding, and all values but lr (that of LoRA).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import AdapterContext, BuildContext
from levelfield.optimizers._adapter import (
    LowRankLinear,
    budget_of,
    count_modules,
    find_targets,
    inject,
    kaiming_,
    set_masks,
)
from levelfield.optimizers._adapter_growth import ones
from levelfield.optimizers._adapter_stepper import AdapterStepper, CountedKept, Rule, count
from levelfield.optimizers._adapter_values import check_values

START = math.log(math.e - 1.0)
"""Where softplus is 1."""


class SoftRankLinear(LowRankLinear):
    """A low-rank update whose rank is a number.

    Args:
        base, cap, scale, dropout: as of `LowRankLinear`.
        rank: r0.
        temperature: width of the step from kept to not kept, in components.
    """

    def __init__(
        self,
        base: nn.Linear,
        cap: int,
        scale: float,
        *,
        dropout: float,
        rank: int,
        temperature: float,
    ) -> None:
        super().__init__(base, cap, scale, dropout=dropout)
        self.lora_E = nn.Parameter(base.weight.new_full((1,), START))
        self.rank, self.temperature, self.hard = rank, temperature, False

    def soft_rank(self) -> Tensor:
        """r_soft, [1]."""
        assert self.lora_E is not None
        return (self.rank * F.softplus(self.lora_E)).clamp(0.0, len(self.fixed))

    def gain(self) -> Tensor:
        if self.hard:
            return self.fixed
        number = torch.arange(len(self.fixed), device=self.fixed.device, dtype=self.fixed.dtype)
        return torch.sigmoid((self.soft_rank() - number - 0.5) / self.temperature)


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Layers of `cap` components at soft rank `rank`; B = 0: nothing changes at first."""
    check_values(hparams)
    cap = hparams["cap"]
    budget_of(hparams, len(find_targets(model, hparams["target"])), cap)

    def make(base: nn.Linear) -> LowRankLinear:
        layer = SoftRankLinear(
            base,
            cap,
            hparams["alpha"] / hparams["rank"],
            dropout=hparams["dropout"],
            rank=hparams["rank"],
            temperature=hparams["temperature"],
        )
        kaiming_(layer, ctx.generator)
        return layer

    return inject(model, ctx, hparams, make)


class ArdLora(Rule):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        super().__init__(ctx, CountedKept())
        self.soft = [layer for layer in self.modules if isinstance(layer, SoftRankLinear)]
        self.budget = budget_of(hparams, len(self.modules))
        self.hparams = hparams
        self.harden_after = hardening_step(hparams, ctx.total_steps)
        device = self.modules[0].lora_A.device
        start = torch.ones(len(self.modules), device=device)
        self.kept.state = {"scales": start, "lambda": torch.zeros((), device=device)}
        self.kept.series = {"total_rank": [[0, float(hparams["rank"] * len(self.modules))]]}
        self._every = max(1, ctx.total_steps // 50)
        self.plain: dict[str, Any] = {"ranks": None}  # whole ones, once there are

    @property
    def exponents(self) -> list[nn.Parameter]:
        return [layer.lora_E for layer in self.soft if layer.lora_E is not None]

    def before(self, step: int) -> None:
        if self.plain["ranks"] is not None:
            return
        with torch.no_grad():
            now = F.softplus(torch.cat(list(self.exponents)).float())
            moved = (now - self.kept.state["scales"]).sign()
            slope = self.kept.state["lambda"] * (1.0 + self.hparams["smooth"] * moved)
            for param, part in zip(self.exponents, slope, strict=True):
                if param.grad is not None:  # d softplus = sigmoid
                    param.grad += (part * param.sigmoid()).to(param.dtype)
            self.kept.state["scales"].copy_(now)

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        if self.plain["ranks"] is not None:
            return
        total = torch.cat([layer.soft_rank() for layer in self.soft]).float().sum()
        excess = self.hparams["dual_rate"] * (total / self.budget - 1.0)
        self.kept.state["lambda"].add_(excess).clamp_min_(0.0)
        assert isinstance(self.kept, CountedKept)
        self.kept.refreshes += 1
        if (step + 1) % self._every == 0:
            self.kept.series["total_rank"].append([step + 1, total])
        if step + 1 == self.harden_after:
            gains = torch.stack([layer.gain() for layer in self.soft])
            ranks = largest(gains, self.budget)
            self.plain["ranks"] = ranks
            self.kept.series["total_rank"].append([step + 1, sum(ranks)])
            self.refresh()

    def refresh(self) -> None:
        ranks = self.plain["ranks"]
        for layer in self.soft:
            layer.hard = ranks is not None
        if ranks is not None:
            set_masks(self.modules, fixed=[ones(rank, len(self.soft[0].fixed)) for rank in ranks])

    def told(self) -> dict[str, Any]:
        held = [len(layer.fixed) for layer in self.modules]
        ranks = self.plain["ranks"] or [
            round(float(layer.soft_rank().detach())) for layer in self.soft
        ]
        return {
            "trained_parameters": count(self.modules, held, gains=len(held)),
            "deployed_parameters": count(self.modules, ranks),
            "ranks": dict(zip(self.layers, ranks, strict=True)),
            "budget": self.budget,
            "cap": max(held),
        }


def largest(gains: Tensor, budget: int) -> list[int]:
    """How many of the `budget` largest gains each row of [modules, r] has; here the host reads."""
    chosen = torch.zeros(gains.numel(), device=gains.device)
    chosen[gains.float().flatten().topk(budget).indices] = 1.0
    return [int(n) for n in chosen.reshape(gains.shape).sum(1).tolist()]


def hardening_step(hparams: Mapping[str, Any], total_steps: int) -> int:
    """Steps after which ranks are whole numbers."""
    return max(1, round((1.0 - float(hparams["settle"])) * total_steps))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, ArdLora(ctx, hparams), "ard_lora")


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """The scale of each module a step ago, in fp32."""
    return 4 * count_modules(params)


SPEC = OptimizerSpec(
    name="ard_lora",
    family="adapter",
    summary="reading of ARD-LoRA, no public code: each module's rank is a trained number",
    paper="ARD-LoRA: Dynamic Rank Allocation for Parameter-Efficient Fine-Tuning of Foundation "
    "Models with Heterogeneous Adaptation Needs, 2025, https://arxiv.org/abs/2506.18267",
    build=build,
    adapter=adapt,
    inner="adamw",
    space={
        "lr": space.log(1e-4, 1e-1, default=5e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 2,
        "budget": None,
        "cap": 4,
        "alpha": 16.0,
        "dropout": 0.0,
        "target": "all-linear",
        "temperature": 0.5,
        "smooth": 0.1,
        "dual_rate": 1e-3,
        "settle": 0.2,
        "weight_decay": 0.0,
    },
    state_bytes=state_bytes,
    refreshes="step of the ranks",
    switches=lambda hparams, steps: (hardening_step(hparams, steps),),
    cannot=("distributed", "sharding"),
)
