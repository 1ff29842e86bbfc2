"""Rows to drafts: texts, scores, options and answers, each checked where it stands."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.bench import documents, example_layouts
from levelfield.bench.example_layouts import Layout
from levelfield.bench.file_rows import Row
from levelfield.bench.spec import BenchError

HIDDEN = "test sets whose labels are kept secret have -1: take another split"


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled example."""

    key: str
    """Its identity: a hash of all that it holds."""
    texts: tuple[str, ...]
    """One text or two; a question; a question and its context."""
    label: int | float | None = None
    """Index of the class or of the right option, or the score."""
    options: tuple[str, ...] = ()
    """Of multiple choice."""
    answers: tuple[tuple[int, str], ...] = ()
    """Of extractive question answering: (first character, text) of each; none: no answer."""
    group: str = ""
    """What is never split between slices."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An example whose class is not yet numbered."""

    where: str
    texts: tuple[str, ...]
    label: Any
    options: tuple[str, ...]
    answers: tuple[tuple[int, str], ...]
    group: str


def drafts(
    kind: str, rows: Iterable[tuple[Row, str]], layout: Layout, counts: Counter[str]
) -> Iterator[Draft]:
    """Drafts of all rows that can be used; `counts` tells of the others, and of repairs.

    Raises:
        BenchError: a row without a column, or with a value that is not what it must be.
    """
    read = {"extractive_qa": _question, "multiple_choice": _choice}.get(kind, _labelled)
    for row, file in rows:
        counts["rows"] += 1
        texts = tuple(_text(row, column, counts) for column in layout.text)
        if not any(text.strip() for text in texts):
            counts["blank"] += 1
            continue
        found = read(kind, row, texts, layout, counts)
        if found is None:
            continue
        label, options, answers = found
        group = row.cells.get(layout.group) if layout.group else ""
        if layout.file_group:
            group = re.sub(layout.file_group, "", file)
        if kind == "extractive_qa" and not group:
            group = documents.fingerprint(texts[-1])
        yield Draft(row.where, texts, label, options, answers, str(group or ""))


def _text(row: Row, column: str, counts: Counter[str]) -> str:
    return _string(row, column, row.cell(column, "text"), counts)


def _string(row: Row, column: str, value: Any, counts: Counter[str]) -> str:
    if value is not None and not isinstance(value, str):
        raise BenchError(
            f"{row.where}: column {column!r} is of type {type(value).__name__}", "accepted: text"
        )
    text, replaced = documents.encodable(value or "")
    counts["replaced"] += replaced
    return text


Read = tuple[Any, tuple[str, ...], tuple[tuple[int, str], ...]] | None


def _labelled(
    kind: str, row: Row, texts: Sequence[str], layout: Layout, counts: Counter[str]
) -> Read:
    value = row.cell(layout.label, "label")
    if kind == "classification" and layout.threshold is None:
        return value, (), ()
    score = _score(row, value, layout)
    if kind == "regression":
        return score, (), ()
    if abs(score) < (layout.threshold or 0) or score == 0:
        counts["between_thresholds"] += 1
        return None
    return int(score > 0), (), ()


def _score(row: Row, value: Any, layout: Layout) -> float:
    least, most = layout.scores or (-math.inf, math.inf)
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not (least <= score <= most and math.isfinite(score)):
        span = f" from {least:g} to {most:g}" if layout.scores else ""
        raise BenchError(f"{row.where}: score {value!r}", f"accepted: a number{span}")
    return score


# --- multiple choice ----------------------------------------------------------------------------


def _choice(
    kind: str, row: Row, texts: Sequence[str], layout: Layout, counts: Counter[str]
) -> Read:
    value = row.cell(layout.label, "label")
    given = [row.cell(column, "options") for column in layout.options]
    listed: Any = given[0] if len(given) == 1 else given
    if isinstance(listed, Mapping):
        right = example_layouts.best(listed)
        if right is None:
            counts["several_right"] += 1
            return None
        listed = list(listed)
        value = listed.index(right)
    if not isinstance(listed, list) or len(listed) < 2:
        raise BenchError(
            f"{row.where}: {listed!r:.60} is no list of options", "accepted: ?options=A,B,C,D"
        )
    options = [_string(row, "options", item, counts) for item in listed]
    place = _place(row, value, len(options))
    answer = options[place]
    if options.count(answer) > 1:
        counts["several_right"] += 1
        return None
    if layout.shuffled:
        options.sort(key=lambda item: hashlib.sha256(f"{texts[0]}\n{item}".encode()).digest())
    return options.index(answer), tuple(options), ()


def _place(row: Row, value: Any, count: int) -> int:
    """Index of the right option: from 0, or a letter from A."""
    text = str(value).strip()
    if re.fullmatch(r"[A-Z]", text):
        place = ord(text) - ord("A")
    else:
        place = int(text) if re.fullmatch(r"-?\d{1,4}", text) else -2
    if not 0 <= place < count:
        last = f"{chr(ord('A') + count - 1)}" if count <= 26 else "..."
        raise BenchError(
            f"{row.where}: right option {value!r:.40} of {count}",
            HIDDEN if place == -1 else f"accepted: A to {last}, or 0 to {count - 1}",
        )
    return place


# --- extractive question answering --------------------------------------------------------------


def _question(
    kind: str, row: Row, texts: Sequence[str], layout: Layout, counts: Counter[str]
) -> Read:
    if len(texts) != 2:
        raise BenchError(f"text={','.join(layout.text)}", "accepted: text=QUESTION,CONTEXT")
    value = row.cell(layout.label, "label")
    found: dict[tuple[int, str], None] = {}
    given = _answers(row, value)
    for start, text in given:
        place = _located(texts[1], start, documents.encodable(text)[0])
        if place is None or not text.strip():
            counts["answers_not_in_context"] += 1
            continue
        counts["answers_repaired"] += place != start
        found[place, texts[1][place : place + len(text)]] = None
    if given and not found:
        counts["without_their_answer"] += 1
        return None
    return None, (), tuple(found)


def _answers(row: Row, value: Any) -> list[tuple[int, str]]:
    """Of [{"text", "answer_start"}], or of {"text": [...], "answer_start": [...]}."""
    try:
        if isinstance(value, Mapping):
            pairs = list(zip(value["answer_start"], value["text"], strict=True))
        else:
            pairs = [(item["answer_start"], item["text"]) for item in value]
    except (KeyError, TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(start, int) and isinstance(text, str) for start, text in pairs):
        raise BenchError(
            f"{row.where}: answers {value!r:.60}", "accepted: those of SQuAD, text and answer_start"
        )
    return pairs


def _located(context: str, start: int, text: str) -> int | None:
    """Where an answer is: where it is said to be, or the nearest place."""
    if start >= 0 and context.startswith(text, start):
        return start
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return min(places, key=lambda place: abs(place - start), default=None)
