"""`levelfield check`: a conformance run of a method, one line a check with its reason.

Everything is tried on a LLaMA of a few thousand weights and on bare parameters, on the CPU. What a
method declares that it cannot do is `unsupported`, never `failed`; the words are those of
`OptimizerSpec.cannot`: grad_accumulation, clipping, closure, bf16, scalar, vector, empty, strided,
zero_gradients (a first step without any stops it for good), separate_groups (one group's gradients
act on another's by design) and sharding (not tried here).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from levelfield.bench import check_claims, check_parameters, check_steps, check_targets
from levelfield.bench.check_bench import PROTOCOL, Bench, Failure, Unsupported
from levelfield.bench.errors import located
from levelfield.bench.spec import BenchError, OptimizerSpec

__all__ = ["CHECKS", "PROTOCOL", "Bench", "Check", "Failure", "run_checks"]

Outcome = Literal["passed", "failed", "unsupported"]


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    outcome: Outcome
    reason: str
    wall_s: float = 0.0


CHECKS: Mapping[str, Callable[[OptimizerSpec], str]] = {
    "record": check_claims.record,
    "roles": check_claims.roles,
    "loss falls": check_targets.learns,
    "convex": check_targets.convex,
    "rosenbrock": check_targets.rosenbrock,
    "matrix": check_targets.matrix,
    "mixed": check_targets.mixed,
    "finite weights": check_steps.finite,
    "state bytes": check_claims.claimed_bytes,
    "hidden bytes": check_claims.hidden_bytes,
    "passes": check_claims.claimed_passes,
    "host reads": check_claims.host_reads,
    "stable state": check_steps.stable_state,
    "deterministic": check_steps.same_twice,
    "round trip": check_steps.round_trip,
    "schedule": check_steps.schedule,
    "accumulation": check_steps.accumulation,
    "clipping": check_steps.clipping,
    "closure": check_steps.closures,
    "groups": check_parameters.groups,
    "no gradient": check_parameters.no_gradient,
    "zero gradients": check_parameters.zero_gradients,
    "scalars": check_parameters.scalars,
    "vectors": check_parameters.vectors,
    "empty": check_parameters.empty,
    "frozen": check_parameters.frozen,
    "tied": check_parameters.tied,
    "strided": check_parameters.strided,
    "bf16 weights": check_parameters.bf16,
}
"""Each returns what it saw, or raises."""
BARE = (
    *("convex", "rosenbrock", "matrix", "mixed", "accumulation", "clipping", "closure", "groups"),
    *("no gradient", "zero gradients", "scalars", "vectors", "empty", "frozen", "tied", "strided"),
)
"""Those on parameters without a model, or on weights that an adapter leaves frozen."""


def run_checks(spec: OptimizerSpec, only: Iterable[str] = CHECKS) -> Iterator[Check]:
    """Run the checks of the list; one that raises has failed, the next goes on.

    A last line tells how long it took.
    """
    torch.set_num_threads(1)  # the model is so small that threads only wait for each other
    start = time.perf_counter()
    for name in only:
        began = time.perf_counter()
        outcome, reason = _out_of_place(name, spec) or _tried(CHECKS[name], spec)
        yield Check(name, outcome, reason, time.perf_counter() - began)
    spent = time.perf_counter() - start
    yield Check("time", "passed", f"{spent:.1f} s for the checks above", spent)


def _out_of_place(name: str, spec: OptimizerSpec) -> tuple[Outcome, str] | None:
    """Why a check says nothing of a method of this kind; None if it does."""
    if spec.adapter is not None and name in BARE:
        return "unsupported", "not for adapters: they train what they put into a model"
    if spec.tasks and PROTOCOL.task.kind not in spec.tasks and name != "record":
        return "unsupported", f"not for methods of {', '.join(spec.tasks)} tasks alone"
    return None


def _tried(check: Callable[[OptimizerSpec], str], spec: OptimizerSpec) -> tuple[Outcome, str]:
    try:
        return "passed", check(spec)
    except Unsupported as error:
        return "unsupported", str(error)
    except (Failure, BenchError) as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", located(error)
