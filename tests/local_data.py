"""Real data of the developer's own, where there is some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NAME = "LEVELFIELD_DATA"


def folder() -> Path | None:
    """The folder that the environment names."""
    given = os.environ.get(NAME)
    return Path(given) if given and Path(given).is_dir() else None


def status() -> str:
    """Used or skipped, and why: the line that a test run opens with."""
    found = folder()
    if found is not None:
        return f"local data: used, {found}"
    why = "names no folder" if os.environ.get(NAME) else "is not set"
    return f"local data: skipped, {NAME} {why}"


needed = pytest.mark.skipif(folder() is None, reason=status())
