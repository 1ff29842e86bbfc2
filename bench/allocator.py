"""The allocator's own account of a step: what a device really handed out, beside what is counted.

On the CPU the profiler's memory events are replayed from the first weight on; on CUDA the
allocator keeps the peak itself, in bytes that were asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from levelfield.bench import simulate
from levelfield.bench.simulate import Seen, Workload
from levelfield.bench.spec import OptimizerSpec

MARK = "levelfield memory: "
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own notes go to stderr otherwise


def measure(
    spec: OptimizerSpec, hparams: Mapping[str, Any], load: Workload, device: torch.device
) -> tuple[Seen, dict[str, int]]:
    """Real steps: what the tracker saw, and the allocator's peaks of `pass` and `update`.

    Args:
        spec, hparams: the method.
        load: what is trained.
        device: where.
    """
    if device.type == "cuda":
        return _cuda(spec, hparams, load, device)
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark(name: str) -> None:
        with record_function(MARK + name):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        seen = _steps(spec, hparams, load, mark)
    results = run.profiler.kineto_results
    events = [
        (event.start_ns(), event.name(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]" or event.name().startswith(MARK)
    ]
    return seen, replay(events)


def replay(events: list[tuple[int, str, int]]) -> dict[str, int]:
    """The peak of each stretch.

    Args:
        events: (time, "[memory]", bytes taken or given back) or (time, `MARK` + stretch, anything).
    """
    peaks: dict[str, int] = {}
    stretch, live = "", 0
    for _, name, size in sorted(events, key=lambda event: event[0]):
        if name.startswith(MARK):
            stretch = name.removeprefix(MARK)
        else:
            live += size
        if stretch:
            peaks[stretch] = max(peaks.get(stretch, 0), live)
    return peaks


def _cuda(
    spec: OptimizerSpec, hparams: Mapping[str, Any], load: Workload, device: torch.device
) -> tuple[Seen, dict[str, int]]:
    before = torch.cuda.memory_allocated(device)
    peaks: dict[str, int] = {}
    current = ""

    def mark(name: str) -> None:
        nonlocal current
        if current:
            peak = torch.cuda.memory_stats(device)["requested_bytes.all.peak"] - before
            peaks[current] = max(peaks.get(current, 0), peak)
        torch.cuda.reset_peak_memory_stats(device)
        current = name

    with device:
        seen = _steps(spec, hparams, load, mark)
    mark("")
    torch.cuda.empty_cache()
    return seen, peaks


def _steps(
    spec: OptimizerSpec,
    hparams: Mapping[str, Any],
    load: Workload,
    mark: Callable[[str], None],
) -> Seen:
    model = simulate.build(load)
    return simulate.take_steps(spec, hparams, load, model, simulate.real_tokens, on_phase=mark)
