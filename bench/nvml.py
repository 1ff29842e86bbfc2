"""Process memory as the driver sees it. Whatever fails is a blank with its reason, never a crash.

Devices are matched by UUID: the driver's order is not CUDA's, and `CUDA_VISIBLE_DEVICES` may name
devices in any order or by UUID.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """A number, or why there is none."""

    value: int | None
    reason: str | None = None


def process_bytes(uuid: str, library: Any = None) -> Reading:
    """Bytes that this process holds on the device, context included.

    Args:
        uuid: of the device, as torch tells it (with or without the `GPU-` prefix).
        library: a stand-in for pynvml (tests).
    """
    try:
        nvml = library if library is not None else _load()
    except Exception as error:
        return Reading(None, f"NVML is not there: {_word(error)}")
    try:
        nvml.nvmlInit()
    except Exception as error:
        return Reading(None, f"NVML does not start: {_word(error)}")
    try:
        return _read(nvml, uuid)
    except Exception as error:
        return Reading(None, f"NVML does not tell: {_word(error)}")
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def energy_mj(uuid: str, library: Any = None) -> Reading:
    """Millijoules that the device has used since its driver was loaded, whoever used them."""
    try:
        nvml = library if library is not None else _load()
        nvml.nvmlInit()
    except Exception as error:
        return Reading(None, f"NVML is not there: {_word(error)}")
    try:
        return Reading(int(nvml.nvmlDeviceGetTotalEnergyConsumption(_handle(nvml, uuid))))
    except Exception as error:
        return Reading(None, f"NVML does not tell: {_word(error)}")
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str) -> Any:
    wanted = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return nvml.nvmlDeviceGetHandleByUUID(wanted)


def _read(nvml: Any, uuid: str) -> Reading:
    handle = _handle(nvml, uuid)
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            if process.usedGpuMemory is None:
                return Reading(None, "the driver hides memory by process (WSL or MIG)")
            return Reading(int(process.usedGpuMemory))
    return Reading(None, "the driver does not list this process (a container?)")


def _load() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecated package of the same name warns on import
        import pynvml

    return pynvml


def _word(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}{': ' + text if text else ''}"


def driver(library: Any = None) -> dict[str, Any]:
    """Driver version and device names, or the reason why there are none."""
    try:
        nvml = library if library is not None else _load()
        nvml.nvmlInit()
    except Exception as error:
        return {"driver": None, "devices": [], "reason": _word(error)}
    try:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        return {"driver": nvml.nvmlSystemGetDriverVersion(), "devices": names, "reason": None}
    except Exception as error:
        return {"driver": None, "devices": [], "reason": _word(error)}
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
