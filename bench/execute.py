"""Trials in processes of their own: one process a trial, N slots, slots mapped to devices.

A fork server that has torch and transformers loaded starts a trial in hundredths of a second. A
crash or a monkey-patch in one trial cannot reach the next, and peak memory is per trial. A trial
ends by itself when its coordinator is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from levelfield.bench.spec import BenchError, Status, TrialRecord

if TYPE_CHECKING:
    from levelfield.bench.train_request import Progress, TrialRequest

PRELOAD = [
    "levelfield.bench.fork_server",
    "__main__",
    "torch.optim",
    "levelfield.bench.preload",
    "levelfield.bench.worker",
]
GRACE_S = 5.0
"""Seconds between asking a process to stop and killing it."""
GONE = 75
"""Exit code of a trial whose coordinator is gone."""


@dataclass
class _Running:
    request: TrialRequest
    process: Any
    results: Connection
    guard: Connection
    slot: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial that has its record."""

    request: TrialRequest
    record: TrialRecord


class LocalExecutor:
    """Runs trials on this machine.

    Args:
        slots: trials at once.
        devices: what the slots run on, in turn: `cpu`, or `cuda:0`, `cuda:1`, ...
        threads: CPU threads a trial.
    """

    def __init__(self, slots: int, devices: Sequence[str], threads: int) -> None:
        if sys.platform == "win32":
            raise BenchError("levelfield does not run on Windows", "accepted: Linux or macOS, WSL")
        self.slots, self.devices = slots, tuple(devices)
        self._threads = threads
        self._context = process_context()
        self._running: dict[int, _Running] = {}

    @property
    def free(self) -> int:
        return self.slots - len(self._running)

    def start(self, request: TrialRequest) -> None:
        """Start a trial in a free slot; the slot decides its device."""
        from dataclasses import replace

        slot = min(set(range(self.slots)) - set(self._running))
        placed = replace(request, device=self.devices[slot % len(self.devices)])
        results, child_results = self._context.Pipe(duplex=False)
        child_guard, guard = self._context.Pipe(duplex=False)
        from levelfield.bench import worker

        process = self._context.Process(  # type: ignore[attr-defined]
            target=worker.main, args=(child_results, child_guard, placed), daemon=True
        )
        start_process(process, self._threads)
        child_results.close()
        child_guard.close()
        deadline_s = time.monotonic() + request.protocol.budget.trial_timeout_s
        self._running[slot] = _Running(placed, process, results, guard, slot, deadline_s)

    def wait(self, timeout_s: float) -> Iterable[Progress | Finished]:
        """Events of the running trials; returns after `timeout_s` at the latest."""
        now = time.monotonic()
        nearest = min((run.deadline_s for run in self._running.values()), default=now)
        ready = multiprocessing.connection.wait(
            [run.results for run in self._running.values()],
            timeout=max(0.0, min(timeout_s, nearest - now)),
        )
        for run in list(self._running.values()):
            if run.results in ready:
                yield from self._read(run)
            elif time.monotonic() > run.deadline_s:
                limit = run.request.protocol.budget.trial_timeout_s
                yield self._end(run, "timeout", f"longer than trial_timeout_s = {limit:g} s")

    def _read(self, run: _Running) -> Iterable[Progress | Finished]:
        try:
            message = run.results.recv()
        except (EOFError, OSError):
            run.process.join(GRACE_S)
            yield self._end(run, *death(run.process.exitcode))
            return
        if isinstance(message, TrialRecord):
            self._release(run)
            yield Finished(run.request, message)
        else:
            yield message

    def _end(self, run: _Running, status: Status, reason: str) -> Finished:
        from levelfield.bench.train_request import failed_record

        self._release(run, kill=True)
        return Finished(run.request, failed_record(run.request, status, reason))

    def _release(self, run: _Running, kill: bool = False) -> None:
        del self._running[run.slot]
        if kill:
            run.process.kill()
        run.guard.close()
        run.process.join(GRACE_S)
        if run.process.is_alive():
            run.process.kill()
            run.process.join()
        run.results.close()
        run.process.close()

    def close(self) -> None:
        """Stop whatever runs; those trials leave no record."""
        for run in list(self._running.values()):
            self._release(run, kill=True)


def process_context() -> multiprocessing.context.BaseContext:
    """Where processes come from: a fork server that has torch loaded, where there is one."""
    method = "forkserver" if sys.platform.startswith("linux") else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(PRELOAD)
    return context


def start_process(process: Any, threads: int) -> None:
    """Start a process of `process_context`, with so many threads of OpenMP."""
    # Read by OpenMP when torch loads: two processes that spin for each other's cores took 30x
    # as long as two that wait.
    environment = {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    saved = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        if sys.platform.startswith("linux"):
            _start_server()
        with _deaf():
            process.start()
    finally:
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Hold back Ctrl-C: in the middle of a start it would leave the fork server with half a
    request, or end it with a traceback while it loads. It is delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_server() -> None:
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()  # lets signals through again when it starts: it goes first
    with _deaf():
        forkserver.ensure_running()


def death(code: int | None, what: str = "trial", left: str = "record") -> tuple[Status, str]:
    """Status and reason of a process that ended without a record, or whatever it owed."""
    if code is None or code >= 0:
        return "error", f"the {what}'s process ended with exit code {code} and no {left}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        if name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"):
            return "error", f"the {what}'s process crashed ({name})"
        hint = ", often the out-of-memory killer" if name == "SIGKILL" else ""
        return "killed", f"ended from outside by {name}{hint}"
    return "killed", f"ended from outside by signal {-code}"


def end_with(guard: Connection) -> None:
    """End this process as soon as the other end of `guard` is closed: its coordinator is gone."""

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            guard.recv_bytes()
        os._exit(GONE)

    threading.Thread(target=watch, daemon=True, name="guard").start()


def cuda_devices() -> tuple[str, ...]:
    """Names of the CUDA devices, found in a process of its own so that this one stays light."""
    import subprocess

    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    count = int(done.stdout.strip() or 0) if done.returncode == 0 else 0
    return tuple(f"cuda:{index}" for index in range(count))
