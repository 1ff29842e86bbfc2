"""Ranks that grow under one budget: what IncreLoRA and AdaPaD share.

Every module starts with one committed component and one in reserve, which learns in advance without
being deployed. Every `interval` (a fraction of the horizon) the modules of the highest score commit
their reserve and get a new one, until the committed components of all modules reach the budget.

Components are numbered from 0 in each module: those below its rank are committed, the one at its
rank is the reserve, the ones above it are unused. Scores are read by the host at a growth alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.spec import BenchError
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adapter import budget_of, set_masks
from levelfield.optimizers._adapter_scores import (
    SIGNALS,
    at_once,
    averages,
    growth_steps,
    promoted,
    scores,
    update_averages,
)
from levelfield.optimizers._adapter_stepper import CountedKept, Rule, count


class Growing(Rule):
    """Scores, growth and what is told of it.

    `plain` holds the `ranks`, the most parameters trained at once (`most`), and whether ranks still
    grow (`grows`).

    Args:
        ctx: as `build` gets it.
        hparams: with `rank`, `budget`, `cap`, `interval`, `share`, `advance`, `signal`,
            `score_beta1`, `score_beta2`.
        start: components committed in each module before the first step.
    """

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any], start: int) -> None:
        super().__init__(ctx, CountedKept())
        self.hparams = hparams
        self.seed = draw_seed(ctx)
        self.cap: int = self.modules[0].lora_A.shape[0]
        self.budget = budget_of(hparams, len(self.modules), self.cap)
        self.steps = frozenset(growth_steps(hparams, ctx.total_steps))
        if hparams["signal"] not in SIGNALS:
            raise BenchError(f"signal={hparams['signal']!r}", f"accepted: {', '.join(SIGNALS)}")
        self.most_at_once = at_once(hparams, self.budget - start * len(self.modules))
        self.kept.state = averages(len(self.modules), self.modules[0].lora_A.device)
        self.kept.series = {"total_rank": [[0, start * len(self.modules)]]}
        ranks = [start] * len(self.modules)
        self.plain = {"ranks": ranks, "grows": sum(ranks) < self.budget, "most": 0}

    # --- what a method says -------------------------------------------------------------------

    def sensitivity(self) -> Tensor:
        """A number a module from the gradients of this step, [modules]."""
        raise NotImplementedError

    def masks(self, deployed: bool) -> dict[str, list[list[float]]]:
        """Values of the layers' masks; `deployed`: without what is learned in private."""
        raise NotImplementedError

    def gains(self) -> int:
        """Trained gains that do not fall away by folding them into a factor."""
        return 0

    def committed(self, module: int, component: int, step: int) -> None:
        """A component was committed after that step."""

    def draw(self, step: int) -> random.Random:
        """Random numbers of a step, on the host."""
        return random.Random(f"{self.seed} {step}")

    # --- the common part ----------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        ranks: list[int] = self.plain["ranks"]
        return ranks

    @property
    def private(self) -> list[int]:
        """Components that each module trains without deploying them."""
        wanted = self.plain["grows"] and self.hparams["advance"]
        return [int(wanted and rank < self.cap) for rank in self.ranks]

    def trained(self) -> int:
        """Parameters trained now."""
        held = [r + p for r, p in zip(self.ranks, self.private, strict=True)]
        return count(self.modules, held, gains=self.gains())

    def before(self, step: int) -> None:
        if self.plain["grows"]:
            with torch.no_grad():
                betas = self.hparams["score_beta1"], self.hparams["score_beta2"]
                update_averages(self.kept.state, self.sensitivity(), *betas)

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        if not self.plain["grows"] or step + 1 not in self.steps:
            return
        values = scores(self.kept.state, self.hparams["signal"], self.draw(step))
        chosen = promoted(
            values, self.ranks, cap=self.cap, budget=self.budget, most=self.most_at_once
        )
        for module in chosen:
            self.commit(module, step)
        room = any(rank < self.cap for rank in self.ranks)
        self.plain["grows"] = room and sum(self.ranks) < self.budget
        self.changed(step)

    def changed(self, step: int) -> None:
        """Ranks changed after that step."""
        assert isinstance(self.kept, CountedKept)
        self.kept.refreshes += 1
        self.kept.series["total_rank"].append([step + 1, sum(self.ranks)])
        self.refresh()

    def commit(self, module: int, step: int) -> None:
        """The reserve of a module becomes one of its components; another one comes."""
        component = self.ranks[module]
        self.ranks[module] = component + 1
        self.committed(module, component, step)
        if self.clock is not None and self.hparams["advance"] and component + 1 < self.cap:
            self.clock.born("factors", module, component + 1, step + 1)

    def refresh(self) -> None:
        self.plain["most"] = max(self.plain["most"], self.trained())
        set_masks(self.modules, **self.masks(deployed=False))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        set_masks(self.modules, **self.masks(deployed=True))
        try:
            yield
        finally:
            self.refresh()

    def told(self) -> dict[str, Any]:
        return {
            "trained_parameters": self.plain["most"],
            "deployed_parameters": count(self.modules, self.ranks),
            "allocated_parameters": count(self.modules, [self.cap] * len(self.modules)),
            "ranks": dict(zip(self.layers, self.ranks, strict=True)),
            "budget": self.budget,
            "cap": self.cap,
        }


def draw_seed(ctx: BuildContext) -> int:
    """A number from the method's own generator."""
    device = ctx.generator.device
    return int(torch.randint(2**31 - 1, (1,), generator=ctx.generator, device=device))


def ones(count_: int, length: int, value: float = 1.0) -> list[float]:
    """A mask of [length] whose first entries are `value`."""
    return [value] * count_ + [0.0] * (length - count_)


def with_one(row: Sequence[float], position: int, value: float) -> list[float]:
    """The mask with one entry set."""
    return [value if index == position else x for index, x in enumerate(row)]
