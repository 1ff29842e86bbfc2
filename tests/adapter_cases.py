"""What tests of adapters share: a tiny BERT with a head over labels, a tiny LLaMA, and a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import models
from levelfield.bench.build import adapt, build_stepper, claimed_state_bytes
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.reference import load_spec
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import Budget, Data, OptimizerSpec, Protocol, Task
from levelfield.bench.stepper import Parameter, StepBatch, Stepper
from levelfield.optimizers._adapter import is_adapter

NAMES = sorted(name for name, e in OPTIMIZERS.entries().items() if "inner" in (e.literals or {}))
STEPS = 40
VOCABULARY, SEQUENCE, BATCH, LABELS = 29, 6, 8, 3


def bert(seed: int = 0, layers: int = 2) -> nn.Module:
    """A classifier of a few thousand weights; six linear layers a layer."""
    with quiet_imports():
        from transformers import BertConfig, BertForSequenceClassification
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=SEQUENCE,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=LABELS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = BertForSequenceClassification(config)
        # As if trained: a fresh body of std 0.02 hardly passes a signal on.
        with torch.no_grad():
            for name, param in model.named_parameters():
                if param.ndim == 2 and "classifier" not in name:
                    param.normal_(std=0.2)
    return model


def llama(seed: int = 0) -> nn.Module:
    """A causal model; seven linear layers a layer."""
    config = models.ModelConfig(hidden=16, layers=2, heads=2, intermediate=24)
    return models.build_model(config, VOCABULARY, SEQUENCE, seed)


@dataclass
class Case:
    """A method on a model, before or between steps."""

    spec: OptimizerSpec
    hparams: dict[str, Any]
    protocol: Protocol
    model: nn.Module
    params: tuple[Parameter, ...]
    stepper: Stepper
    loss: Callable[[nn.Module, int], Tensor]
    step: int = 0
    passes: float = 0.0

    def take(self, steps: int, parts: int = 1, scale: float = 1.0) -> list[float]:
        """Take steps; the training losses."""
        told = []
        for _ in range(steps):
            torch.manual_seed(self.step)
            batch = StepBatch([partial(self.loss, self.model, self.step)] * parts, 1)
            told.append(float(self.stepper.step(batch, scale).loss))
            self.passes += batch.passes
            self.step += 1
        return told

    def held_out(self) -> float:
        """The loss of what is deployed, on a batch of its own."""
        with self.stepper.evaluating(), torch.no_grad():
            return float(self.loss(self.model, -1))

    def weights(self) -> list[Tensor]:
        return [param.tensor.detach().clone() for param in self.params]

    def claimed(self, progress: float) -> int:
        infos = tuple(param.info for param in self.params)
        return claimed_state_bytes(self.spec, self.protocol, infos, self.hparams, progress)

    @property
    def told(self) -> dict[str, Any]:
        """What the record would hold."""
        return dict(getattr(self.stepper, "adapter", {}))

    @property
    def rule(self) -> Any:
        return getattr(self.stepper, "rule")  # noqa: B009

    def head(self) -> list[Tensor]:
        return [p.tensor for p in self.params if not is_adapter(p.info.name)]


def tokens(step: int) -> Tensor:
    """The inputs of a step, [b, t]; `-1`: those held out."""
    generator = torch.Generator().manual_seed(1_000 + step % 8 if step >= 0 else 7)
    return torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator)


def labelled(model: nn.Module, step: int) -> Tensor:
    """Cross entropy of the class that follows from the first token."""
    inputs = tokens(step)
    return nn.functional.cross_entropy(model(input_ids=inputs).logits, inputs[:, 0] % LABELS)


def next_token(model: nn.Module, step: int) -> Tensor:
    inputs = tokens(step)
    logits = model(input_ids=inputs).logits[:, :-1]
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), inputs[:, 1:].reshape(-1))


def start(
    reference: str,
    *,
    causal: bool = False,
    steps: int = STEPS,
    seed: int = 0,
    model: nn.Module | None = None,
    clip_norm: float | None = 1.0,
    prepare: Callable[[nn.Module], object] = lambda model: None,
    **hparams: Any,
) -> Case:
    """A method before its first step, at its defaults but for `hparams`.

    Args:
        prepare: told the adapted model before the method is built.
    """
    spec = load_spec(reference).value
    chosen = {**spec.defaults(), spec.scale: spec.space[spec.scale].default * 4, **hparams}
    protocol = Protocol(
        name="adapters",
        summary="a tiny model",
        task=Task(kind="causal_lm" if causal else "classification"),
        data=Data(batch=BATCH, sequence=SEQUENCE),
        budget=Budget(steps=steps),
        clip_norm=clip_norm,
    )
    made = model or (llama(seed) if causal else bert(seed))
    adapted = adapt(spec, protocol, made, chosen, seed).train()
    prepare(adapted)
    params = models.parameters(adapted)
    stepper = build_stepper(spec, protocol, adapted, params, chosen, seed)
    loss = next_token if causal else labelled
    return Case(spec, chosen, protocol, adapted, params, stepper, loss)


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
