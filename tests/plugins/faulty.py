"""Methods that go wrong, each in its own way."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext


class Faulty(torch.optim.SGD):
    """Gradient descent until step `at`, at which and after which `fault` is called before it."""

    def __init__(
        self, groups: list[dict[str, Any]], fault: Callable[[Faulty], object], at: int
    ) -> None:
        super().__init__(groups, lr=1.0)
        self.fault, self.at, self.clock = fault, at, 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.clock >= self.at:
            self.fault(self)
        self.clock += 1
        super().step()

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.fill_(value)


def spec(
    name: str, build: Callable[[BuildContext, Mapping[str, Any]], Any], **changes: Any
) -> OptimizerSpec:
    return OptimizerSpec(
        name=name,
        family="faulty",
        summary="goes wrong",
        paper="none",
        build=build,
        space={"lr": space.log(1e-2, 10.0, default=0.5)},
        state_bytes=lambda params, hparams, progress: 0,
        **changes,
    )


def at(step: int, fault: Callable[[Faulty], object]) -> Callable[..., Faulty]:
    return lambda ctx, hparams: Faulty(ctx.groups(hparams), fault, step)


def fail(error: BaseException) -> Any:
    raise error


def silence(optimizer: Faulty) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None


def shout(optimizer: Faulty) -> None:
    print("noise " * 10_000)
    print("complaint " * 10_000, file=sys.stderr)


def run_away(optimizer: Faulty) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.add_(torch.sign(param), alpha=0.3)


class Boastful(torch.optim.SGD):
    """Trains; what it tells of itself makes no sense."""

    series: ClassVar = {"rho": "rising"}


def half(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(ctx.groups(hparams)[1:], lr=0.1)


def twice(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(ctx.groups(hparams), lr=0.1)
    optimizer.param_groups.append(dict(optimizer.param_groups[0]))
    return optimizer


GOOD = spec("good", at(10**9, silence))
RAISES = spec("raises", at(6, lambda opt: fail(RuntimeError("the sky fell\nand more"))))
RAISES_AT_ONCE = spec("raises_at_once", at(0, lambda opt: fail(RuntimeError("no start"))))
RAISES_IN_BUILD = spec("raises_in_build", lambda ctx, hparams: fail(KeyError("rank")))
MEMORY = spec("memory", at(6, lambda opt: fail(MemoryError())))
DEVICE_MEMORY = spec("device_memory", at(6, lambda opt: fail(torch.OutOfMemoryError("CUDA: out"))))
HOST_MEMORY = spec("host_memory", at(6, lambda opt: torch.empty(2**60)))
ABORTS = spec("aborts", at(6, lambda opt: os.abort()))
SEGFAULTS = spec("segfaults", at(6, lambda opt: ctypes.string_at(0)))
KILLED = spec("killed", at(6, lambda opt: os.kill(os.getpid(), signal.SIGKILL)))
EXITS = spec("exits", at(6, lambda opt: sys.exit(3)))
SLEEPS = spec("sleeps", at(6, lambda opt: time.sleep(60)))
NAN_FIRST = spec("nan_first", at(0, lambda opt: opt.fill(float("nan"))))
NAN_LATE = spec("nan_late", at(14, lambda opt: opt.fill(float("nan"))))
RUNS_AWAY = spec("runs_away", at(0, run_away))
STANDS_STILL = spec("stands_still", at(0, silence))
SHOUTS = spec("shouts", at(0, shout))
BOASTS = spec("boasts", lambda ctx, hparams: Boastful(ctx.groups(hparams), lr=0.1))
LEAVES_OUT = spec("leaves_out", half)
HOLDS_TWICE = spec("holds_twice", twice)
NONSENSE = spec("nonsense", lambda ctx, hparams: 42)
NO_BF16 = spec("no_bf16", lambda ctx, hparams: fail(AssertionError("tried")), cannot=("bf16",))
