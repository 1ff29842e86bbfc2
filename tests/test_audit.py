"""Every planted unfairness is found, by the rule that is there for it; every fair run passes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from levelfield.bench import api
from levelfield.bench.audit import RULES, Finding, audit, is_fair
from levelfield.bench.family import Family
from levelfield.bench.spec import Budget, TrialRecord, Tuner
from levelfield.bench.store import MANIFEST, RECORDS, RUNNING, Run, RunWriter, load_run
from levelfield.cli import app
from levelfield.reports import ledger, page, view
from levelfield.tests import small

Records = list[TrialRecord]
PROTOCOL = replace(
    small.PROTOCOL,
    budget=Budget(steps=12, trials=3, studies=2, seeds=2, sweep=2, sweep_seeds=1),
    tuner=Tuner(reserve=1),
)
BRIEF = small.changed(trials=2, seeds=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two methods, two studies each, a sweep."""
    return small.run(tmp_path_factory.mktemp("audit"), ["adamw", "lion"], PROTOCOL)


def rewritten(
    run: Run, folder: Path, records: Records, changes: Mapping[str, Any] | None = None
) -> Run:
    """The run with other records and manifest, its chain intact: what an accident looks like."""
    kept = {key: value for key, value in run.manifest.items() if key != "sealed"}
    writer = RunWriter.create(folder / "run", {**kept, **(changes or {})})
    with writer:
        for record in records:
            writer.append(record)
    return load_run(writer.path)


def outcomes(run: Run, outcome: str = "unfair") -> dict[str, str]:
    return {item.name: item.detail for item in audit(run) if item.outcome == outcome}


def assert_fair(run: Run) -> dict[str, Finding]:
    found = audit(run)
    assert is_fair(found), [item for item in found if item.outcome == "unfair"]
    assert not [item for item in found if item.outcome == "unknown"]
    return {item.name: item for item in found}


def change(records: Records, phase: str, method: str, number: int = 0, **fields: Any) -> Records:
    """The records, one of them with other fields."""
    chosen = [r for r in records if (r.phase, r.optimizer) == (phase, method)][number]
    return [replace(r, **fields) if r is chosen else r for r in records]


# --- planted among the records ----------------------------------------------------------------


def stretched(records: Records) -> Records:
    """A final with twice the warm-up."""
    chosen = next(r for r in records if (r.phase, r.optimizer) == ("final", "lion"))
    trace = [[step, min(1.0, (step + 1) / 2)] for step, _ in chosen.lr_trace]
    return change(records, "final", "lion", lr_trace=trace)


def moved(records: Records) -> Records:
    """A tuning trial at a rate that someone liked better."""
    chosen = [r for r in records if (r.phase, r.optimizer) == ("tune", "lion")][2]
    hparams = {**chosen.hparams, "lr": chosen.hparams["lr"] * 1.5}
    return change(records, "tune", "lion", 2, hparams=hparams)


def off_best(records: Records) -> Records:
    """A final at another rate than its study's best trial."""
    chosen = next(r for r in records if (r.phase, r.optimizer) == ("final", "adamw"))
    hparams = {**chosen.hparams, "lr": chosen.hparams["lr"] * 2}
    return change(records, "final", "adamw", hparams=hparams)


def interleaved(records: Records) -> Records:
    """A final that ended between two timed windows."""
    last = [r for r in records if r.phase == "final"][-1]
    left = [r for r in records if r is not last]
    return [*left[:-2], last, *left[-2:]]


def in_blocks(records: Records) -> Records:
    """One method timed after the other, not in turn."""
    timed = [r for r in records if r.phase == "timing"]
    blocks = sorted(timed, key=lambda record: record.optimizer)
    return [*(r for r in records if r.phase != "timing"), *blocks]


def dropped(phase: str, method: str, number: int = 0) -> Callable[[Records], Records]:
    def edit(records: Records) -> Records:
        chosen = [r for r in records if (r.phase, r.optimizer) == (phase, method)][number]
        return [record for record in records if record is not chosen]

    return edit


def added(phase: str, method: str, **fields: Any) -> Callable[[Records], Records]:
    def edit(records: Records) -> Records:
        chosen = [r for r in records if (r.phase, r.optimizer) == (phase, method)][-1]
        return [*records, replace(chosen, **fields)]

    return edit


def edited(phase: str, method: str, **fields: Any) -> Callable[[Records], Records]:
    return lambda records: change(records, phase, method, **fields)


RISING = [[0, 0.0, 3.0], [320, 0.1, 2.0], [768, 0.2, 2.9]]
PLANTED: list[tuple[str, str, Callable[[Records], Records]]] = [
    ("another batch order", "batches", edited("final", "lion", batches_sha256="0" * 64)),
    ("another batch order for all", "batches", lambda records: [
        replace(r, batches_sha256="0" * 64) if r.phase == "final" else r for r in records]),
    ("no batch order", "batches", edited("tune", "adamw", batches_sha256=None)),
    ("other initial weights", "weights", edited("final", "lion", weights_sha256="0" * 64)),
    ("no initial weights", "weights", edited("final", "lion", weights_sha256=None)),
    ("an extra trial", "budget", added("tune", "lion", trial=3)),
    ("an extra study", "budget", added("tune", "lion", study=2, seed=200)),
    ("a missing trial", "budget", dropped("tune", "lion", 1)),
    ("a missing final", "finals", dropped("final", "lion")),
    ("an extra final", "finals", added("final", "lion", trial=4, seed=3)),
    ("an extra seed", "seeds", added("final", "lion", trial=4, seed=3)),
    ("a final on the tuning seed", "seeds", edited("final", "lion", seed=0)),
    ("a sweep on a final's seed", "seeds", edited("sweep", "lion", seed=1)),
    ("a missing rate", "sweep", dropped("sweep", "lion")),
    ("a longer warm-up", "schedule", stretched),
    ("no schedule", "schedule", edited("final", "lion", lr_trace=[])),
    ("another data set", "data", edited("final", "lion", data_digest="0" * 64)),
    ("another protocol", "protocol", edited("final", "lion", protocol_digest="0" * 64)),
    ("fewer steps", "horizon", edited("final", "lion", steps=11, tokens=11 * 64)),
    ("more steps", "horizon", edited("final", "lion", steps=13, tokens=13 * 64)),
    ("other tokens", "horizon", edited("final", "lion", tokens=1)),
    ("a point of one's own", "tuner", moved),
    ("other tuned names", "tuner", edited("tune", "lion", tuned=("lr",))),
    ("a final off its best point", "best", off_best),
    ("a look at the report slice", "report-slice", edited("tune", "lion", report_loss=1.0)),
    ("a trial beside the timing", "timing", interleaved),
    ("timed in blocks", "timing", in_blocks),
    ("timed once", "timing", dropped("timing", "lion")),
    ("timed too often", "timing", added("timing", "lion", trial=2)),
    ("another device", "device", edited("final", "lion", device="cuda:0")),
    ("a blank shown as 0", "measured", edited("final", "lion", tokens_per_s=0.0)),
    ("memory shown as 0", "measured", edited("final", "lion", peak_bytes={"rss": 0})),
    ("a window of 0 s", "measured", edited("timing", "lion", wall_s={"windows": [0.0]})),
    ("missing and there", "measured", edited("final", "lion", missing={"joules": "no"}, joules=1)),
    ("a diverged trial called good", "status", edited("tune", "lion", status="ok", curve=RISING)),
    ("a good trial called diverged", "status", edited("tune", "lion", status="diverged")),
    ("good without a loss", "status", edited("tune", "lion", status="ok", selection_loss=None)),
    ("a cell twice", "cells", added("tune", "lion")),
    ("a final seed twice", "cells", added("final", "lion", trial=9)),
    ("another schema", "schema", edited("final", "lion", schema=0)),
    ("a record of another run", "schema", edited("final", "lion", run_id="other")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "edit"), [item[1:] for item in PLANTED], ids=[item[0] for item in PLANTED]
)
def test_what_is_planted_among_the_records_is_found(
    run: Run, tmp_path: Path, rule: str, edit: Callable[[Records], Records]
) -> None:
    found = outcomes(rewritten(run, tmp_path, edit(list(run.records))))
    assert rule in found
    assert (
        "lion" in found[rule]
        or "adamw" in found[rule]
        or "seed" in found[rule]
        or (rule in ("budget", "device", "timing"))
    )


def test_an_unknown_method_is_found(run: Run, tmp_path: Path) -> None:
    stranger = replace(run.records[-1], optimizer="stranger")
    assert "stranger" in outcomes(rewritten(run, tmp_path, [*run.records, stranger]))["cells"]


def test_a_best_point_chosen_by_the_report_loss_is_found(run: Run, tmp_path: Path) -> None:
    """Tuning trials carry report losses, and finals and manifest follow the lowest of those."""
    tuned = [r for r in run.records if (r.phase, r.optimizer, r.study) == ("tune", "lion", 0)]
    best = run.manifest["studies"]["lion#0"]["best_trial"]
    liked = next(record for record in tuned if record.trial != best)
    records = [
        replace(r, report_loss=float(r.trial != liked.trial) + 1)
        if r in tuned
        else replace(r, hparams=liked.hparams)
        if (r.phase, r.optimizer, r.study) == ("final", "lion", 0)
        else r
        for r in run.records
    ]
    studies = {
        **run.manifest["studies"],
        "lion#0": {**run.manifest["studies"]["lion#0"], "best_trial": liked.trial},
    }
    found = outcomes(rewritten(run, tmp_path, records, {"studies": studies}))
    assert {"best", "report-slice"} <= set(found)
    assert f"trial {best} has the lowest selection loss" in found["best"]


# --- planted in the manifest and in the file --------------------------------------------------


def with_protocol(run: Run, **fields: Any) -> dict[str, Any]:
    return {"protocol": {**run.manifest["protocol"], **fields}}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("freeze", lambda run: {"freeze": {**run.manifest["freeze"], "alpha": 0.5}}),
        ("freeze", lambda run: {"freeze": None}),
        ("freeze", lambda run: with_protocol(run, margin_nats=0.5)),
        ("protocol", lambda run: with_protocol(run, clip_norm=None)),
        ("schedule", lambda run: with_protocol(
            run, schedule={**run.manifest["protocol"]["schedule"], "warmup": 0.5})),
        ("horizon", lambda run: {"horizons": {"lion": 16}}),
        ("seeds", lambda run: {"seed": 1}),
        ("tuner", lambda run: with_protocol(
            run, tuner={**run.manifest["protocol"]["tuner"], "factor": 2.0})),
        ("best", lambda run: {"studies": {}}),
        ("finals", lambda run: {"final_seeds": 1}),
        ("data", lambda run: {"data": {**run.manifest["data"], "digest": "0" * 64}}),
        ("device", lambda run: {"device": "cuda"}),
        ("schema", lambda run: {"schema": 0}),
        ("readable", lambda run: {"timing_batches": None}),
        ("readable", lambda run: {"protocol": {}}),
        ("readable", lambda run: {"freeze": {"sha256": "0"}}),
    ],
)  # fmt: skip
def test_what_is_planted_in_the_manifest_is_found(
    run: Run, tmp_path: Path, rule: str, changes: Callable[[Run], dict[str, Any]]
) -> None:
    assert rule in outcomes(rewritten(run, tmp_path, list(run.records), changes(run)))


def test_an_edited_line_shows_in_the_chain(run: Run, tmp_path: Path) -> None:
    other = rewritten(run, tmp_path, list(run.records))
    assert "chain" not in outcomes(other)
    whole = (other.path / RECORDS).read_bytes()
    lines = whole.splitlines(keepends=True)
    retries = lines[4].replace(b'"retries":0', b'"retries":1')
    assert retries != lines[4]
    for edit, broken in (
        ([*lines[:4], retries, *lines[5:]], "line 6 does not follow"),
        ([*lines[:4], *lines[5:]], "line 5 does not follow"),
        ([*lines[:4], lines[5], lines[4], *lines[6:]], "line 5 does not follow"),
    ):
        (other.path / RECORDS).write_bytes(b"".join(edit))
        assert broken in outcomes(load_run(other.path))["chain"]
    (other.path / RECORDS).write_bytes(whole[:-9])  # a torn line is no edit
    assert "chain" not in outcomes(load_run(other.path))
    assert "torn" in outcomes(load_run(other.path), "warning")["schema"]


# --- fair runs --------------------------------------------------------------------------------


def test_a_run_is_fair_and_every_rule_speaks(run: Run) -> None:
    found = assert_fair(run)
    assert len(found) > len(RULES)
    assert all(item.detail for item in found.values())
    assert found["chain"].detail.startswith(f"{len(run.records)} lines")
    assert {n for n, item in found.items() if item.outcome == "warning"} <= {"edges", "evidence"}
    assert "2 tuning studies" in found["evidence"].detail


def test_a_changed_end_shows_in_what_the_run_was_sealed_with(run: Run, tmp_path: Path) -> None:
    sealed = {"sealed": run.manifest["sealed"]}
    assert "chain" not in outcomes(rewritten(run, tmp_path / "a", list(run.records), sealed))
    forged = change(list(run.records), "timing", "lion", retries=1)
    assert "run ended with" in outcomes(rewritten(run, tmp_path / "b", forged, sealed))["chain"]
    cut = rewritten(run, tmp_path / "c", list(run.records[:-1]), sealed)
    assert "run ended with" in outcomes(cut)["chain"]


def test_a_forged_loss_is_left_to_verify(run: Run, tmp_path: Path) -> None:
    forged = change(list(run.records), "final", "lion", report_loss=0.1)
    assert is_fair(audit(rewritten(run, tmp_path, forged)))


def test_the_report_may_ask_without_a_heavy_import(run: Run) -> None:
    code = f"""
import sys
from levelfield.bench.audit import audit, is_fair
from levelfield.bench.store import load_run
found = audit(load_run({str(run.path)!r}), replay=False)
assert is_fair(found) and "tuner" not in [item.name for item in found]
print(sorted({{"torch", "transformers", "optuna", "pandas", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_run_without_a_record_is_not_unfair(run: Run, tmp_path: Path) -> None:
    empty = rewritten(run, tmp_path, [], {"studies": {}, "freeze": None})
    assert "budget" in outcomes(empty, "warning")
    assert_fair(empty)


def test_an_interrupted_run_is_fair_and_so_is_its_resumption(run: Run, tmp_path: Path) -> None:
    """Cut anywhere: a marker of the trial that was under way is what an interruption leaves."""
    whole = list(run.records)
    for left in (0, 2, 7, len(whole) - 3):
        cut = rewritten(run, tmp_path / str(left), whole[:left])
        gone = "-".join(map(str, whole[left].key))
        (cut.path / RUNNING / gone).touch()
        assert_fair(cut)
        assert "budget" in outcomes(cut, "warning") or left > 12
    resumed = api.resume(cut.path)
    assert resumed.manifest["interruptions"]
    assert_fair(resumed)


def test_timing_that_went_on_after_an_extension_is_told_not_blamed(tmp_path: Path) -> None:
    brief = small.run(tmp_path, ["adamw"], BRIEF)
    cut = rewritten(brief, tmp_path, list(brief.records[:-1]))
    (cut.path / RUNNING / "-".join(map(str, brief.records[-1].key))).touch()
    grown = api.extend(cut.path, ["lion"])
    assert_fair(grown)
    assert "ended while batch 0 was being timed" in outcomes(grown, "warning")["timing"]


def test_an_extended_run_is_fair(tmp_path: Path) -> None:
    brief = small.run(tmp_path, ["adamw"], BRIEF)
    grown = api.extend(brief.path, [small.plugin("odd:TWO_PASSES"), small.plugin("odd:OWN")])
    assert_fair(grown)
    assert_fair(api.extend(brief.path, seeds=3))


def test_a_rerun_of_changed_code_is_fair_and_its_old_lines_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = (small.PLUGINS / "faulty.py").read_text()
    file.write_text(text)
    done = small.run(tmp_path, ["adamw", f"{file}:GOOD"], BRIEF)
    file.write_text(text.replace("groups, lr=1.0", "groups, lr=0.5"))
    found = assert_fair(api.resume(done.path, rerun_stale=True))
    assert found["code"].detail == "5 records of good were made by other code"


def test_failures_are_fair(tmp_path: Path) -> None:
    names = ("RAISES", "ABORTS", "NAN_FIRST", "NAN_LATE", "RUNS_AWAY", "STANDS_STILL", "MEMORY")
    methods = [small.plugin(f"faulty:{name}") for name in names]
    odd = [small.plugin(f"odd:{name}") for name in ("CONSTANT", "MATRICES", "NOISY")]
    assert_fair(small.run(tmp_path, [*methods, *odd], BRIEF, slots=2))


def test_a_control_with_labels_and_seeds_of_its_own_is_fair(tmp_path: Path) -> None:
    control = replace(BRIEF, paired=False, reference="adamw@a")
    done = small.run(tmp_path, ["adamw@a", "adamw@b"], control)
    assert "shared by no two methods" in assert_fair(done)["seeds"].detail
    finals = [r for r in done.records if r.phase == "final"]
    shared = change(list(done.records), "final", "adamw@b", seed=finals[0].seed)
    assert "2 finals share seed" in outcomes(rewritten(done, tmp_path, shared))["seeds"]


@pytest.mark.parametrize(
    ("unit", "amount"), [("tokens", 64.0 * 20), ("passes", 24.0), ("seconds", 0.6)]
)
def test_a_horizon_of_its_own_for_every_method_is_fair(
    tmp_path: Path, unit: Any, amount: float
) -> None:
    budget = replace(BRIEF.budget, unit=unit, amount=amount, trials=1)
    methods = ["adamw", small.plugin("odd:TWO_PASSES")]
    done = small.run(tmp_path, methods, replace(BRIEF, budget=budget))
    assert unit in assert_fair(done)["horizon"].detail
    more = {**done.manifest["horizons"], "adamw": 12}
    found = outcomes(rewritten(done, tmp_path, list(done.records), {"horizons": more}))
    assert "steps of adamw, not 12" in found["horizon"]


def test_a_controller_that_is_timed_to_the_end_is_fair(tmp_path: Path) -> None:
    timing = replace(BRIEF.timing, steps=2)
    done = small.run(tmp_path, ["adamw", "adafrugal_t"], replace(BRIEF, timing=timing))
    timed = {r.optimizer: r.steps for r in done.records if r.phase == "timing"}
    assert timed == {"adamw": 7, "adafrugal_t": 16}
    assert_fair(done)
    cut = [replace(r, steps=9) if r.phase == "timing" and r.optimizer != "adamw" and r.trial == 1
           else r for r in done.records]  # fmt: skip
    assert "adafrugal_t" in outcomes(rewritten(done, tmp_path, cut))["horizon"]


def test_points_of_another_run_are_fair(run: Run, tmp_path: Path) -> None:
    target = small.changed(PROTOCOL, name="target", steps=14)
    done = api.run(target, ["adamw"], out=tmp_path, slots=1, tuned_from=run.path)
    assert_fair(done)
    chosen = next(r for r in done.records if r.phase == "transfer")
    hparams = {**chosen.hparams, "lr": 1.0}
    other = change(list(done.records), "transfer", "adamw", hparams=hparams)
    assert "that it comes from" in outcomes(rewritten(done, tmp_path, other))["best"]


# --- the command ------------------------------------------------------------------------------


def test_the_command_tells_unfair_first_and_the_verdict_last(run: Run, tmp_path: Path) -> None:
    fair = CliRunner().invoke(app, ["audit", str(run.path)])
    assert fair.exit_code == 0, fair.output
    assert fair.stdout.splitlines()[-1].startswith(f"{run.path}: fair (")
    planted = rewritten(run, tmp_path, change(list(run.records), "final", "lion", seed=0))
    done = CliRunner().invoke(app, ["audit", str(planted.path)])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("unfair")
    assert lines[-1].startswith(f"{planted.path}: unfair (")
    envelope = json.loads(CliRunner().invoke(app, ["audit", str(planted.path), "--json"]).stdout)
    assert (envelope["command"], envelope["exit_code"]) == ("audit", 1)
    assert envelope["data"]["fair"] is False
    assert set(envelope["data"]["findings"][0]) == {"name", "outcome", "detail"}


def test_misuse_is_one_line(run: Run, tmp_path: Path) -> None:
    other = rewritten(run, tmp_path, list(run.records))
    (other.path / MANIFEST).write_text("{")
    for path in (tmp_path / "nothing", other.path):
        done = CliRunner().invoke(app, ["audit", str(path)])
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1


def test_without_records_there_is_nothing_to_audit(run: Run, tmp_path: Path) -> None:
    empty = rewritten(run, tmp_path, [])
    done = CliRunner().invoke(app, ["audit", str(empty.path)])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"levelfield: nothing to audit: {empty.path} has no records "
        f"(`levelfield run --resume {empty.path}` trains what is missing)\n"
    )


def test_members_without_records_are_no_part_of_a_familys_verdict(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rewritten(run, tmp_path / "whole", list(run.records))
    empty = rewritten(run, tmp_path / "empty", [])
    members: list[tuple[str, Run]] = [("whole", whole), ("empty", empty)]
    monkeypatch.setattr("levelfield.bench.family.is_family", lambda path: True)
    monkeypatch.setattr(
        "levelfield.bench.family.load_family", lambda path: Family(path, {}, tuple(members))
    )
    done = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert done.exit_code == 0
    first, *_, last = done.stdout.splitlines()
    assert first == f"{tmp_path / 'empty'}: no records, nothing to audit"
    assert last.startswith(f"{tmp_path / 'whole'}: fair (")
    for left in ([("empty", empty)], []):
        members[:] = left
        done = CliRunner().invoke(app, ["audit", str(tmp_path)])
        assert done.exit_code == 2
        assert f"nothing to audit: {tmp_path} has no records" in done.stderr


def test_the_page_shows_what_the_audit_finds(run: Run) -> None:
    fair = ledger.checks(view.build(run))
    assert "NO" not in set(fair["result"])
    assert [alert for alert in page.alerts(view.build(run)) if "fairness" in alert] == []
    odd = tuple(
        replace(r, weights_sha256="0" * 64) if (r.phase, r.optimizer) == ("final", "lion") else r
        for r in run.records
    )
    seen = view.build(replace(run, records=odd))
    found = ledger.checks(seen)
    assert "weights" in set(found[found["result"] == "NO"]["check"])
    assert any("fairness fails: weights" in alert for alert in page.alerts(seen))
