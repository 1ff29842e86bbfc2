"""The unit of what is ranked: nats a token, points of error, or the relative error of a matrix.

Sections write of losses in nats. A run that is judged by a score has the same statistics over
100 x (1 - score) instead, one that fits a matrix over a relative error, and one place turns the
words, so that no page calls them nats.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from levelfield.reports.blocks import Block, Column

if TYPE_CHECKING:
    from levelfield.reports.view import View

T = TypeVar("T")

Words = tuple[tuple[str, str], ...]

POINTS: Words = (
    (r"nats( a token|/token)", "points of error"),
    (r"\breport loss\b", "report error"),
    (r"\bReport loss\b", "Report error"),
    (r"\bloss, nats\b", "error, points"),
    (r"^loss$", "error"),
    (r"^Loss$", "Error"),
    (r"\bnats\b", "points"),
    (r"_nats\b", "_points"),
)
RELATIVE: Words = (
    (r"in nats( a token|/token)", "as a relative error"),
    (r"(, )?\bnats( a token|/token)?\b", ""),
    (r"_nats\b", "_relative"),
)
"""Pattern -> what stands for it."""


def words(view: View) -> Words:
    """What is turned on this run's page."""
    if view.setting("task", "metric", default=""):
        return POINTS
    return RELATIVE if view.setting("task", "kind", default="") == "bilinear" else ()


def scored(view: View) -> bool:
    """Whether methods are judged by a score."""
    return bool(view.setting("task", "metric", default=""))


def in_unit(view: View, text: str) -> str:
    """A text about losses, in the unit of this run."""
    return _turned(text, words(view))


def block_in_unit(view: View, block: Block) -> Block:
    """The same for everything that a section shows, unless it says that its losses are nats."""
    found = words(view)
    if not found or (block.nats and found is POINTS):
        return block
    return _deep(block, found)


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
