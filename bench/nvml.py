"""What the driver says of process memory and energy. Whatever fails is a blank with its reason.

Devices are matched by UUID: the driver's order is not CUDA's, and `CUDA_VISIBLE_DEVICES` may name
devices in any order or by UUID. Processes are matched by PID and nothing else: neither the only
process on a device nor the sum of all is taken for this one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HIDDEN = 2**64 - 1
"""What the driver writes where it does not tell."""
_NO_MIG_HERE = (3, 13)
"""NVML's codes for "not supported" (a GPU without MIG) and "no such function" (an old driver)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A number, or why there is none."""

    value: int | None
    reason: str | None = None


def names_of(uuid: str | None, index: int, visible: str | None) -> tuple[str, ...]:
    """What NVML may know a CUDA device by, likeliest first; empty if that is not known.

    Args:
        uuid: of the device, as torch tells it: with or without the `GPU-` or `MIG-` prefix.
        index: torch's number of the device.
        visible: `CUDA_VISIBLE_DEVICES`; None if it is not set. Its numbers are never used.
    """
    entries = [entry.strip() for entry in (visible or "").split(",")]
    entry = entries[index] if index < len(entries) else ""
    if entry.startswith("MIG-"):
        return (entry,)  # torch may tell the UUID of the GPU that the slice is cut from
    if not uuid:
        return (entry,) if entry.startswith("GPU-") else ()
    if uuid.startswith(("GPU-", "MIG-")):
        return (uuid,)
    return (f"GPU-{uuid}", f"MIG-{uuid}")


def _alive(pid: int) -> bool:
    """Whether a process of this number exists in this PID namespace, whoever owns it."""
    if sys.platform == "win32":
        return True  # no namespaces there, and no signal that does nothing
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


class Device:
    """The counters of one device, opened once. No reading raises.

    Args:
        names: see `names_of`; the first that NVML knows is taken.
        library: a stand-in for pynvml (tests).
        alive: tells whether a process exists (tests).
    """

    def __init__(
        self, names: Sequence[str], library: Any = None, alive: Callable[[int], bool] = _alive
    ) -> None:
        self._alive = alive
        self._nvml: Any = None
        self._handle: Any = None
        self._name = ""
        self._whole: Reading | None = None
        self.reason: str | None = None
        """Why the device could not be opened, or None."""
        try:
            nvml = library if library is not None else _load()
        except Exception as error:
            self.reason = f"NVML is not there: {word(error)}"
            return
        try:
            nvml.nvmlInit()
        except Exception as error:
            self.reason = f"NVML does not start: {word(error)}"
            return
        self._nvml = nvml
        self.reason = self._find(names)
        if self.reason is not None:
            self.close()

    def _find(self, names: Sequence[str]) -> str | None:
        reason = "the UUID of the device is not known"
        for name in names:
            try:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(name)
            except Exception as error:
                reason = f"NVML does not know the device: {word(error)}"
            else:
                self._name = name
                return None
        return reason

    def close(self) -> None:
        """Give NVML back; readings are blank from here on."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            self.reason = self.reason or "NVML was closed"
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()

    def process_bytes(self) -> Reading:
        """Bytes that this process holds on the device, context included."""
        return self._try(self._process_bytes)

    def energy_mj(self) -> Reading:
        """Millijoules that the device has used since its driver was loaded, whoever used them."""
        return self._try(self._energy_mj)

    def _try(self, read: Callable[[Any], Reading]) -> Reading:
        nvml = self._nvml
        if nvml is None:
            return Reading(None, self.reason)
        try:
            return read(nvml)
        except Exception as error:
            return Reading(None, f"NVML does not tell: {word(error)}")

    def _process_bytes(self, nvml: Any) -> Reading:
        listed = list(nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        own = [process for process in listed if process.pid == os.getpid()]
        if not own:
            return Reading(None, "the driver does not list this process (a container?)")
        # Some drivers list the PIDs of the host: in a container ours may be a stranger's there.
        if any(process.pid > 0 and not self._alive(process.pid) for process in listed):
            return Reading(None, "the driver lists processes of another PID namespace")
        if len(own) > 1:
            return Reading(None, "the driver lists this process more than once")
        used = own[0].usedGpuMemory
        if used is None or int(used) == HIDDEN:
            return Reading(None, "the driver hides memory by process (WSL or MIG)")
        return Reading(int(used))

    def _energy_mj(self, nvml: Any) -> Reading:
        if self._whole is None:
            self._whole = self._is_whole(nvml)
        if self._whole.reason is not None:
            return self._whole
        return Reading(int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))

    def _is_whole(self, nvml: Any) -> Reading:
        """A reason if the counter is of a GPU that others have slices of."""
        cut = self._name.startswith("MIG-")
        if not cut:
            try:
                cut = bool(nvml.nvmlDeviceGetMigMode(self._handle)[0])
            except Exception as error:
                if getattr(error, "value", None) not in _NO_MIG_HERE:
                    raise
        if cut:
            return Reading(None, "MIG: energy is counted for a whole GPU, not for a slice of it")
        return Reading(1)


class Sampler:
    """The peak of a reading, taken by a daemon thread; what goes wrong in it stays in it.

    Args:
        read: called again and again from the thread.
        interval_s: pause between two readings.
    """

    def __init__(self, read: Callable[[], Reading], interval_s: float = 0.1) -> None:
        self._read, self._interval_s = read, interval_s
        self._stop = threading.Event()
        self._peak: int | None = None
        self._blank: str | None = None
        self._ended: str | None = None
        """Why sampling ended before it was told to: the peak is not known then."""
        self._thread: threading.Thread | None = None
        try:
            thread = threading.Thread(target=self._run, name="levelfield-nvml", daemon=True)
            thread.start()
        except Exception as error:
            self._ended = f"sampling did not start: {word(error)}"
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            while True:
                reading = self._read()
                if reading.value is None:
                    self._blank = reading.reason
                elif self._peak is None or reading.value > self._peak:
                    self._peak = reading.value
                if self._stop.wait(self._interval_s):
                    return
        except BaseException as error:
            self._ended = f"sampling ended early: {word(error)}"

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread; one that hangs in the driver is left to itself."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(timeout_s)
        if thread.is_alive():
            self._ended = f"the driver did not answer within {timeout_s:g} s"

    def result(self) -> Reading:
        """The highest reading, or why it is not known."""
        if self._ended is not None:
            return Reading(None, self._ended)
        if self._peak is None:
            return Reading(None, self._blank or "nothing was sampled")
        return Reading(self._peak)


class Energy:
    """Joules over stretches of time, read off a counter that may fail: then there are none.

    A counter that moves every few milliseconds is off by one move at each end of a stretch.
    """

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._start: int | None = None
        self._total_mj = 0
        self._stretches = 0
        self._failed: str | None = None

    def resume(self) -> None:
        """A stretch begins."""
        self._start = self._value()

    def pause(self) -> None:
        """It ends; one that never does is not counted."""
        start, self._start = self._start, None
        end = self._value() if start is not None else None
        if start is None or end is None:
            return
        if end < start:
            self._failed = "the energy counter went backwards"
            return
        self._total_mj += end - start
        self._stretches += 1

    def _value(self) -> int | None:
        if self._failed is not None:
            return None
        reading = self._read()
        if reading.value is None:
            self._failed = reading.reason or "no reason given"
        return reading.value

    @property
    def reason(self) -> str | None:
        """Why there are no joules, or None."""
        if self._failed is not None:
            return self._failed
        if not self._stretches:
            return "no step was timed"
        return None if self._total_mj else "the energy counter did not move in the timed steps"

    @property
    def joules(self) -> float | None:
        """Over all stretches."""
        return self._total_mj / 1000 if self.reason is None else None


def _load() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecated package of the same name warns on import
        import pynvml

    return pynvml


def word(error: BaseException) -> str:
    """An exception in a line."""
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}{': ' + text if text else ''}"


def driver(library: Any = None) -> dict[str, Any]:
    """Driver version and device names, or the reason why there are none."""
    try:
        nvml = library if library is not None else _load()
        nvml.nvmlInit()
    except Exception as error:
        return {"driver": None, "devices": [], "reason": word(error)}
    try:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        return {"driver": nvml.nvmlSystemGetDriverVersion(), "devices": names, "reason": None}
    except Exception as error:
        return {"driver": None, "devices": [], "reason": word(error)}
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
