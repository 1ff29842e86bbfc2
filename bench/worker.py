"""Entry point of a trial's process; loaded once by the fork server."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from levelfield.bench.execute import end_with
from levelfield.bench.train import run_trial
from levelfield.bench.train_request import TrialRequest


def main(results: Connection, guard: Connection, request: TrialRequest) -> None:
    """Run a trial and send its record; ends with its coordinator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what a Ctrl-C means
    end_with(guard)
    results.send(run_trial(request, results.send))
    results.close()
