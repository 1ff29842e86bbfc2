"""Loaded first by the fork server: it ends when its coordinator does, and at once.

Left to itself it looks for its coordinator only once torch is loaded, and then takes seconds to
take torch down.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Of `prctl(2)`: the signal that a process gets when its parent ends."""


def end_with_parent() -> None:
    """Have this process killed when its parent ends, and leave without taking modules down."""
    atexit.register(os._exit, 0)
    killed_with_parent()


def killed_with_parent() -> None:
    """Have this process killed when the thread that started it ends; on Linux alone."""
    with contextlib.suppress(OSError, AttributeError):  # no prctl: the fork server ends later
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# Whoever else imports this module (a test, a tool that lists modules) is not to end so.
if any("multiprocessing.forkserver import main" in argument for argument in sys.orig_argv):
    end_with_parent()
