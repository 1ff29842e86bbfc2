"""A method that counts and records, and keeps neither in its state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext


class Counting(torch.optim.SGD):
    """Every step is a refresh; every control loss is a point."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, lr=0.1)
        self.refreshes = 0
        self.series: dict[str, list[list[float]]] = {"control": []}

    def observe(self, control_loss: float) -> None:
        self.series["control"].append([self.refreshes, control_loss])

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.refreshes += 1
        super().step()


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Counting:
    return Counting(ctx.groups(hparams))


SPEC = OptimizerSpec(
    name="counting",
    family="test",
    summary="descent that counts",
    paper="none",
    build=build,
    space={"lr": space.log(1e-3, 1.0, default=0.1)},
    state_bytes=lambda params, hparams, progress: 0,
    refreshes="steps",
)
