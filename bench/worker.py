"""Entry point of a trial's process; loaded once by the fork server."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from levelfield.bench.execute import GONE, end_with
from levelfield.bench.launch import run_group
from levelfield.bench.train import run_trial
from levelfield.bench.train_request import TrialRequest


def main(results: Connection, guard: Connection, request: TrialRequest) -> None:
    """Run a trial, in this process or over several, and send its record; ends with its
    coordinator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what a Ctrl-C means
    os.dup2(2, 1)  # stdout is the coordinator's: what a method prints goes to stderr
    end_with(guard)

    def send(message: Any) -> None:
        try:
            results.send(message)
        except OSError:  # the coordinator is gone
            os._exit(GONE)

    train = run_trial if request.protocol.engine.processes == 1 else run_group
    send(train(request, send))
    results.close()
