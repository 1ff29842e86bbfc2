"""Where tokens come from: text by source, cut into slices by document, tokenised, packed.

Four slices never share a document: `train`; `control`, read only by controllers inside methods;
`selection`, read to choose hyper-parameters; `report`, read once by final and transfer trials.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import markov
from levelfield.bench.digest import did_you_mean
from levelfield.bench.manual import Document, documents
from levelfield.bench.spec import BenchError, Data

SLICES = ("train", "control", "selection", "report")
Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised slices. `tokens[slice]` has shape [n], one stream a slice."""

    tokens: Mapping[str, Tokens]
    vocabulary: int
    facts: Mapping[str, Any]
    """For the manifest: source, licence, documents, bytes and tokens a slice, digest."""
    floor: Mapping[str, npt.NDArray[np.float64]] | None = None
    """The source's own loss on every token, where it is known."""

    @property
    def digest(self) -> str:
        return str(self.facts["digest"])

    def floor_loss(self, name: str, length: int) -> float | None:
        """The least loss in nats that any model can expect on the targets of `sequences`."""
        if self.floor is None:
            return None
        count = (len(self.tokens[name]) - 1) // length
        return float(self.floor[name][1 : count * length + 1].mean())

    def sequences(self, name: str, length: int, limit: int | None = None) -> Tokens:
        """Evaluation sequences of a slice, [n, length + 1], without overlap of targets.

        With a `limit`, that many of them spread evenly over the slice.
        """
        stream = self.tokens[name]
        count = (len(stream) - 1) // length
        if count < 1:
            raise BenchError(
                f"slice {name!r} holds {len(stream)} tokens", f"{length + 1} are needed"
            )
        starts = np.arange(count) * length
        if limit is not None and limit < count:
            starts = starts[np.linspace(0, count - 1, limit).astype(np.int64)]
        cut: Tokens = stream[starts[:, None] + np.arange(length + 1)[None, :]]
        return cut


def load(data: Data) -> Corpus:
    """The corpus that a protocol's `data` names.

    Raises:
        BenchError: unknown source or tokenizer, or a slice without text.
    """
    kind, _, rest = data.source.partition(":")
    if kind == "markov":
        return _markov(rest)
    return _load(data.source, data.tokenizer)


@lru_cache(maxsize=4)
def _markov(settings: str) -> Corpus:
    source = markov.parse(settings)
    tokens, losses = markov.generate(source)
    facts = {
        "source": f"markov:{settings}",
        "tokenizer": "none: symbols are tokens",
        "licence": "generated",
        "documents": len(tokens),
        "tokens": {name: len(tokens[name]) for name in SLICES},
        "digest": _digest(tokens),
    }
    return Corpus(tokens, source.symbols, facts, losses)


def _digest(tokens: Mapping[str, Tokens]) -> str:
    digest = hashlib.sha256()
    for name in SLICES:
        digest.update(f"{name} {len(tokens[name])} ".encode())
        digest.update(tokens[name].astype("<u2").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def _load(source: str, tokenizer: str) -> Corpus:
    if source not in SOURCES:
        known = [*SOURCES, "markov:order=2,symbols=32"]
        raise BenchError(f"unknown data source {source!r}", did_you_mean(source, known))
    if tokenizer not in TOKENIZERS:
        raise BenchError(f"unknown tokenizer {tokenizer!r}", did_you_mean(tokenizer, TOKENIZERS))
    text, licence = SOURCES[source]()
    encode, vocabulary = TOKENIZERS[tokenizer]
    joined = {
        name: "\n\n".join(item.text for item in text if item.slice == name) for name in SLICES
    }
    tokens = {name: encode(joined[name]) for name in SLICES}
    facts = {
        "source": source,
        "tokenizer": tokenizer,
        "licence": licence,
        "documents": len(text),
        "bytes": {name: len(joined[name].encode()) for name in SLICES},
        "tokens": {name: len(tokens[name]) for name in SLICES},
        "digest": _digest(tokens),
    }
    return Corpus(tokens, vocabulary, facts)


def _python_manual() -> tuple[tuple[Document, ...], str]:
    return documents(), "PSF-2.0 (text of the Python documentation, in every CPython)"


def _bytes(text: str) -> Tokens:
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint16)


SOURCES: Mapping[str, Callable[[], tuple[tuple[Document, ...], str]]] = {
    "builtin:python-manual": _python_manual,
}
TOKENIZERS: Mapping[str, tuple[Callable[[str], Tokens], int]] = {"bytes": (_bytes, 256)}


class BatchOrder:
    """The order in which a trial sees its tokens, from its own generator.

    Every step draws `batch` random windows of `sequence` + 1 tokens of the training slice. The
    order depends on the seed alone: a method that draws random numbers cannot shift it. `sha256`
    covers every window drawn so far.
    """

    def __init__(self, tokens: Tokens, data: Data, seed: int) -> None:
        if len(tokens) < data.sequence + 2:
            raise BenchError(
                f"the train slice holds {len(tokens)} tokens",
                f"sequences of {data.sequence} need at least {data.sequence + 2}",
            )
        self._tokens, self._data = tokens, data
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._hash = hashlib.sha256()

    def next(self) -> Tokens:
        """The next batch, [batch, sequence + 1]."""
        length = self._data.sequence
        starts = self._random.integers(0, len(self._tokens) - length, self._data.batch)
        self._hash.update(starts.astype("<i8").tobytes())
        batch: Tokens = self._tokens[starts[:, None] + np.arange(length + 1)[None, :]]
        return batch

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()
