"""Tasks: what a batch is, how its loss is read, how a slice is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from levelfield.bench.digest import did_you_mean
from levelfield.bench.sources import Tokens
from levelfield.bench.spec import BenchError, Precision
from levelfield.bench.spec import Task as TaskConfig

EVAL_BATCH = 64
"""Sequences a forward pass of an evaluation; fixed, so that losses do not depend on memory."""


class Task(Protocol):
    """What the loop needs of a task."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean loss of a batch [b, t + 1] in nats a token, 0-dim."""

    def sampled_loss(self, model: nn.Module, batch: Tensor, generator: torch.Generator) -> Tensor:
        """The same against labels drawn from the model's own distribution, not the batch's."""

    def evaluate(self, model: nn.Module, sequences: Tokens, device: torch.device) -> float:
        """Mean loss over sequences [n, t + 1], in nats a token. Reads the device once."""


class CausalLM:
    """Next-token prediction. The loss comes from the logits, never from the model's own."""

    def __init__(self, precision: Precision, device_type: str) -> None:
        self._autocast = precision == "fp32+bf16"
        self._device_type = device_type

    def _context(self) -> AbstractContextManager[object]:
        if self._autocast:
            return torch.autocast(self._device_type, dtype=torch.bfloat16)
        return nullcontext()

    def _logits(self, model: nn.Module, batch: Tensor) -> Tensor:
        """In float32, [b * t, vocabulary]."""
        with self._context():
            logits: Tensor = model(input_ids=batch[:, :-1]).logits
        return logits.float().reshape(-1, logits.shape[-1])

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = self._logits(model, batch)
        return nn.functional.cross_entropy(logits, batch[:, 1:].reshape(-1))

    def sampled_loss(self, model: nn.Module, batch: Tensor, generator: torch.Generator) -> Tensor:
        logits = self._logits(model, batch)
        # The largest of logit + Gumbel noise is a draw from the softmax; `multinomial` would wait
        # for the device to check its input.
        noise = torch.empty_like(logits.detach()).exponential_(generator=generator).log_()
        labels = (logits.detach() - noise).argmax(dim=-1)
        return nn.functional.cross_entropy(logits, labels)

    def evaluate(self, model: nn.Module, sequences: Tokens, device: torch.device) -> float:
        model.eval()
        total = torch.zeros((), dtype=torch.float64, device=device)
        with torch.no_grad():
            for start in range(0, len(sequences), EVAL_BATCH):
                part = to_device(sequences[start : start + EVAL_BATCH], device)
                total += self.loss(model, part).double() * len(part)
        model.train()
        return float(total) / len(sequences)


def to_device(tokens: Tokens, device: torch.device) -> Tensor:
    """Token ids as int64 on the device."""
    return torch.from_numpy(tokens.astype("int64")).to(device, non_blocking=True)


TASKS: Mapping[str, type[CausalLM]] = {"causal_lm": CausalLM}


def build_task(task: TaskConfig, precision: Precision, device_type: str) -> Task:
    """The task that a protocol names."""
    if task.kind not in TASKS:
        raise BenchError(f"unknown task {task.kind!r}", did_you_mean(task.kind, TASKS))
    return TASKS[task.kind](precision, device_type)
