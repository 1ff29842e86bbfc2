"""The task of a language model: predict the next token of packed documents, or of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench import model_source, models, sources
from levelfield.bench.next_token import NextToken, to_device
from levelfield.bench.spec import Protocol
from levelfield.bench.tasks import Reading


class CausalLM(NextToken):
    """Next-token prediction over a protocol's corpus.

    Args:
        protocol: data, model, precision.
        device_type: `cpu` or `cuda`.
    """

    def __init__(self, protocol: Protocol, device_type: str) -> None:
        super().__init__(protocol.precision, device_type)
        self._protocol = protocol

    @cached_property
    def corpus(self) -> sources.Corpus:
        """The tokenised text."""
        data, source = self._protocol.data, self._protocol.model.source
        if data.tokenizer == "model":
            data = replace(data, tokenizer=model_source.located(source)[0])
        return sources.load(data)

    @property
    def facts(self) -> Mapping[str, Any]:
        length = self._protocol.data.sequence
        keys = (("floor_loss_nats", "report"), ("floor_selection_loss_nats", "selection"))
        floors = {
            name: floor
            for name, key in keys
            if (floor := self.corpus.floor_loss(key, length)) is not None
        }
        return {**self.corpus.facts, **floors}

    @property
    def vocabulary(self) -> int:
        return self._protocol.model.vocabulary or self.corpus.vocabulary

    def check(self) -> None:
        for name in sources.SLICES:
            self.corpus.sequences(name, self._protocol.data.sequence, 1)
        model, length = self._protocol.model, self._protocol.data.sequence
        if model.vocabulary is not None or model.source:
            with torch.device("meta"):  # sizes alone: no weights are read
                shape = replace(model, pretrained=False)
                models.build_model(shape, self.corpus.vocabulary, length, 0)

    def build_model(self, seed: int) -> nn.Module:
        length = self._protocol.data.sequence
        return models.build_model(self._protocol.model, self.vocabulary, length, seed)

    def batches(self, seed: int) -> sources.BatchOrder:
        return sources.BatchOrder(self.corpus.tokens["train"], self._protocol.data, seed)

    def split(self, batch: sources.Tokens, parts: int) -> Sequence[tuple[sources.Tokens, float]]:
        pieces = np.array_split(batch, parts)
        counts = [_targets(piece) for piece in pieces]
        return [(piece, n / sum(counts)) for piece, n in zip(pieces, counts, strict=True)]

    def to_device(self, batch: sources.Tokens, device: torch.device) -> Tensor:
        return to_device(batch, device)

    def size(self, name: str, limit: int | None) -> int:
        return len(self.corpus.sequences(name, self._protocol.data.sequence, limit))

    def evaluate(
        self, model: nn.Module, name: str, limit: int | None, device: torch.device
    ) -> Reading:
        sequences = self.corpus.sequences(name, self._protocol.data.sequence, limit)
        return Reading(self.mean_loss(model, sequences, device))

    def write_tokenizer(self, folder: Path) -> None:
        if self.corpus.tokenizer is not None:
            self.corpus.tokenizer.write(folder)


def _targets(rows: sources.Tokens) -> int:
    """How many tokens are predicted."""
    targets = rows[:, 1:]
    return targets.size if rows.dtype.kind == "u" else int((targets >= 0).sum())
