"""Checks in a process of their own: time runs out, the process goes, and each problem is told once.

The methods fail while they are built, so that nothing here waits for training.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from levelfield.bench.check import CHECKS, Check
from levelfield.bench.check_apart import TIMEOUT_S, run_apart
from levelfield.bench.check_lines import Lines
from levelfield.bench.spec import BenchError
from levelfield.cli import app

METHOD = """
import os, signal, time
from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec

def build(ctx, hparams):
    print("building")
    {body}

SPEC = OptimizerSpec(
    name="mine", family="sign", summary="one that does not build", paper="none", build=build,
    space={{"lr": space.log(1e-4, 1e-2, 1e-3)}},
    state_bytes=lambda params, hparams, progress: 0,
)
"""


def method(folder: Path, body: str) -> str:
    file = folder / "mine.py"
    file.write_text(METHOD.format(body=body))
    return f"{file}:SPEC"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", *arguments])


def test_a_method_that_never_comes_back_fails_when_its_time_is_over(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = method(tmp_path, f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    found = list(run_apart(hangs, timeout_s=3.0))
    assert [(item.name, item.outcome) for item in found] == [
        ("record", "passed"),
        ("roles", "failed"),
        ("time", "passed"),
    ]
    untried = len(CHECKS) - 2
    assert found[1].reason == (
        "not done when the method's 3 s were over (--timeout); "
        f"{untried} checks after it are not tried"
    )
    assert 3.0 <= found[-1].wall_s < 60.0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_method_that_takes_its_process_down_fails_its_check(tmp_path: Path) -> None:
    crashes = method(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    found = list(run_apart(crashes))
    assert [item.outcome for item in found] == ["passed", "failed", "passed"]
    assert found[1].reason.startswith("the method's process crashed (SIGSEGV); ")
    ends = method(tmp_path, "os._exit(3)")
    assert "process ended with exit code 3 and no line" in list(run_apart(ends))[1].reason


def test_whoever_stops_listening_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = method(tmp_path, f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    lines = run_apart(hangs)
    assert next(lines).name == "record"
    end_s = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end_s:
        time.sleep(0.05)
    lines.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_a_limit_is_a_time(limit: str, tmp_path: Path) -> None:
    done = call(method(tmp_path, "pass"), "--timeout", limit)
    assert done.exit_code == 2
    assert done.stderr == f"levelfield: --timeout {limit} (accepted: seconds, more than 0)\n"
    with pytest.raises(BenchError):
        next(run_apart("adamw", timeout_s=float(limit)))


def test_the_command_has_the_limit_that_the_checks_have() -> None:
    from levelfield import cli

    told: Sequence[Any] = cli.check.__defaults__ or ()
    assert TIMEOUT_S in told


def test_a_problem_of_every_check_is_one_line(tmp_path: Path) -> None:
    """A method that does not build fails all checks for one reason."""
    broken = method(tmp_path, "raise ValueError('no such thing')")
    done = call(broken)
    assert done.exit_code == 1
    assert "building" not in done.stdout
    assert done.stdout.count("(mine.py:8)") == 1
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["passed", "record"]
    assert lines[1] == f"{'failed':<12}{'roles':<16}ValueError: no such thing (mine.py:8)"
    same = next(line for line in lines if "the same: " in line)
    assert same.startswith(f"{'failed':<12}{'roles':<16}the same: loss falls, convex, ")
    others = [name for name in CHECKS if name not in ("record", "roles", "empty")]
    assert same.partition("the same: ")[2].split(", ") == others
    assert lines[-1].startswith(f"mine: of {len(CHECKS)} checks 1 hold, {len(CHECKS) - 1} failed; ")

    data = json.loads(call(broken, "--json").stdout)["data"]
    assert [item["name"] for item in data["checks"]] == [*CHECKS, "time"]
    assert {item["reason"] for item in data["checks"] if item["name"] in others} == {
        "ValueError: no such thing (mine.py:8)"
    }


def test_lines_tell_what_passed_each_time_and_a_problem_once() -> None:
    lines = Lines()
    same = "finite after 6 steps"
    assert lines.told(Check("scalars", "passed", same)) is not None
    assert lines.told(Check("vectors", "passed", same)) is not None
    assert lines.rest() == []
    line = f"{'unsupported':<12}{'convex':<16}"
    assert lines.told(Check("convex", "unsupported", "no")) == f"{line}no"
    assert lines.told(Check("tied", "failed", "no")) is not None  # another outcome is another line
    assert lines.told(Check("mixed", "unsupported", "no")) is None
    assert lines.rest() == [f"{line}the same: mixed"]
    assert lines.summary("m", 1.25) == "m: of 5 checks 2 hold, 1 failed, 2 do not apply; 1.2 s"
