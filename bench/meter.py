"""What a step costs: bytes by kind from live storages, and clocks that wait for the device.

Bytes come from a dispatch mode over storages, the same for every device: what autograd and the
optimizer hold is seen by the ops that made it. Scratch space inside a kernel, the device's context
and fragmentation are outside it. Measuring slows a step, so accounting runs on untimed steps.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

from levelfield.bench import nvml


class Meter(Protocol):
    """Clock, memory and energy of a device."""

    def now_s(self) -> float:
        """Seconds on a monotonic clock, after the device has finished its work."""

    def watch(self) -> None:
        """Look at the memory of the process from here on, beside the training."""

    def stop(self) -> None:
        """Look no longer; before `peaks`."""

    def resume(self) -> None:
        """Energy counts from here on."""

    def pause(self) -> None:
        """Energy no longer counts."""

    def joules(self) -> float | None:
        """What the device used between `resume` and `pause`, whoever used it; None if unknown."""

    def held(self) -> dict[str, int]:
        """What an allocator holds now and what befell it so far: see `HELD`. Nothing on a CPU."""

    def peaks(self) -> dict[str, int | None]:
        """Peaks that the device itself reports: `reserved`, `rss`, `nvml`; None if it has none."""

    def reasons(self) -> dict[str, str]:
        """Why a peak or the energy is None."""


HELD = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
"""Series of a record -> key of `torch.cuda.memory_stats`. A retry: the device was full, and what
the allocator had cached was given back to make room."""


class HostMeter:
    """The CPU: a clock, and the resident set above what it was when the meter was made."""

    def __init__(self) -> None:
        self._baseline = _peak_rss()

    def now_s(self) -> float:
        return time.perf_counter()

    def watch(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def joules(self) -> float | None:
        return None

    def held(self) -> dict[str, int]:
        return {}

    def peaks(self) -> dict[str, int | None]:
        return {"reserved": None, "nvml": None, "rss": _peak_rss() - self._baseline}

    def reasons(self) -> dict[str, str]:
        return {
            "peak_bytes.reserved": "a CPU has no caching allocator",
            "peak_bytes.nvml": "no NVIDIA device",
            "joules": "no NVIDIA device",
        }


class CudaMeter:
    """One CUDA device: torch's allocator, and the driver's word on this process and on energy.

    Only the clock may raise: it waits for the device, whose errors are the trial's.

    Args:
        visible: `CUDA_VISIBLE_DEVICES`, None if it is not set.
        cuda: a stand-in for `torch.cuda` (tests).
        library: a stand-in for pynvml (tests).
        interval_s: between two looks at the memory of the process.
    """

    def __init__(
        self,
        device: torch.device,
        visible: str | None = None,
        *,
        cuda: Any = None,
        library: Any = None,
        interval_s: float = 0.1,
    ) -> None:
        self._device, self._cuda = device, torch.cuda if cuda is None else cuda
        self._interval_s = interval_s
        self._sampler: nvml.Sampler | None = None
        self._missing = {"peak_bytes.rss": "host memory says little on a CUDA device"}
        names = nvml.names_of(self._uuid(), device.index or 0, visible)
        self._driver = nvml.Device(names, library)
        self._energy = nvml.Energy(self._driver.energy_mj)
        self._before: dict[str, int] = {}
        before = self.held()
        self._before = {name: before.get(name, 0) for name in ("alloc_retries", "ooms")}
        self._unreset: str | None = None
        try:
            self._cuda.reset_peak_memory_stats(device)
        except Exception as error:
            self._unreset = nvml.word(error)

    def _uuid(self) -> str | None:
        try:
            return str(self._cuda.get_device_properties(self._device).uuid)
        except Exception:
            return None

    def now_s(self) -> float:
        self._cuda.synchronize(self._device)  # the only wait: at the edges of a timed stretch
        return time.perf_counter()

    def watch(self) -> None:
        if self._sampler is None and self._driver.reason is None:
            self._sampler = nvml.Sampler(self._driver.process_bytes, self._interval_s)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def resume(self) -> None:
        self._energy.resume()

    def pause(self) -> None:
        self._energy.pause()

    def joules(self) -> float | None:
        return self._energy.joules

    def held(self) -> dict[str, int]:
        try:
            stats = self._cuda.memory_stats(self._device)
            found = {name: int(stats[key]) for name, key in HELD.items() if key in stats}
        except Exception:
            return {}
        return {name: value - self._before.get(name, 0) for name, value in found.items()}

    def peaks(self) -> dict[str, int | None]:
        sampled = self._driver.process_bytes if self._sampler is None else self._sampler.result
        return {
            "allocated": self._known("allocated", self._allocator("max_memory_allocated")),
            "reserved": self._known("reserved", self._allocator("max_memory_reserved")),
            "nvml": self._known("nvml", sampled()),
            "rss": None,
        }

    def _allocator(self, name: str) -> nvml.Reading:
        if self._unreset is not None:
            return nvml.Reading(None, f"the allocator's peaks were not reset: {self._unreset}")
        try:
            return nvml.Reading(int(getattr(self._cuda, name)(self._device)))
        except Exception as error:
            return nvml.Reading(None, f"torch does not tell: {nvml.word(error)}")

    def _known(self, name: str, reading: nvml.Reading) -> int | None:
        self._missing.pop(f"peak_bytes.{name}", None)
        if reading.value is None:
            self._missing[f"peak_bytes.{name}"] = reading.reason or "no reason given"
        return reading.value

    def reasons(self) -> dict[str, str]:
        reason = self._energy.reason
        return {**self._missing, **({} if reason is None else {"joules": reason})}


class FakeMeter:
    """A clock, peaks and an allocator given by a test; it notes what it was told."""

    def __init__(
        self,
        times_s: Iterable[float],
        peaks: Mapping[str, int | None],
        held: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._times, self._peaks, self._held = iter(times_s), dict(peaks), held
        self.told: list[str] = []

    def now_s(self) -> float:
        return next(self._times)

    def watch(self) -> None:
        self.told.append("watch")

    def stop(self) -> None:
        self.told.append("stop")

    def resume(self) -> None:
        self.told.append("resume")

    def pause(self) -> None:
        self.told.append("pause")

    def joules(self) -> float | None:
        return None

    def held(self) -> dict[str, int]:
        return self._held()

    def peaks(self) -> dict[str, int | None]:
        return dict(self._peaks)

    def reasons(self) -> dict[str, str]:
        return {f"peak_bytes.{k}": "fake" for k, v in self._peaks.items() if v is None}


def build_meter(device: torch.device) -> Meter:
    """The meter of a device."""
    if device.type != "cuda":
        return HostMeter()
    return CudaMeter(device, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _peak_rss() -> int:
    """Peak resident set of this process in bytes (Linux counts KiB, macOS bytes)."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


SCRATCH: Mapping[Any, Callable[[Tensor], int]] = {
    # A copy of the matrix, which LAPACK overwrites.
    torch.ops.aten._linalg_svd.default: lambda a: a.numel() * a.element_size(),
    # The working space of LAPACK's syevd: 1 + 6 n + 2 n^2 elements, and as many integers as below.
    torch.ops.aten._linalg_eigh.default: lambda a: (
        (1 + 6 * a.shape[-1] + 2 * a.shape[-1] ** 2) * a.element_size() + (3 + 5 * a.shape[-1]) * 4
    ),
}
"""Operation -> what its kernel takes and gives back before it returns, where that is as large as
the result. No dispatch mode sees it; these were read off the allocator."""


TORCHS_OWN = frozenset({"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"})


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was live over a while, by the storage's number."""

    start: Mapping[int, int]
    """Bytes at the beginning."""
    changes: Sequence[tuple[int, int]]
    """(number, its bytes from now on), in order."""
    peak_at: int
    """The peak came after so many changes."""
    peak_bytes: int

    def peak_sizes(self) -> dict[int, int]:
        """Bytes at the peak."""
        sizes = dict(self.start)
        sizes.update(self.changes[: self.peak_at])
        return {number: size for number, size in sizes.items() if size}

    def most(self, kind_of: Mapping[int, str], rest: str) -> dict[str, int]:
        """The most of each kind at any moment; `rest` is the kind of numbers that have none."""
        sizes = dict(self.start)
        live: dict[str, int] = {}
        for number, size in self.start.items():
            kind = kind_of.get(number, rest)
            live[kind] = live.get(kind, 0) + size
        most = dict(live)
        for number, size in self.changes:
            kind = kind_of.get(number, rest)
            live[kind] = live.get(kind, 0) + size - sizes.get(number, 0)
            sizes[number] = size
            most[kind] = max(most.get(kind, 0), live[kind])
        return most


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts live bytes by storage while it is entered, and remembers the moment of the peak.

    Storages are numbered as they are first seen: memory that is freed and given out again has the
    address of what was there before, and is not the same thing. Fake tensors are counted alike:
    their storages know the size that a real one would have.

    Args:
        roots: tensors that are alive already (weights, buffers, state).
        scalar: what the host is told when it reads a tensor's value, without looking (fake
            tensors have none); None: it really reads.
    """

    def __init__(self, roots: Iterable[Tensor] = (), scalar: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.host_reads = 0
        self.libraries: set[str] = set()
        """Whose operations beyond torch's own were seen: what they take inside is not."""
        self._scalar = scalar
        self._live: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._seen = 0
        self.live_bytes = 0
        self.peak_bytes = 0
        self._start: dict[int, int] = {}
        self._changes: list[tuple[int, int]] = []
        self._peak_at = 0
        for tensor in roots:
            self.number(tensor)
        self.restart_peak()

    def restart_peak(self) -> Ledger:
        """Forget the peak: from here on it is what is live now. Returns what there was."""
        past = Ledger(self._start, self._changes, self._peak_at, self.peak_bytes)
        self.peak_bytes = self.live_bytes
        self._start, self._changes, self._peak_at = dict(self._live), [], 0
        return past

    @property
    def peak_sizes(self) -> dict[int, int]:
        """Bytes at the peak, by the storage's number."""
        return Ledger(self._start, self._changes, self._peak_at, self.peak_bytes).peak_sizes()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.host_reads += 1
            if self._scalar is not None:
                return _as_dtype(self._scalar, args[0].dtype)
        if func.namespace not in TORCHS_OWN:
            self.libraries.add(func.namespace)
        result = func(*args, **(kwargs or {}))
        for item in tree_iter(result):
            if isinstance(item, Tensor):
                for held in plain_tensors(item):
                    self.number(held)
        scratch = SCRATCH.get(func)
        if scratch is not None:
            self._seen += 1
            self._resize(-self._seen, scratch(args[0]))
            self._resize(-self._seen, 0)
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
        if self._live.get(number, 0) != size:
            self._resize(number, size)
        return number

    def _resize(self, number: int, size: int) -> None:
        self.live_bytes += size - self._live.get(number, 0)
        self._live[number] = size
        self._changes.append((number, size))
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            self._peak_at = len(self._changes)

    def _free(self, address: int, number: int) -> None:
        if self._live.get(number):
            self._resize(number, 0)
        self._live.pop(number, None)
        if self._numbers.get(address) == number:
            del self._numbers[address]


def _as_dtype(scalar: float, dtype: torch.dtype) -> float:
    """A number as the host would get it from a tensor of this dtype."""
    if dtype == torch.bool:
        return bool(scalar)
    return scalar if dtype.is_floating_point else int(scalar)


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor itself, or those that a wrapper such as a quantised tensor is made of.

    A wrapper has a storage of the size that its shape and dtype suggest, without any memory.
    """
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        inside = getattr(tensor, name)
        if isinstance(inside, Tensor):  # a DTensor also names the mesh that it is cut up over
            yield from plain_tensors(inside)


def storage_key(tensor: Tensor) -> int:
    """What identifies a tensor's memory, shared by its views."""
    return int(tensor.untyped_storage()._cdata)


def state_tensors(holders: Iterable[Any]) -> Iterator[Tensor]:
    """Every tensor of optimizer state, found by walking recursively; parameters are left out.

    Of a wrapper (a quantised tensor) the tensors inside are given, not the wrapper.

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
        for item in plain_tensors(value):
            if item is value or id(item) not in seen:
                seen.add(id(item))
                yield item
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
