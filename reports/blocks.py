"""The parts of a section: prose, tables, figures, code. Data; `template.html.j2` draws them.

A table keeps its pandas frame (written as CSV, whole) beside the cells that the page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from levelfield.reports.text import DASH, clean, short

if TYPE_CHECKING:
    from pandas import DataFrame

MISSING = "missing"
"""The last column of a frame: `column: reason | column: reason` for every empty cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell. `html` is drawn as it is and only ever made by this package; `text` is escaped."""

    text: str = ""
    title: str = ""
    note: str = ""
    """Letter of the footnote under the table."""
    kind: str = ""
    """CSS class."""
    html: str = ""
    href: str = ""
    sub: str = ""
    """Second line, smaller."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a frame is shown."""

    key: str
    title: str
    show: Callable[[Any], str] = short
    help: str = ""
    align: str = "right"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table: its name is the CSV's stem."""

    name: str
    caption: str
    frame: DataFrame
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footnotes: tuple[str, ...] = ()
    muted: frozenset[int] = frozenset()
    """Rows shown in grey."""
    folded: bool = False
    """Closed until opened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure: its name is the SVG's stem. The caption says what is seen."""

    name: str
    title: str
    caption: str
    svg: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph of plain text."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of plain sentences."""

    items: tuple[str, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Commands, as typed."""

    text: str


Part = Prose | Bullets | Code | Table | Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """What a section renders."""

    parts: tuple[Part, ...] = field(default_factory=tuple)
    nats: bool = False
    """Its losses are nats, whatever the task's metric."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(part for part in self.parts if isinstance(part, Figure))


def drawing(
    draw: Callable[[Any, str, str, str], str | None],
    view: Any,
    name: str,
    title: str,
    caption: str,
    *,
    wide: bool = False,
) -> tuple[Figure, ...]:
    """The figure that `draw(view, name, title, caption)` draws, or none of it."""
    svg = draw(view, name, title, caption)
    return (Figure(name=name, title=title, caption=caption, svg=svg, wide=wide),) if svg else ()


def reasons(row: Mapping[str, Any]) -> dict[str, str]:
    """column -> reason, read from a row's last column."""
    text = row.get(MISSING)
    if not isinstance(text, str) or not text:
        return {}
    pairs = (item.partition(": ") for item in text.split(" | "))
    return {column: reason for column, _, reason in pairs}


def plain_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of plain values; an empty cell (None, NaN, NA) is None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def grid(
    name: str,
    caption: str,
    frame: DataFrame,
    columns: Sequence[Column],
    *,
    decorate: Mapping[str, Callable[[Mapping[str, Any]], Cell | None]] | None = None,
    muted: Callable[[Mapping[str, Any]], bool] = lambda row: False,
    folded: bool = False,
    extra_notes: Sequence[str] = (),
) -> Table:
    """A frame as a table: formatted, its empty cells dashed and footnoted with their reasons.

    Args:
        decorate: column -> row -> cell, for cells that are more than a formatted value; None falls
            back to the formatted value.
        muted: which rows are grey.
        extra_notes: footnotes beside the reasons.
    """
    special = dict(decorate or {})
    letters: dict[str, str] = {}
    rows, grey = [], set()
    for number, record in enumerate(plain_rows(frame)):
        why = reasons(record)
        cells = []
        for column in columns:
            drawn = special[column.key](record) if column.key in special else None
            if drawn is not None:
                cells.append(drawn)
            elif record.get(column.key) is None:
                cells.append(_dash(why.get(column.key, ""), letters))
            else:
                cells.append(Cell(text=clean(column.show(record[column.key]))))
        rows.append(tuple(cells))
        if muted(record):
            grey.add(number)
    return Table(
        name=name,
        caption=caption,
        frame=frame,
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(*(f"{letter} {reason}" for reason, letter in letters.items()), *extra_notes),
        muted=frozenset(grey),
        folded=folded,
    )


def _dash(reason: str, letters: dict[str, str]) -> Cell:
    if not reason:
        return Cell(text=DASH, kind="none", title="not applicable")
    letter = letters.setdefault(reason, _letter(len(letters)))
    return Cell(text=DASH, kind="none", title=reason, note=letter)


def _letter(number: int) -> str:
    """a ... z, aa, ab ..."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else _letter(number // 26 - 1) + letter
