"""The unit of what is ranked: nats a token, points of error, or the relative error of a matrix.

Sections write of losses in nats. A run that is judged by a score has the same statistics over
100 x (1 - score) instead, one that fits a matrix over a relative error, and one place turns the
words, so that no page calls them nats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from levelfield.bench.metrics import ERROR
from levelfield.reports.blocks import Block, Column
from levelfield.reports.text import fixed, significant, with_sign

if TYPE_CHECKING:
    from levelfield.reports.view import View

T = TypeVar("T")

Words = tuple[tuple[str, str], ...]

POINTS: Words = (
    (r"nats( a token|/token)", "points of error"),
    (r"\breport loss\b", "report error"),
    (r"\bReport loss\b", "Report error"),
    (r"\bloss, nats\b", "error, points"),
    (r"\b([Ss])election loss\b", r"\1election error"),
    (r"\b(best|lowest|usable) loss\b", r"\1 error"),
    (r"\bloss (at defaults|scale|on the selection slice)\b", r"error \1"),
    (r"\bLoss (is|against|around)\b", r"Error \1"),
    (r"^loss$", ERROR),
    (r"^Loss$", ERROR.title()),
    (r"\bnats\b", "points"),
    (r"_nats\b", "_points"),
)
RELATIVE: Words = (
    (r"in nats( a token|/token)", "as a relative error"),
    (r"(, )?\bnats( a token|/token)?\b", ""),
    (r"_nats\b", "_relative"),
)
EXAMPLE: Words = ((r"nats( a token|/token)", "nats an example"),)
SQUARED: Words = ((r"\bnats( a token|/token)?\b", "squared error"), (r"_nats\b", "_squared"))
"""Pattern -> what stands for it."""
LOSSES: Mapping[str, Words] = {
    "classification": EXAMPLE,
    "extractive_qa": EXAMPLE,
    "multiple_choice": EXAMPLE,
    "regression": SQUARED,
}
"""Kind of task -> what its losses are in, where that is not nats a token."""


def words(view: View) -> Words:
    """What is turned on this run's page."""
    if scored(view):
        return POINTS
    return RELATIVE if view.setting("task", "kind", default="") == "bilinear" else _losses(view)


def _losses(view: View) -> Words:
    return LOSSES.get(str(view.setting("task", "kind", default="")), ())


def reads_tokens(view: View) -> bool:
    """Whether the report loss is nats a token, so that it has a perplexity."""
    return not words(view)


def scored(view: View) -> bool:
    """Whether methods are judged by a score."""
    return bool(view.setting("task", "metric", default=""))


def written(view: View) -> Callable[[float], str]:
    """How a loss is written: points of error to a hundredth, which is finer than an example counts;
    relative errors, which span many powers of ten, by their digits."""
    found = words(view)
    if found is POINTS:
        return lambda loss: fixed(loss, 2)
    if found is RELATIVE:
        return lambda loss: significant(loss, 3)
    return lambda loss: fixed(loss, 4)


def gap(view: View) -> Callable[[float], str]:
    """How a difference of losses is written: as they are, with its sign."""
    own = written(view)
    return lambda value: with_sign(own(value))


def in_unit(view: View, text: str) -> str:
    """A text about losses, in the unit of this run."""
    return _turned(text, words(view))


def block_in_unit(view: View, block: Block) -> Block:
    """The same for everything that a section shows, unless it says that its losses are nats."""
    found = _losses(view) if block.nats and scored(view) else words(view)
    return _deep(block, found) if found else block


def _turned(text: str, found: Words) -> str:
    for pattern, word in found:
        text = re.sub(pattern, word, text)
    return text


def _deep(value: T, found: Words) -> T:
    made: Any = value
    if isinstance(value, str):
        made = _turned(value, found)
    elif isinstance(value, tuple):
        made = tuple(_deep(item, found) for item in value)
    elif isinstance(value, Column):
        made = replace(value, title=_turned(value.title, found), help=_turned(value.help, found))
    elif is_dataclass(value) and not isinstance(value, type):
        inside = {f.name: _deep(getattr(value, f.name), found) for f in fields(value)}
        made = replace(value, **inside)
    elif hasattr(value, "rename") and hasattr(value, "columns"):  # a frame: its names carry units
        made = value.rename(columns=lambda name: _turned(name, found))
    return made  # type: ignore[no-any-return]
