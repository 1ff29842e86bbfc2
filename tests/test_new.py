"""The template of a new method keeps every promise; the table of methods is what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from levelfield import cli
from levelfield.bench.check import CHECKS, run_checks
from levelfield.bench.registry import OPTIMIZERS

ROOT = Path(__file__).parent.parent


def new(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["new", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_template_passes_every_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, told, _ = new("optimizer", "mine")
    assert (code, told) == (0, "mine.py: see `levelfield check mine.py:SPEC`\n")
    spec = OPTIMIZERS.load(str(tmp_path / "mine.py") + ":SPEC").value
    found = list(run_checks(spec))
    assert [item for item in found if item.outcome != "passed"] == []
    assert {item.name for item in found} >= set(CHECKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("protocol", "mine"), "nothing is known to make of kind 'protocol'"),
        (("optimizer", "a/b"), "optimizer name 'a/b'"),
        (("optimizer", "taken"), "taken.py is already there"),
    ],
)
def test_a_wrong_wish_is_told(
    arguments: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.py").write_text("mine\n")
    code, _, told = new(*arguments)
    assert code == 2
    assert message in told
    assert (tmp_path / "taken.py").read_text() == "mine\n"


@pytest.mark.parametrize("check", ["--check", pytest.param("--check-all", marks=pytest.mark.slow)])
def test_the_table_of_methods_is_up_to_date(check: str) -> None:
    script = ROOT / "scripts" / "optimizer_table.py"
    done = subprocess.run(
        [sys.executable, script, check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
