"""The seam between the training loop and what is learned.

A task holds its data, makes its model, gives batches in an order of its own, and reads losses and
scores. The loop looks into none of these: a batch is whatever the task's `loss` takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from levelfield.bench.digest import did_you_mean
from levelfield.bench.spec import BenchError
from levelfield.bench.spec import Protocol as ProtocolRecord


@dataclass(frozen=True, slots=True)
class Reading:
    """What an evaluation of a slice found."""

    loss: float
    """Mean, in nats a token or an example."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Name -> value, higher is better: accuracy, matthews, f1, ..."""


class Batches(Protocol):
    """Batches in an order that follows from a seed alone."""

    def next(self) -> Any:
        """The next batch, on the host."""

    def skip(self, steps: int) -> None:
        """Go past batches, as if they had been taken."""

    @property
    def sha256(self) -> str:
        """Over everything drawn so far."""


class Task(Protocol):
    """What the loop needs. Nothing is read from disk before it is asked for."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of the data, for the manifest; `digest` among them."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""

    def check(self) -> None:
        """Refuse, before any trial, what no trial could do.

        Raises:
            BenchError: too little data, a model that does not go with it.
        """

    def build_model(self, seed: int) -> nn.Module:
        """A model for the task; the same seed gives the same weights for every method."""

    def batches(self, seed: int) -> Batches: ...

    def split(self, batch: Any, parts: int) -> Sequence[tuple[Any, float]]:
        """A batch in parts, each with its share of what the batch's mean is over."""

    def to_device(self, batch: Any, device: torch.device) -> Any: ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean loss of a batch, 0-dim; never the model's own, which may hold penalties."""

    def sampled_loss(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        """The same against labels drawn from the model's own distribution."""

    def size(self, name: str, limit: int | None) -> int:
        """How many sequences or examples `evaluate` reads."""

    def evaluate(
        self, model: nn.Module, name: str, limit: int | None, device: torch.device
    ) -> Reading:
        """Loss and scores over a slice, or over so many of it spread evenly."""

    def write_tokenizer(self, folder: Path) -> None:
        """What turns text into the model's ids, as transformers reads it; nothing if no text."""


KINDS: Mapping[str, str] = {
    "causal_lm": "levelfield.bench.causal_lm:CausalLM",
    "classification": "levelfield.bench.labelled:Classification",
    "regression": "levelfield.bench.labelled:Regression",
    "extractive_qa": "levelfield.bench.extractive_qa:ExtractiveQA",
    "generative_qa": "levelfield.bench.generative_qa:GenerativeQA",
    "multiple_choice": "levelfield.bench.multiple_choice:MultipleChoice",
    "bilinear": "levelfield.bench.bilinear:Bilinear",
}
"""Kind -> the class that is made from a protocol and a device type."""


def open_task(protocol: ProtocolRecord, device_type: str) -> Task:
    """The task that a protocol poses.

    Raises:
        BenchError: an unknown kind.
    """
    kind = protocol.task.kind
    if kind not in KINDS:
        raise BenchError(f"unknown task {kind!r}", did_you_mean(kind, KINDS))
    module, _, name = KINDS[kind].partition(":")
    made: Task = getattr(importlib.import_module(module), name)(protocol, device_type)
    return made


def objective(protocol: ProtocolRecord, reading: Reading) -> float:
    """What a trial is judged by, lower is better: the loss, or points of error by the metric.

    Raises:
        BenchError: the task computes no such score.
    """
    metric = protocol.task.metric
    if not metric:
        return reading.loss
    if metric not in reading.scores:
        raise BenchError(
            f"task.metric={metric!r}: a task of kind {protocol.task.kind} has no such score",
            did_you_mean(metric, reading.scores),
        )
    return 100.0 * (1.0 - reading.scores[metric])
