"""Updates inside backward: a gradient is used and freed as soon as it is there.

The hook of a parameter runs when all its gradient has been gathered, so a tensor that is used at
several places is updated once, after the last contribution; and no function that needs its value
is left to run by then, so the gradients are those of the weights before the step. At any moment
one parameter holds a gradient. (Of a tied embedding and head, autograd itself keeps the head's
part until the embedding's arrives: up to two of the largest.)

The gradient norm is gathered on the way, for the record, at no memory. Clipping by it needs it
before the first update: another forward and backward pass that only measures, counted as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.spec import BenchError
from levelfield.bench.stepper import BuildContext, GradientStepper, StepBatch, StepResult, set_lr

CLIPS = ("two_pass", "none")
"""By the global norm, with a pass that measures it, or not at all."""


class FusedOptimizer(torch.optim.Optimizer):
    """An optimizer that can update one parameter at a time.

    `step` does so from the gradients that are there, for the same numbers outside backward.
    """

    def begin(self) -> None:
        """A step begins."""

    def update(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], factor: Tensor | None
    ) -> None:
        """Update one parameter; `factor`, 0-dim, multiplies its gradient, None is 1.

        `grad` is left alone.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.begin()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, param.grad, group, None)
        return loss


Use = Callable[[Tensor, Tensor, Mapping[str, Any]], None]
"""What is done with (parameter, gradient, group)."""


class FusedStepper(GradientStepper):
    """Steps a `FusedOptimizer` parameter by parameter, within the backward pass.

    Args:
        optimizer: holds all parameters.
        clip_norm: global bound on the gradient norm; it needs a second pass. None: no bound.
    """

    def __init__(self, optimizer: FusedOptimizer, *, clip_norm: float | None) -> None:
        super().__init__([optimizer], clip_norm=clip_norm)
        self.optimizer = optimizer

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        """One pass, or one that measures and one that updates.

        With dropout the two passes draw different masks, as in the reference code.

        Raises:
            BenchError: the batch comes in several parts, which would be a step each.
        """
        if len(batch.losses) != 1:
            raise BenchError(
                f"a batch in {len(batch.losses)} parts cannot be stepped inside backward",
                "its gradients are gone before the next part: use one part a step",
            )
        for group in self._groups():
            set_lr(group, group["base_lr"] * lr_scale)
        factor = None
        if self.clip_norm is not None:
            _, norm = self._pass(batch, _discard)
            # Rounds as torch.nn.utils.clip_grads_with_norm_ does.
            factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        self.optimizer.begin()
        loss, norm = self._pass(batch, partial(self.optimizer.update, factor=factor))
        return StepResult(loss=loss, grad_norm=norm)

    def _pass(self, batch: StepBatch, use: Use) -> tuple[Tensor, Tensor]:
        """Forward and backward; every gradient is measured, used, freed. Loss and global norm."""
        norms: dict[Tensor, Tensor] = {}

        def hook(param: Tensor, group: Mapping[str, Any]) -> None:
            grad = param.grad
            assert grad is not None
            param.grad = None
            norms[param] = torch.linalg.vector_norm(grad, dtype=work_dtype(grad))
            with torch.no_grad():
                use(param, grad, group)

        # Only for this pass: gradients taken elsewhere are not ours, and whoever measures memory
        # has come before.
        handles = [
            param.register_post_accumulate_grad_hook(partial(hook, group=group))
            for group in self._groups()
            for param in group["params"]
        ]
        try:
            loss = batch.backward()
        finally:
            for handle in handles:
                handle.remove()
        found = [norms[param] for param in self._parameters if param in norms]
        return loss, torch.linalg.vector_norm(torch.stack(found))


def clip_norm_of(ctx: BuildContext, hparams: Mapping[str, Any]) -> float | None:
    """The protocol's bound if the method is to heed it: `clip` is one of `CLIPS`."""
    if hparams["clip"] not in CLIPS:
        raise ValueError(f"clip {hparams['clip']!r}: accepted: {', '.join(CLIPS)}")
    return ctx.clip_norm if hparams["clip"] == "two_pass" else None


def passes_at(hparams: Mapping[str, Any]) -> float:
    """One more pass to know the norm that the second one clips by."""
    return 2.0 if hparams["clip"] == "two_pass" else 1.0


def _discard(param: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
    """The gradient is measured already."""


def work_dtype(tensor: Tensor) -> torch.dtype:
    """Where an update is computed: float32, or float64 for float64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
