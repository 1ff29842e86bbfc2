"""Text from local files: jsonl, csv, tsv, parquet, plain text, any of them gzipped, or a folder.

Files are read line by line and never held whole. Written as `file:PATH`, with options after a `?`:
`file:c4/part.jsonl.gz?column=text&limit=1000`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from levelfield.bench import documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import FOLDER, Source, Text
from levelfield.bench.spec import BenchError

OPTIONS = ("column", "limit", "format", "document", "encoding", "header")
SUFFIXES: Mapping[str, str] = {
    **{".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"},
    **{".parquet": "parquet", ".txt": "text", ".text": "text", ".tokens": "text"},
}
RULES = ("block", "line", "heading", "file")
"""What a document is in plain text: paragraphs of `BLOCK` characters together, a line, what follows
a title line `= Title =` (as in WikiText), the whole file."""
BLOCK = 2_000
MOST_LINE = 1 << 28
"""Characters of one line of jsonl, which must be in memory to be understood."""

_HEADING = re.compile(r"\s?= [^=\s].*[^=\s] =\s*")
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def read(rest: str) -> Source:
    """The texts of what `file:` names.

    Raises:
        BenchError: nothing there, a kind of file that is not known, or (while the texts are read)
            a file that is empty, broken or laid out otherwise, told with the line.
    """
    given, found = documents.options(rest, OPTIONS)
    files = _files(given, found)
    limit = documents.limit_of(found)
    rule = found.get("document", "block")
    if rule not in RULES:
        raise BenchError(f"document={rule}", did_you_mean(rule, RULES))
    if found.get("header", "yes") not in ("yes", "no"):
        raise BenchError(f"header={found['header']}", "accepted: yes or no")
    _check_encoding(found.get("encoding", "utf-8"))
    notes = {"files": len(files)}
    texts = (text for path in files for text in _read_file(path, found))
    return Source(texts=documents.first(texts, limit), notes=notes)


def _files(given: str, found: Mapping[str, str]) -> list[Path]:
    path = documents.find(given) if given else None
    if path is None:
        raise BenchError(
            f"no file or folder {given!r}",
            f"looked for in the working folder and in ${FOLDER}; accepted: file:PATH",
        )
    if not path.is_dir():
        _kind(path, found)
        return [path]
    if any((path / name).is_file() for name in _MODEL_FILES):
        raise BenchError(
            f"{given} is a folder of a model, not of text",
            f"accepted: a folder of text; a tokenizer is given as data.tokenizer={given}",
        )
    files = sorted(item for item in path.rglob("*") if item.is_file() and _suffix(item) in SUFFIXES)
    if not files:
        raise BenchError(f"{given} holds no text", f"accepted: files in {', '.join(SUFFIXES)}")
    return files


def _suffix(path: Path) -> str:
    suffixes = [part.lower() for part in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _kind(path: Path, found: Mapping[str, str]) -> str:
    kinds = sorted(set(SUFFIXES.values()))
    if "format" in found:
        if found["format"] not in kinds:
            raise BenchError(f"format={found['format']}", did_you_mean(found["format"], kinds))
        return found["format"]
    kind = SUFFIXES.get(_suffix(path))
    if kind is None:
        raise BenchError(
            f"{path.name} is of no known kind",
            f"accepted: {', '.join(SUFFIXES)}, each also .gz; or say ?format={'|'.join(kinds)}",
        )
    return kind


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except LookupError:
        raise BenchError(f"encoding={name}", "accepted: utf-8, latin-1, cp1252, ...") from None


def _read_file(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    kind = _kind(path, found)
    if path.stat().st_size == 0:
        raise BenchError(f"{path.name} is empty", "its download may have failed")
    any_text = False
    with _told(path):
        for text in READERS[kind](path, found):
            any_text = True
            yield text
    if not any_text:
        raise BenchError(f"{path.name} holds no document", "a header, or blank lines, at most")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Broken files in one line."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error) or type(error).__name__
        raise BenchError(f"{path.name}: {reason}", "the file is broken: get it again") from None
    except OSError as error:
        raise BenchError(f"{path.name}: {error.strerror or error}", "is it readable?") from None


@contextmanager
def _open(path: Path, found: Mapping[str, str], newline: str | None = None) -> Iterator[IO[str]]:
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


def _lines(path: Path, stream: IO[str], size: int) -> Iterator[tuple[int, str]]:
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
        raise _undecoded(path, error, number) from None


def _undecoded(path: Path, error: UnicodeDecodeError, number: int) -> BenchError:
    byte = error.object[error.start]
    return BenchError(
        f"{path.name} is not {error.encoding.upper()}: byte 0x{byte:02x} soon after line {number}",
        "accepted: ?encoding=latin-1 or whatever it is written in",
    )


# --- tables -------------------------------------------------------------------------------------


def _cell(path: Path, number: int, column: str, row: Mapping[str, Any]) -> str:
    if column not in row:
        raise BenchError(
            f"{path.name} line {number} has no column {column!r}",
            f"it has {', '.join(map(str, row)) or 'none'}; accepted: ?column=NAME",
        )
    value = row[column]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BenchError(
            f"{path.name} line {number}: column {column!r} is of type {type(value).__name__}",
            "accepted: text",
        )
    return value


def _jsonl(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    column = found.get("column", "text")
    with _open(path, found) as stream:
        for number, line in _lines(path, stream, MOST_LINE):
            if not line.strip():
                continue
            if len(line) >= MOST_LINE:
                raise BenchError(f"{path.name} line {number} has over {MOST_LINE:,} characters")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise BenchError(
                    f"{path.name} line {number} is not JSON", "is the file whole?"
                ) from None
            if not isinstance(row, dict):
                raise BenchError(f"{path.name} line {number} is not a JSON object")
            yield from documents.pieces(f"{path.name}:{number}", _cell(path, number, column, row))


def _csv(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    yield from _table(path, found, {"delimiter": ",", "strict": True})


def _tsv(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    # A quote is an ordinary character here.
    yield from _table(path, found, {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def _table(path: Path, found: Mapping[str, str], form: Mapping[str, Any]) -> Iterator[Text]:
    column = found.get("column", "text")
    csv.field_size_limit(MOST_LINE)
    names: list[str] | None = None
    line = 0
    with _open(path, found, newline="") as stream:
        rows = csv.reader(stream, **form)
        try:
            for row in rows:
                line = rows.line_num
                if not row:
                    continue
                if names is None:
                    header = found.get("header", "yes") == "yes"
                    names = row if header else [str(1 + place) for place in range(len(row))]
                    if header:
                        _cell(path, line, column, dict.fromkeys(names, ""))
                        continue
                if len(row) != len(names):
                    raise BenchError(
                        f"{path.name} line {line} has {len(row)} columns",
                        f"the first has {len(names)}",
                    )
                cell = _cell(path, line, column, dict(zip(names, row, strict=True)))
                yield from documents.pieces(f"{path.name}:{line}", cell)
        except csv.Error as error:
            raise BenchError(
                f"{path.name} line {rows.line_num} is not CSV: {error}", "is the file whole?"
            ) from None
        except UnicodeDecodeError as error:
            raise _undecoded(path, error, line) from None


def _parquet(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    import pyarrow
    import pyarrow.parquet

    column = found.get("column", "text")
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            _cell(path, 1, column, dict.fromkeys(names, ""))
            number = 0
            for batch in table.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    cell = _cell(path, number, column, {column: value})
                    yield from documents.pieces(f"{path.name}:{number}", cell)
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise BenchError(f"{path.name}: {reason}", "the file is broken: get it again") from None


# --- plain text ---------------------------------------------------------------------------------


def _text(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    rule = found.get("document", "block")
    held: list[str] = []
    size, start, continued = 0, 1, False

    def flush() -> Text:
        return Text(name=f"{path.name}:{start}", text="".join(held), continued=continued)

    with _open(path, found) as stream:
        for number, line in _lines(path, stream, documents.MOST_CHARACTERS):
            if held and (number > start or continued) and _starts(rule, line, size, held[-1]):
                yield flush()
                held, size, start, continued = [], 0, number, False
            elif held and size + len(line) > documents.MOST_CHARACTERS:
                yield flush()
                held, size, continued = [], 0, True
            held.append(line)
            size += len(line)
    if held:
        yield flush()


def _starts(rule: str, line: str, size: int, before: str) -> bool:
    """Whether a new document begins with this line."""
    if not before.endswith("\n"):  # the middle of a long line
        return False
    if rule == "line":
        return True
    if rule == "heading":
        return _HEADING.fullmatch(line) is not None
    # Where no blank line comes for long, any line end will do.
    enough = size >= BLOCK and (not before.strip() or size >= 4 * BLOCK)
    return rule == "block" and enough


READERS: Mapping[str, Callable[[Path, Mapping[str, str]], Iterator[Text]]] = {
    **{"jsonl": _jsonl, "csv": _csv, "tsv": _tsv, "parquet": _parquet, "text": _text},
}
