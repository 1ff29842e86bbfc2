"""What the checks of a method train, first of all a LLaMA of a few thousand weights.

It starts the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import models, next_token, sources
from levelfield.bench.build import adapt, build_stepper
from levelfield.bench.digest import derive_seed
from levelfield.bench.meter import state_tensors
from levelfield.bench.schedules import lr_factor
from levelfield.bench.spec import Budget, Model, OptimizerSpec, Protocol
from levelfield.bench.stepper import GradientStepper, Parameter, StepBatch, Stepper, StepResult

PROTOCOL = Protocol(
    name="check",
    summary="the tiny model that checks train",
    model=Model(hidden=16, layers=2, heads=2, intermediate=24),
    budget=Budget(steps=60, trials=1, seeds=1),
)
SEED = 7


class Failure(Exception):
    """A check that did not hold."""


class Unsupported(Exception):
    """What the method declares that it cannot do, or what it has no place for."""


def refuse(spec: OptimizerSpec, word: str) -> None:
    """Raises:
    Unsupported: the spec says that the method cannot do this.
    """
    if word in spec.cannot:
        raise Unsupported(f"the spec declares {word!r} among what it cannot do")


class Driver:
    """A method, what it steps, and a clock; `batch` is what the two kinds differ in.

    Args:
        spec: the method.
        hparams: its hyper-parameters.
        protocol: the settings that it is built under.
        model: what is trained.
        params: its parameters.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        hparams: Mapping[str, Any],
        protocol: Protocol,
        model: nn.Module,
        params: tuple[Parameter, ...],
    ) -> None:
        self.spec, self.hparams, self.protocol = spec, dict(hparams), protocol
        self.model, self.params = model, params
        self.stepper: Stepper = build_stepper(spec, protocol, model, params, self.hparams, SEED)
        self.step, self.passes = 0, 0.0

    def batch(self) -> StepBatch:
        """The batch of the next step."""
        raise NotImplementedError

    def take(self, steps: int, scale: float | None = None) -> list[float]:
        """Take steps; the training losses.

        Args:
            scale: factor on every rate; the protocol's schedule if None.
        """
        losses = []
        for _ in range(steps):
            torch.manual_seed(derive_seed(SEED, self.step))
            batch = self.batch()
            factor = self.factor() if scale is None else scale
            result = self.stepper.step(batch, factor)
            if not isinstance(result, StepResult):
                raise Failure(f"step returned a {type(result).__name__}, not a StepResult")
            losses.append(float(result.loss))
            self.passes += batch.passes
            self.step += 1
        return losses

    def factor(self) -> float:
        """The schedule's factor for the next step, as a run gives it."""
        if self.spec.schedule == "own":
            return 1.0
        shape = self.protocol.schedule
        factor = lr_factor(shape, self.step, self.protocol.budget.steps)
        warm = self.step < self.protocol.warmup_steps
        return factor if self.spec.schedule == "protocol" or warm else 1.0

    def weights(self) -> list[Tensor]:
        """A copy of every parameter."""
        return [param.tensor.detach().clone() for param in self.params]

    def put(self, weights: list[Tensor]) -> None:
        """Set every parameter."""
        with torch.no_grad():
            for param, value in zip(self.params, weights, strict=True):
                param.tensor.copy_(value)

    def named(self) -> dict[str, Tensor]:
        """A copy of every parameter, by name."""
        names = [param.info.name for param in self.params]
        return dict(zip(names, self.weights(), strict=True))

    def finite(self, when: str) -> None:
        """Raises:
        Failure: a parameter that is not finite.
        """
        bad = [p.info.name for p in self.params if not torch.isfinite(p.tensor).all()]
        if bad:
            raise Failure(f"not finite {when}: {', '.join(bad[:3])}")

    def shapes(self) -> list[str]:
        """Shape and dtype of every state tensor."""
        return [f"{tuple(t.shape)} {t.dtype}" for t in state_tensors(self.stepper.optimizers)]

    @property
    def plain(self) -> bool:
        """Whether the method is a `torch.optim.Optimizer` without a stepper of its own."""
        return type(self.stepper) is GradientStepper


class Bench(Driver):
    """The tiny LLaMA on the built-in text; of an adapter, with its layers in it.

    Args:
        spec: the method.
        hparams: its hyper-parameters.
        dtype: of the weights.
        config: another model than the protocol's.
        prepare: told the model before its parameters are gathered.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        hparams: Mapping[str, Any],
        dtype: torch.dtype = torch.float32,
        config: Model = PROTOCOL.model,
        prepare: Callable[[nn.Module], object] = lambda model: None,
    ) -> None:
        data = PROTOCOL.data
        corpus = sources.load(data)
        model = models.build_model(config, corpus.vocabulary, data.sequence, SEED).to(dtype)
        prepare(model)
        model = adapt(spec, PROTOCOL, model, hparams, SEED)
        self.task = next_token.NextToken("fp32", "cpu")
        self.order = sources.BatchOrder(corpus.tokens["train"], data, SEED)
        super().__init__(spec, hparams, PROTOCOL, model, models.parameters(model))

    def batch(self) -> StepBatch:
        tokens = next_token.to_device(self.order.next(), torch.device("cpu"))
        return StepBatch(
            [partial(self.task.loss, self.model, tokens)],
            PROTOCOL.tokens_per_step,
            sampled_losses=[partial(self.task.sampled_loss, self.model, tokens)],
        )


def equal(one: list[Tensor], other: list[Tensor], message: str) -> None:
    """Raises:
    Failure: two lists of tensors that differ in any bit.
    """
    worst = max(
        (float((a - b).abs().max()) for a, b in zip(one, other, strict=True) if a.numel()),
        default=0.0,
    )
    if worst != 0.0:
        raise Failure(f"{message} (by up to {worst:.3g})")


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Euclidean, over all tensors."""
    parts = [(a.double() - b.double()).square().sum() for a, b in zip(one, other, strict=True)]
    return float(torch.stack(parts).sum().sqrt())


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Fixed normal numbers."""
    generator = torch.Generator().manual_seed(1_000 * seed + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)
