"""`levelfield check`: a first conformance run of a method, one line a check with its reason.

Everything is tried on a LLaMA of a few thousand weights and on bare parameters, on the CPU. What a
method declares that it cannot do is `unsupported`, never `failed`.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from levelfield.bench import models, sources, tasks
from levelfield.bench.build import build_stepper, claimed_state_bytes
from levelfield.bench.digest import derive_seed
from levelfield.bench.meter import state_bytes
from levelfield.bench.schedules import lr_factor
from levelfield.bench.spec import BenchError, Budget, Model, OptimizerSpec, Protocol
from levelfield.bench.stepper import Parameter, StepBatch, Stepper, StepResult

Outcome = Literal["passed", "failed", "unsupported"]

PROTOCOL = Protocol(
    name="check",
    summary="the tiny model that checks train",
    model=Model(hidden=16, layers=2, heads=2, intermediate=24),
    budget=Budget(steps=60, trials=1, seeds=1),
)
SEED = 7


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    outcome: Outcome
    reason: str


class Failure(Exception):
    """A check that did not hold."""


class Bench:
    """A tiny model, a method over it, and batches; the same start every time.

    Args:
        spec: the method.
        hparams: its hyper-parameters.
        dtype: of the weights.
    """

    def __init__(
        self, spec: OptimizerSpec, hparams: Mapping[str, Any], dtype: torch.dtype = torch.float32
    ) -> None:
        corpus = sources.load(PROTOCOL.data)
        length = PROTOCOL.data.sequence
        self.spec, self.hparams = spec, dict(hparams)
        self.model = models.build_model(PROTOCOL.model, corpus.vocabulary, length, SEED).to(dtype)
        self.params: tuple[Parameter, ...] = models.parameters(self.model)
        self.task = tasks.build_task(PROTOCOL.task, "fp32", "cpu")
        self.order = sources.BatchOrder(corpus.tokens["train"], PROTOCOL.data, SEED)
        self.stepper: Stepper = build_stepper(
            spec, PROTOCOL, self.model, self.params, self.hparams, SEED
        )
        self.step, self.passes = 0, 0.0

    def take(self, steps: int, scale: float | None = None) -> list[float]:
        """Take steps; the training losses."""
        losses = []
        for _ in range(steps):
            tokens = tasks.to_device(self.order.next(), torch.device("cpu"))
            torch.manual_seed(derive_seed(SEED, self.step))
            batch = StepBatch(
                [partial(self.task.loss, self.model, tokens)],
                PROTOCOL.tokens_per_step,
                sampled_losses=[partial(self.task.sampled_loss, self.model, tokens)],
            )
            factor = lr_factor(PROTOCOL.schedule, self.step, PROTOCOL.budget.steps)
            result = self.stepper.step(batch, factor if scale is None else scale)
            if not isinstance(result, StepResult):
                raise Failure(f"step returned a {type(result).__name__}, not a StepResult")
            losses.append(float(result.loss))
            self.passes += batch.passes
            self.step += 1
        return losses

    def weights(self) -> list[Tensor]:
        """A copy of every parameter."""
        return [param.tensor.detach().clone() for param in self.params]


def run_checks(spec: OptimizerSpec) -> Iterator[Check]:
    """Run every check of the list; a check that raises has failed, the next goes on."""
    torch.set_num_threads(1)  # the model is so small that threads only wait for each other
    for name, check in CHECKS.items():
        try:
            told = check(spec)
        except Failure as error:
            yield Check(name, "failed", str(error))
        except BenchError as error:
            yield Check(name, "failed", str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            file = where.filename.rsplit("/", maxsplit=1)[-1]
            line = str(error).splitlines()[0] if str(error) else "no message"
            reason = f"{type(error).__name__}: {line} ({file}:{where.lineno})"
            yield Check(name, "failed", reason)
        else:
            unsupported = told.startswith("unsupported: ")
            yield Check(name, "unsupported" if unsupported else "passed", told)


# --- the checks: each returns what it saw, or raises ---------------------------------------------


def _record(spec: OptimizerSpec) -> str:
    for name, dim in spec.space.items():
        low, high = dim.bounds
        if not low <= dim.default <= high:
            raise Failure(f"default of {name} outside its bounds")
    if len(spec.space) > 1 or spec.roles != ("matrix", "embed", "head", "vector"):
        return f"tunes {', '.join(spec.space)}; takes {', '.join(spec.roles)}"
    return f"tunes {spec.scale} alone"


def _learns(spec: OptimizerSpec) -> str:
    """The loss of the tiny model falls at one of five scales around the default."""
    dim = spec.space[spec.scale]
    seen = {}
    for factor in (1.0, 10.0, 0.1, 100.0, 0.01):
        value = min(max(dim.default * factor, dim.bounds[0]), dim.bounds[1])
        losses = Bench(spec, {**spec.defaults(), spec.scale: value}).take(PROTOCOL.budget.steps)
        seen[value] = losses[-1]
        if math.isfinite(losses[-1]) and losses[-1] < losses[0] - 0.3:
            return f"{losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps at {value:g}"
    tried = ", ".join(f"{value:g}: {loss:.2f}" for value, loss in seen.items())
    raise Failure(f"the loss does not fall by 0.3 at any {spec.scale} tried ({tried})")


def _bounded(spec: OptimizerSpec) -> str:
    """Every step leaves finite weights at the default."""
    bench = Bench(spec, spec.defaults())
    bench.take(10)
    bad = [p.info.name for p in bench.params if not torch.isfinite(p.tensor).all()]
    if bad:
        raise Failure(f"non-finite weights after 10 steps: {', '.join(bad[:3])}")
    return "weights stay finite"


def _state_claim(spec: OptimizerSpec) -> str:
    bench = Bench(spec, spec.defaults())
    bench.take(PROTOCOL.budget.steps)
    held = state_bytes(bench.stepper.optimizers)
    infos = tuple(param.info for param in bench.params)
    claimed = claimed_state_bytes(spec, PROTOCOL, infos, bench.hparams, 1.0)
    if held != claimed:
        raise Failure(f"claims {claimed:,} bytes of state and holds {held:,}")
    parameters = sum(info.numel for info in infos)
    return f"{held:,} bytes, {held / parameters:.2f} a parameter, as claimed"


def _passes_claim(spec: OptimizerSpec) -> str:
    bench = Bench(spec, spec.defaults())
    bench.take(20)
    measured = bench.passes / 20
    if not math.isclose(measured, spec.passes, rel_tol=0.05):
        raise Failure(f"claims {spec.passes:g} passes a step and makes {measured:g}")
    return f"{measured:g} a step, as claimed"


def _stable_state(spec: OptimizerSpec) -> str:
    """Shapes and dtypes of the state are the same after step 2 and later, unless it switches."""
    if spec.switches(spec.defaults(), PROTOCOL.budget.steps):
        return "shapes may change at the switches that the spec names"
    bench = Bench(spec, spec.defaults())
    bench.take(2)
    early = _shapes(bench.stepper)
    bench.take(10)
    if early != _shapes(bench.stepper):
        raise Failure("state tensors change shape or dtype between steps 2 and 12")
    return f"{len(early)} state tensors keep shape and dtype"


def _shapes(stepper: Stepper) -> list[str]:
    from levelfield.bench.meter import state_tensors

    return [f"{tuple(t.shape)} {t.dtype}" for t in state_tensors(stepper.optimizers)]


def _same_twice(spec: OptimizerSpec) -> str:
    one, other = Bench(spec, spec.defaults()), Bench(spec, spec.defaults())
    one.take(8)
    other.take(8)
    _equal(one.weights(), other.weights(), "two runs from one seed differ")
    return "two runs are bit-equal"


def _round_trip(spec: OptimizerSpec) -> str:
    """Saved and restored into a fresh method, training goes on bit-equal, across every switch."""
    steps = PROTOCOL.budget.steps
    switches = spec.switches(spec.defaults(), steps)
    points = sorted({5, *(s - 1 for s in switches if 1 < s < steps)})[:4]
    for point in points:
        straight = Bench(spec, spec.defaults())
        straight.take(point)
        saved = copy.deepcopy(straight.stepper.state_dict())
        weights = straight.weights()
        straight.take(6)
        resumed = Bench(spec, spec.defaults())
        for _ in range(point):
            resumed.order.next()
        resumed.step = point
        with torch.no_grad():
            for param, value in zip(resumed.params, weights, strict=True):
                param.tensor.copy_(value)
        resumed.stepper.load_state_dict(saved)
        resumed.take(6)
        _equal(straight.weights(), resumed.weights(), f"a round trip at step {point} differs")
    return f"bit-equal after a round trip at step {', '.join(map(str, points))}"


def _zero_rate(spec: OptimizerSpec) -> str:
    """At rate 0 nothing moves: schedules reach every rate inside the method."""
    if spec.schedule == "own":
        return "unsupported: the method keeps its own schedule"
    bench = Bench(spec, spec.defaults())
    before = bench.weights()
    bench.take(2, scale=0.0)
    _equal(before, bench.weights(), "weights move at rate 0: part of it ignores the schedule")
    return "nothing moves at rate 0"


def _missing_gradients(spec: OptimizerSpec) -> str:
    """A frozen part (no gradient at all) and zero gradients at the first step break nothing."""
    bench = Bench(spec, spec.defaults())
    if not hasattr(bench.stepper, "update"):
        return "unsupported: the method drives its own backward pass"
    without = bench.params[len(bench.params) // 2]
    for param in bench.params:
        param.tensor.grad = None if param is without else torch.zeros_like(param.tensor)
    bench.stepper.update(1.0)
    bench.take(2)
    bad = [p.info.name for p in bench.params if not torch.isfinite(p.tensor).all()]
    if bad:
        raise Failure(f"zero gradients at the first step leave {', '.join(bad[:3])} non-finite")
    return "zero and missing gradients at the first step are taken"


def _bf16(spec: OptimizerSpec) -> str:
    if "bf16" in spec.cannot:
        return "unsupported: the spec says that it cannot train bf16 weights"
    bench = Bench(spec, spec.defaults(), torch.bfloat16)
    before = bench.weights()
    bench.take(6)
    bad = [p.info.name for p in bench.params if not torch.isfinite(p.tensor).all()]
    if bad:
        raise Failure(f"bf16 weights become non-finite: {', '.join(bad[:3])}")
    moved = [float((a != b).float().mean()) for a, b in zip(before, bench.weights(), strict=True)]
    share = sum(moved) / len(moved)
    return f"bf16 weights stay finite; {share:.0%} of them moved in 6 steps"


def _global_random(spec: OptimizerSpec) -> str:
    """Batches do not depend on what the method draws."""
    bench = Bench(spec, spec.defaults())
    bench.take(4)
    alone = sources.BatchOrder(sources.load(PROTOCOL.data).tokens["train"], PROTOCOL.data, SEED)
    for _ in range(4):
        alone.next()
    if bench.order.sha256 != alone.sha256:
        raise Failure("the method shifts the order of the batches")
    return "the batches are the harness's own"


def _equal(one: list[Tensor], other: list[Tensor], message: str) -> None:
    worst = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True) if a.numel())
    if worst != 0.0:
        raise Failure(f"{message} (by up to {worst:.3g})")


CHECKS: Mapping[str, Callable[[OptimizerSpec], str]] = {
    "record": _record,
    "loss falls": _learns,
    "finite weights": _bounded,
    "state bytes": _state_claim,
    "passes": _passes_claim,
    "stable state": _stable_state,
    "deterministic": _same_twice,
    "round trip": _round_trip,
    "schedule": _zero_rate,
    "odd gradients": _missing_gradients,
    "bf16 weights": _bf16,
    "batches": _global_random,
}
