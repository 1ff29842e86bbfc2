"""Items of a task with labels: side by side in batches, in an order of their own, by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levelfield.bench import encode
from levelfield.bench.encode import Array, Row
from levelfield.bench.examples import Examples
from levelfield.bench.sources import Epochs

EVAL_BATCH = 32
"""Items a forward pass of an evaluation; fixed, so that scores do not depend on memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """What stands in one place of a batch."""

    place: int
    """Of its example in the slice."""
    rows: tuple[Row, ...]
    targets: Mapping[str, Any]
    """Name -> value or array, alike in shape for all items of a batch."""
    note: Any = None
    """What turns outputs into an answer: never on the device."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Items side by side: arrays on the host, tensors on a device."""

    inputs: Mapping[str, Any]
    """What the model is called with, each [b * rows, t]."""
    targets: Mapping[str, Any]
    """Each [b, ...]; `weight` [b] is what an item counts in the mean."""


def collated(items: Sequence[Item], pad: int, longest: int) -> Batch:
    """Items as a batch on the host.

    Args:
        pad: id that stands where there is no token.
        longest: tokens that no batch exceeds.
    """
    inputs = encode.padded([row for item in items for row in item.rows], pad, longest)
    names = items[0].targets
    targets = {name: np.array([item.targets[name] for item in items]) for name in names}
    return Batch(inputs, {"weight": np.ones(len(items), np.float32)} | targets)


def split(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """A batch in parts, each with its share of the weight."""
    weight = batch.targets["weight"]
    rows = len(next(iter(batch.inputs.values()))) // len(weight)
    found = []
    for places in np.array_split(np.arange(len(weight)), parts):
        inside = (places[:, None] * rows + np.arange(rows)).reshape(-1)
        part = Batch(
            {name: array[inside] for name, array in batch.inputs.items()},
            {name: array[places] for name, array in batch.targets.items()},
        )
        found.append((part, float(weight[places].sum() / weight.sum())))
    return found


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Arrays as tensors of a device."""

    def moved(arrays: Mapping[str, Array]) -> Mapping[str, Tensor]:
        return {
            name: torch.from_numpy(array).to(device, non_blocking=True)
            for name, array in arrays.items()
        }

    return Batch(moved(batch.inputs), moved(batch.targets))


class ItemOrder:
    """The order in which a trial sees its items: in epochs, from its own generator.

    Args:
        items: of the training slice.
        batch: items a step.
        seed: of the order.
        collate: makes a batch of items.
    """

    def __init__(
        self,
        items: Sequence[Item],
        batch: int,
        seed: int,
        collate: Callable[[Sequence[Item]], Batch],
    ) -> None:
        self._items, self._batch, self._collate = items, batch, collate
        self._places = Epochs(len(items), seed)

    def next(self) -> Batch:
        """The next batch, on the host."""
        return self._collate([self._items[place] for place in self._places.draw(self._batch)])

    def skip(self, steps: int) -> None:
        """Go past batches, as if they had been taken."""
        for _ in range(steps):
            self._places.draw(self._batch)

    @property
    def sha256(self) -> str:
        return self._places.sha256


def by_length(items: Sequence[Item]) -> Iterator[list[int]]:
    """Places of the items in batches of like lengths, the longest first."""
    lengths = [max(len(row.ids) for row in item.rows) for item in items]
    order = sorted(range(len(items)), key=lambda place: -lengths[place])
    for start in range(0, len(order), EVAL_BATCH):
        yield order[start : start + EVAL_BATCH]


def spread(count: int, limit: int | None) -> Array:
    """So many places in [0, count), spread evenly; all without a limit."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, limit).astype(np.int64)


def fewer(found: Examples, most: int | None) -> Examples:
    """At most so many examples in every slice but that of training."""

    def kept(name: str) -> tuple[Any, ...]:
        items = found.slices[name]
        return tuple(items[place] for place in spread(len(items), most))

    held = {name: kept(name) for name in found.slices if name != "train"}
    return replace(found, slices={**found.slices, **held})


def drawn_class(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A draw from the softmax over the last dimension: the largest of logit + Gumbel noise."""
    noise = torch.empty_like(logits).exponential_(generator=generator).log_()
    return (logits - noise).argmax(dim=-1)
