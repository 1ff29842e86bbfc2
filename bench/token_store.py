"""Token streams: made in one pass over documents, kept on disk, and mapped from there.

A pass holds some documents a slice, whatever the size of the corpus. The folder of a corpus in the
user's cache has one file of ids a slice, the facts, and a trained tokenizer; it comes to be whole
or not at all, one process at a time makes it, and all others map it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import (
    archive_table,
    documents,
    file_opening,
    file_rows,
    manual,
    source_file,
    source_hub,
    tokenising,
)
from levelfield.bench.documents import SLICES
from levelfield.bench.manual import Document
from levelfield.bench.provenance import version
from levelfield.bench.spec import BenchError

Tokens = npt.NDArray[Any]
"""Ids as uint16 or uint32; int32 where rows are padded."""

IGNORED = -100
"""Stands for padding: no id, and no target."""
CHUNK = 256
"""Documents of a slice tokenised at a time."""
CHARACTERS = 1 << 20
"""As many characters are enough for a chunk, however few documents they are."""
BLOCK = 1 << 22
"""Bytes read at a time for the digest."""
LAYOUT = 2
"""Raised when what lies in a folder changes its form."""
FACTS, TOKENIZER = "facts.json", "tokenizer.json"


# --- streams ------------------------------------------------------------------------------------


class Stream:
    """The ids of one slice: documents one after another; or a row each, cut or padded to it.

    Args:
        made: gives the ids.
        row: ids a row; None: documents are packed.
        sink: takes the ids as little-endian bytes, and gives them back for the digest.
    """

    def __init__(self, made: tokenising.Tokenizer, row: int | None, sink: IO[bytes]) -> None:
        self.dtype = np.dtype(made.dtype if row is None else np.int32).newbyteorder("<")
        self.documents = self.tokens = self.padding = 0
        self._made, self._row, self._sink = made, row, sink
        self._end = np.array([] if made.end is None else [made.end], made.dtype)
        self._between = made.encode([tokenising.BETWEEN])[0].astype(made.dtype)
        self._held: list[str] = []
        self._characters = self._bytes = 0

    @property
    def text_bytes(self) -> int:
        """Of the text, and of what stands between its documents."""
        between = len(tokenising.BETWEEN) if self._made.end is None else 0
        return self._bytes + max(self.documents - 1, 0) * between

    def add(self, text: str) -> None:
        """Take a document; it is tokenised once there are enough."""
        self._held.append(text)
        self._characters += len(text)
        if len(self._held) == CHUNK or self._characters >= CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Tokenise and write what is held."""
        if not self._held:
            return
        parts: list[Tokens] = []
        for text, ids in zip(self._held, self._made.encode(self._held), strict=True):
            whole = np.concatenate([ids.astype(self._made.dtype), self._end])
            if self._row is None and self._made.end is None and self.documents:
                parts.append(self._between)
            if self._row is None:
                parts.append(whole)
            elif len(whole) > 1:  # one token has nothing to predict
                parts.append(_row(whole, self._row))
                self.padding += max(self._row - len(whole), 0)
            self.documents += 1
            self._bytes += len(text.encode())
        self.tokens += sum(map(len, parts))
        for part in parts:
            self._sink.write(part.astype(self.dtype).tobytes())
        self._held, self._characters = [], 0

    def blocks(self) -> Iterator[bytes]:
        """What was written."""
        self._sink.seek(0)
        return iter(lambda: self._sink.read(BLOCK), b"")


def _row(ids: Tokens, row: int) -> Tokens:
    kept = np.full(row, IGNORED, np.int32)
    kept[: min(len(ids), row)] = ids[:row]
    return kept


def stream(
    found: Iterable[Document],
    made: tokenising.Tokenizer,
    row: int | None,
    sinks: Mapping[str, IO[bytes]],
) -> Mapping[str, Stream]:
    """Tokenise documents into a sink a slice, in their order."""
    streams = {name: Stream(made, row, sink) for name, sink in sinks.items()}
    for item in found:
        streams[item.slice].add(item.text)
    for each in streams.values():
        each.flush()
    return streams


def digest(streams: Mapping[str, tuple[np.dtype[Any], int, Iterable[bytes]]]) -> str:
    """sha256 over dtype, length and little-endian ids of all slices, in the order of `SLICES`."""
    found = hashlib.sha256()
    for name in SLICES:
        dtype, length, blocks = streams[name]
        kind = "" if dtype == np.uint16 else f"{dtype.name} "
        found.update(f"{name} {kind}{length} ".encode())
        for block in blocks:
            found.update(block)
    return found.hexdigest()


# --- folders ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """What a folder holds."""

    tokens: Mapping[str, Tokens]
    """Mapped, read-only: nothing is read before it is used."""
    vocabulary: int
    facts: Mapping[str, Any]
    trained: tokenising.Tokenizer | None
    """A tokenizer that was trained on this very text."""


def key(form: Any) -> str:
    """The name of a folder, from what its tokens depend on, and from the code that made them."""
    python = [*sys.version_info[:2], unicodedata.unidata_version]
    libraries = [version("tokenizers"), version("transformers")]
    whole = json.dumps([LAYOUT, _code(), python, libraries, form], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """Hash of the code that reads and cleans text: a stamp of a file tells of the file alone."""
    modules = [archive_table, documents, file_opening, file_rows, manual, source_file, source_hub]
    modules += [tokenising, sys.modules[__name__]]
    text = "".join(inspect.getsource(module) for module in modules)
    return hashlib.sha256(text.encode()).hexdigest()


def kept(name: str, make: Callable[[Path], None]) -> Kept:
    """A folder of the cache: as it is if it is whole, and otherwise made.

    Args:
        name: by `key`.
        make: writes everything into a folder that is then moved into its place.

    Raises:
        BenchError: the cache cannot be written; and whatever `make` raises.
    """
    place = documents.cache() / "tokens" / name
    found = opened(place)
    if found is not None:
        return found
    try:
        with documents.alone(place.with_name(f"{name}.lock")):
            found = opened(place)  # another process may have made it
            if found is None:
                _make(place, make)
                found = opened(place)
    except OSError as error:
        raise BenchError(
            f"cannot write tokens into {place.parent}: {error.strerror or error}",
            "XDG_CACHE_HOME names another cache folder",
        ) from None
    if found is None:
        raise BenchError(f"tokens in {place} cannot be read back", "remove the folder; try again")
    return found


def _make(place: Path, make: Callable[[Path], None]) -> None:
    part = place.with_name(f"{place.name}.part")
    for old in (part, place):  # of a process that was killed, or torn since
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir()
    try:
        make(part)
        part.replace(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def sinks(folder: Path) -> Iterator[Mapping[str, IO[bytes]]]:
    """The files of a folder's slices, to be written and read back."""
    with ExitStack() as stack:
        yield {name: stack.enter_context((folder / f"{name}.bin").open("w+b")) for name in SLICES}


def finish(folder: Path, facts: Mapping[str, Any], dtype: str, made: tokenising.Tokenizer) -> None:
    """Write beside the ids what `opened` reads."""
    if made.file is not None:
        shutil.copyfile(made.file, folder / TOKENIZER)
    held = {"facts": facts, "dtype": dtype, "vocabulary": made.vocabulary}
    held["trained"] = made.file is not None
    (folder / FACTS).write_text(json.dumps(held))


def opened(place: Path) -> Kept | None:
    """What a folder holds; None where there is none, or a file is missing, torn or spoilt."""
    try:
        held = json.loads((place / FACTS).read_text())
        facts, dtype = held["facts"], np.dtype(held["dtype"])
        sizes = facts["tokens"]
        tokens = {name: _mapped(place / f"{name}.bin", dtype, sizes[name]) for name in SLICES}
        trained = None
        if held["trained"]:
            trained = tokenising.reopened(place / TOKENIZER)
            if trained is None or trained.digest != facts["tokenizer_digest"]:
                return None
        return Kept(tokens, held["vocabulary"], facts, trained)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(path: Path, dtype: np.dtype[Any], length: int) -> Tokens:
    if path.stat().st_size != length * dtype.itemsize:
        raise ValueError(f"{path.name} is torn")
    if length == 0:  # nothing can be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r", shape=(length,)).view(np.ndarray)
