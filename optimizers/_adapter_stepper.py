"""One step of an adapter method: a rule of its own around the method that trains its parameters.

The rule may make the passes, look at gradients before they are clipped, and act after the update;
what it keeps beside the optimizer's state is counted and saved with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from levelfield.bench.spec import BenchError
from levelfield.bench.stepper import (
    BuildContext,
    GradientStepper,
    StepBatch,
    StepResult,
    set_lr,
)
from levelfield.optimizers._adapter import (
    LowRankLinear,
    head_parameters,
    is_adapter,
    layers_of,
)
from levelfield.optimizers._adapter_clock import Clock, adam_betas


class Kept:
    """What a rule keeps, in the form of an optimizer without parameters: its tensors count as
    state, its counts go into records and checkpoints."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[str, Tensor] = {}
        self.series: dict[str, list[list[Any]]] = {}
        self.state_holders: list[object] = []
        """Objects of libraries that keep tensors too."""


class CountedKept(Kept):
    """The same of a rule with a mechanism that fires."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshes = 0


class Rule:
    """What an adapter method does beside training its parameters; here: nothing.

    Args:
        ctx: as `build` gets it, its model adapted.
        kept: where tensors and counts go.
    """

    def __init__(self, ctx: BuildContext, kept: Kept) -> None:
        self.layers: dict[str, LowRankLinear] = layers_of(ctx.model)
        if not any(is_adapter(param.info.name) for param in ctx.params):
            raise BenchError("the model holds no adapter", "an adapter method is built by a trial")
        self.modules = list(self.layers.values())
        self.kept = kept
        self.clock: Clock | None = None
        self.warmup: int | None = None
        """Steps in which a late component comes up to the rate; None: none comes late."""
        self.keeps_grads = False
        """Whether `after` looks at gradients."""
        self.head = [
            param
            for name, param in ctx.model.named_parameters()
            if param.requires_grad and not is_adapter(name)
        ]
        self.head_parameters = head_parameters(
            {n: p.numel() for n, p in ctx.model.named_parameters() if p.requires_grad}
        )
        self.plain: dict[str, Any] = {}
        """Numbers and lists that a checkpoint needs beside the tensors of `kept`."""

    def attach(self, inner: GradientStepper) -> None:
        """Told the method under the adapter."""
        if self.warmup is not None:
            self.clock = Clock(self.modules, self.warmup, adam_betas(inner.optimizers))

    def backward(self, batch: StepBatch, step: int) -> Tensor:
        """The passes of a step; the mean loss."""
        return batch.backward()

    def divide(self, rank: int, size: int, total: Callable[[Tensor], Tensor]) -> None:
        """As of `AdapterStepper`."""
        raise BenchError(
            "the method makes no passes for components that processes could share out",
            "accepted: engine.parallel=ddp, or adapad with mode=exact",
        )

    def before(self, step: int) -> None:
        """After the passes: gradients are there, not clipped."""

    def wants_update(self, step: int) -> bool:
        """Whether the method under the adapter takes this step."""
        return True

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        """After the update; `grads`: what it saw, by the identity of the parameter."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Entered around evaluations: only what is deployed may act."""
        return nullcontext()

    def tensors(self) -> dict[str, Any]:
        """What a checkpoint needs beside numbers."""
        return self.kept.state

    def load_tensors(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            self.kept.state[name].copy_(value)

    def refresh(self) -> None:
        """Set the layers' masks, or whatever else follows from `plain`."""

    def told(self) -> dict[str, Any]:
        """For the record."""
        return {}


class AdapterStepper:
    """Passes, clip, update, each with the rule's part around it.

    Args:
        ctx: as `build` gets it.
        rule: of the method.
        name: of the method, for messages.

    Raises:
        BenchError: the method under the adapter drives its own step.
    """

    def __init__(self, ctx: BuildContext, rule: Rule, name: str) -> None:
        assert ctx.inner is not None
        inner = ctx.inner()
        if not isinstance(inner, GradientStepper) or type(inner).step is not GradientStepper.step:
            raise BenchError(
                f"{name} acts between gradient and update, and {type(inner).__name__} drives its "
                "own step",
                "accepted: inner=a method that is a plain torch.optim.Optimizer, such as adamw",
            )
        self.inner, self.rule, self._step = inner, rule, 0
        self._trained = [
            param
            for optimizer in inner.optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        ]
        rule.attach(inner)
        rule.refresh()

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return (*self.inner.optimizers, cast(torch.optim.Optimizer, self.rule.kept))

    @property
    def adapter(self) -> Mapping[str, Any]:
        """For the record."""
        return {"head_parameters": self.rule.head_parameters, **self.rule.told()}

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        rule, step = self.rule, self._step
        loss = rule.backward(batch, step)
        rule.before(step)
        norm = self.inner.clip()
        grads = {id(p): p.grad for p in self._trained if rule.keeps_grads and p.grad is not None}
        if rule.wants_update(step):
            with nullcontext() if rule.clock is None else rule.clock.slowed(step):
                self.inner.update(lr_scale)
        else:
            for optimizer in self.inner.optimizers:
                for group in optimizer.param_groups:
                    set_lr(group, group["base_lr"] * lr_scale)
            for param in self._trained:
                param.grad = None
        with torch.no_grad():
            rule.after(step, lr_scale, grads)
        self._step = step + 1
        return StepResult(loss=loss, grad_norm=norm)

    def divide(self, rank: int, size: int, total: Callable[[Tensor], Tensor]) -> None:
        """Share the passes of a step out over processes (engine.parallel=components).

        Args:
            rank, size: which of how many this is.
            total: the sum over the processes of a flat tensor.

        Raises:
            BenchError: the method makes no passes that could be shared out.
        """
        self.rule.divide(rank, size, total)

    @property
    def observes(self) -> bool:
        return self.inner.observes

    def observe(self, control_loss: float) -> None:
        self.inner.observe(control_loss)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with self.inner.evaluating(), self.rule.evaluating():
            yield

    def state_dict(self) -> dict[str, Any]:
        return {
            "inner": self.inner.state_dict(),
            "step": self._step,
            "plain": self.rule.plain,
            "tensors": self.rule.tensors(),
            "births": None if self.rule.clock is None else self.rule.clock.births,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self._step = state["step"]
        self.rule.plain.clear()
        self.rule.plain.update(_copied(state["plain"]))
        with torch.no_grad():
            self.rule.load_tensors(state["tensors"])
        if self.rule.clock is not None:
            self.rule.clock.births = _copied(state["births"])
        self.rule.refresh()


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def count(layers: Sequence[LowRankLinear], held: Sequence[int], *, gains: int = 0) -> int:
    """Parameters of `held` components a layer; `gains`: one more for each of so many."""
    return sum(k * layer.width for layer, k in zip(layers, held, strict=True)) + gains
