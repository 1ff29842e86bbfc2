"""What is true comes back bit for bit; a forged number does not; what cannot come back is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from levelfield.bench import provenance
from levelfield.bench.spec import BenchError, TrialRecord
from levelfield.bench.store import Run, RunWriter, load_run
from levelfield.bench.verify import TOLERANCE, Verified, compare, draw, prepare, verify
from levelfield.cli import app
from levelfield.tests import small

PROTOCOL = small.changed(steps=10, trials=2, seeds=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A method of our own, one from a file, and one that fails."""
    folder = tmp_path_factory.mktemp("verify")
    file = folder / "mine.py"
    file.write_text((small.PLUGINS / "faulty.py").read_text())
    methods = ["adamw", f"{file}:GOOD", f"{file}:RAISES"]
    return small.run(folder, methods, PROTOCOL, slots=2)


def rewritten(
    run: Run, folder: Path, records: list[TrialRecord], changes: Mapping[str, Any] | None = None
) -> Run:
    """The run with other records and manifest, its chain intact."""
    writer = RunWriter.create(folder / "run", {**run.manifest, **(changes or {})})
    with writer:
        for record in records:
            writer.append(record)
    return load_run(writer.path)


def trained(run: Run, **asked: Any) -> list[Verified]:
    told: list[Verified] = []
    found = verify(prepare(run, **asked), told.append)
    assert told == found
    return found


def forged(run: Run, folder: Path, **fields: Any) -> Run:
    """The run with one final that says something else."""
    records = [
        replace(r, **fields) if (r.phase, r.optimizer) == ("final", "adamw") else r
        for r in run.records
    ]
    return rewritten(run, folder, records)


# --- what is drawn ----------------------------------------------------------------------------


def test_the_draw_depends_on_its_seed_alone(run: Run) -> None:
    keys = [[record.key for record in draw(run, 3, seed)[0]] for seed in (0, 0, 1, 2, 3)]
    assert keys[0] == keys[1]
    assert len({str(item) for item in keys}) > 2
    assert all(len(item) == 3 for item in keys)


def test_what_was_timed_or_ended_from_outside_is_not_drawn(run: Run) -> None:
    every, count = draw(run, 1000, 0)
    assert len(every) == count == sum(r.phase in ("tune", "final") for r in run.records) == 8
    assert {record.status for record in every} >= {"error"}
    for status in ("killed", "timeout", "oom"):
        records = tuple(replace(r, status=status) for r in run.records)
        with pytest.raises(BenchError, match="no record that can be trained again"):
            draw(replace(run, records=records), 3, 0)
    stale = replace(run.records[0], spec_digest="0" * 64)
    assert draw(replace(run, records=(stale, *run.records[1:])), 1000, 0)[1] == count - 1


def test_nothing_to_draw_is_a_mistake(run: Run) -> None:
    with pytest.raises(BenchError, match="--sample 0"):
        draw(run, 0, 0)
    with pytest.raises(BenchError, match="no record that can be trained again"):
        draw(replace(run, records=()), 3, 0)


# --- what comes back --------------------------------------------------------------------------


def test_every_true_record_comes_back_bit_for_bit(run: Run) -> None:
    plan = prepare(run, sample=1000, slots=2)
    assert plan.exact
    found = verify(plan, lambda item: None)
    assert [item.differences for item in found] == [()] * 8
    assert {item.record.key for item in found} == {record.key for record in plan.drawn}


def test_a_forged_loss_is_found(run: Run, tmp_path: Path) -> None:
    finals = (r for r in run.records if (r.phase, r.optimizer) == ("final", "adamw"))
    loss = next(finals).report_loss
    assert loss is not None
    planted = forged(run, tmp_path, report_loss=loss - 1e-6)
    wrong = [item for item in trained(planted, sample=1000, slots=1) if not item.holds]
    assert [item.record.key[:2] for item in wrong] == [("final", "adamw")]
    (difference,) = wrong[0].differences
    assert difference == f"report_loss {loss - 1e-6}, now {loss}"


# --- comparing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "exact", "close"),
    [
        ({}, (), ()),
        ({"wall_s": {"step": 9.0}, "tokens_per_s": 1.0, "retries": 3, "run_id": "x"}, (), ()),
        ({"report_loss": 2.0 * (1 + TOLERANCE / 2)}, ("report_loss",), ()),
        ({"report_loss": 2.0 * (1 + TOLERANCE * 2)}, ("report_loss",), ("report_loss",)),
        ({"report_loss": None}, ("report_loss",), ("report_loss",)),
        ({"weights_sha256": "1"}, ("weights_sha256",), ("weights_sha256",)),
        ({"batches_sha256": "1"}, ("batches_sha256",), ("batches_sha256",)),
        ({"hparams": {"lr": 0.2}}, ("hparams",), ("hparams",)),
        ({"steps": 3}, ("steps",), ("steps",)),
        ({"curve": [[0, 7.0, 3.0], [9, 8.0, 2.0]]}, (), ()),
        ({"curve": [[0, 0.0, 3.0], [9, 1.0, 2.001]]}, ("curve",), ()),
        ({"curve": [[0, 0.0, 3.0], [9, 1.0, 2.1]]}, ("curve",), ("curve",)),
        ({"curve": [[0, 0.0, 3.0]]}, ("curve",), ("curve",)),
        ({"max_grad_norm": 2.0}, ("max_grad_norm",), ()),
        ({"peak_bytes": {"total": 5}}, ("peak_bytes",), ()),
        ({"status": "timeout", "reason": "too long", "steps": 0}, ("status",), ("status",)),
    ],
)
def test_bits_where_they_repeat_and_a_tolerance_where_they_do_not(
    fields: dict[str, Any], exact: tuple[str, ...], close: tuple[str, ...]
) -> None:
    record = TrialRecord(
        run_id="r",
        phase="final",
        protocol="p",
        optimizer="adamw",
        trial=0,
        seed=1,
        hparams={"lr": 0.1},
        tuned=("lr",),
        status="ok",
        report_loss=2.0,
        curve=[[0, 0.0, 3.0], [9, 1.0, 2.0]],
        weights_sha256="0",
        max_grad_norm=1.0,
    )
    again = replace(record, **fields)
    for bits, expected in ((True, exact), (False, close)):
        told = list(compare(record, again, bits))
        assert tuple(text.split()[0] for text in told) == expected, told


# --- what makes it impossible -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": {"torch": "1.0"}}, "torch 1.0 made this run and"),
        ({"environment": {"numpy": "1.0"}}, "numpy 1.0 made this run and"),
        ({"data": {"digest": "0" * 64}}, "the data of this run has digest 0000000000000000, here"),
        ({"protocol_digest": "0" * 64}, "the training loop or the protocol is not what"),
        ({"device": "cuda:7"}, "device 'cuda:7' is not there"),
    ],
)
def test_another_world_is_refused_in_one_line(
    run: Run, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    whole = {
        key: {**run.manifest[key], **value} if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    other = rewritten(run, tmp_path, list(run.records), whole)
    with pytest.raises(BenchError) as error:
        prepare(other)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_other_code_is_refused_and_named(run: Run, tmp_path: Path) -> None:
    methods = [
        {**item, "digest": "0" * 64} if item["name"] == "good" else item
        for item in run.manifest["methods"]
    ]
    records = [replace(r, spec_digest="0" * 64) for r in run.records if r.optimizer == "good"]
    other = rewritten(run, tmp_path, records, {"methods": methods})
    with pytest.raises(BenchError, match="the code of good is not what this run was made with"):
        prepare(other)


def test_another_cpu_is_compared_within_the_tolerance(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {**provenance.environment("cpu"), "cpu": "another one"}
    monkeypatch.setattr(provenance, "environment", lambda device: there)
    plan = prepare(run)
    assert not plan.exact
    assert f"within {TOLERANCE:.1%}" in plan.how
    assert "another one" in plan.how


# --- the command ------------------------------------------------------------------------------


def test_the_command_tells_the_draw_and_every_record(run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["verify", str(run.path), "--sample", "2", "--seed", "5", "--slots", "1"]
    )
    assert done.exit_code == 0, done.output
    first, *held, last = done.stdout.splitlines()
    assert "2 of 8 records, drawn with seed 5: bit for bit" in first
    assert [line.split()[0] for line in held] == ["holds", "holds"]
    assert last.endswith(": 2 of 2 hold")

    planted = forged(run, tmp_path, selection_loss=0.5)
    asked = ["verify", str(planted.path), "--sample", "1000", "--slots", "2", "--json"]
    envelope = json.loads(CliRunner().invoke(app, asked).stdout)
    assert (envelope["command"], envelope["exit_code"]) == ("verify", 1)
    data = envelope["data"]
    assert (data["seed"], data["exact"], data["tolerance"]) == (0, True, None)
    assert [item["holds"] for item in data["records"]].count(False) == 1


def test_misuse_is_one_line(run: Run, tmp_path: Path) -> None:
    for asked in ([str(tmp_path / "nothing")], [str(run.path), "--sample", "0"],
                  [str(run.path), "--slots", "0"]):  # fmt: skip
        done = CliRunner().invoke(app, ["verify", *asked])
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
