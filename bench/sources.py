"""Where tokens come from: text by source, cut into slices by document, tokenised, packed.

Four slices never share a document: `train`; `control`, read only by controllers inside methods;
`selection`, read to choose hyper-parameters; `report`, read once by final and transfer trials.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import archives, documents, markov, source_file, source_hub, tokenising
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import SLICES as SLICES
from levelfield.bench.documents import Counts, Source, Text
from levelfield.bench.manual import Document
from levelfield.bench.manual import documents as manual_documents
from levelfield.bench.spec import BenchError, Data

Tokens = npt.NDArray[Any]
"""Ids as uint16 or uint32; int32 where rows are padded."""

IGNORED = -100
"""Stands for padding: no id, and no target."""
CHUNK = 256
"""Documents tokenised at a time."""
LAYOUT = 1
"""Raised when `_stream` changes: streams in the cache go stale."""


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
        "digest": _digest(tokens),
    }
    return Corpus(tokens, source.symbols, facts, losses)


def _digest(tokens: Mapping[str, Tokens]) -> str:
    digest = hashlib.sha256()
    for name in SLICES:
        stream = tokens[name]
        kind = "" if stream.dtype == np.uint16 else f"{stream.dtype.name} "
        digest.update(f"{name} {kind}{len(stream)} ".encode())
        digest.update(stream.astype(stream.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def _load(source: str, tokenizer: str, row: int | None, seed: int) -> Corpus:
    counts, notes, licence = Counts(), {}, []
    texts: list[Text] = []
    for part in _MIXTURE.split(source):
        read = _read(part)
        texts += read.texts
        licence.append(read.licence)
        notes.update({part: dict(read.notes)} if read.notes else {})
    found = documents.ordered(list(documents.assemble(texts, counts)), seed)
    del texts
    by_slice = {name: [item.text for item in found if item.slice == name] for name in SLICES}
    bare = [name for name, inside in by_slice.items() if not inside]
    if bare:
        raise BenchError(
            f"{source} has {len(found)} documents, none of them in {', '.join(bare)}",
            "a document is whole in one slice by its hash: some hundred are needed",
        )
    made = tokenising.resolve(tokenizer, lambda: by_slice["train"])
    tokens = _tokens(made, by_slice, row)
    facts: dict[str, Any] = {
        "source": source,
        "tokenizer": tokenizer,
        "licence": "; ".join(dict.fromkeys(licence)),
        "documents": counts.documents,
        "bytes": {name: _size(made, by_slice[name]) for name in SLICES},
        "tokens": {name: len(tokens[name]) for name in SLICES},
        "digest": _digest(tokens),
    }
    facts |= {
        f"documents_{name}": value
        for name in ("duplicates", "empty", "pieces", "replaced")
        if (value := getattr(counts, name))
    }
    if notes:
        facts["read"] = notes
    if tokenizer != "bytes":
        facts |= {"tokenizer_digest": made.digest, "vocabulary": made.vocabulary}
    if row is not None:
        padding = {name: float((tokens[name] == IGNORED).mean()) for name in SLICES}
        facts["padding"] = {name: round(share, 6) for name, share in padding.items()}
    return Corpus(tokens, made.vocabulary, facts, row=row, tokenizer=made)


def _size(made: tokenising.Tokenizer, texts: Sequence[str]) -> int:
    """Bytes of a slice's text, and of what stands between its documents."""
    between = (len(texts) - 1) * len(tokenising.BETWEEN) if made.end is None else 0
    return sum(len(text.encode()) for text in texts) + between


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
    return Source(texts=texts, licence=licence)


# --- tokens -------------------------------------------------------------------------------------


def _tokens(
    made: tokenising.Tokenizer, by_slice: Mapping[str, Sequence[str]], row: int | None
) -> Mapping[str, Tokens]:
    """The streams, from the user's cache where the same texts were tokenised before."""
    if made.digest == "bytes":
        return {name: _stream(made, texts, row) for name, texts in by_slice.items()}
    form = f"{LAYOUT} {made.digest} {made.vocabulary} {made.end} {row}"
    key = hashlib.sha256(form.encode())
    for name, texts in by_slice.items():
        key.update(f"{name} {len(texts)}".encode())
        for text in texts:
            key.update(hashlib.sha256(text.encode()).digest())
    path = documents.cache() / "tokens" / f"{key.hexdigest()[:32]}.npz"
    try:
        with path.open("rb") as file, np.load(file) as kept:
            return {name: kept[f"arr_{place}"] for place, name in enumerate(SLICES)}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent, or spoilt: made again
    tokens = {name: _stream(made, texts, row) for name, texts in by_slice.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.{os.getpid()}.part.npz")
    np.savez(part, *(tokens[name] for name in SLICES))
    part.replace(path)
    return tokens


def _stream(made: tokenising.Tokenizer, texts: Sequence[str], row: int | None) -> Tokens:
    """Documents one after another; or a row each, cut or padded to it."""
    end = np.array([] if made.end is None else [made.end], made.dtype)
    between = made.encode([tokenising.BETWEEN])[0].astype(made.dtype)
    parts: list[Tokens] = []
    for start in range(0, len(texts), CHUNK):
        for ids in made.encode(texts[start : start + CHUNK]):
            whole = np.concatenate([ids.astype(made.dtype), end])
            if row is not None:
                if len(whole) > 1:  # one token has nothing to predict
                    parts.append(_row(whole, row))
                continue
            if parts and made.end is None:
                parts.append(between)
            parts.append(whole)
    if not parts:
        return np.zeros(0, made.dtype if row is None else np.int32)
    return np.concatenate(parts)


def _row(ids: Tokens, row: int) -> Tokens:
    kept = np.full(row, IGNORED, np.int32)
    kept[: min(len(ids), row)] = ids[:row]
    return kept


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
