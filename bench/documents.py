"""Documents: what a source gives, cleaned, made unique, and given whole to one slice.

A document's slice follows from its own text alone: adding documents to a source never moves
others from slice to slice, and equal texts can never lie on both sides of a boundary.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.bench.digest import did_you_mean
from levelfield.bench.manual import SHARES, Document
from levelfield.bench.spec import BenchError

SLICES = tuple(SHARES)

MOST_CHARACTERS = 1_000_000
"""A longer document is held, and given out, as pieces of this size, all in one slice."""

FOLDER = "LEVELFIELD_DATA"
"""Environment variable: the folder under which relative paths are looked for second."""

UNKNOWN = "unknown: yours to know"
"""The licence of a file of one's own."""

_LINE_ENDS = re.compile(r"\r\n?")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A document as its source has it, or a piece of one that is too long to be held."""

    name: str
    text: str
    slice: str | None = None
    """Where the source itself says so."""
    continued: bool = False
    """Goes on with the document before: its slice is that document's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Texts one by one, and what is known about them."""

    texts: Iterable[Text]
    licence: str = UNKNOWN
    notes: Mapping[str, Any] = field(default_factory=dict)
    stamp: Any = None
    """What tells these texts from others without reading them, for JSON; None: nothing does."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of a source's texts; for the manifest."""

    documents: int = 0
    duplicates: int = 0
    empty: int = 0
    pieces: int = 0
    """Pieces of documents above `MOST_CHARACTERS`, beyond the first of each."""
    replaced: int = 0
    """Halves of surrogate pairs, which no encoding can hold, made U+FFFD."""


def clean(text: str) -> str:
    """LF line ends, no byte-order mark, no blank lines at the ends. Nothing else is changed."""
    return _LINE_ENDS.sub("\n", text.removeprefix("\ufeff")).strip("\n")


def encodable(text: str) -> tuple[str, int]:
    """The text with every half of a surrogate pair made U+FFFD, and how many those were."""
    return _SURROGATES.subn("\ufffd", text)


def fingerprint(text: str) -> str:
    """Hash of a text whatever its spacing and its composition of accents."""
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def slice_of(key: str) -> str:
    """The slice of a document, from its fingerprint."""
    place = int(key[:13], 16) / 16**13
    for name, end in zip(SLICES, itertools.accumulate(SHARES.values()), strict=True):
        if place < end:
            return name
    return SLICES[-1]


def assemble(texts: Iterable[Text], counts: Counts) -> Iterator[Document]:
    """Documents, each text once, in the order of the source.

    Half of a fingerprint is remembered as a number: 80 to 100 bytes a document in all.
    """
    seen: set[int] = set()
    place: str | None = None
    for item in texts:
        text, replaced = encodable(clean(item.text))
        counts.replaced += replaced
        if not item.continued:
            place = None
        if not text or text.isspace():
            counts.empty += 1
            continue
        key = fingerprint(text)
        if place is None:
            place = item.slice or slice_of(key)
        mark = int(key[:32], 16)
        if mark in seen:
            counts.duplicates += 1
            continue
        seen.add(mark)
        if item.continued:
            counts.pieces += 1
        else:
            counts.documents += 1
        yield Document(name=item.name, slice=place, text=text)


def ordered(documents: Sequence[Document], seed: int) -> Sequence[Document]:
    """By the hash of seed and text; seed 0 keeps the order of the source."""
    if seed == 0:
        return documents
    return sorted(
        documents, key=lambda item: hashlib.sha256(f"{seed}:{item.text}".encode()).digest()
    )


def pieces(name: str, text: str) -> Iterator[Text]:
    """A document whole, or in pieces if it is too long."""
    for start in range(0, max(len(text), 1), MOST_CHARACTERS):
        part = text[start : start + MOST_CHARACTERS]
        yield Text(name=name, text=part, continued=start > 0)


def first(texts: Iterable[Text], limit: int | None) -> Iterator[Text]:
    """The first `limit` documents, with all their pieces."""
    count = 0
    for item in texts:
        count += not item.continued
        if limit is not None and count > limit:
            return
        yield item


# --- where things lie ---------------------------------------------------------------------------


def options(rest: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Read `NAME?key=value&key=value`.

    Raises:
        BenchError: an option that there is none of, or one without a value.
    """
    name, mark, query = rest.rpartition("?")
    if not mark or "=" not in query:
        return rest, {}
    found: dict[str, str] = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if key not in known:
            raise BenchError(f"unknown option {key!r} of {name!r}", did_you_mean(key, known))
        if not equals or not value:
            raise BenchError(f"option {key!r} of {name!r} has no value", f"accepted: {key}=VALUE")
        found[key] = value
    return name, found


def limit_of(found: Mapping[str, str], default: int | None = None) -> int | None:
    """The option `limit`.

    Raises:
        BenchError: no whole number above 0.
    """
    if "limit" not in found:
        return default
    if not found["limit"].isdecimal() or int(found["limit"]) < 1:
        raise BenchError(f"limit={found['limit']}", "accepted: a whole number above 0")
    return int(found["limit"])


def find(given: str) -> Path | None:
    """A path as it is, or a relative one below the folder that the environment names."""
    path = Path(given).expanduser()
    tried = [path]
    if not path.is_absolute() and os.environ.get(FOLDER):
        tried.append(Path(os.environ[FOLDER]).expanduser() / path)
    return next((item for item in tried if item.exists()), None)


def cache() -> Path:
    """The user's cache folder for downloads, tokenizers and tokens."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "levelfield"


def stamp(path: Path) -> list[Any]:
    """Where a file lies, its size, and when it and its entry were last changed, in ns."""
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time; the next finds what the first one made.

    Raises:
        BenchError: the folder of the lock cannot be written.
    """
    import fcntl

    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise BenchError(
            f"cannot write {lock.parent}: {error.strerror}",
            "XDG_CACHE_HOME names another cache folder",
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
