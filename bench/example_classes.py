"""Drafts to examples: classes get their numbers, once all labels are known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from levelfield.bench.example_reading import HIDDEN, Draft, Example
from levelfield.bench.spec import BenchError

MOST_CLASSES = 1000


def classes(found: Sequence[Draft]) -> tuple[str, ...]:
    """Names of the classes that drafts have, where none are given: numbers from 0, or words.

    Raises:
        BenchError: labels with gaps, too many of them, or one only.
    """
    first: dict[str, str] = {}
    for draft in found:
        text = _word(draft)
        first.setdefault(text, draft.where)
        if len(first) > MOST_CLASSES:
            raise BenchError(
                f"{draft.where}: there are over {MOST_CLASSES:,} labels", "is it a score, or text?"
            )
    if len(first) < 2:
        raise BenchError(f"all labels are {next(iter(first))!r}", "two classes are the least")
    if all(re.fullmatch(r"-?\d{1,9}", text) for text in first):
        names = sorted(first, key=int)
        if names != [str(number) for number in range(len(names))]:
            raise BenchError(
                f"{first[names[0]]}: label {names[0]}, and all of them {', '.join(names[:9])}",
                "accepted: 0, 1, ... without gaps; or name them in order: ?labels="
                + ",".join(names[:9]),
            )
        return tuple(names)
    return tuple(sorted(first))


def _word(draft: Draft) -> str:
    value = draft.label
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if not isinstance(value, int | str) or value == "":
        raise BenchError(
            f"{draft.where}: label {value!r:.60}", "accepted: a whole number, or a word"
        )
    text = str(value).strip()
    if text == "-1":
        raise BenchError(f"{draft.where}: label -1", HIDDEN)
    return text


def made(draft: Draft, names: Sequence[str]) -> Example:
    """The example of a draft.

    Args:
        draft: as read.
        names: of classes; empty where labels are none.

    Raises:
        BenchError: a label that is not among them.
    """
    label = draft.label
    if names:
        text = _word(draft)
        if text in names:
            label = names.index(text)
        elif text.isdecimal() and int(text) < len(names):
            label = int(text)
        else:
            raise BenchError(
                f"{draft.where}: label {text!r:.60}",
                f"accepted: 0 to {len(names) - 1}, or {', '.join(names[:20])}",
            )
    held = [draft.texts, label, draft.options, draft.answers]
    key = hashlib.sha256(json.dumps(held).encode()).hexdigest()
    return Example(key, draft.texts, label, draft.options, draft.answers, draft.group)
