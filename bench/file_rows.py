"""Rows of local files: jsonl, csv, tsv, parquet, any of them gzipped, read one by one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.bench import file_opening
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


def _jsonl(path: Path, found: Mapping[str, str], wanted: Sequence[str]) -> Iterator[Row]:
    with file_opening.opened(path, found) as stream:
        for number, line in file_opening.lines(path, stream, MOST_LINE):
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
    with file_opening.opened(path, found, newline="") as stream:
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
            raise file_opening.undecoded(path, error, line) from None


def _tsv_lines(path: Path, found: Mapping[str, str]) -> Iterator[tuple[int, list[str]]]:
    # No quotes and no escapes: whatever stands between two tabs is the cell.
    with file_opening.opened(path, found, newline="\n") as stream:
        for number, line in file_opening.lines(path, stream, MOST_LINE):
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
