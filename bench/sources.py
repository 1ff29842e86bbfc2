"""Where tokens come from: text by source, cut into slices by document, tokenised, packed.

Four slices never share a document: `train`; `control`, read only by controllers inside methods;
`selection`, read to choose hyper-parameters; `report`, read once by final and transfer trials.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import (
    archives,
    documents,
    markov,
    source_file,
    source_hub,
    token_store,
    tokenising,
)
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import SLICES as SLICES
from levelfield.bench.documents import Counts, Source, Text
from levelfield.bench.manual import Document, corpus_sha256
from levelfield.bench.manual import documents as manual_documents
from levelfield.bench.spec import BenchError, Data
from levelfield.bench.token_store import IGNORED as IGNORED
from levelfield.bench.token_store import Tokens as Tokens

MOST_HELD = 200_000_000
"""Bytes of text that are put into another order: they are held in memory for it."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised slices. `tokens[slice]` has shape [n], one stream a slice."""

    tokens: Mapping[str, Tokens]
    vocabulary: int
    facts: Mapping[str, Any]
    """For the manifest: source, licence, documents, bytes and tokens a slice, digest."""
    floor: Mapping[str, npt.NDArray[np.float64]] | None = None
    """The source's own loss on every token, where it is known."""
    row: int | None = None
    """Ids of one document in the stream, padding among them; None: documents are packed."""
    tokenizer: tokenising.Tokenizer | None = None
    """What made the ids; None where the source has no text."""

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
        count = (len(stream) - 1) // length if self.row is None else len(stream) // self.row
        if count < 1:
            raise BenchError(
                f"slice {name!r} holds {len(stream)} tokens", f"{length + 1} are needed"
            )
        starts = np.arange(count) * (self.row or length)
        if limit is not None and limit < count:
            starts = starts[np.linspace(0, count - 1, limit).astype(np.int64)]
        cut: Tokens = stream[starts[:, None] + np.arange(length + 1)[None, :]]
        return cut


def load(data: Data) -> Corpus:
    """The corpus that a protocol's `data` names.

    Raises:
        BenchError: unknown source or tokenizer, one that cannot be read, or a slice without text.
    """
    kind, _, rest = data.source.partition(":")
    if kind == "markov":
        if not data.packing or data.seed != 0:
            raise BenchError(
                f"data.packing={data.packing}, data.seed={data.seed} with {data.source!r}",
                "a generated source has no documents; its seed is markov:seed=N",
            )
        return _markov(rest)
    row = None if data.packing else data.sequence + 1
    return _load(data.source, data.tokenizer, row, data.seed)


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
        "digest": token_store.digest(
            {
                name: (
                    stream.dtype,
                    len(stream),
                    [stream.astype(stream.dtype.newbyteorder("<")).tobytes()],
                )
                for name, stream in tokens.items()
            }
        ),
    }
    return Corpus(tokens, source.symbols, facts, losses)


@lru_cache(maxsize=4)
def _load(source: str, tokenizer: str, row: int | None, seed: int) -> Corpus:
    text = _Text(tuple(_MIXTURE.split(source)), seed)
    read = text.read()
    stamps = [item.stamp for item in read]
    about = {"source": source, "tokenizer": tokenizer}
    about["licence"] = "; ".join(dict.fromkeys(item.licence for item in read))
    trains = tokenising.trains(tokenizer)
    made = None if trains else tokenising.resolve(tokenizer, text.train)
    built_in = all(part in SOURCES for part in text.parts)
    if None in stamps or (tokenizer == "bytes" and built_in):  # in memory
        made = made or tokenising.resolve(tokenizer, text.train)
        sinks = {name: io.BytesIO() for name in SLICES}
        facts, dtype = _written(text, read, made, row, sinks, about)
        tokens = {name: np.frombuffer(sink.getbuffer(), dtype) for name, sink in sinks.items()}
        return Corpus(tokens, made.vocabulary, facts, row=row, tokenizer=made)

    def make(folder: Path) -> None:
        using = made or tokenising.resolve(tokenizer, text.train)
        with token_store.sinks(folder) as sinks:
            facts, dtype = _written(text, read, using, row, sinks, about)
        if [item.stamp for item in text.read()] != stamps:
            raise BenchError(f"{source} changed while it was read", "try again")
        token_store.finish(folder, facts, dtype.str, using)

    identity = [made.digest, made.vocabulary, made.end] if made else None
    kept = token_store.kept(token_store.key([about, stamps, identity, row, seed]), make)
    return Corpus(kept.tokens, kept.vocabulary, kept.facts, row=row, tokenizer=made or kept.trained)


@dataclass(frozen=True, slots=True)
class _Text:
    """A mixture of sources, read as often as it is asked for."""

    parts: tuple[str, ...]
    seed: int

    def read(self) -> list[Source]:
        return [_read(part) for part in self.parts]

    def documents(self, counts: Counts) -> Iterable[Document]:
        texts = (text for part in self.parts for text in _read(part).texts)
        found = documents.assemble(texts, counts)
        return found if self.seed == 0 else documents.ordered(self._held(found), self.seed)

    def _held(self, found: Iterable[Document]) -> list[Document]:
        held, size = [], 0
        for item in found:
            size += len(item.text.encode())
            if size > MOST_HELD:
                raise BenchError(
                    f"data.seed={self.seed} with over {MOST_HELD:,} bytes of text",
                    "accepted: data.seed=0, the order of the source; or a smaller ?limit=",
                )
            held.append(item)
        return held

    def train(self) -> Iterator[str]:
        return (item.text for item in self.documents(Counts()) if item.slice == "train")


def _written(
    text: _Text,
    read: Sequence[Source],
    made: tokenising.Tokenizer,
    row: int | None,
    sinks: Mapping[str, IO[bytes]],
    about: Mapping[str, str],
) -> tuple[Mapping[str, Any], np.dtype[Any]]:
    """Tokenise a text into a sink a slice: the facts, and the dtype of the ids."""
    counts = Counts()
    streams = token_store.stream(text.documents(counts), made, row, sinks)
    bare = [name for name in SLICES if not streams[name].documents]
    if bare:
        total = sum(stream.documents for stream in streams.values())
        raise BenchError(
            f"{about['source']} has {total} documents, none of them in {', '.join(bare)}",
            "a document is whole in one slice by its hash: some hundred are needed",
        )
    facts: dict[str, Any] = {
        **about,
        "documents": counts.documents,
        "bytes": {name: streams[name].text_bytes for name in SLICES},
        "tokens": {name: streams[name].tokens for name in SLICES},
        "digest": token_store.digest(
            {name: (item.dtype, item.tokens, item.blocks()) for name, item in streams.items()}
        ),
    }
    facts |= {
        f"documents_{name}": value
        for name in ("duplicates", "empty", "pieces", "replaced")
        if (value := getattr(counts, name))
    }
    notes = {
        part: dict(item.notes) for part, item in zip(text.parts, read, strict=True) if item.notes
    }
    if notes:
        facts["read"] = notes
    if about["tokenizer"] != "bytes":
        facts |= {"tokenizer_digest": made.digest, "vocabulary": made.vocabulary}
    if row is not None:
        facts["padding"] = {
            name: round(item.padding / max(item.tokens, 1), 6) for name, item in streams.items()
        }
    return facts, streams["train"].dtype


# --- sources ------------------------------------------------------------------------------------


def _python_manual() -> tuple[tuple[Document, ...], str]:
    return manual_documents(), "PSF-2.0 (text of the Python documentation, in every CPython)"


SOURCES: Mapping[str, Callable[[], tuple[tuple[Document, ...], str]]] = {
    "builtin:python-manual": _python_manual,
}
READERS: Mapping[str, Callable[[str], Source]] = {
    **{"file": source_file.read, "hf": source_hub.read, "pypi": archives.read},
}
_MIXTURE = re.compile(rf"\+(?=(?:builtin|markov|{'|'.join(READERS)}):)")


def _read(source: str) -> Source:
    kind, colon, rest = source.partition(":")
    if colon and kind in READERS:
        return READERS[kind](rest)
    if source not in SOURCES:
        known = [*SOURCES, "markov:order=2,symbols=32", "file:PATH", "hf:ID"]
        known += [f"pypi:{name}" for name in archives.ARCHIVES]
        raise BenchError(f"unknown data source {source!r}", did_you_mean(source, known))
    inside, licence = SOURCES[source]()
    texts = [Text(name=item.name, text=item.text, slice=item.slice) for item in inside]
    return Source(texts=texts, licence=licence, stamp=corpus_sha256(inside))


# --- batches -------------------------------------------------------------------------------------


class BatchOrder:
    """The order in which a trial sees its tokens, from its own generator.

    Packed: every step draws `batch` random windows of `sequence` + 1 tokens of the training slice.
    Without packing: rows in random order, all of them before any comes again. The order depends on
    the seed alone: a method that draws random numbers cannot shift it. `sha256` covers every place
    drawn so far.
    """

    def __init__(self, tokens: Tokens, data: Data, seed: int) -> None:
        row = 1 if data.packing else data.sequence + 1
        places = (len(tokens) - data.sequence if data.packing else len(tokens)) // row
        if places < (2 if data.packing else 1):
            raise BenchError(
                f"the train slice holds {len(tokens)} tokens",
                f"sequences of {data.sequence} need at least {data.sequence + 2}",
            )
        self._tokens, self._data, self._row = tokens, data, row
        self._places = Windows(places, seed) if data.packing else Epochs(places, seed)

    def next(self) -> Tokens:
        """The next batch, [batch, sequence + 1]."""
        starts = self._places.draw(self._data.batch) * self._row
        batch: Tokens = self._tokens[starts[:, None] + np.arange(self._data.sequence + 1)[None, :]]
        return batch

    def skip(self, steps: int) -> None:
        """Go past batches, as if they had been taken."""
        for _ in range(steps):
            self._places.draw(self._data.batch)

    @property
    def sha256(self) -> str:
        return self._places.sha256


class Windows:
    """Places in [0, count) with replacement, and a hash of all that were drawn."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._hash = hashlib.sha256()

    def draw(self, number: int) -> npt.NDArray[np.int64]:
        """The next `number` places."""
        places = self._random.integers(0, self._count, number)
        self._hash.update(places.astype("<i8").tobytes())
        return places

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class Epochs(Windows):
    """Places in [0, count) in random order, each once before any comes again; an epoch may end
    inside a batch."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(count, seed)
        self._left = np.zeros(0, np.int64)

    def draw(self, number: int) -> npt.NDArray[np.int64]:
        while len(self._left) < number:
            self._left = np.concatenate([self._left, self._random.permutation(self._count)])
        places, self._left = self._left[:number], self._left[number:]
        self._hash.update(places.astype("<i8").tobytes())
        return places
