"""The command: what it offers, the envelope of `--json`, one line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from levelfield.bench import study
from levelfield.bench.campaign import Campaign
from levelfield.bench.registry import METRICS, OPTIMIZERS, PROTOCOLS, SECTIONS
from levelfield.bench.spec import SCHEMA, BenchError, TrialRecord
from levelfield.bench.store import RunWriter
from levelfield.cli import Result, app, emit

COMMANDS = {
    "audit": ["PATH", "--json"],
    "check": ["NAME", "--timeout", "--json"],
    "doctor": ["--json"],
    "list": ["KIND", "--out", "--json"],
    "memory": [
        *["--model", "-o", "--optimizer", "--published", "--batch", "--seq", "--precision"],
        "--accumulation",
        *["--checkpointing", "--gpu", "--route", "--device", "--out", "--json"],
    ],
    "new": ["KIND", "NAME", "--json"],
    "plan": [
        *["PROTOCOL", "-o", "--optimizer", "--set", "--seed", "--seeds", "--slots", "--device"],
        *["--tflops", "--gpu", "--files", "--model", "--json"],
    ],
    "report": ["PATH", "--json"],
    "run": [
        *["PROTOCOL", "-o", "--optimizer", "--set", "--seed", "--seeds", "--slots", "--device"],
        *["--out", "--resume", "--into", "--tuned-from", "--rerun-stale", "--json"],
        *["--files", "--model", "--from", "--nproc"],
    ],
    "show": ["NAME", "--json"],
    "verify": ["PATH", "--sample", "--seed", "--slots", "--json"],
}
"""What scripts rely on: an option that goes or is renamed is a new major version."""

ENVELOPE = {"levelfield_result_version", "command", "status", "exit_code", "data", "errors"}


def call(*arguments: str | Path) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(item) for item in arguments])


def refused(*arguments: str | Path) -> str:
    """The one line that a mistake gives."""
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Traceback" not in line
    prefix = "levelfield: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mistake that is not seen must not cost an hour, nor leave a folder in the checkout."""

    def train(*_: Any) -> None:
        raise AssertionError("a trial was started")

    monkeypatch.setattr(Campaign, "run", train)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without a record."""
    protocol = PROTOCOLS.load("smoke").value
    writer = study.new_run(
        protocol,
        study.load_methods(["adamw", "signsgd"]),
        out=tmp_path / "runs",
        seed=0,
        final_seeds=2,
        slots=1,
        device="cpu",
    )
    return writer.path


def plug(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


# --- what it offers ----------------------------------------------------------------------------


def test_commands_and_options_are_pinned() -> None:
    command: Any = get_command(app)
    found = {
        name: sorted(
            option
            for parameter in item.params
            for option in (
                (*parameter.opts, *parameter.secondary_opts)
                if parameter.param_type_name == "option"
                else [parameter.name.upper()]
            )
        )
        for name, item in command.commands.items()
    }
    assert found == {name: sorted(options) for name, options in COMMANDS.items()}
    assert [option for item in command.params for option in item.opts] == ["--version"]


def test_every_command_and_option_explains_itself() -> None:
    command: Any = get_command(app)
    for name, item in command.commands.items():
        assert item.help, name
        for parameter in item.params:
            assert parameter.help, f"{name} {parameter.name}"
    told = call("--help")
    assert told.exit_code == 0
    assert all(name in told.stdout for name in COMMANDS)


def test_the_version_is_one_line() -> None:
    done = call("--version")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [done.stdout.strip()]
    assert done.stdout.startswith("levelfield ")


def test_the_console_script_tells_a_mistake_in_one_line(tmp_path: Path) -> None:
    """Through the entry point, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from levelfield.cli import main; main()",
            "run",
            "smoke",
            "-o",
            "x",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("levelfield: unknown optimizer 'x' (")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run", "--nonsense"],
        ["run", "smoke", "--seed", "x"],
        ["run", "smoke", "--slots", "many"],
        ["report"],
        ["show"],
    ],
)
def test_what_cannot_be_parsed_exits_with_two(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


# --- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 130])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_is_the_results(
    code: int, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        emit("x", as_json, lambda: Result({"a": 1}, ["one", "two"], code))
    assert caught.value.exit_code == code
    out, err = capsys.readouterr()
    assert err == ""
    if as_json:
        assert json.loads(out) == {
            "levelfield_result_version": 1,
            "command": "x",
            "status": "error" if code else "ok",
            "exit_code": code,
            "data": {"a": 1},
            "errors": [],
        }
    else:
        assert out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (BenchError("wrong", "right"), 2, {"message": "wrong", "hint": "right"}),
        (BenchError("wrong"), 2, {"message": "wrong", "hint": None}),
        (KeyboardInterrupt(), 130, {"message": "interrupted", "hint": None}),
    ],
)
def test_a_mistake_is_told_in_the_envelope_too(
    error: BaseException, code: int, told: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> Result:
        raise error

    with pytest.raises(typer.Exit) as caught:
        emit("x", True, work)
    assert caught.value.exit_code == code
    out, err = capsys.readouterr()
    envelope = json.loads(out)
    assert envelope.keys() == ENVELOPE
    assert (envelope["status"], envelope["exit_code"], envelope["errors"]) == (
        "error",
        code,
        [told],
    )
    assert len(err.splitlines()) == 1


def test_a_bug_of_ours_is_no_users_mistake() -> None:
    def work() -> Result:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        emit("x", False, work)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("kind", ["optimizers", "protocols", "metrics", "sections"])
def test_lists_tell_every_name(kind: str, as_json: bool) -> None:
    registry: Any = {
        "optimizers": OPTIMIZERS,
        "protocols": PROTOCOLS,
        "metrics": METRICS,
        "sections": SECTIONS,
    }[kind]
    names = sorted(registry.entries())
    done = call("list", kind, *(["--json"] if as_json else []))
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    if not as_json:
        assert [line.split()[0] for line in done.stdout.splitlines()] == names
        return
    envelope = json.loads(done.stdout)
    assert envelope.keys() == ENVELOPE
    assert (envelope["command"], envelope["status"], envelope["errors"]) == ("list", "ok", [])
    assert envelope["data"]["kind"] == kind
    assert [item["name"] for item in envelope["data"]["items"]] == names
    assert all(item["summary"] and item["origin"] for item in envelope["data"]["items"])


def test_a_list_of_runs_tells_broken_ones_too(run: Path) -> None:
    (run.parent / "other").mkdir()
    (run.parent / "other" / "manifest.json").write_text("{")
    (run.parent / "no-run").mkdir()
    done = call("list", "runs", "--json")
    assert done.exit_code == 0
    rows = {item["name"]: item for item in json.loads(done.stdout)["data"]["items"]}
    assert rows.keys() == {run.name, "other"}
    assert "is not JSON" in rows["other"]["error"]
    assert rows[run.name] == {
        "name": run.name,
        "protocol": "smoke",
        "methods": ["adamw", "signsgd"],
        "records": 0,
        "page": False,
    }
    assert len(call("list", "runs").stdout.splitlines()) == 2


def test_a_list_without_runs_says_so(tmp_path: Path) -> None:
    done = call("list", "runs", "--out", tmp_path / "nothing")
    assert done.exit_code == 0
    assert done.stdout == f"no runs under {tmp_path / 'nothing'}\n"


def test_names_with_dashes_are_shown_as_papers_write_them() -> None:
    for dashed, name in (("adamw-split", "adamw_split"), ("glue-cpu-nli", "glue_cpu_nli")):
        done = call("show", dashed)
        assert done.exit_code == 0, done.output
        assert name in done.stdout.splitlines()[0]


def test_an_adapter_tells_what_trains_it_and_a_source_has_no_other_shape() -> None:
    told = call("show", "lora(inner=lion)").stdout
    assert "trained by          lion, or lora(inner=NAME)\n" in told
    assert "trained by" not in call("show", "lion").stdout
    sourced, own = call("show", "glue_cpu_nli").stdout, call("show", "smoke").stdout
    assert "model.source" in sourced
    assert "model.hidden" not in sourced
    assert "model.hidden" in own


@pytest.mark.parametrize("name", ["adamw", "lion", "smoke"])
def test_a_record_is_shown(name: str) -> None:
    done = call("show", name)
    assert done.exit_code == 0, done.output
    assert name in done.stdout
    envelope = json.loads(call("show", name, "--json").stdout)
    assert envelope.keys() == ENVELOPE
    assert envelope["data"]["record"]["name"] == name


# --- mistakes ----------------------------------------------------------------------------------

UNKNOWN_METHOD = r"unknown optimizer 'adamv' (did you mean"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "no protocol given (`levelfield list protocols` names them)"),
        (["run", "smok"], "unknown protocol 'smok' (did you mean smoke?)"),
        (["run", "nothing.py"], "no protocol file 'nothing.py'"),
        (["run", ""], "unknown protocol ''"),
        (["run", "smoke", "-o", "adamv"], UNKNOWN_METHOD),
        (["run", "smoke", "-o", ""], "unknown optimizer ''"),
        (["run", "smoke", "-o", "adamw", "-o", "adamv"], UNKNOWN_METHOD),
        (["run", "smoke", "-o", "nothing.py:SPEC"], "no optimizer file 'nothing.py'"),
        (["run", "smoke", "--set", "budget.trials"], "--set 'budget.trials' has no '='"),
        (["run", "smoke", "--set", "budget.trails=5"], "unknown protocol field 'budget.trails'"),
        (["run", "smoke", "--set", "budget.trials=x"], "budget.trials = 'x' is not"),
        (["run", "smoke", "--set", "budget=5"], "budget is a group of fields"),
        (["run", "smoke", "--set", "budget.steps=5"], "no room for warm-up: 10% of 5 steps"),
        (["run", "smoke", "--set", "schedule.warmup=1"], "no room after warm-up"),
        (["run", "smoke", "--set", "budget.trials=0"], "budget.trials = 0 (accepted: 1 or more)"),
        (["run", "smoke", "--set", "budget.trial_timeout_s=0"], "budget.trial_timeout_s = 0"),
        (["run", "smoke", "--set", "data.source=x"], "unknown data source 'x'"),
        (["run", "smoke", "--set", "data.tokenizer=byte"], "unknown tokenizer 'byte'"),
        (["run", "smoke", "--set", "data.sequence=99999"], "slice 'control' holds 7405 tokens"),
        (["run", "smoke", "--set", "methods="], "protocol smoke names no methods"),
        (["run", "smoke", "--seed", "-1"], "--seed -1 (accepted: 0 to 999999999)"),
        (["run", "smoke", "--seeds", "0"], "the number of final seeds = 0"),
        (["run", "smoke", "--seeds", "1000"], "1000 final seeds"),
        (["run", "smoke", "--slots", "0"], "--slots 0 (accepted: 1 or more)"),
        (["run", "smoke", "--slots", "-3"], "--slots -3"),
        (["run", "smoke", "--device", "gpu"], "unknown device 'gpu' (accepted: cpu, cuda"),
        (["run", "smoke", "--device", "cuda:x"], "unknown device 'cuda:x'"),
        (["run", "smoke", "--device", "cuda"], "device 'cuda' is not there (this machine has no"),
        (["run", "smoke", "--device", "cuda:1"], "device 'cuda:1' is not there"),
        (["run", "smoke", "--rerun-stale"], "--rerun-stale goes with --resume"),
        (["run", "smoke", "--from", "lora"], "--from lora (accepted: RUN:method:seed, of a run"),
        (["run", "smoke", "--from", "runs/x:lora:"], "--from runs/x:lora: (accepted: RUN:method"),
        (["run", "smoke", "--from", "none:lora:1"], "model.source=none:lora:1: there is no run"),
        (["run", "--resume", "nothing"], "no run at nothing"),
        (["run", "--into", "nothing", "-o", "lion"], "no run at nothing"),
        (["run", "smoke", "--tuned-from", "nothing"], "no run at nothing"),
        (["report", "nothing"], "no run at nothing"),
        (["audit", "nothing"], "no run at nothing"),
        (["verify", "nothing"], "no run at nothing"),
        (["list", "optimisers"], "nothing to list under 'optimisers' (did you mean optimizers"),
        (["show", "adamv"], "no optimizer or protocol is named 'adamv' (did you mean"),
        (["show", "nothing.py:SPEC"], "no optimizer file 'nothing.py'"),
        (["show", "nothing.py:PROTOCOL"], "no protocol file 'nothing.py'"),
        (["check", "adamv"], UNKNOWN_METHOD),
        (["plan", "smok"], "unknown protocol 'smok' (did you mean smoke?)"),
        (["plan", "smoke", "-o", "adamv"], UNKNOWN_METHOD),
        (["plan", "smoke", "--set", "x=1"], "unknown protocol field 'x'"),
        (["plan", "smoke", "--slots", "0"], "--slots 0"),
        (["plan", "smoke", "--device", "gpu"], "unknown device 'gpu'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.bench.execute.cuda_devices", lambda: ())
    assert refused(*arguments).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_json_on_stdout_if_asked_for() -> None:
    done = call("run", "smoke", "-o", "adamv", "--json")
    assert done.exit_code == 2
    envelope = json.loads(done.stdout)
    assert envelope.keys() == ENVELOPE
    assert envelope["errors"][0]["message"] == "unknown optimizer 'adamv'"
    assert "adamw" in envelope["errors"][0]["hint"]
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = refused("run", "smoke", "-o", "adamw", "--out", tmp_path / "file" / "runs")
    assert told.startswith("cannot make the run folder")
    assert told.endswith("(choose a writable folder with --out)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no luck')", "fails on import: ValueError: no luck"),
        ("def f(:", "fails on import: SyntaxError: "),
        ("import nothing_of_this_name", "fails on import: ModuleNotFoundError: "),
        ("", "SPEC is not there (accepted: a OptimizerSpec)"),
        ("SPEC = 3", "SPEC is a int (accepted: a OptimizerSpec)"),
    ],
)
@pytest.mark.parametrize("command", [["run", "smoke", "-o"], ["show"], ["check"]])
def test_a_broken_plug_in_is_told(
    tmp_path: Path, command: list[str], text: str, message: str
) -> None:
    file = plug(tmp_path, text)
    told = refused(*command, f"{file}:SPEC")
    assert str(file) in told
    assert message in told


def test_a_method_named_twice_is_told_with_both_origins(tmp_path: Path) -> None:
    told = refused("run", "smoke", "-o", "adamw", "-o", "adamw")
    assert told.startswith("two methods are named 'adamw': optimizers/adamw.py and optimizers/")
    file = plug(tmp_path, "from levelfield.optimizers.lion import SPEC\n")
    told = refused("run", "smoke", "-o", file)
    assert told.startswith("two optimizers are named 'lion': optimizers/lion.py and ")
    assert str(file) in told


# --- an existing run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["smoke"], "PROTOCOL"),
        (["-o", "lion"], "-o"),
        (["--set", "threads=1"], "--set"),
        (["--seed", "0"], "--seed"),
        (["--seeds", "3"], "--seeds"),
        (["--device", "cpu"], "--device"),
        (["--out", "x"], "--out"),
        (["--into", "x"], "--into"),
        (["--tuned-from", "x"], "--tuned-from"),
        (["-o", "lion", "--seed", "0", "--out", "x"], "--out, --seed, -o"),
    ],
)
def test_resume_takes_no_other_option(run: Path, options: list[str], told: str) -> None:
    assert refused("run", "--resume", run, *options) == (
        f"--resume takes everything else from the run's manifest: not {told} "
        "(accepted with it: --slots, --json)"
    )


@pytest.mark.parametrize(
    "options", [["smoke"], ["--seed", "1"], ["--rerun-stale"], ["--tuned-from", "x"]]
)
def test_into_takes_methods_and_seeds_alone(run: Path, options: list[str]) -> None:
    told = refused("run", "--into", run, "-o", "lion", *options)
    assert told.startswith("--into takes everything else from the run's manifest: not ")
    assert told.endswith("(accepted with it: -o, --seeds, --slots, --json)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--into adds nothing (name methods with -o or finals by --seeds)"),
        (["-o", "adamw"], "adamw is already in this run"),
        (["-o", "adamv"], UNKNOWN_METHOD),
        (["--seeds", "1"], "--seeds 1, and this run has 2"),
    ],
)
def test_into_adds_what_is_not_there(run: Path, options: list[str], message: str) -> None:
    before = (run / "manifest.json").read_bytes()
    assert refused("run", "--into", run, *options).startswith(message)
    assert (run / "manifest.json").read_bytes() == before


def change(key: str, value: Any) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_text())
        part = manifest
        *parents, last = key.split(".")
        for parent in parents:
            part = part[int(parent)] if parent.isdigit() else part[parent]
        assert last in part
        part[last] = value
        (run / "manifest.json").write_text(json.dumps(manifest))

    return edit


def spoil(name: str, text: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        (run / name).write_text(text)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (spoil("manifest.json", "{"), "is not JSON"),
        (spoil("records.jsonl", "garbage\n"), "line 1 is not a record"),
        (change("schema", SCHEMA + 1), "has schema 2 (this version reads up to 1)"),
        (change("methods.1.digest", "x"), "the code of signsgd changed since this run began"),
        (change("methods.1.reference", "gone"), "unknown optimizer 'gone'"),
        (change("protocol_digest", "x"), "was made by another version of the training loop"),
        (change("protocol.budget.steps", 81), "was made by another version of the training loop"),
        (change("protocol.nonsense", 1), "unknown field 'nonsense'"),
        (change("data.digest", "x"), "the data is not what it was when this run began"),
        (change("device", "cuda"), "device 'cuda' is not there"),
    ],
)
def test_a_run_that_cannot_go_on_is_told(
    run: Path, edit: Callable[[Path], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.bench.execute.cuda_devices", lambda: ())
    if message == "unknown field 'nonsense'":
        change("protocol", {**json.loads((run / "manifest.json").read_text())["protocol"],
                            "nonsense": 0})(run)  # fmt: skip
    edit(run)
    assert message in refused("run", "--resume", run)


def test_a_run_that_tuned_nothing_gives_no_points(run: Path) -> None:
    told = refused("run", "smoke", "-o", "adamw", "--tuned-from", run)
    assert told.startswith(f"{run} holds no tuned point of adamw (accepted: ")
    assert list(run.parent.iterdir()) == [run]
    change("methods.0.digest", "x")(run)
    told = refused("run", "smoke", "-o", "adamw", "--tuned-from", run)
    assert told == f"the code of adamw changed since {run} was run"


def test_a_run_in_use_is_told(run: Path) -> None:
    with RunWriter(run):
        told = refused("run", "--resume", run)
    assert "is in use by another levelfield" in told
    assert f"process {os.getpid()}" in told


def test_a_good_resume_goes_on(run: Path) -> None:
    """The checks above do not refuse everything: an untouched run comes to its trials."""
    done = call("run", "--resume", run)
    assert isinstance(done.exception, AssertionError)
    assert str(done.exception) == "a trial was started"


def test_a_good_run_starts(tmp_path: Path) -> None:
    done = call("run", "smoke", "-o", "adamw", "--set", "budget.steps=20", "--seed", "0")
    assert str(done.exception) == "a trial was started"
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["modified"] == ["budget.steps=20"]
    assert manifest["protocol"]["budget"]["steps"] == 20
    assert [item["name"] for item in manifest["methods"]] == ["adamw"]
    assert (manifest["seed"], manifest["device"]) == (0, "cpu")


def test_a_torn_line_is_no_obstacle_to_resume(run: Path) -> None:
    with open(run / "records.jsonl", "w") as file:
        file.write('{"run_id"')
    assert str(call("run", "--resume", run).exception) == "a trial was started"


def test_the_record_of_a_run_is_a_line(run: Path) -> None:
    """What `list runs` counts."""
    with RunWriter(run) as writer:
        for trial in range(3):
            writer.append(
                TrialRecord(
                    run_id="r",
                    phase="tune",
                    protocol="smoke",
                    optimizer="adamw",
                    trial=trial,
                    seed=0,
                    hparams={},
                    tuned=(),
                    status="ok",
                )
            )
    assert call("list", "runs").stdout == f"{run.name}  adamw, signsgd  3 records\n"


def test_a_method_that_lacks_its_library_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name)
    )
    done = call("list", "optimizers")
    line = next(row for row in done.stdout.splitlines() if row.startswith("adamw_8bit "))
    assert line.endswith("[needs bitsandbytes, not installed]")
    assert "not installed" not in next(
        row for row in done.stdout.splitlines() if row.startswith("adamw ")
    )


def test_a_family_is_planned_member_by_member() -> None:
    done = call("plan", "ladder", "-o", "adamw", "-o", "lion", "--tflops", "0.04", "--json")
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout)["data"]
    assert [part["protocol"] for part in whole["members"]] == [
        f"ladder-h{hidden}" for hidden in (16, 24, 32, 48, 64)
    ]
    assert whole["tokens"] == sum(part["tokens"] for part in whole["members"])
    shown = call("plan", "ladder", "-o", "adamw", "--tflops", "0.04").stdout
    assert "ladder: 5 members" in shown
