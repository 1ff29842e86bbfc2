"""dEBORA-like: which components an update keeps is chosen by Frank-Wolfe steps on a second loss.

    W x + scale B diag(s) A x                  s >= 0, sum of all s = tau, over all modules
    lower level: the method under it trains A, B on f1
    upper level: one away-step Frank-Wolfe step on s with g = d f2 / d s, A and B as constants
        toward tau e_i, i = argmin g, or away from tau e_j, j = argmax g, whichever gains more
        toward: gamma = 2 / (t + 2 + N)
        away:   gamma = min(2 / (n + 2), s_j / (tau - s_j)); at the second of them s_j = 0

N: components of all modules; n: those left, over which i and j are sought; t: upper steps taken. A
Frank-Wolfe step is free of projections and finds the face of the simplex that the optimum lies on:
components of s = 0 are dropped for good. The first step counts as the N-th, so that it does not
jump to a corner. tau is the budget; away steps stop once only so many components are left. The
lower level's batches and the upper one's are apart: every `period`-th step is an upper
one, with a period that gives three times as many upper steps as there are components to drop (at
least 2). A run with fewer upper steps than it takes ends above the budget; its record tells.

A reading of: Emanuele Zangrando, Sara Venturini, Francesco Rinaldi, Francesco Tudisco, "dEBORA:
Efficient Bilevel Optimization-based low-Rank Adaptation", ICLR 2025. No public code was found.
Known of it: the bilevel form, the simplex, away-step Frank-Wolfe, a hypergradient without implicit
differentiation, f1 and f2 from a random half each of the training set. Chosen here: the first-order
hypergradient, tau, both gammas, the period, batches in turn instead of halves, lr and alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import AdapterContext, BuildContext, StepBatch
from levelfield.optimizers._adapter import (
    LowRankLinear,
    budget_of,
    find_targets,
    inject,
    kaiming_,
)
from levelfield.optimizers._adapter_stepper import AdapterStepper, CountedKept, Rule, count
from levelfield.optimizers._adapter_values import check_values
from levelfield.optimizers._claims import copies


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Layers of `cap` components, all with the same s; B = 0, so that nothing changes at first."""
    check_values(hparams)
    cap = hparams["cap"]
    modules = len(find_targets(model, hparams["target"]))
    budget = budget_of(hparams, modules, cap)

    def make(base: nn.Linear) -> LowRankLinear:
        scale = hparams["alpha"] / hparams["rank"]
        layer = LowRankLinear(base, cap, scale, dropout=hparams["dropout"])
        kaiming_(layer, ctx.generator)
        layer.fixed.fill_(budget / (modules * cap))
        return layer

    return inject(model, ctx, hparams, make)


def away_step(s: Tensor, g: Tensor, tau: float, step: int, least: int) -> Tensor:
    """One step on the simplex; nothing is read by the host.

    Args:
        s: [n], not negative, of sum tau.
        g: [n], the gradient at s.
        step: upper steps before this one.
        least: components that are left at least.

    Returns:
        The next s, [n].
    """
    left = s > 0
    i, j = torch.where(left, g, torch.inf).argmin(), torch.where(left, g, -torch.inf).argmax()
    best = torch.zeros_like(s).scatter_(0, i[None], tau)
    worst = torch.zeros_like(s).scatter_(0, j[None], tau)
    away = (g @ (worst - s) > g @ (s - best)) & (left.count_nonzero() > least)
    held = s.gather(0, j[None])[0]
    most = held / (tau - held).clamp_min(1e-30)
    bound = 2.0 / (left.count_nonzero() + 2)
    fled = s + torch.minimum(most, bound) * (s - worst)
    fled = torch.where((worst > 0) & (most <= bound), 0.0, fled)
    gamma = 2.0 / (step + 2 + len(s))
    stepped = torch.where(away, fled, s + gamma * (best - s)).clamp_min(0.0)
    return stepped * (tau / stepped.sum())


def period_of(total_steps: int, drops: int) -> int:
    """Steps between two upper ones."""
    return max(2, total_steps // max(1, 3 * drops))


class Debora(Rule):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        super().__init__(ctx, CountedKept())
        self.components = sum(len(layer.fixed) for layer in self.modules)
        self.budget = budget_of(hparams, len(self.modules))
        self.period = period_of(ctx.total_steps, self.components - self.budget)
        self.kept.series = {"total_rank": []}

    def wants_update(self, step: int) -> bool:
        return step == 0 or step % self.period != 0

    def backward(self, batch: StepBatch, step: int) -> Tensor:
        if self.wants_update(step):
            return batch.backward()
        for layer in self.modules:
            layer.fixed.requires_grad_(True)
        loss = batch.backward()
        with torch.no_grad():
            found = [layer.fixed.grad for layer in self.modules]
            g = torch.cat([x if x is not None else torch.zeros(0) for x in found])
            s = torch.cat([layer.fixed for layer in self.modules])
            upper = step // self.period - 1
            now = away_step(s.float(), g.float(), float(self.budget), upper, self.budget)
            sizes = [len(layer.fixed) for layer in self.modules]
            parts = torch.split(now.to(s.dtype), sizes)
            for layer, part in zip(self.modules, parts, strict=True):
                layer.fixed.requires_grad_(False)
                layer.fixed.grad = None
                layer.fixed.copy_(part)
        assert isinstance(self.kept, CountedKept)
        self.kept.refreshes += 1
        self.kept.series["total_rank"].append([step + 1, now.count_nonzero()])
        return loss

    def tensors(self) -> dict[str, Any]:
        return {"s": [layer.fixed.clone() for layer in self.modules]}

    def load_tensors(self, state: Mapping[str, Any]) -> None:
        for layer, value in zip(self.modules, state["s"], strict=True):
            layer.fixed.copy_(value)

    def told(self) -> dict[str, Any]:
        held = [len(layer.fixed) for layer in self.modules]
        ranks = [int(layer.fixed.count_nonzero()) for layer in self.modules]
        return {
            "trained_parameters": count(self.modules, held, gains=sum(held)),
            "deployed_parameters": count(self.modules, ranks),
            "ranks": dict(zip(self.layers, ranks, strict=True)),
            "budget": self.budget,
            "cap": max(held),
        }


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, Debora(ctx, hparams), "debora")


SPEC = OptimizerSpec(
    name="debora",
    family="adapter",
    summary="reading of dEBORA, no public code: components kept by Frank-Wolfe on a second loss",
    paper="Zangrando, Venturini, Rinaldi & Tudisco, dEBORA: Efficient Bilevel Optimization-based "
    "low-Rank Adaptation, ICLR 2025",
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
        "cap": 4,
        "alpha": 16.0,
        "dropout": 0.0,
        "target": "all-linear",
        "weight_decay": 0.0,
    },
    state_bytes=copies(0),
    refreshes="Frank-Wolfe step",
    cannot=("distributed", "sharding"),
)
