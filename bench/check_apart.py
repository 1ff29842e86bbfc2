"""The checks of a method in a process of its own, with a limit on their time.

A method that never comes back, or that takes its process down, fails the check that it is in.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from levelfield.bench import execute
from levelfield.bench.spec import BenchError

if TYPE_CHECKING:
    from levelfield.bench.check import Check

TIMEOUT_S = 600.0
"""For all checks of a method: over ten times what the slowest one here takes on a slow core."""
LOOK_S = 3600.0
"""The longest wait at once: what the system waits with takes no larger numbers than fit it."""


def run_apart(reference: str, timeout_s: float = TIMEOUT_S) -> Iterator[Check]:
    """Run every check; the last line tells how long it took, as that of `run_checks` does.

    Args:
        reference: what the registry loads the method by.
        timeout_s: for all checks together, from the moment that their process is there.

    Raises:
        BenchError: a limit that is no time.
    """
    from levelfield.bench.check import CHECKS, Check

    if not timeout_s > 0:
        raise BenchError(f"--timeout {timeout_s:g}", "accepted: seconds, more than 0")
    context = execute.process_context()
    results, child_results = context.Pipe(duplex=False)
    child_guard, guard = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]
        target=main, args=(child_results, child_guard, reference), daemon=True
    )
    execute.start_process(process, threads=1)
    child_results.close()
    child_guard.close()
    left, start_s = [*CHECKS, "time"], time.monotonic()
    try:
        _received(results, math.inf)
        start_s = time.monotonic()
        while left:
            yield _received(results, start_s + timeout_s)
            del left[0]
        return
    except TimeoutError:
        reason = f"not done when the method's {timeout_s:g} s were over (--timeout)"
    except EOFError:
        process.join(execute.GRACE_S)
        reason = execute.death(process.exitcode, "method", "line")[1]
    finally:
        process.kill()
        guard.close()
        process.join()
        results.close()
        process.close()
    untried = len(left) - 2
    more = f"; {untried} checks after it are not tried" if untried > 0 else ""
    spent_s = time.monotonic() - start_s
    yield Check(left[0], "failed", reason + more, spent_s)
    yield Check("time", "passed", f"{spent_s:.1f} s for the checks above", spent_s)


def _received(results: Connection, end_s: float) -> Any:
    """The next message.

    Raises:
        TimeoutError: none by then.
        EOFError: none will come.
    """
    while not results.poll(max(0.0, min(LOOK_S, end_s - time.monotonic()))):
        if time.monotonic() >= end_s:
            raise TimeoutError
    return results.recv()


def main(results: Connection, guard: Connection, reference: str) -> None:
    """Entry point of the process; it ends with the one that started it."""
    from levelfield.bench.check import run_checks
    from levelfield.bench.reference import load_spec

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides what a Ctrl-C means
    os.dup2(2, 1)  # stdout is for the lines: what a method prints goes to stderr
    execute.end_with(guard)
    results.send(None)
    for item in run_checks(load_spec(reference).value):
        results.send(item)
    results.close()
