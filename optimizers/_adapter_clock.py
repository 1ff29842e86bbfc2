"""A component that joins late starts as a fresh parameter would.

Its moments share a tensor, and so a step count, with older ones: Adam's corrections for moments
that start at zero are past by then, and its first steps would be up to six times too long. And a
group that joins late gets a warm-up of its own. Both are factors on the component's step, which is
linear in the rate: the update is made as it is and then shortened, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from levelfield.optimizers._adapter import LowRankLinear


def moments_factor(betas: tuple[float, float], age: int, step: int) -> float:
    """What a step of Adam must be multiplied by at its `age`-th gradient (from 1) if its count says
    `step` (from 1), so that it is that of moments of that age."""
    first = (1.0 - betas[0] ** step) / (1.0 - betas[0] ** age)
    second = ((1.0 - betas[1] ** age) / (1.0 - betas[1] ** step)) ** 0.5
    return float(first * second)


class Clock:
    """Since when each component is trained, and the factor on its step.

    Args:
        layers: that hold the components.
        warmup: steps in which a component that joined late comes up to the common rate.
        betas: of the Adam that trains them; None: it is another method, whose moments are left.
    """

    def __init__(
        self, layers: Sequence[LowRankLinear], warmup: int, betas: tuple[float, float] | None
    ) -> None:
        self.layers, self.warmup, self.betas = list(layers), warmup, betas
        rank = [layer.lora_A.shape[0] for layer in layers]
        self.births: dict[str, list[list[int]]] = {
            "factors": [[0] * r for r in rank],  # of A and B
            "gains": [[0] * r for r in rank],  # of E
        }
        """Step of the first gradient, a list of [r] a layer."""

    def born(self, kind: str, layer: int, component: int, step: int) -> None:
        """A component's first gradient comes in that step."""
        self.births[kind][layer][component] = step

    def factor(self, birth: int, step: int) -> float:
        """Factor on the step of a component; 1 for one that was there from the start."""
        age = step - birth + 1
        if birth == 0 or age < 1:
            return 1.0
        warm = min(1.0, age / self.warmup) if self.warmup else 1.0
        return warm * (moments_factor(self.betas, age, step + 1) if self.betas else 1.0)

    @contextmanager
    def slowed(self, step: int) -> Iterator[None]:
        """Around an update: late components take their own share of it."""
        shortened: list[tuple[Tensor, Tensor, Tensor]] = []
        for index, layer in enumerate(self.layers):
            rows = self.births["factors"][index]
            if any(rows):
                shortened.append(self._before(layer.lora_A, rows, step, (-1, 1)))
                shortened.append(self._before(layer.lora_B, rows, step, (1, -1)))
            gains = self.births["gains"][index]
            if layer.lora_E is not None and any(gains):
                shortened.append(self._before(layer.lora_E, gains, step, (-1,)))
        yield
        with torch.no_grad():
            for tensor, before, factors in shortened:
                tensor.copy_(before + factors * (tensor - before))

    def _before(
        self, tensor: Tensor, births: Sequence[int], step: int, shape: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = [self.factor(birth, step) for birth in births]
        factors = torch.tensor(values, dtype=tensor.dtype, device=tensor.device).reshape(shape)
        return tensor, tensor.detach().clone(), factors


def adam_betas(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[float, float] | None:
    """The betas of the Adam or AdamW that trains an adapter; None if another method does."""
    first = optimizers[0]
    if not isinstance(first, (torch.optim.Adam, torch.optim.AdamW)):
        return None
    one, two = first.param_groups[0]["betas"]
    return float(one), float(two)
