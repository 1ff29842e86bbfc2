"""Progress on stderr: a live line a running trial, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from levelfield.bench.metrics import LOSS, objective_word
from levelfield.bench.spec import Phase, TrialRecord
from levelfield.bench.train_request import Progress, TrialRequest, cell_key

PHASES = {
    "calibrate": "calibration",
    "tune": "tuning",
    "final": "final seeds",
    "transfer": "finals at another run's points",
    "sweep": "rate sweep",
    "timing": "timing",
}


class _Count:
    """Cells done and their pace; the estimate is of the phase under way."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.name, self.cells, self.done, self.fresh = "", 0, 0, 0
        self.start_s = time.monotonic()

    def begin(self, name: Phase, cells: int) -> None:
        self.name, self.cells, self.done, self.fresh = PHASES[name], cells, 0, 0
        self.start_s = time.monotonic()

    def eta(self) -> str:
        """Time left in this phase, from the pace so far."""
        if not self.fresh or self.done >= self.cells:
            return ""
        left_s = (time.monotonic() - self.start_s) / self.fresh * (self.cells - self.done)
        return f"about {duration(left_s)} left"

    @property
    def head(self) -> str:
        return f"{self.name}  {self.done}/{self.cells} trials"


def duration(seconds: float) -> str:
    """Seconds for people: 42 s, 3 min 05 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02d} s"


def outcome(record: TrialRecord, judged: str = LOSS) -> str:
    """One line about a finished trial.

    Args:
        judged: the word for what it is judged by.
    """
    tuned = ", ".join(f"{name}={record.hparams[name]:.3g}" for name in record.tuned)
    if record.phase == "timing":
        windows = record.wall_s.get("windows") or ()
        what = f"{1e3 * windows[0]:.2f} ms a step" if windows else ""
    elif record.selection_loss is not None:
        what = f"{judged} {record.selection_loss:.4f}"
    else:
        what = ""
    status = "" if record.status == "ok" else f"  {record.status}: {record.reason}"
    return f"{record.optimizer:<14} {record.phase} {record.trial}  {what}  ({tuned}){status}"


class PlainProgress:
    """A line when a phase begins and when a trial ends."""

    def __init__(self, slots: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._count = _Count(slots)
        self._judged = LOSS

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def phase(self, name: Phase, cells: int, done: int) -> None:
        self._count.begin(name, cells)
        self._say(f"{PHASES[name]}: {cells} trials")

    def started(self, request: TrialRequest) -> None:
        self._judged = objective_word(request.protocol.task.metric)

    def progress(self, progress: Progress) -> None:
        pass

    def finished(self, record: TrialRecord, fresh: bool) -> None:
        self._count.done += 1
        self._count.fresh += fresh
        if fresh:
            eta = self._count.eta()
            told = outcome(record, self._judged)
            self._say(f"[{self._count.done}/{self._count.cells}] {told}  {eta}".rstrip())

    def note(self, text: str) -> None:
        self._say(f"note: {text}")


class LiveProgress(PlainProgress):
    """A table of the running trials that redraws itself (rich)."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._running: dict[str, tuple[TrialRequest, Progress | None]] = {}

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()

    def _say(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(text), soft_wrap=True)

    def started(self, request: TrialRequest) -> None:
        super().started(request)
        self._running[request.key] = (request, None)
        self._draw()

    def progress(self, progress: Progress) -> None:
        if progress.key in self._running:
            self._running[progress.key] = (self._running[progress.key][0], progress)
            self._draw()

    def finished(self, record: TrialRecord, fresh: bool) -> None:
        key = cell_key(*record.key)
        self._running.pop(key, None)
        super().finished(record, fresh)
        self._draw()

    def _draw(self) -> None:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        eta = self._count.eta()
        table.add_row(f"[bold]{self._count.head}[/]", "", "", "", eta)
        for request, progress in self._running.values():
            name = f"{request.optimizer} {request.phase} {request.trial}"
            if progress is None:
                table.add_row(name, "starting")
                continue
            share = progress.step / progress.steps
            left = (progress.steps - progress.step) * request.protocol.tokens_per_step
            left_s = left / max(progress.tokens_per_s, 1e-9)
            table.add_row(
                name,
                f"training loss {progress.loss:.4f}",
                f"{progress.tokens_per_s:,.0f} tokens/s",
                f"{share:4.0%} of its tokens",
                f"{duration(left_s)} left",
            )
        self._live.update(table)


def watcher(slots: int) -> PlainProgress:
    """Live on a terminal, plain elsewhere."""
    return LiveProgress(slots) if sys.stderr.isatty() else PlainProgress(slots)
