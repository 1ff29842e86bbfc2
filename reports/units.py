"""The unit of what is ranked: nats a token, or points of error where a task names a metric.

Sections write of losses in nats. A run that is judged by a score has the same statistics over
100 x (1 - score) instead, and one place turns the words, so that no page calls points nats.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from levelfield.reports.blocks import Block, Column

if TYPE_CHECKING:
    from levelfield.reports.view import View

T = TypeVar("T")

WORDS = (
    (r"nats( a token|/token)", "points of error"),
    (r"\breport loss\b", "report error"),
    (r"\bReport loss\b", "Report error"),
    (r"\bloss, nats\b", "error, points"),
    (r"^loss$", "error"),
    (r"^Loss$", "Error"),
    (r"\bnats\b", "points"),
    (r"_nats\b", "_points"),
)


def scored(view: View) -> bool:
    """Whether methods are judged by a score."""
    return bool(view.setting("task", "metric", default=""))


def in_unit(view: View, text: str) -> str:
    """A text about losses, in the unit of this run."""
    return _turned(text) if scored(view) else text


def block_in_unit(view: View, block: Block) -> Block:
    """The same for everything that a section shows, unless it says that its losses are nats."""
    return block if block.nats or not scored(view) else _deep(block)


def _turned(text: str) -> str:
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def _deep(value: T) -> T:
    made: Any = value
    if isinstance(value, str):
        made = _turned(value)
    elif isinstance(value, tuple):
        made = tuple(_deep(item) for item in value)
    elif isinstance(value, Column):
        made = replace(value, title=_turned(value.title), help=_turned(value.help))
    elif is_dataclass(value) and not isinstance(value, type):
        made = replace(value, **{f.name: _deep(getattr(value, f.name)) for f in fields(value)})
    elif hasattr(value, "rename") and hasattr(value, "columns"):  # a frame: its names carry units
        made = value.rename(columns=_turned)
    return made  # type: ignore[no-any-return]
