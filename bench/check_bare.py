"""Bare parameters that the checks of a method train, as a least-squares problem.

Every stepper drives them, one that asks for labels drawn from the model included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench.check_bench import PROTOCOL, Driver
from levelfield.bench.spec import Budget, OptimizerSpec, ParamInfo, Protocol, Role
from levelfield.bench.stepper import Parameter, StepBatch

Residual = Callable[[Mapping[str, Tensor]], Tensor]


class Target(nn.Module):
    """Half the squared residuals of named parameters, as a mean over the residual's rows.

    With Gaussian noise on the labels this is a likelihood: labels drawn from the model are its own
    outputs plus noise, of signs here, so that parts of a batch draw what the whole would.

    Args:
        tensors: by name, with their roles.
        residual: [rows, ...] from the parameters by name.
    """

    def __init__(self, tensors: Mapping[str, tuple[Role, Tensor]], residual: Residual) -> None:
        super().__init__()
        self.values = {name: nn.Parameter(tensor) for name, (_, tensor) in tensors.items()}
        self.held = nn.ParameterList(self.values.values())
        self.residual = residual
        self.size = 1.0
        """Factor on the loss."""
        self.infos = {
            name: ParamInfo(
                name=name,
                shape=tuple(tensor.shape),
                role=role,
                dtype=str(tensor.dtype).removeprefix("torch."),
            )
            for name, (role, tensor) in tensors.items()
        }

    def loss(self, part: int = 0, parts: int = 1) -> Tensor:
        rest = self.residual(self.values).chunk(parts)[part]
        return 0.5 * self.size * rest.square().sum() / len(rest)

    def sampled(self, generator: torch.Generator, part: int = 0, parts: int = 1) -> Tensor:
        rest = self.residual(self.values).chunk(parts)[part]
        noise = torch.rand(rest.shape, generator=generator, dtype=rest.dtype).round() * 2 - 1
        return 0.5 * self.size * (rest - rest.detach() - noise).square().sum() / len(rest)


class Bare(Driver):
    """A method over the parameters of a target.

    Args:
        parts: micro-batches a step.
        steps: the horizon.
        clip_norm: bound on the gradient.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        target: Target,
        *,
        hparams: Mapping[str, Any] | None = None,
        steps: int = PROTOCOL.budget.steps,
        parts: int = 1,
        clip_norm: float | None = None,
    ) -> None:
        self.target, self.parts = target, parts
        protocol = Protocol(
            name="check",
            summary="bare parameters",
            budget=Budget(steps=steps, trials=1, seeds=1),
            clip_norm=clip_norm,
        )
        held = target.values.items()
        params = tuple(Parameter(target.infos[name], value) for name, value in held)
        chosen = spec.defaults() if hparams is None else hparams
        super().__init__(spec, chosen, protocol, target, params)

    def batch(self) -> StepBatch:
        parts, target = self.parts, self.target
        return StepBatch(
            [partial(target.loss, part, parts) for part in range(parts)],
            self.protocol.tokens_per_step,
            sampled_losses=[
                partial(target.sampled, part=part, parts=parts) for part in range(parts)
            ],
        )

    def loss(self) -> float:
        """The loss at the weights that the method evaluates with."""
        with self.stepper.evaluating(), torch.no_grad():
            return float(self.target.loss())
