"""What this machine offers, and what does not load with its reason."""

from __future__ import annotations

import importlib.util
import platform
import sys
from typing import Any

from levelfield.bench import nvml, provenance, registry

EXTRAS = {
    "quant": ("bitsandbytes", "torchao"),
    "ray": ("ray",),
}


def diagnose() -> dict[str, Any]:
    """Python, libraries, devices, extras, plug-ins; nothing here raises."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "libraries": {name: provenance.version(name) for name in provenance.LIBRARIES},
        "cores": provenance.cores(),
        "memory_bytes": provenance.memory_bytes(),
        "cuda_devices": [torch.cuda.get_device_name(index) for index in range(count)],
        "torch_threads": torch.get_num_threads(),
        "nvml": nvml.driver(),
        "extras": {
            extra: {name: importlib.util.find_spec(name) is not None for name in names}
            for extra, names in EXTRAS.items()
        },
        "registries": {kind: _registry(item) for kind, item in ALL.items()},
    }


ALL: dict[str, registry.Registry[Any]] = {
    "optimizers": registry.OPTIMIZERS,
    "protocols": registry.PROTOCOLS,
    "metrics": registry.METRICS,
    "sections": registry.SECTIONS,
}


def _registry(item: registry.Registry[Any]) -> dict[str, Any]:
    broken = item.broken()
    entries = item.entries()
    return {
        "loaded": [name for name in entries if name not in broken],
        "plug_ins": {name: e.origin for name, e in entries.items() if e.literals is None},
        "broken": broken,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people; what is wrong starts with an exclamation mark."""
    memory = found["memory_bytes"]
    gib = f"{memory / 2**30:.1f} GiB memory" if memory else "memory unknown"
    shown = [
        f"python      {found['python']} on {found['platform']}",
        f"machine     {found['cores']} cores, {gib}",
        "libraries   " + ", ".join(f"{k} {v or 'missing'}" for k, v in found["libraries"].items()),
        "cuda        " + (", ".join(found["cuda_devices"]) or "no device"),
        "nvml        " + (found["nvml"]["driver"] or f"none ({found['nvml']['reason']})"),
    ]
    for extra, names in found["extras"].items():
        have = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in names.items())
        shown.append(f"extra       {extra}: {have}")
    for kind, item in found["registries"].items():
        plug_ins = f", {len(item['plug_ins'])} from plug-ins" if item["plug_ins"] else ""
        shown.append(f"{kind:<12}{len(item['loaded'])} load{plug_ins}")
        shown += [f"! {kind[:-1]} {name}: {why}" for name, why in item["broken"].items()]
    return shown
