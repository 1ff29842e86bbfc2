"""Deflation of Y = W* X + E, component by component, in parallel or one after another.

Worker k owns b_k [m] and a_k [d]; P_k = b_k a_k^T X [m, n]. In a round it fits what its
predecessors leave of Y, by T local steps from where it is:

    Y_k = Y - sum_{k' < k} S_k'                      S: what the others have published
    T times, both from the old b_k and a_k:
        R   = P_k - Y_k
        b_k <- b_k - eta / (L ||a_k||^2) * R X^T a_k / n
        a_k <- a_k - eta / (L ||b_k||^2) * X R^T b_k / n        L = lambda_max(X X^T / n)
    publish P_k

Parallel: in round l = 1, 2, ... all workers k <= l do so at once, all from what was published in
round l - 1 (Jacobi); worker k publishes from round l = k on, S_k = 0 before. With advance learning
the workers k > l train as well, against the same targets, and publish nothing. Sequential: worker k
has its share of the rounds to itself and is frozen for good then; its error stays in all targets
after it, where in parallel deflation the targets mend themselves.

A step of the harness is a round. What is published is the parameters as they stand between two
rounds, so on one device the methods keep no state beyond their parameters; K devices would each
hold a copy of the others' b and a, (m + d)(K - 1) elements.

Passes: a round of all K components reads as much as one forward and backward pass of the model, so
the local step of one component is charged as 1 / K of a pass.

`series`, [round, value], rounds from 1: `mismatch_k` = ||Y_k - Y*_k||_F of the target that round
used, where Y*_k is the target of exact deflation; `component_error_k` = ||P_k - P*_k||_F and
`w_error` = ||sum_k b_k a_k^T - W*||_F / ||W*||_F over what is published, both after the round. Of
a worker that has not begun there is none. They are measured inside the step, and kept on the
device until the end.

Paper: AdaPaD, https://arxiv.org/abs/2605.10741, 2026, whose backbone this is: rounds, staggered
activation, advance learning. No reference code was found; the local step, which the paper leaves
open, is gradient descent scaled by its Lipschitz bounds.
Deviation: the projection onto a ball of radius Q is left out (the paper: Q = infinity suffices).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from levelfield.bench import space
from levelfield.bench.spec import BenchError, ParamInfo
from levelfield.bench.stepper import BuildContext, GradientStepper, StepBatch, StepResult, set_lr

SPACE = {"lr": space.log(0.05, 1.0, default=0.5, upper_bound=1.0)}
"""eta; the local step is stable up to 1."""
FIXED = {"local_steps": 1}
CANNOT = ("grad_accumulation", "distributed", "sharding", "bf16")


@dataclass(frozen=True, slots=True)
class Round:
    """Who does what in a round; components by number from 0."""

    first: int
    last: int
    """Components first ... last - 1 train."""
    published: int
    """Targets subtract the components below this one, as they stood before the round."""
    publishing: int
    """The components below this one count as published after it."""
    repeats: int = 1
    """How often the local steps are taken: rounds of one worker that come in one step."""


class Schedule(Protocol):
    """(step from 0, steps in all, components) -> the round."""

    def __call__(self, step: int, total: int, count: int) -> Round: ...


def parallel(step: int, total: int, count: int) -> Round:
    """Worker k joins in round k."""
    joined = min(step + 1, count)
    return Round(0, joined, min(step, count), joined)


def parallel_advance(step: int, total: int, count: int) -> Round:
    """All workers train from the first round on; worker k publishes from round k."""
    return Round(0, count, min(step, count), min(step + 1, count))


def sequential(step: int, total: int, count: int) -> Round:
    """An equal share of the rounds for each worker: the wall-clock of parallel deflation."""
    worker = step * count // total
    return Round(worker, worker + 1, worker, worker + 1)


def sequential_work(step: int, total: int, count: int) -> Round:
    """As many rounds for each worker as there are steps, K in a step: the work of parallel
    deflation, and K times its wall-clock."""
    worker = step * count // total
    return Round(worker, worker + 1, worker, worker + 1, repeats=count)


def products(b: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """P_k = b_k a_k^T X, [k, m, n]."""
    return b[:, :, None] * (a @ x)[:, None, :]


def before(parts: Tensor) -> Tensor:
    """Sum over the predecessors of each: [k, m, n] -> [k, m, n], zero for the first."""
    sums = torch.zeros_like(parts)
    torch.cumsum(parts[:-1], dim=0, out=sums[1:])
    return sums


def local_steps(
    b: Tensor, a: Tensor, x: Tensor, targets: Tensor, rate: float, bound: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """T steps of several components, each against its own fixed target.

    Args:
        b, a: [k, m] and [k, d]; left alone.
        x: [d, n].
        targets: [k, m, n].
        rate: eta.
        bound: L, 0-dim.
    """
    samples = x.shape[1]
    for _ in range(steps):
        seen = a @ x
        residual = b[:, :, None] * seen[:, None, :] - targets
        grad_b = torch.bmm(residual, seen[:, :, None])[:, :, 0] / samples
        grad_a = torch.bmm(b[:, None, :], residual)[:, 0, :] @ x.T / samples
        scale_b = rate / (bound * a.square().sum(dim=1, keepdim=True))
        scale_a = rate / (bound * b.square().sum(dim=1, keepdim=True))
        b, a = b - scale_b * grad_b, a - scale_a * grad_a
    return b, a


class Deflation(torch.optim.Optimizer):
    """The components of a bilinear model.

    Args:
        groups: one group with the model's b and a; its `lr` is eta.
        model: has `b` [K, m], `a` [K, d], `x` [d, n], `y` [m, n], `truth` [m, d] and `parts`
            [K, m, n], P*_k.
        schedule: who trains when.
        total: rounds in all.
        steps: T, local steps a round.
    """

    def __init__(
        self, groups: list[dict[str, Any]], model: Any, schedule: Schedule, total: int, steps: int
    ) -> None:
        super().__init__(groups, {})
        self.model, self.schedule, self.total, self.steps = model, schedule, total, steps
        self.clock = 0
        gram = model.x @ model.x.T / model.x.shape[1]
        self._bound = torch.linalg.eigvalsh(gram)[-1]
        self._truth = before(model.parts)
        self._seen: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: None = None) -> float:  # type: ignore[override]
        """A round; the passes that it takes."""
        model, count = self.model, len(self.model.b)
        now = self.schedule(self.clock, self.total, count)
        # All products every time: the bits of a frozen one must not depend on how many there are.
        known = products(model.b, model.a, model.x)
        known[now.published :] = 0.0
        sums = before(known)
        mine = slice(now.first, now.last)
        rate, local = float(self.param_groups[0]["lr"]), self.steps * now.repeats
        b, a = local_steps(
            model.b[mine], model.a[mine], model.x, model.y - sums[mine], rate, self._bound, local
        )
        model.b[mine], model.a[mine] = b, a
        self._measure(now, sums)
        self.clock += 1
        return (now.last - now.first) * local / count

    def _measure(self, now: Round, sums: Tensor) -> None:
        """Keep mismatches [K], component errors [K] and the error of W; NaN of who has not begun.

        Nothing is read by the host.
        """
        model = self.model
        found = products(model.b, model.a, model.x) - model.parts
        both = torch.stack([sums - self._truth, found])
        norms = torch.linalg.vector_norm(both, dim=(2, 3))
        norms[:, now.last :] = math.nan
        whole = model.b[: now.publishing].T @ model.a[: now.publishing]
        error = torch.linalg.norm(whole - model.truth) / torch.linalg.norm(model.truth)
        self._seen.append(torch.cat([norms.flatten(), error[None]]))

    @property
    def series(self) -> dict[str, list[list[float]]]:
        """See the module. The first mismatch is none: there is nothing before it."""
        count = len(self.model.b)
        names = [f"mismatch_{k}" for k in range(1, count + 1)]
        names += [f"component_error_{k}" for k in range(1, count + 1)]
        rows = torch.stack(self._seen).tolist() if self._seen else []
        found = {
            name: [
                [number, row[place]]
                for number, row in enumerate(rows, start=1)
                if not math.isnan(row[place])
            ]
            for place, name in enumerate([*names, "w_error"])
        }
        del found["mismatch_1"]
        return found

    @series.setter
    def series(self, value: Mapping[str, Any]) -> None:
        """Nothing: `load_state_dict` has put the rows back that it is read from."""

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `deflation` the rounds done and what they showed."""
        seen = torch.stack(self._seen) if self._seen else None
        return {**super().state_dict(), "deflation": {"clock": self.clock, "seen": seen}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        own = state_dict["deflation"]
        self.clock = own["clock"]
        self._seen = [] if own["seen"] is None else list(own["seen"].unbind())


class DeflationStepper(GradientStepper):
    """Drives `Deflation` a round a step. The loss is that of all components as they stand."""

    def __init__(self, optimizer: Deflation) -> None:
        super().__init__([optimizer], clip_norm=None)
        self.optimizer = optimizer

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        for group in self._groups():
            set_lr(group, group["base_lr"] * lr_scale)
        with torch.no_grad():
            loss = self.optimizer.model()  # for the record: not part of the method, not charged
        batch.passes += self.optimizer.step()
        return StepResult(loss=loss, grad_norm=None)


def build(ctx: BuildContext, hparams: Mapping[str, Any], schedule: Schedule) -> DeflationStepper:
    """A stepper over the model's components.

    Raises:
        BenchError: fewer steps than components, no local steps.
    """
    count, steps = len(ctx.params[0].tensor), hparams["local_steps"]
    if ctx.total_steps < count:
        raise BenchError(
            f"budget.steps={ctx.total_steps} for {count} components",
            f"accepted: {count} or more: each has a round at least",
        )
    if steps < 1:
        raise BenchError(f"local_steps={steps}", "accepted: 1 or more")
    groups = ctx.groups(hparams)
    return DeflationStepper(Deflation(groups, ctx.model, schedule, ctx.total_steps, steps))


def passes_at(hparams: Mapping[str, Any]) -> float:
    """Passes of a step whose workers take so many local steps, in units of those with one."""
    return float(hparams["local_steps"])


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """None: what is published is the parameters."""
    return 0
