"""Rows of local files: jsonl, csv, tsv, parquet, any of them gzipped, read one by one."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from levelfield.bench import documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import FOLDER
from levelfield.bench.errors import first_line
from levelfield.bench.spec import BenchError

MOST_LINE = 1 << 28
"""Characters of one line, which must be in memory to be understood."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by the name of their column."""

    file: str
    number: int
    """Of the line on which it ends; of the row, in a file without lines."""
    cells: Mapping[str, Any]
    place: str = ""
    """Where it stands, if there are no lines to count."""

    @property
    def where(self) -> str:
        return f"{self.file} {self.place or f'line {self.number}'}"

    def cell(self, column: str, option: str = "column") -> Any:
        """The value in a column.

        Args:
            column: its name.
            option: of the source, that names another one.

        Raises:
            BenchError: there is no such column.
        """
        if column not in self.cells:
            raise BenchError(
                f"{self.where} has no column {column!r}",
                f"it has {', '.join(map(str, self.cells)) or 'none'}; accepted: ?{option}=NAME",
            )
        return self.cells[column]


# --- which files --------------------------------------------------------------------------------


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


# --- how their rows are told apart --------------------------------------------------------------


def _jsonl(path: Path, found: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    with opened(path, found) as stream:
        for number, line in lines(path, stream, MOST_LINE):
            if not line.strip():
                continue
            if len(line) >= MOST_LINE:
                raise BenchError(f"{path.name} line {number} has over {MOST_LINE:,} characters")
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError):
                raise BenchError(
                    f"{path.name} line {number} is not JSON", "is the file whole?"
                ) from None
            if not isinstance(cells, dict):
                raise BenchError(f"{path.name} line {number} is not a JSON object")
            yield Row(path.name, number, cells)


def _csv_lines(path: Path, found: Mapping[str, str]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MOST_LINE)
    line = 0
    with opened(path, found, newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            for row in rows:
                line = rows.line_num
                if row:
                    yield line, row
        except csv.Error as error:
            raise BenchError(
                f"{path.name} line {rows.line_num} is not CSV: {error}", "is the file whole?"
            ) from None
        except UnicodeDecodeError as error:
            raise undecoded(path, error, line) from None


def _tsv_lines(path: Path, found: Mapping[str, str]) -> Iterator[tuple[int, list[str]]]:
    # No quotes and no escapes: whatever stands between two tabs is the cell.
    with opened(path, found, newline="\n") as stream:
        for number, line in lines(path, stream, MOST_LINE):
            text = line.removesuffix("\n").removesuffix("\r")
            if text:
                yield number, text.split("\t")


def _table(
    path: Path, found: Mapping[str, str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Row]:
    """Named by the option `columns`, by the first line, or by number from 1; `_` is left out."""
    names = found["columns"].split(",") if "columns" in found else None
    header = found.get("header", "yes") == "yes"
    given = names is not None
    for number, row in rows:
        if names is None:
            names = row if header else [str(1 + place) for place in range(len(row))]
        if len(row) != len(names):
            raise BenchError(
                f"{path.name} line {number} has {len(row)} columns",
                f"{len(names)} are named: {', '.join(names)}"
                if given
                else f"the first has {len(names)}",
            )
        if header:
            header = False
            continue
        cells = {name: cell for name, cell in zip(names, row, strict=True) if name != "_"}
        yield Row(path.name, number, cells)


def _csv(path: Path, found: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    return _table(path, found, _csv_lines(path, found))


def _tsv(path: Path, found: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    return _table(path, found, _tsv_lines(path, found))


def _parquet(path: Path, found: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            head = Row(path.name, 1, dict.fromkeys(table.schema_arrow.names))
            for column in wanted:
                head.cell(column)
            number = 0
            for batch in table.iter_batches(batch_size=256, columns=list(wanted) or None):
                for cells in batch.to_pylist():
                    number += 1
                    yield Row(path.name, number, cells)
    except pyarrow.ArrowException as error:
        raise BenchError(
            f"{path.name}: {first_line(error)}", "the file is broken: get it again"
        ) from None


ROWS: Mapping[str, Callable[[Path, Mapping[str, str], Sequence[str]], Iterator[Row]]] = {
    **{"jsonl": _jsonl, "csv": _csv, "tsv": _tsv, "parquet": _parquet},
}
"""By kind: the rows of a file; of parquet only the columns wanted, or all if none is named."""
SUFFIXES: Mapping[str, str] = {
    **{".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"},
}
