"""Budgets in GiB: each method trains the largest of the protocol's sizes that fits.

The peak is simulated (`bench.simulate`): the method's real steps at that size with fake tensors, on
the run's device type, batch and precision. The choice is made once, before any trial, and kept in
the manifest, so that neither slots nor a resume change it. Tokens stay equal, or seconds where the
budget is in seconds; the model is what a method's memory buys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import BenchError, OptimizerSpec, Protocol, Variant

GIB = 2**30


class NothingFits(BenchError):
    """No method of a run fits its memory budget."""


def limit_bytes(protocol: Protocol) -> float | None:
    """Bytes that a trial's peak may reach, or None if the protocol sets no such limit."""
    limit = protocol.budget.memory_gib
    return None if limit is None else limit * GIB


def check_sizes(protocol: Protocol) -> None:
    """Refuse a limit without sizes to choose from, and sizes that cannot be.

    Raises:
        BenchError: no sizes, two of one name, a setting that does not exist, a limit of nothing.
    """
    limit = protocol.budget.memory_gib
    if limit is None:
        return
    if limit <= 0:
        raise BenchError(f"budget.memory_gib = {limit:g}", "accepted: a number above 0")
    names = [size.name for size in protocol.sizes]
    if not names:
        raise BenchError(
            f"{protocol.name} has a memory budget and no sizes",
            "accepted: a protocol with `sizes`, smallest first, such as iso_memory",
        )
    if len(set(names)) < len(names):
        raise BenchError(f"{protocol.name} names a size twice", f"it has {', '.join(names)}")
    for size in protocol.sizes:
        apply_settings(protocol, size.settings)


def own_protocol(protocol: Protocol, manifest: Mapping[str, Any], method: str) -> Protocol:
    """The protocol as one method trains it: at the size that fits, over its own horizon."""
    size = (manifest.get("sizes") or {}).get(method)
    if size is not None and size["size"] is not None:
        protocol = apply_settings(protocol, size["settings"])
    steps = (manifest.get("horizons") or {}).get(method, protocol.budget.steps)
    return replace(protocol, budget=replace(protocol.budget, steps=steps))


class Fitter:
    """Finds the size of one method after the other; models are built once.

    Args:
        protocol: with a memory budget and sizes.
        device_type: `cpu` or `cuda`: what is simulated.
    """

    def __init__(self, protocol: Protocol, device_type: str) -> None:
        self.protocol, self.device_type = protocol, device_type
        self._simulators: dict[str, Any] = {}

    def choose(self, spec: OptimizerSpec) -> dict[str, Any]:
        """The largest size whose simulated peak fits: `size`, `settings`, `peak_bytes`.

        Without one `size` is None and `reason` says why.
        """
        limit = limit_bytes(self.protocol)
        assert limit is not None
        reason = "no sizes"
        for size in reversed(self.protocol.sizes):
            peak, why = self.peak(spec, size)
            if peak is not None and peak <= limit:
                return {"size": size.name, "settings": list(size.settings), "peak_bytes": peak}
            if peak is None:
                reason = f"its peak cannot be simulated: {why}"
                break
            reason = f"its peak at the smallest size, {size.name}, is {peak:,} bytes"
        return {"size": None, "settings": [], "peak_bytes": None, "reason": reason}

    def peak(self, spec: OptimizerSpec, size: Variant) -> tuple[int | None, str]:
        """The simulated peak at a size, or None with the reason."""
        from levelfield.bench import memory

        reasons: dict[str, str] = {}
        seen = memory.simulate(spec, self._simulator(size), reasons)
        total = None if seen is None else seen.total
        return total, "; ".join(reasons.values())

    def _simulator(self, size: Variant) -> Any:
        if size.name not in self._simulators:
            from levelfield.bench import simulate

            self._simulators[size.name] = simulate.of_protocol(
                apply_settings(self.protocol, size.settings),
                "cuda" if self.device_type == "cuda" else "cpu",
            )
        return self._simulators[size.name]
