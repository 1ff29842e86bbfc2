"""What a run was made with: versions, machine, command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

LIBRARIES = ("torch", "transformers", "numpy", "scipy", "optuna", "pandas", "pytorch-optimizer")


def environment(device: str) -> dict[str, Any]:
    """Versions and machine as flat data; nothing heavy is imported."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "device": device,
        **{name: version(name) for name in LIBRARIES},
    }


def levelfield_version() -> str:
    """Version of the installed package."""
    return version("levelfield") or "unknown (not installed)"


def command() -> list[str]:
    """The command line as typed, without the interpreter's path."""
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]


def version(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def memory_bytes() -> int | None:
    """Physical memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
