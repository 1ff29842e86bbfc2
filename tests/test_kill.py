"""Runs that are killed: nothing is left running, nothing is lost, nothing is trained twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from levelfield.bench import api
from levelfield.bench.spec import BenchError, Phase
from levelfield.bench.store import RECORDS, Run, chain_breaks, equal_records
from levelfield.tests import small
from levelfield.tests.coordinator import Coordinator

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found through /proc"
)

SLOW = small.plugin("odd:SLOW")
METHODS = ("adamw", SLOW)
PROTOCOL = f"{Path(small.__file__)}:PROTOCOL"
COORDINATOR = """
import sys
from levelfield.bench import api
from levelfield.tests import small
api.run(small.PROTOCOL, sys.argv[2:], out=sys.argv[1], slots=2)
"""
COMMAND = "from levelfield.cli import main; main()"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody interrupts."""
    return small.run(tmp_path_factory.mktemp("whole"), METHODS, slots=2)


def under_way(coordinator: Coordinator, phase: Phase) -> Callable[[], bool]:
    """Whether the slow method trains in a phase, and something has a record."""
    return lambda: (
        coordinator.records() > 0
        and any(key.startswith(f"{phase}-slow-") for key in coordinator.running())
    )


def check_resumed(coordinator: Coordinator, whole: Run) -> None:
    """The rest of the run, in this process."""
    folder = coordinator.folder
    assert folder is not None
    interrupted = coordinator.running()
    assert interrupted
    before = (folder / RECORDS).read_bytes()
    left = before[: before.rfind(b"\n") + 1]
    resumed = api.resume(folder)
    assert (folder / RECORDS).read_bytes().startswith(left)
    assert equal_records(whole.records, resumed.records) == []
    assert len(resumed.records) == len(whole.records)
    assert len({record.key for record in resumed.records}) == len(whole.records)
    assert list(chain_breaks(folder / RECORDS)) == []
    assert coordinator.running() == []
    counted = [item["key"] for item in resumed.manifest["interruptions"]]
    assert set(counted) <= set(interrupted)
    assert any("-slow-" in key for key in counted)
    retried = {
        f"{r.phase}-{r.optimizer}-{r.trial}-{r.seed}": r.retries
        for r in resumed.records
        if r.retries
    }
    assert retried == dict.fromkeys(counted, 1)


@pytest.mark.parametrize(
    ("who", "phase"),
    [
        ("the group", "tune"),
        ("the coordinator", "final"),
        ("the coordinator", "timing"),
        pytest.param("the coordinator", "tune", marks=pytest.mark.slow),
        pytest.param("the group", "final", marks=pytest.mark.slow),
        pytest.param("the group", "timing", marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(
    start: Callable[..., Coordinator], tmp_path: Path, whole: Run, who: str, phase: Phase
) -> None:
    coordinator = start(COORDINATOR, str(tmp_path), *METHODS)
    coordinator.wait_for(under_way(coordinator, phase))
    time.sleep(0.15)
    if phase == "tune":
        with pytest.raises(BenchError, match=f"in use .*process {coordinator.process.pid}"):
            api.resume(coordinator.folder or "")
        coordinator.wait_for(under_way(coordinator, phase))
    assert len(coordinator.pids()) >= 3  # itself, the fork server, a trial
    if who == "the group":
        os.killpg(coordinator.process.pid, signal.SIGKILL)
    else:
        os.kill(coordinator.process.pid, signal.SIGKILL)
    assert coordinator.ended()
    out, err = coordinator.process.communicate()
    assert (out, err) == ("", "")
    check_resumed(coordinator, whole)


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("SIGINT", "the group"),
        ("SIGTERM", "the group"),
        pytest.param("SIGINT", "the coordinator", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "the coordinator", marks=pytest.mark.slow),
    ],
)
def test_told_to_stop_and_resumed(
    start: Callable[..., Coordinator], tmp_path: Path, whole: Run, name: str, who: str
) -> None:
    options = [item for method in METHODS for item in ("-o", method)]
    coordinator = start(
        COMMAND, "run", PROTOCOL, *options, "--slots", "2", "--json", "--out", str(tmp_path)
    )
    coordinator.wait_for(under_way(coordinator, "tune"))
    number = getattr(signal, name)
    if who == "the group":  # as a Ctrl-C does
        os.killpg(coordinator.process.pid, number)
    else:
        os.kill(coordinator.process.pid, number)
    assert coordinator.ended()
    out, err = coordinator.process.communicate()
    assert "Traceback" not in err
    assert "Error" not in err
    if name == "SIGINT":
        assert coordinator.process.returncode == 130
        assert err.splitlines()[-1] == "levelfield: interrupted; what has a record is safe"
        assert '"status": "error"' in out
    else:
        assert coordinator.process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    check_resumed(coordinator, whole)


@pytest.mark.parametrize(
    "delay_s", [0.6, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.0, 0.2, 1.5))]
)
def test_told_to_stop_while_the_fork_server_loads(
    start: Callable[..., Coordinator], tmp_path: Path, delay_s: float
) -> None:
    coordinator = start(COMMAND, "run", PROTOCOL, "-o", "adamw", "--out", str(tmp_path))
    coordinator.wait_for(lambda: coordinator.running())
    time.sleep(delay_s)
    os.killpg(coordinator.process.pid, signal.SIGINT)
    assert coordinator.ended()
    _, err = coordinator.process.communicate()
    assert "Traceback" not in err
    assert coordinator.process.returncode == 130


def test_killed_again_and_again(
    start: Callable[..., Coordinator], tmp_path: Path, whole: Run
) -> None:
    """Every interruption of a cell is counted."""
    coordinator = start(COORDINATOR, str(tmp_path), *METHODS)
    for code in ("import sys; from levelfield.bench import api; api.resume(sys.argv[1])", None):
        coordinator.wait_for(lambda who=coordinator: who.began("tune-slow-0-0"))
        coordinator.wait_for(lambda who=coordinator: len(who.pids()) >= 4)
        os.kill(coordinator.process.pid, signal.SIGKILL)
        assert coordinator.ended()
        folder = coordinator.folder
        assert folder is not None
        if code is not None:
            coordinator = start(code, str(folder))
    resumed = api.resume(folder)
    assert equal_records(whole.records, resumed.records) == []
    counted = [item["key"] for item in resumed.manifest["interruptions"]]
    assert counted.count("tune-slow-0-0") == 2
    again = next(record for record in resumed.records if record.key == ("tune", "slow", 0, 0))
    assert again.retries == 2
