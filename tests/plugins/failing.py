"""Methods that fail in the second of several processes, each in its way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext


def _fail() -> None:
    raise RuntimeError("it broke in process 1")


def _starve() -> None:
    raise MemoryError("nothing is left")


def _vanish() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    time.sleep(3600.0)


def spec(name: str, end: Callable[[], None]) -> OptimizerSpec:
    class Failing(torch.optim.SGD):
        """Plain descent for three steps."""

        taken = 0

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.taken += 1
            if self.taken == 4 and os.environ.get("RANK") == "1":
                end()
            super().step()

    def build(ctx: BuildContext, hparams: Any) -> torch.optim.Optimizer:
        return Failing(ctx.groups(hparams), lr=0.1)

    return OptimizerSpec(
        name=name,
        family="test",
        summary="fails in the second process",
        paper="none",
        build=build,
        space={"lr": space.log(1e-3, 1.0, default=0.1)},
        state_bytes=lambda params, hparams, progress: 0,
    )


FAILS = spec("fails", _fail)
HUNGRY = spec("hungry_second", _starve)
KILLED = spec("killed_second", _vanish)
HANGS = spec("hangs", _hang)
