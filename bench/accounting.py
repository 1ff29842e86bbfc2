"""Bytes by kind at the peak of one step: weights, gradients, state, activations, temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from levelfield.bench.meter import StorageTracker, state_tensors
from levelfield.bench.stepper import Parameter, Stepper


@contextmanager
def account(
    params: tuple[Parameter, ...],
    model: nn.Module,
    stepper: Stepper,
    peaks: dict[str, int | None],
) -> Iterator[Callable[[str], None]]:
    """Track one step and merge its peak into `peaks` if it is the highest so far.

    `host_reads` of `peaks` becomes the number of scalars that the host read inside this step.

    The kinds are those of the moment of the peak and add up to `total`. What is neither weight,
    gradient nor state counts as `activations` when the peak falls into a pass, as `temporary` when
    it falls into the update. `pass_peak` and `update_peak` are the totals of the two stretches.

    Yields:
        A callable for `StepBatch`, told where a pass begins and ends.
    """
    held = [*model.parameters(), *model.buffers()]
    tracker = StorageTracker(held)
    weights = {tracker.number(tensor) for tensor in held}
    state = {tracker.number(tensor) for tensor in state_tensors(stepper.optimizers)}
    tracker.restart_peak()
    gradients: set[int] = set()

    def keep(param: Tensor) -> None:
        if param.grad is not None:
            gradients.add(tracker.number(param.grad))

    hooks = [
        param.tensor.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
        for param in params
    ]
    stretches: dict[str, tuple[int, dict[int, int]]] = {}
    current = "update"

    def close() -> None:
        bytes_before = stretches.get(current, (0, {}))[0]
        if tracker.peak_bytes > bytes_before:
            stretches[current] = (tracker.peak_bytes, tracker.peak_sizes)
        tracker.restart_peak()

    def phase(name: str) -> None:
        nonlocal current
        close()
        current = name

    try:
        with tracker:
            yield phase
        close()
    finally:
        for hook in hooks:
            hook.remove()
    peaks["host_reads"] = tracker.host_reads
    state |= {tracker.number(tensor) for tensor in state_tensors(stepper.optimizers)}
    where = max(stretches, key=lambda name: stretches[name][0])
    total, sizes = stretches[where]
    if total <= (peaks.get("total") or 0):
        return
    by_kind = {"weights": 0, "gradients": 0, "state": 0, "activations": 0, "temporary": 0}
    for number, size in sizes.items():
        if number in weights:
            kind = "weights"
        elif number in state:
            kind = "state"
        elif number in gradients:
            kind = "gradients"
        else:
            kind = "activations" if where == "pass" else "temporary"
        by_kind[kind] += size
    peaks.update(by_kind)
    peaks["total"] = total
    for name in ("pass", "update"):
        peaks[f"{name}_peak"] = stretches[name][0] if name in stretches else None
