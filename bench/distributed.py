"""The processes that share a trial by torch.distributed: DDP, FSDP2, components.

All end with the gradient of the whole batch's mean loss, so that what is learned is what one
process learns, up to the order in which sums are taken. Processes draw the same random numbers:
with dropout they share masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from levelfield.bench.accounting import KINDS
from levelfield.bench.group import Group
from levelfield.bench.spec import BenchError, Engine
from levelfield.bench.stepper import Stepper

Part = TypeVar("Part")


class Ddp:
    """Every process holds the model; gradients are averaged as they come.

    Args:
        device: where this process trains.
    """

    tracked = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.cuts = self.size
        self.missing = {
            "joules": "energy is counted for trials of one process",
            "peak_bytes.others": f"bytes are those of one of {self.size} processes",
        }

    def shard(self, model: nn.Module) -> nn.Module:
        return model

    def wrap(self, model: nn.Module) -> nn.Module:
        ids = None if self._device.type == "cpu" else [self._device]
        return DistributedDataParallel(model, device_ids=ids)

    def own(self, parts: Sequence[tuple[Part, float]]) -> Sequence[tuple[Part, float]]:
        count = len(parts) // self.size
        mine = parts[self.rank * count : (self.rank + 1) * count]
        return [(part, weight * self.size) for part, weight in mine]

    def divide(self, stepper: Stepper) -> None:
        pass

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        distributed.all_reduce(total)
        return total / self.size

    def whole(self, state: Any) -> Any:
        return state

    def pack(self, state: Any) -> Any:
        return state

    def unpack(self, state: Any) -> Any:
        return state


class Components(Ddp):
    """Every process holds the model, takes the whole batch, and makes some of the passes that a
    method makes for its components; gradients are exchanged once a step.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.cuts = 1

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def own(self, parts: Sequence[tuple[Part, float]]) -> Sequence[tuple[Part, float]]:
        return parts

    def divide(self, stepper: Stepper) -> None:
        divide = getattr(stepper, "divide", None)
        if divide is None:
            raise BenchError(
                "the method makes no passes for components that processes could share out",
                "accepted: engine.parallel=ddp",
            )
        divide(self.rank, self.size, self.total)

    def mean(self, value: Tensor) -> Tensor:
        return value  # alike on all

    def total(self, values: Tensor) -> Tensor:
        """The sum over the processes of a flat tensor [n]; one exchange."""
        found = [torch.empty_like(values) for _ in range(self.size)]
        distributed.all_gather(found, values)
        return torch.stack(found).sum(dim=0)


@dataclass(frozen=True, slots=True)
class Packed:
    """A cut-up tensor, whole, and the dimension along which it was cut (None: each had it all)."""

    tensor: Tensor
    dim: int | None


class Fsdp2(Ddp):
    """Every process holds a share of each parameter, gradient and state tensor.

    Layers are gathered one at a time: the elements of the outermost `nn.ModuleList`s, then the
    rest of the model.
    """

    tracked = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._mesh: DeviceMesh = init_device_mesh(device.type, (self.size,))
        untracked = "tensors that are cut up over processes are not tracked"
        names = [f"peak_bytes.{kind}" for kind in (*KINDS, "total")]
        self.missing |= dict.fromkeys((*names, "host_reads"), untracked)
        self.missing["state_bytes.others"] = self.missing["peak_bytes.others"]

    def shard(self, model: nn.Module) -> nn.Module:
        for layer in _layers(model):
            fully_shard(layer, mesh=self._mesh)
        # Nothing stays gathered: the weights of an evaluation may not be those of the next step.
        fully_shard(model, mesh=self._mesh, reshard_after_forward=True)
        return model

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def whole(self, state: Any) -> Any:
        return tree_map_only(DTensor, DTensor.full_tensor, state)

    def pack(self, state: Any) -> Any:
        def one(tensor: DTensor) -> Packed:
            (placement,) = tensor.placements
            dim = placement.dim if isinstance(placement, Shard) else None
            return Packed(tensor.full_tensor(), dim)

        return tree_map_only(DTensor, one, state)

    def unpack(self, state: Any) -> Any:
        def one(packed: Packed) -> DTensor:
            placement = Replicate() if packed.dim is None else Shard(packed.dim)
            # Every process has read the same file: nothing need be sent.
            return distribute_tensor(packed.tensor, self._mesh, [placement], src_data_rank=None)

        return tree_map_only(Packed, one, state)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The elements of the outermost module lists."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            found += [layer for layer in child if next(layer.parameters(), None) is not None]
        else:
            found += _layers(child)
    return found


def open_group(engine: Engine, device: torch.device) -> Group:
    """The group of a trial's processes; torch.distributed is initialised."""
    kinds = {"ddp": Ddp, "fsdp2": Fsdp2, "components": Components}
    return kinds[engine.parallel](device)
