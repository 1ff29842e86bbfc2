"""An error of somebody else's code in one line."""

from __future__ import annotations

import traceback

LONGEST = 200
"""Characters of a message that are kept where a library may say anything at all."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), "no message")


def named(error: BaseException) -> str:
    """With its type, cut to a readable length."""
    return f"{type(error).__name__}: {first_line(error)[:LONGEST]}"


def located(error: BaseException) -> str:
    """With its type, and the file and line that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    file = where.filename.rsplit("/", maxsplit=1)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({file}:{where.lineno})"
