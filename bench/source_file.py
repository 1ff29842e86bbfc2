"""Text from local files: jsonl, csv, tsv, parquet, plain text, any of them gzipped, or a folder.

Files are read line by line and never held whole. Written as `file:PATH`, with options after a `?`:
`file:c4/part.jsonl.gz?column=text&limit=1000`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from levelfield.bench import documents, file_opening, file_rows
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import Source, Text
from levelfield.bench.file_rows import Row
from levelfield.bench.spec import BenchError

OPTIONS = ("column", "limit", "format", "document", "encoding", "header")
SUFFIXES: Mapping[str, str] = {
    **file_rows.SUFFIXES,
    **{".txt": "text", ".text": "text", ".tokens": "text"},
}
RULES = ("block", "line", "heading", "file")
"""What a document is in plain text: paragraphs of `BLOCK` characters together, a line, what follows
a title line `= Title =` (as in WikiText), the whole file."""
BLOCK = 2_000

_HEADING = re.compile(r"\s?= [^=\s].*[^=\s] =\s*")
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def read(rest: str) -> Source:
    """The texts of what `file:` names.

    Raises:
        BenchError: nothing there, a kind of file that is not known, or (while the texts are read)
            a file that is empty, broken or laid out otherwise, told with the line.
    """
    given, found = documents.options(rest, OPTIONS)
    path = documents.find(given) if given else None
    if path is not None and any((path / name).is_file() for name in _MODEL_FILES):
        raise BenchError(
            f"{given} is a folder of a model, not of text",
            f"accepted: a folder of text; a tokenizer is given as data.tokenizer={given}",
        )
    files = file_opening.files(given, SUFFIXES, found)
    limit = documents.limit_of(found)
    rule = found.get("document", "block")
    if rule not in RULES:
        raise BenchError(f"document={rule}", did_you_mean(rule, RULES))
    file_opening.check_options(found)
    notes = {"files": len(files)}
    texts = (text for path in files for text in _read_file(path, found))
    return Source(
        texts=documents.first(texts, limit),
        notes=notes,
        stamp=[documents.stamp(path) for path in files],
    )


def _read_file(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    kind = file_opening.kind(path, SUFFIXES, found)
    any_text = False
    with file_opening.told(path):
        for text in _text(path, found) if kind == "text" else _cells(path, kind, found):
            any_text = True
            yield text
    if not any_text:
        raise BenchError(f"{path.name} holds no document", "a header, or blank lines, at most")


def _cells(path: Path, kind: str, found: Mapping[str, str]) -> Iterator[Text]:
    """The cells of a column, a document each."""
    column = found.get("column", "text")
    for row in file_rows.ROWS[kind](path, found, (column,)):
        yield from documents.pieces(f"{path.name}:{row.number}", _string(row, column))


def _string(row: Row, column: str) -> str:
    value = row.cell(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BenchError(
            f"{row.where}: column {column!r} is of type {type(value).__name__}", "accepted: text"
        )
    return value


# --- plain text ---------------------------------------------------------------------------------


def _text(path: Path, found: Mapping[str, str]) -> Iterator[Text]:
    rule = found.get("document", "block")
    held: list[str] = []
    size, start, continued = 0, 1, False

    def flush() -> Text:
        return Text(name=f"{path.name}:{start}", text="".join(held), continued=continued)

    with file_opening.opened(path, found) as stream:
        for number, line in file_opening.lines(path, stream, documents.MOST_CHARACTERS):
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
