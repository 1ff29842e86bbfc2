"""One seam for everything unusual: how a single optimizer step is driven.

The training loop only ever calls `step`, `observe`, `evaluating` and the state-dict pair. A plain
`torch.optim.Optimizer` is wrapped by `GradientStepper`; a method that needs more (updates inside
backward, extra passes, the control loss, train/eval weights) brings a small stepper of its own
beside its maths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from levelfield.bench.spec import BenchError, ParamInfo, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step tells, as device tensors: nothing is read by the host inside a step."""

    loss: Tensor
    """Mean training loss of the batch before the update, 0-dim."""
    grad_norm: Tensor | None
    """Global gradient norm before clipping, 0-dim, or None if there was no moment to read it."""


class StepBatch:
    """The tokens of one optimizer step. It counts the passes that a method asks for.

    Args:
        losses: one callable a micro-batch; each runs a forward pass and returns the mean loss.
        weights: the share of each micro-batch in the batch's mean; all alike if None.
        tokens: tokens in the whole batch.
        on_phase: told `pass` when a pass begins and `update` when it ends (memory accounting).
        sampled_losses: likewise, against labels that the given generator draws from the model's
            own distribution instead of the data's; none if the task has no such loss.
    """

    def __init__(
        self,
        losses: Sequence[Callable[[], Tensor]],
        tokens: int,
        on_phase: Callable[[str], None] | None = None,
        sampled_losses: Sequence[Callable[[torch.Generator], Tensor]] = (),
        weights: Sequence[float] | None = None,
    ) -> None:
        self.losses = tuple(losses)
        self.weights = tuple(weights or [1.0 / len(self.losses)] * len(self.losses))
        self.sampled_losses = tuple(sampled_losses)
        self.tokens = tokens
        self.passes = 0.0
        self._on_phase = on_phase

    def forward(self) -> Iterator[Tensor]:
        """Losses of the micro-batches, each weighted so that their sum is the batch's mean."""
        return self._weighted(self.losses)

    def backward(self) -> Tensor:
        """One forward and backward pass; gradients accumulate. Returns the mean loss, detached."""
        return self._backward(self.losses)

    def backward_sampled(self, generator: torch.Generator) -> Tensor:
        """A pass like `backward`, against labels drawn from the model's own distribution.

        Raises:
            BenchError: the task has no such loss.
        """
        if not self.sampled_losses:
            raise BenchError(
                "the method asks for labels drawn from the model and this task draws none",
                "accepted: a task with a `sampled_loss`",
            )
        return self._backward([partial(loss, generator) for loss in self.sampled_losses])

    def _weighted(self, losses: Sequence[Callable[[], Tensor]]) -> Iterator[Tensor]:
        for loss, weight in zip(losses, self.weights, strict=True):
            self.passes += 1.0 / len(losses)
            yield loss() if weight == 1.0 else loss() * weight

    def _backward(self, losses: Sequence[Callable[[], Tensor]]) -> Tensor:
        if self._on_phase is not None:
            self._on_phase("pass")
        total: Tensor | None = None
        for loss in self._weighted(losses):
            loss.backward()  # type: ignore[no-untyped-call]
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        if self._on_phase is not None:
            self._on_phase("update")
        return total


@runtime_checkable
class Stepper(Protocol):
    """What the training loop calls."""

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        """Take one step with every base rate multiplied by `lr_scale`."""

    @property
    def observes(self) -> bool:
        """Whether `observe` does anything: if not, the control slice is not evaluated."""

    def observe(self, control_loss: float) -> None:
        """Told the loss on the control slice after every evaluation."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Entered around every evaluation (methods with separate evaluation weights)."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Holders of state, for counting its bytes."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trainable parameter and what is known of it."""

    info: ParamInfo
    tensor: nn.Parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterContext:
    """What an adapter is told before the model's parameters are listed."""

    kind: str
    """Of the task: what is on top of the model's body is trained in full, whatever the adapter."""
    total_steps: int
    warmup_steps: int
    generator: torch.Generator
    """On the CPU, where the model is at that time; the global generator is seeded likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildContext:
    """All that a spec's `build` gets."""

    params: tuple[Parameter, ...]
    """The parameters of the roles that the spec takes, in the model's order."""
    model: nn.Module
    total_steps: int
    warmup_steps: int
    tokens_per_step: int
    device_type: str
    generator: torch.Generator
    """The method's own source of random numbers; batches and weights have theirs."""
    clip_norm: float | None = None
    decay_roles: tuple[Role, ...] = ("matrix", "embed", "head")
    rest: torch.optim.Optimizer | None = None
    """The protocol's fallback over the other roles; a stepper of a method's own must step it."""
    inner: Callable[[], Stepper] | None = None
    """Of an adapter method: makes the stepper of the method under it, over all trained parameters;
    a `GradientStepper` unless that method brings one of its own."""

    def groups(self, hparams: Mapping[str, Any], lr: str = "lr") -> list[dict[str, Any]]:
        """One parameter group a role that occurs, with its `lr`, `weight_decay`, `role`, `infos`.

        The embedding/head multiplier acts on those two roles; weight decay on the protocol's
        `decay_roles`. Hyper-parameters that are absent count as 1 and 0.
        """
        multiplier = hparams.get("embed_multiplier", 1.0)
        decay = hparams.get("weight_decay", 0.0)
        found: dict[Role, list[Parameter]] = {}
        for param in self.params:
            found.setdefault(param.info.role, []).append(param)
        return [
            {
                "params": [param.tensor for param in members],
                "lr": hparams[lr] * (multiplier if role in ("embed", "head") else 1.0),
                "weight_decay": decay if role in self.decay_roles else 0.0,
                "role": role,
                "infos": tuple(param.info for param in members),
            }
            for role, members in found.items()
        ]


class GradientStepper:
    """Forward, backward, clip, step, zero: the way of every plain `torch.optim.Optimizer`."""

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], *, clip_norm: float | None
    ) -> None:
        self._optimizers = tuple(optimizers)
        self.clip_norm = clip_norm
        for group in self._groups():
            group.setdefault("base_lr", float(group["lr"]))
        self._parameters = [param for group in self._groups() for param in group["params"]]

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return self._optimizers

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        loss = batch.backward()
        norm = self.clip()
        self.update(lr_scale)
        return StepResult(loss=loss, grad_norm=norm)

    def clip(self) -> Tensor:
        """Clip to `clip_norm` if there is one; returns the norm before clipping."""
        grads = [param.grad for param in self._parameters if param.grad is not None]
        norm = gathered(torch.nn.utils.get_total_norm(grads))
        if self.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.clip_norm, norm)
        return norm

    def update(self, lr_scale: float) -> None:
        """Set the rates, step every optimizer, drop the gradients."""
        for group in self._groups():
            set_lr(group, group["base_lr"] * lr_scale)
        for optimizer in self._optimizers:
            optimizer.step()
        for param in self._parameters:
            param.grad = None

    @property
    def observes(self) -> bool:
        return any(hasattr(optimizer, "observe") for optimizer in self._optimizers)

    def observe(self, control_loss: float) -> None:
        for optimizer in self._optimizers:
            hook = getattr(optimizer, "observe", None)
            if hook is not None:
                hook(control_loss)

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def merge_groups(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of equal rate and weight decay as one: a fused step costs a call a group."""
    merged: dict[tuple[float, float], dict[str, Any]] = {}
    for group in groups:
        key = (float(group["lr"]), group["weight_decay"])
        one = merged.setdefault(key, {"params": [], "lr": key[0], "weight_decay": key[1]})
        one["params"] += group["params"]
    return list(merged.values())


def gathered(tensor: Tensor) -> Tensor:
    """A tensor that is cut up over processes (fsdp2) put together, on each of them; any other as it
    is. Wanted before the host reads a value."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def set_lr(group: dict[str, Any], lr: float) -> None:
    """Set a group's rate; a rate kept as a tensor stays one (torchao refuses a float)."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
