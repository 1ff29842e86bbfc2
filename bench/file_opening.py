"""Finding local files by their kind, and opening them: unzipped, decoded, broken ones told."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from levelfield.bench import documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import FOLDER
from levelfield.bench.spec import BenchError


def files(given: str, suffixes: Mapping[str, str], found: Mapping[str, str]) -> list[Path]:
    """The file of a path, or those of a folder that have one of the suffixes.

    Raises:
        BenchError: nothing there, or no file of a known kind.
    """
    path = documents.find(given) if given else None
    if path is None:
        raise BenchError(
            f"no file or folder {given!r}",
            f"looked for in the working folder and in ${FOLDER}; accepted: file:PATH",
        )
    if not path.is_dir():
        kind(path, suffixes, found)
        return [path]
    inside = sorted(item for item in path.rglob("*") if item.is_file() and suffix(item) in suffixes)
    if not inside:
        raise BenchError(f"{given} holds no text", f"accepted: files in {', '.join(suffixes)}")
    return inside


def suffix(path: Path) -> str:
    """The suffix of a name, whether or not it is gzipped."""
    parts = [part.lower() for part in path.suffixes]
    if parts and parts[-1] == ".gz":
        parts.pop()
    return parts[-1] if parts else ""


def kind(path: Path, suffixes: Mapping[str, str], found: Mapping[str, str]) -> str:
    """What a file is read as, by the option `format` or its suffix.

    Raises:
        BenchError: unknown.
    """
    kinds = sorted(set(suffixes.values()))
    if "format" in found:
        if found["format"] not in kinds:
            raise BenchError(f"format={found['format']}", did_you_mean(found["format"], kinds))
        return found["format"]
    known = suffixes.get(suffix(path))
    if known is None:
        raise BenchError(
            f"{path.name} is of no known kind",
            f"accepted: {', '.join(suffixes)}, each also .gz; or say ?format={'|'.join(kinds)}",
        )
    return known


def check_options(found: Mapping[str, str]) -> None:
    """See that `header` and `encoding` are what there is.

    Raises:
        BenchError: they are not.
    """
    if found.get("header", "yes") not in ("yes", "no"):
        raise BenchError(f"header={found['header']}", "accepted: yes or no")
    try:
        "".encode(found.get("encoding", "utf-8"))
    except LookupError:
        raise BenchError(
            f"encoding={found['encoding']}", "accepted: utf-8, latin-1, cp1252, ..."
        ) from None


# --- how they are opened ------------------------------------------------------------------------


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Broken files in one line.

    Raises:
        BenchError: what was raised within.
    """
    try:
        if path.stat().st_size == 0:
            raise BenchError(f"{path.name} is empty", "its download may have failed")
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error) or type(error).__name__
        raise BenchError(f"{path.name}: {reason}", "the file is broken: get it again") from None
    except OSError as error:
        raise BenchError(f"{path.name}: {error.strerror or error}", "is it readable?") from None


@contextmanager
def opened(path: Path, found: Mapping[str, str], newline: str | None = None) -> Iterator[IO[str]]:
    """A text stream: unzipped, its byte-order mark read."""
    with path.open("rb") as plain:
        head = plain.read(2)
        plain.seek(0)
        zipped = head == b"\x1f\x8b"
        if path.suffix.lower() == ".gz" and not zipped:
            raise gzip.BadGzipFile("not gzipped, whatever its name says")
        raw: Any = gzip.GzipFile(fileobj=plain) if zipped else plain
        buffered = io.BufferedReader(raw) if zipped else raw
        mark = buffered.peek(3)[:3]
        encoding = found.get("encoding", "utf-8")
        if mark.startswith((b"\xff\xfe", b"\xfe\xff")):
            encoding = "utf-16"
        elif mark == b"\xef\xbb\xbf":
            encoding = "utf-8-sig"
        yield io.TextIOWrapper(buffered, encoding, newline=newline)


def lines(path: Path, stream: IO[str], size: int) -> Iterator[tuple[int, str]]:
    """(number, line), a line longer than `size` in several parts.

    Raises:
        BenchError: bytes that are not of the encoding.
    """
    number, whole = 0, True
    try:
        while line := stream.readline(size):
            number += whole
            whole = line.endswith("\n")
            yield number, line
    except UnicodeDecodeError as error:
        raise undecoded(path, error, number) from None


def undecoded(path: Path, error: UnicodeDecodeError, number: int) -> BenchError:
    """The line that tells of bytes that are not of the encoding."""
    byte = error.object[error.start]
    return BenchError(
        f"{path.name} is not {error.encoding.upper()}: byte 0x{byte:02x} soon after line {number}",
        "accepted: ?encoding=latin-1 or whatever it is written in",
    )
