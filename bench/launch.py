"""A trial over several processes of this machine, started by torchrun's launcher.

The process of the trial runs the launcher in a thread and is the group's only way out: every member
connects to its socket, is handed the request, and sends what it has to tell. The first process's
record is the trial's, unless another one fails before. A member ends when it is told so, or when
the socket closes: then the trial's own process is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.bench.execute import GONE, death
from levelfield.bench.fork_server import killed_with_parent
from levelfield.bench.spec import BROKEN, BenchError, TrialRecord

if TYPE_CHECKING:
    from levelfield.bench.train_request import Progress, TrialRequest

SOCKET, PARENT = "LEVELFIELD_SOCKET", "LEVELFIELD_PARENT"
"""Environment of a member: where it reports, and the process that started it."""
DONE = "done"
"""Tells a member to end."""
MOMENT_S = 1.0
"""Seconds in which a process that is gone is noticed at the latest."""


def grouped(devices: Sequence[str], processes: int) -> tuple[str, ...]:
    """What the slots of trials over several processes run on: `cpu`, or that many GPUs each.

    Args:
        devices: `("cpu",)`, or `cuda:0`, `cuda:1`, ...

    Returns:
        One name a slot; those of several GPUs are joined by commas.

    Raises:
        BenchError: fewer GPUs than processes.
    """
    if processes == 1 or devices[0] == "cpu":
        return tuple(devices)
    count = len(devices) // processes
    if count == 0:
        raise BenchError(
            f"engine.processes={processes} on {', '.join(devices)}",
            f"accepted: at least {processes} GPUs (--device cuda takes all), or --device cpu",
        )
    return tuple(",".join(devices[i * processes : (i + 1) * processes]) for i in range(count))


def run_group(request: TrialRequest, report: Callable[[Progress], None]) -> TrialRecord:
    """Train once over `engine.processes` processes. Whatever happens, a record comes back.

    Called in the process of the trial; nothing of the group outlives it.
    """
    from levelfield.bench.train import why_unsupported
    from levelfield.bench.train_request import failed_record

    if (reason := why_unsupported(request)) is not None:  # without the seconds of a start
        return failed_record(request, "unsupported", reason)
    size = request.protocol.engine.processes
    folder = Path(tempfile.mkdtemp(prefix="levelfield-"))
    address = str(folder / "socket")
    with Listener(address, "AF_UNIX", backlog=size) as listener:
        launcher = _Launcher(size, address)
        launcher.start()
        record = _Desk(listener, launcher, request, report).record()
    shutil.rmtree(folder, ignore_errors=True)
    launcher.join()
    return replace(record, device=request.device)


class _Launcher(threading.Thread):
    """torchrun's launcher. Off the main thread it leaves signals alone."""

    def __init__(self, processes: int, address: str) -> None:
        super().__init__(name="launcher", daemon=True)
        self._processes, self._address = processes, address
        self.died = (0, 0)
        """The member that ended first, and its exit code; negative: a signal's number."""
        self.error: str | None = None
        self.ended_read, self._ended_write = os.pipe()

    def run(self) -> None:
        import logging

        from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # What went wrong is told in the record, once.
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        os.environ.update({SOCKET: self._address, PARENT: str(os.getpid())})
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._processes,
            run_id=f"levelfield-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.05,
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(self._address).parent)),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "levelfield.bench.launch")
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            self.died = rank, failure.exitcode
        except Exception as error:
            from levelfield.bench.errors import first_line

            self.error = f"torch.distributed does not start: {first_line(error)}"
        finally:
            os.close(self._ended_write)


class _Desk:
    """Takes in what the members of a group tell, and sees them off."""

    def __init__(
        self,
        listener: Listener,
        launcher: _Launcher,
        request: TrialRequest,
        report: Callable[[Progress], None],
    ) -> None:
        self._listener, self._launcher = listener, launcher
        self._request, self._report = request, report
        self._members: list[Connection] = []
        self._lost = False
        self._folder = Path(str(listener.address)).parent

    def record(self) -> TrialRecord:
        """The record of the trial; every member has been told to end by then."""
        door: Any = self._listener._listener._socket  # type: ignore[attr-defined]
        awaited: list[Any] = [door, self._launcher.ended_read]
        record = None
        while record is None:
            ready = wait([*awaited, *self._members])
            if door in ready:
                self._admit()
                if len(self._members) == self._request.protocol.engine.processes:
                    awaited.remove(door)  # all are there: a kill leaves no file from here on
                    self._listener.close()
                    shutil.rmtree(self._folder, ignore_errors=True)
                continue
            for member in [member for member in self._members if member in ready]:
                record = record or self._heard(member)
            if record is not None and record.status in BROKEN:
                self._listen_on()
            if self._lost:
                record = None  # what the others say now is that one is gone
            if record is None and ready == [self._launcher.ended_read]:
                record = self._died()
        for member in self._members:
            with contextlib.suppress(OSError):
                member.send(DONE)
        return record

    def _admit(self) -> None:
        member = self._listener.accept()
        with contextlib.suppress(OSError):  # it is gone already, as its end of the socket will tell
            member.send(self._request)
        self._members.append(member)

    def _heard(self, member: Connection) -> TrialRecord | None:
        """One message of a member; a record ends the trial."""
        try:
            rank, message = member.recv()
        except (EOFError, OSError):
            self._members.remove(member)
            self._lost = True  # the launcher notices, ends the others, and knows its exit code
            return None
        if not isinstance(message, TrialRecord):
            self._report(message)
            return None
        return message if rank == 0 or message.status in BROKEN else None

    def _listen_on(self) -> None:
        """For a moment, hear whether a process is gone: then that is why another one broke."""
        end_s = time.monotonic() + MOMENT_S
        while self._members and not self._lost and time.monotonic() < end_s:
            for member in wait(self._members, end_s - time.monotonic()):
                self._heard(member)  # type: ignore[arg-type]

    def _died(self) -> TrialRecord:
        from levelfield.bench.train_request import failed_record

        if self._launcher.error is not None:
            return failed_record(self._request, "error", self._launcher.error)
        rank, code = self._launcher.died
        status, reason = death(code)
        size = self._request.protocol.engine.processes
        return failed_record(self._request, status, f"process {rank} of {size}: {reason}")


# --- in a member ------------------------------------------------------------------------------


def main() -> None:
    """Entry point of a member: train as one of the group, tell, and wait to be told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    killed_with_parent()
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(GONE)
    try:
        connection = Client(os.environ[SOCKET], "AF_UNIX")
        request = connection.recv()
    except (EOFError, OSError):  # another one has failed already
        os._exit(GONE)
    ending = threading.Thread(target=_end_when_told, args=(connection,), daemon=True)
    ending.start()
    rank = int(os.environ["RANK"])

    def send(message: Any) -> None:
        with contextlib.suppress(OSError):  # the trial is gone, and so is this process
            connection.send((rank, message))

    send(_trained(request, rank, send))
    ending.join()


def _trained(request: TrialRequest, rank: int, send: Callable[[Any], None]) -> TrialRecord:
    from levelfield.bench.errors import located
    from levelfield.bench.train import run_trial
    from levelfield.bench.train_request import failed_record

    names = request.device.split(",")
    device = names[rank % len(names)]
    try:
        group = _joined(request, device)
    except Exception as error:
        return failed_record(
            request, "error", f"the group does not come together: {located(error)}"
        )
    report = send if rank == 0 else lambda progress: None
    return run_trial(replace(request, device=device), report, group)


def _joined(request: TrialRequest, name: str) -> Any:
    """The group, once all are there; torchrun's environment says who and where."""
    import torch
    from torch import distributed

    from levelfield.bench.distributed import open_group

    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=request.protocol.budget.trial_timeout_s),
    )
    return open_group(request.protocol.engine, device)


def _end_when_told(connection: Connection) -> None:
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(GONE)
    os._exit(0)


if __name__ == "__main__":
    main()
