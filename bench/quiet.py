"""Imports without what libraries log on them.

A library that finds another one installed may import it, and that one logs what it could not load,
each time, to everybody's terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Log records up to WARNING are dropped inside."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
