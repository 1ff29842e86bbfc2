"""Checks on the course of steps: state, saving, schedules, parts of a batch, clipping, closures."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from levelfield.bench.check_bare import Bare
from levelfield.bench.check_bench import (
    PROTOCOL,
    Bench,
    Failure,
    Unsupported,
    distance,
    equal,
    refuse,
)
from levelfield.bench.check_targets import exact_target, mixed_target
from levelfield.bench.spec import OptimizerSpec


def finite(spec: OptimizerSpec) -> str:
    """Every step leaves finite weights at the default."""
    bench = Bench(spec, spec.defaults())
    bench.take(10)
    bench.finite("after 10 steps")
    return "weights stay finite for 10 steps at the default"


def stable_state(spec: OptimizerSpec) -> str:
    """From step 2 on, shapes and dtypes of the state change at the spec's switches alone."""
    bench = Bench(spec, spec.defaults())
    switches = set(spec.switches(spec.defaults(), PROTOCOL.budget.steps))
    bench.take(2)
    last = bench.shapes()
    for step in range(2, 12):
        bench.take(1)
        now = bench.shapes()
        if now != last and not {step, step + 1} & switches:
            raise Failure(f"state tensors change shape or dtype in step {step}")
        if {item.split()[-1] for item in now} - {item.split()[-1] for item in last}:
            raise Failure(f"state tensors take another dtype in step {step}")
        last = now
    return f"{len(last)} state tensors keep shape and dtype{' between switches' * bool(switches)}"


def same_twice(spec: OptimizerSpec) -> str:
    one, other = Bench(spec, spec.defaults()), Bench(spec, spec.defaults())
    one.take(8)
    other.take(8)
    equal(one.weights(), other.weights(), "two runs from one seed differ")
    return "two runs are bit-equal"


def round_trip(spec: OptimizerSpec) -> str:
    """Saved and restored into a fresh method, training goes on bit-equal, across every switch."""
    steps, ahead = PROTOCOL.budget.steps, 3
    switches = spec.switches(spec.defaults(), steps)
    points = sorted({1, 5, *(s - 1 for s in switches if 1 < s <= steps - 2)})
    straight = Bench(spec, spec.defaults())
    saved, after = {}, []
    for step in range(min(max(points) + ahead, steps)):
        if step in points:
            state = copy.deepcopy(straight.stepper.state_dict())
            saved[step] = (straight.weights(), state)
        straight.take(1)
        after.append(straight.weights())
    for point, (weights, state) in saved.items():
        resumed = Bench(spec, spec.defaults())
        for _ in range(point):
            resumed.order.next()
        resumed.step = point
        resumed.put(weights)
        resumed.stepper.load_state_dict(state)
        last = min(point + ahead, steps)
        resumed.take(last - point)
        equal(resumed.weights(), after[last - 1], f"a round trip at step {point} differs")
    return f"bit-equal after {len(points)} round trips, across {len(switches)} switches"


def schedule(spec: OptimizerSpec) -> str:
    """At rate 0 nothing moves; a change of the rate in mid-run takes effect in the next step."""
    if spec.schedule == "own":
        raise Unsupported("the method keeps its own schedule")
    bench = Bench(spec, spec.defaults())
    start = bench.weights()
    bench.take(2, scale=0.0)
    equal(start, bench.weights(), "weights move at rate 0: part of it ignores the schedule")
    bench.take(4, scale=1.0)
    middle = bench.weights()
    bench.take(1, scale=0.0)
    equal(middle, bench.weights(), "a rate that falls to 0 in mid-run does not act at once")
    bench.take(1, scale=1.0)
    if distance(middle, bench.weights()) == 0.0:
        raise Failure("a rate that rises from 0 in mid-run does not act at once")
    return "nothing moves at rate 0; a change acts in the next step"


def accumulation(spec: OptimizerSpec) -> str:
    """A batch in three parts is the batch."""
    refuse(spec, "grad_accumulation")
    far = accumulation_error(spec)
    if far > 1e-3:
        raise Failure(f"a batch in 3 parts ends {far:.1%} of the way elsewhere")
    return f"a batch in 3 parts ends where the whole one does, to {far:.0e} of the way"


def accumulation_error(spec: OptimizerSpec) -> float:
    """How far apart a batch in three parts and in one end, as a share of the way, in float64."""
    ends = []
    for parts in (1, 3):
        bare = Bare(spec, exact_target(), parts=parts)
        start = bare.weights()
        bare.take(12)
        ends.append(bare.weights())
    return distance(*ends) / max(distance(start, ends[0]), 1e-300)


def clipping(spec: OptimizerSpec) -> str:
    """A huge gradient is bounded as if the loss had been scaled by hand."""
    refuse(spec, "clipping")
    bound = 1.0
    clipped = Bare(spec, exact_target(), clip_norm=bound)
    by_hand = Bare(spec, exact_target())
    clipped.target.size = 1e4
    start = clipped.weights()
    for _ in range(3):
        by_hand.target.size = 1e4
        by_hand.target.size = 1e4 * min(1.0, bound / (_norm(by_hand) + 1e-6))
        clipped.take(1)
        by_hand.take(1)
    far = distance(clipped.weights(), by_hand.weights()) / distance(start, by_hand.weights())
    if not far <= 1e-4:
        raise Failure(f"a huge gradient is not cut to clip_norm: it ends {far:.3g} ways elsewhere")
    return f"a huge gradient acts as one scaled by hand to clip_norm, to {far:.0e} of the way"


def _norm(bare: Bare) -> float:
    tensors = [param.tensor for param in bare.params]
    grads = torch.autograd.grad(bare.target.loss(), tensors)
    return float(torch.stack([grad.square().sum() for grad in grads]).sum().sqrt())


def closures(spec: OptimizerSpec) -> str:
    """`step(closure)` of a plain optimizer: one pass, its loss comes back, the same step."""
    refuse(spec, "closure")
    one, other = Bare(spec, mixed_target(spec)), Bare(spec, mixed_target(spec))
    if not one.plain:
        raise Unsupported("the method drives its own passes")
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        for param in other.params:
            param.tensor.grad = None
        loss = other.target.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for optimizer in one.stepper.optimizers[:1]:
        one.target.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    told = other.stepper.optimizers[0].step(closure)  # type: ignore[arg-type]
    if calls != spec.passes:
        raise Failure(f"step(closure) calls it {calls} times and claims {spec.passes:g} passes")
    if told is None:
        raise Failure("step(closure) does not return the closure's loss")
    equal(one.weights(), other.weights(), "step(closure) is another step than backward and step")
    return f"step(closure) makes {calls} pass and the same step"
