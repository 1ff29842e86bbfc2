"""Methods that work, each with something that a plain optimizer does not have."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext, StepBatch, StepResult, set_lr


class Noisy(torch.optim.SGD):
    """Draws from every global generator, and seeds them."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.manual_seed(1)
        torch.rand(7)
        np.random.seed(1)
        np.random.rand(3)
        random.seed(1)
        super().step()


class Gambling(torch.optim.SGD):
    """Adds noise from the global generators: repeatable only if the loop makes it so."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                noise = torch.randn_like(param) + np.random.rand() + random.random()
                param.grad.add_(noise, alpha=1e-3)
        super().step()


class Observing(torch.optim.SGD):
    """Keeps what it is told, counts every third step as a refresh, and records both."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, lr=0.1)
        self.clock = self.refreshes = 0
        self.series: dict[str, list[list[float]]] = {"control": [], "empty": []}

    def observe(self, control_loss: float) -> None:
        self.series["control"].append([self.clock, control_loss])

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.refreshes += self.clock % 3 == 0
        self.clock += 1
        super().step()


class Hungry(torch.optim.SGD):
    """Makes a large tensor in every step and lets it go."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.zeros(500_000)
        super().step()


class Slow(torch.optim.SGD):
    """Takes its time."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        time.sleep(0.03)
        super().step()


class TwoPasses:
    """Gradient descent on the mean gradient of two passes; a stepper of its own."""

    observes = False

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        self.optimizer = torch.optim.SGD(ctx.groups(hparams), lr=0.1)
        self.base = [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            set_lr(group, base * lr_scale / 2)
        batch.backward()
        loss = batch.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(loss=loss, grad_norm=None)

    def observe(self, control_loss: float) -> None:
        raise AssertionError("it does not observe")

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(state))

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return (self.optimizer,)


def descent(
    kind: Callable[[list[dict[str, Any]]], Any] = torch.optim.SGD,
) -> Callable[[BuildContext, Mapping[str, Any]], Any]:
    return lambda ctx, hparams: kind(ctx.groups(hparams))


def spec(
    name: str, build: Callable[[BuildContext, Mapping[str, Any]], Any], **changes: Any
) -> OptimizerSpec:
    return OptimizerSpec(
        name=name,
        family="odd",
        summary="gradient descent with something to it",
        paper="none",
        build=build,
        space={"lr": space.log(1e-2, 10.0, default=0.5)},
        state_bytes=lambda params, hparams, progress: 0,
        **changes,
    )


PLAIN = spec("plain", descent())
NOISY = spec("noisy", descent(Noisy))
GAMBLING = spec("gambling", descent(Gambling))
OBSERVING = spec("observing", descent(Observing), refreshes="every third step")
HUNGRY = spec("hungry", descent(Hungry))
SLOW = spec("slow", descent(Slow))
TWO_PASSES = spec("two_passes", TwoPasses, passes=2.0)
CONSTANT = spec("constant", descent(), schedule="constant")
OWN = spec("own", descent(), schedule="own")
MATRICES = spec("matrices", descent(), roles=("matrix",))
