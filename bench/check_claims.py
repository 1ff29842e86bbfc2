"""Checks that what a spec claims is what is measured: ranges, roles, bytes, passes, host reads."""

from __future__ import annotations

import copy
import gc
import math
from collections import Counter
from collections.abc import Sequence

from levelfield.bench import models
from levelfield.bench.build import build_stepper, claimed_state_bytes
from levelfield.bench.check_bench import PROTOCOL, SEED, Bench, Failure
from levelfield.bench.meter import StorageTracker, state_bytes, state_tensors, storage_key
from levelfield.bench.spec import OptimizerSpec


def record(spec: OptimizerSpec) -> str:
    for name, dim in spec.space.items():
        low, high = dim.bounds
        if not low <= dim.default <= high:
            raise Failure(f"default of {name} outside its bounds")
    total = PROTOCOL.budget.steps
    switches = list(spec.switches(spec.defaults(), total))
    if switches != sorted(set(switches)) or any(not 0 <= step <= total for step in switches):
        raise Failure(f"switches {switches[:5]} are not rising steps of a run of {total}")
    words = f"; cannot: {', '.join(spec.cannot)}" if spec.cannot else ""
    return f"tunes {', '.join(spec.space)}; takes {', '.join(spec.roles)}{words}"


def roles(spec: OptimizerSpec) -> str:
    """The method holds what its spec says that it takes, the fallback the rest, each once."""
    bench = Bench(spec, spec.defaults())
    known = {id(param.tensor): param.info.role for param in bench.params}
    held = [
        [known.get(id(p)) for group in optimizer.param_groups for p in group["params"]]
        for optimizer in bench.stepper.optimizers
    ]
    if Counter(role for one in held for role in one) != Counter(known.values()):
        raise Failure("its optimizers do not hold every parameter exactly once")
    said = {role for role in known.values() if role in spec.roles}
    rest = {role for role in known.values() if role not in spec.roles}
    if rest and set(held[-1]) != rest:
        raise Failure(f"leaves {', '.join(sorted(rest))} to the fallback, which does not hold them")
    others = f"; the fallback holds {', '.join(sorted(rest))}" if rest else ""
    return f"takes {', '.join(sorted(said))}, each parameter once{others}"


def claimed_bytes(spec: OptimizerSpec) -> str:
    bench = Bench(spec, spec.defaults())
    bench.take(PROTOCOL.budget.steps)
    held = state_bytes(bench.stepper.optimizers)
    infos = tuple(param.info for param in bench.params)
    claimed = claimed_state_bytes(spec, PROTOCOL, infos, bench.hparams, 1.0)
    if held != claimed:
        raise Failure(f"claims {claimed:,} bytes of state and holds {held:,}")
    parameters = sum(info.numel for info in infos)
    return f"{held:,} bytes, {held / parameters:.2f} a parameter, as claimed"


CONSTANTS = 4096
"""Bytes of tables that a library may keep: they do not grow with the model."""


def hidden_bytes(spec: OptimizerSpec) -> str:
    """What is alive after a step beyond weights, gradients and the claimed state: copies that a
    method keeps elsewhere count too."""
    bench = Bench(spec, spec.defaults())
    bench.model = copy.deepcopy(bench.model)  # without the hooks of the method that was built
    bench.params = models.parameters(bench.model)
    tracker = StorageTracker([*bench.model.parameters(), *bench.model.buffers()])
    before = tracker.live_bytes
    with tracker:
        bench.stepper = build_stepper(
            spec, PROTOCOL, bench.model, bench.params, bench.hparams, SEED
        )
        bench.take(2)
    for param in bench.params:
        param.tensor.grad = None
    gc.collect()
    infos = tuple(param.info for param in bench.params)
    progress = bench.step / PROTOCOL.budget.steps
    claimed = claimed_state_bytes(spec, PROTOCOL, infos, bench.hparams, progress)
    kept = tracker.live_bytes - before - scalars(bench.stepper.optimizers) - claimed
    most = CONSTANTS if spec.requires else 0
    if kept > most:
        raise Failure(f"keeps {kept:,} bytes beside the state that it claims")
    return "nothing beside the state" if kept <= 0 else f"{kept:,} bytes of constants"


def scalars(holders: Sequence[object]) -> int:
    """Bytes of 0-dim tensors, which a claim leaves out (counters, rates, points of a series)."""
    held = list(state_tensors([vars(holder) for holder in holders]))
    wide = {storage_key(tensor) for tensor in held if tensor.ndim}
    sizes = {storage_key(t): t.untyped_storage().nbytes() for t in held if not t.ndim}
    return sum(size for key, size in sizes.items() if key not in wide)


def claimed_passes(spec: OptimizerSpec) -> str:
    bench = Bench(spec, spec.defaults())
    # What changes over a run is measured over a whole one, and claimed at its most.
    steps, tolerance = (20, 0.05) if spec.passes_at is None else (PROTOCOL.budget.steps, 0.2)
    bench.take(steps)
    measured = bench.passes / steps
    if not math.isclose(measured, spec.passes, rel_tol=tolerance):
        raise Failure(f"claims {spec.passes:g} passes a step and makes {measured:g}")
    most = "" if spec.passes_at is None else f", {spec.passes:g} at most"
    return f"{measured:g} a step, as claimed{most}"


def count_host_reads(spec: OptimizerSpec, steps: int = 30) -> float:
    """Scalars that the host reads a step, as a mean over the first steps.

    What the model itself reads in a forward and backward pass is not the method's and is left out.
    """
    bench = Bench(spec, spec.defaults())
    with StorageTracker() as tracker:
        bench.batch().backward()
    own = tracker.host_reads
    for param in bench.params:
        param.tensor.grad = None
    reads = 0.0
    for _ in range(steps):
        batch, factor = bench.batch(), bench.factor()
        with StorageTracker() as tracker:
            bench.stepper.step(batch, factor)
        reads += tracker.host_reads - own * batch.passes
        bench.step += 1
    return round(reads / steps, 6)


def host_reads(spec: OptimizerSpec) -> str:
    """A read inside a step makes a GPU wait: nothing of our own does it."""
    reads = count_host_reads(spec)
    if reads and spec.implementation == "own":
        raise Failure(f"the host reads {reads:g} scalars a step: a GPU would wait for each")
    if reads:
        return f"{reads:g} a step, inside {spec.implementation}"
    return "none inside a step"
