"""What a step costs: bytes by kind from live storages, and clocks that wait for the device.

Bytes come from a dispatch mode over storages, the same for every device: what autograd and the
optimizer hold is seen by the ops that made it. Scratch space inside a kernel, the device's context
and fragmentation are outside it. Measuring slows a step, so accounting runs on untimed steps.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from levelfield.bench import nvml


class Meter(Protocol):
    """Clock and memory of a device."""

    def now_s(self) -> float:
        """Seconds on a monotonic clock, after the device has finished its work."""

    def joules(self) -> float | None:
        """Energy that the device has used since the meter was made; None if it does not count."""

    def peaks(self) -> dict[str, int | None]:
        """Peaks that the device itself reports: `reserved`, `rss`, `nvml`; None if it has none."""

    def reasons(self) -> dict[str, str]:
        """Why a peak is None."""


class HostMeter:
    """The CPU: a clock, and the resident set above what it was when the meter was made."""

    def __init__(self) -> None:
        self._baseline = _peak_rss()

    def now_s(self) -> float:
        return time.perf_counter()

    def joules(self) -> float | None:
        return None

    def peaks(self) -> dict[str, int | None]:
        return {"reserved": None, "nvml": None, "rss": _peak_rss() - self._baseline}

    def reasons(self) -> dict[str, str]:
        return {
            "peak_bytes.reserved": "a CPU has no caching allocator",
            "peak_bytes.nvml": "no NVIDIA device",
            "joules": "no NVIDIA device",
        }


class CudaMeter:
    """One CUDA device through torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._nvml = nvml.Reading(None, "not read yet")
        self._uuid = str(torch.cuda.get_device_properties(device).uuid)
        self._energy = nvml.energy_mj(self._uuid)
        torch.cuda.reset_peak_memory_stats(device)

    def now_s(self) -> float:
        torch.cuda.synchronize(self._device)  # the only wait: at the edges of a timed stretch
        return time.perf_counter()

    def joules(self) -> float | None:
        now = nvml.energy_mj(self._uuid)
        if now.value is None or self._energy.value is None:
            return None
        return (now.value - self._energy.value) / 1000

    def peaks(self) -> dict[str, int | None]:
        self._nvml = nvml.process_bytes(self._uuid)
        return {
            "allocated": torch.cuda.max_memory_allocated(self._device),
            "reserved": torch.cuda.max_memory_reserved(self._device),
            "nvml": self._nvml.value,
            "rss": None,
        }

    def reasons(self) -> dict[str, str]:
        missing = {"peak_bytes.rss": "host memory says little on a CUDA device"}
        if self._nvml.reason is not None:
            missing["peak_bytes.nvml"] = self._nvml.reason
        if self._energy.reason is not None:
            missing["joules"] = self._energy.reason
        return missing


class FakeMeter:
    """A clock and peaks given by a test."""

    def __init__(self, times_s: Iterable[float], peaks: Mapping[str, int | None]) -> None:
        self._times, self._peaks = iter(times_s), dict(peaks)

    def now_s(self) -> float:
        return next(self._times)

    def joules(self) -> float | None:
        return None

    def peaks(self) -> dict[str, int | None]:
        return dict(self._peaks)

    def reasons(self) -> dict[str, str]:
        return {f"peak_bytes.{k}": "fake" for k, v in self._peaks.items() if v is None}


def build_meter(device: torch.device) -> Meter:
    """The meter of a device."""
    return CudaMeter(device) if device.type == "cuda" else HostMeter()


def _peak_rss() -> int:
    """Peak resident set of this process in bytes (Linux counts KiB, macOS bytes)."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts live bytes by storage while it is entered, and remembers the moment of the peak.

    Storages are numbered as they are first seen: memory that is freed and given out again has the
    address of what was there before, and is not the same thing.

    Args:
        roots: tensors that are alive already (weights, buffers, state).
    """

    def __init__(self, roots: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host_reads = 0
        self._live: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._seen = 0
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_sizes: dict[int, int] = {}
        """Bytes at the peak, by the storage's number."""
        for tensor in roots:
            self.number(tensor)
        self.restart_peak()

    def restart_peak(self) -> None:
        """Forget the peak: from here on it is what is live now."""
        self.peak_bytes = self.live_bytes
        self.peak_sizes = dict(self._live)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.host_reads += 1
        result = func(*args, **(kwargs or {}))
        for item in tree_iter(result):
            if isinstance(item, Tensor):
                self.number(item)
        return result

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, shared by its views; counts it if it is new."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = self._seen
            self._seen += 1
            # The storage object lives as long as the memory does, views and autograd included.
            weakref.finalize(storage, self._free, address, number).atexit = False
        before = self._live.get(number, 0)
        if before != size:
            self._live[number] = size
            self.live_bytes += size - before
            if self.live_bytes > self.peak_bytes:
                self.peak_bytes = self.live_bytes
                self.peak_sizes = dict(self._live)
        return number

    def _free(self, address: int, number: int) -> None:
        self.live_bytes -= self._live.pop(number, 0)
        if self._numbers.get(address) == number:
            del self._numbers[address]


def storage_key(tensor: Tensor) -> int:
    """What identifies a tensor's memory, shared by its views."""
    return int(tensor.untyped_storage()._cdata)


def state_tensors(holders: Iterable[Any]) -> Iterator[Tensor]:
    """Every tensor of optimizer state, found by walking recursively; parameters are left out.

    Args:
        holders: `torch.optim.Optimizer`s, or anything that keeps tensors in attributes, mappings
            and sequences (a projector object inside the state, say).
    """
    seen: set[int] = set()
    for holder in holders:
        # Weights and gradients hang off `param_groups`; those are no state.
        skip = {id(p) for g in getattr(holder, "param_groups", ()) for p in g["params"]}
        yield from _walk(getattr(holder, "state", holder), skip, seen)
        for group in getattr(holder, "param_groups", ()):
            extra = {key: value for key, value in group.items() if key not in ("params", "lr")}
            yield from _walk(extra, skip, seen)
        owned = getattr(holder, "state_holders", None)
        if owned is not None:
            yield from _walk(owned, skip, seen)


def _walk(value: Any, skip: set[int], seen: set[int]) -> Iterator[Tensor]:
    if id(value) in seen or id(value) in skip:
        return
    if isinstance(value, Tensor):
        seen.add(id(value))
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _walk(item, skip, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _walk(item, skip, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.Generator)):
        seen.add(id(value))
        yield from _walk(vars(value), skip, seen)


def state_bytes(holders: Iterable[Any]) -> int:
    """Bytes of optimizer state, each storage once; 0-dim step counters are left out."""
    sizes = {
        storage_key(tensor): tensor.untyped_storage().nbytes()
        for tensor in state_tensors(holders)
        if tensor.ndim > 0
    }
    return sum(sizes.values())
