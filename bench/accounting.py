"""Bytes by kind at the peak of one step: weights, gradients, state, activations, temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from levelfield.bench.meter import Ledger, StorageTracker, state_tensors
from levelfield.bench.stepper import Parameter, Stepper

STRETCHES = ("pass", "update")
"""A step is in a pass (forward and backward) or in the update."""
KINDS = ("weights", "gradients", "state", "activations", "temporary")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The peak of one stretch of a step."""

    total: int
    by_kind: Mapping[str, int]
    """Bytes of each of `KINDS` at the peak; they add up to `total`."""
    most: Mapping[str, int]
    """The most of each kind at any moment, which need not be that of the total."""


@dataclass(slots=True)
class Watch:
    """One step under the tracker; complete once the step is over."""

    phase: Callable[[str], None]
    """For `StepBatch`: told where a pass begins and ends."""
    stretches: dict[str, Stretch] = field(default_factory=dict)
    host_reads: int = 0
    """Scalars that the host read inside the step, but for what the model reads in its forward."""
    libraries: frozenset[str] = frozenset()
    """As of `StorageTracker`."""


@contextmanager
def watch(
    params: tuple[Parameter, ...],
    model: nn.Module,
    stepper: Stepper,
    scalar: float | None = None,
) -> Iterator[Watch]:
    """Track one step, of real or of fake tensors.

    What is neither weight, gradient nor state counts as `activations` in a pass, as `temporary` in
    the update.

    Args:
        scalar: as for `StorageTracker`.
    """
    held = [*model.parameters(), *model.buffers()]
    tracker = StorageTracker(held, scalar)
    weights = {tracker.number(tensor) for tensor in held}
    state = {tracker.number(tensor) for tensor in state_tensors(stepper.optimizers)}
    tracker.restart_peak()
    gradients: set[int] = set()

    def keep(param: Tensor) -> None:
        if param.grad is not None:
            gradients.add(tracker.number(param.grad))

    own = before = 0

    def enter(*_: object) -> None:
        nonlocal before
        before = tracker.host_reads

    def leave(*_: object) -> None:
        nonlocal own
        own += tracker.host_reads - before

    hooks = [
        param.tensor.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
        for param in params
    ]
    hooks += [model.register_forward_pre_hook(enter), model.register_forward_hook(leave)]
    ledgers: dict[str, list[Ledger]] = {}
    current = "update"

    def close() -> None:
        ledgers.setdefault(current, []).append(tracker.restart_peak())

    def phase(name: str) -> None:
        nonlocal current
        close()
        current = name

    found = Watch(phase)
    try:
        with tracker:
            yield found
        close()
    finally:
        for hook in hooks:
            hook.remove()
    found.host_reads, found.libraries = tracker.host_reads - own, frozenset(tracker.libraries)
    state |= {tracker.number(tensor) for tensor in state_tensors(stepper.optimizers)}
    kind_of = {
        **dict.fromkeys(gradients, "gradients"),
        **dict.fromkeys(state, "state"),
        **dict.fromkeys(weights, "weights"),
    }
    for name, parts in ledgers.items():
        rest = "activations" if name == "pass" else "temporary"
        found.stretches[name] = _stretch(parts, kind_of, rest)


def _stretch(parts: Sequence[Ledger], kind_of: Mapping[int, str], rest: str) -> Stretch:
    """Several ledgers of one name as one; `rest` is the kind of what is of no other."""
    highest = max(parts, key=lambda part: part.peak_bytes)
    by_kind = dict.fromkeys(KINDS, 0)
    for number, size in highest.peak_sizes().items():
        by_kind[kind_of.get(number, rest)] += size
    most = dict.fromkeys(KINDS, 0)
    for part in parts:
        for kind, size in part.most(kind_of, rest).items():
            most[kind] = max(most[kind], size)
    return Stretch(highest.peak_bytes, by_kind, most)


@contextmanager
def account(
    params: tuple[Parameter, ...],
    model: nn.Module,
    stepper: Stepper,
    peaks: dict[str, int | None],
) -> Iterator[Callable[[str], None]]:
    """Track one step and merge its peak into `peaks` if it is the highest so far.

    `host_reads` of `peaks` becomes the number of scalars that the host read inside this step.

    The kinds are those of the moment of the peak and add up to `total`. `pass_peak` and
    `update_peak` are the totals of the two stretches.

    Yields:
        A callable for `StepBatch`, told where a pass begins and ends.
    """
    with watch(params, model, stepper) as found:
        yield found.phase
    peaks["host_reads"] = found.host_reads
    highest = max(found.stretches.values(), key=lambda stretch: stretch.total)
    if highest.total <= (peaks.get("total") or 0):
        return
    peaks.update(highest.by_kind)
    peaks["total"] = highest.total
    for name in STRETCHES:
        stretch = found.stretches.get(name)
        peaks[f"{name}_peak"] = None if stretch is None else stretch.total
