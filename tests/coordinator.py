"""A run in a process of its own, to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from levelfield.bench.store import RECORDS, RUNNING

MARK = "LEVELFIELD_TEST_MARK"


@dataclass
class Coordinator:
    """A run in a process group of its own, whose processes carry a mark."""

    process: subprocess.Popen[str]
    mark: str
    out: Path
    started_s: float

    def pids(self) -> set[int]:
        """Every living process that the run has started, found by its mark."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.add(int(entry.name))
        return found

    @property
    def folder(self) -> Path | None:
        return next(self.out.glob("*Z-*"), None)

    def records(self) -> int:
        file = self.folder / RECORDS if self.folder else None
        return file.read_bytes().count(b"\n") if file and file.exists() else 0

    def running(self) -> list[str]:
        folder = self.folder / RUNNING if self.folder else None
        return sorted(item.name for item in folder.iterdir()) if folder else []

    def began(self, key: str) -> bool:
        """Whether this coordinator has begun the cell: a marker may be left from one before it."""
        if self.folder is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / RUNNING / key).stat().st_mtime > self.started_s
        return False

    def wait_for(self, ready: Callable[[], object], limit_s: float = 180.0) -> None:
        end_s = time.monotonic() + limit_s
        while not ready():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end_s, "the run never got there"
            time.sleep(0.005)

    def ended(self) -> bool:
        """Whether nothing of the run is left two seconds after its coordinator has ended."""
        self.process.wait(timeout=30.0)
        end_s = time.monotonic() + 2.0
        while self.pids():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)
        return True


def starting(folder: Path, root: Path) -> Iterator[Callable[..., Coordinator]]:
    """Starts coordinators, and leaves none of their processes behind; the body of a fixture.

    Args:
        folder: where their runs are.
        root: the checkout.
    """
    started: list[Coordinator] = []

    def begin(code: str, *arguments: str) -> Coordinator:
        mark = f"{MARK}={uuid.uuid4()}"
        started_s = time.time()
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, MARK: mark.partition("=")[2]},
            cwd=root,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Coordinator(process, mark, folder, started_s))
        return started[-1]

    yield begin
    for coordinator in started:
        for pid in coordinator.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        coordinator.process.communicate()
