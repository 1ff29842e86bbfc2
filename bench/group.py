"""The processes that share a trial, as the training loop sees them; most trials have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from levelfield.bench.stepper import Stepper

Part = TypeVar("Part")


class Group(Protocol):
    """What the loop needs of it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def cuts(self) -> int:
        """How many parts of a batch there are for the group, for each that the loop asks for."""

    @property
    def tracked(self) -> bool:
        """Whether the storages behind the model's tensors can be followed (memory accounting)."""

    @property
    def missing(self) -> Mapping[str, str]:
        """What a trial of such a group does not measure, and why."""

    def shard(self, model: nn.Module) -> nn.Module:
        """The model before its parameters are listed: as it is, or with each of them cut up."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """What is called in training; its gradients are means over the group."""

    def own(self, parts: Sequence[tuple[Part, float]]) -> Sequence[tuple[Part, float]]:
        """This process's parts of a batch. Weights are such that the mean over the group of their
        weighted sums is the batch's mean."""

    def divide(self, stepper: Stepper) -> None:
        """Tell a method, once it is built, if its own work is shared out.

        Raises:
            BenchError: it has none to share out.
        """

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the group of a 0-dim tensor."""

    def whole(self, state: Any) -> Any:
        """A tree of tensors with each cut-up tensor put together; on every process."""

    def pack(self, state: Any) -> Any:
        """A tree of tensors as it is written to a file, cut-up tensors whole; on every process."""

    def unpack(self, state: Any) -> Any:
        """What `pack` gave, cut up as it was."""


class Alone:
    """A trial of one process."""

    rank, size, cuts = 0, 1, 1
    tracked = True
    missing: Mapping[str, str] = {}

    def shard(self, model: nn.Module) -> nn.Module:
        return model

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def own(self, parts: Sequence[tuple[Part, float]]) -> Sequence[tuple[Part, float]]:
        return parts

    def divide(self, stepper: Stepper) -> None:
        pass

    def mean(self, value: Tensor) -> Tensor:
        return value

    def whole(self, state: Any) -> Any:
        return state

    def pack(self, state: Any) -> Any:
        return state

    def unpack(self, state: Any) -> Any:
        return state
