"""Whole runs: equal records, adding to a run, changed methods, failures that are records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from levelfield.bench import api
from levelfield.bench.campaign import exit_code
from levelfield.bench.spec import BenchError, Phase, TrialRecord
from levelfield.bench.store import (
    MANIFEST,
    RECORDS,
    RUNNING,
    Run,
    RunWriter,
    chain_breaks,
    equal_records,
)
from levelfield.bench.study import final_seed, tune_seed
from levelfield.tests import small

BRIEF = small.changed(trials=2, seeds=1)
FAULTY = small.PLUGINS / "faulty.py"


def named(methods: Sequence[str]) -> dict[str, Any]:
    """The part of a manifest that an exit code is read from."""
    return {"methods": [{"name": name} for name in methods]}


def shorter(run: Run) -> list[tuple[str, str, int]]:
    return [(record.phase, record.optimizer, record.trial) for record in run.records]


def lines(run: Run) -> bytes:
    return (run.path / RECORDS).read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two methods, one trial at a time."""
    return small.run(tmp_path_factory.mktemp("run"), ["adamw", "lion"])


@pytest.fixture
def brief(tmp_path: Path) -> Run:
    """A run of the reference alone, to be added to."""
    return small.run(tmp_path, ["adamw"], BRIEF)


# --- a run and its files ----------------------------------------------------------------------


def test_a_run_is_whole(run: Run) -> None:
    expected = [
        *(("tune", name, trial) for trial in range(3) for name in ("adamw", "lion")),
        *(("final", name, seed) for seed in range(2) for name in ("adamw", "lion")),
        *(("timing", name, window) for window in range(2) for name in ("adamw", "lion")),
    ]
    assert shorter(run) == expected
    assert list(chain_breaks(run.path / RECORDS)) == []
    assert list((run.path / RUNNING).iterdir()) == []
    assert run.notes == ()
    assert exit_code(run.records, named(["adamw", "lion"])) == 0
    assert {record.run_id for record in run.records} == {run.path.name}
    assert {record.retries for record in run.records} == {0}


def test_no_file_of_a_run_holds_nan(run: Run) -> None:
    for name in (MANIFEST, RECORDS):
        text = (run.path / name).read_text()
        assert "NaN" not in text
        assert "Infinity" not in text


@pytest.mark.parametrize("slots", [1, 2])
def test_the_same_seed_gives_equal_records(run: Run, tmp_path: Path, slots: int) -> None:
    again = small.run(tmp_path, ["adamw", "lion"], slots=slots)
    assert equal_records(run.records, again.records) == []
    assert list(chain_breaks(again.path / RECORDS)) == []
    if slots == 1:
        assert shorter(again) == shorter(run)


def test_resuming_a_finished_run_trains_nothing(run: Run) -> None:
    before = lines(run)
    again = api.resume(run.path)
    assert lines(again) == before
    assert again.manifest["interruptions"] == []
    assert again.manifest["methods"] == run.manifest["methods"]


def test_records_that_are_gone_are_trained_again_and_no_others(run: Run, tmp_path: Path) -> None:
    whole = small.run(tmp_path, ["adamw", "lion"])
    kept = lines(whole).splitlines(keepends=True)
    for left in (0, 3, 7, 11):
        (whole.path / RECORDS).write_bytes(b"".join(kept[:left]))
        resumed = api.resume(whole.path, slots=2)
        assert lines(resumed).startswith(b"".join(kept[:left]))
        assert equal_records(run.records, resumed.records) == []
        assert len(resumed.records) == len(kept)
        assert list(chain_breaks(whole.path / RECORDS)) == []


def test_a_torn_line_is_set_aside_and_its_trial_rerun(run: Run, tmp_path: Path) -> None:
    whole = small.run(tmp_path, ["adamw", "lion"])
    (whole.path / RECORDS).write_bytes(lines(whole)[:-40])
    resumed = api.resume(whole.path)
    assert equal_records(run.records, resumed.records) == []
    assert len(resumed.records) == len(run.records)


# --- adding to a run --------------------------------------------------------------------------


def test_a_method_from_a_file_is_added_without_training_the_rest_again(brief: Run) -> None:
    before = lines(brief)
    grown = api.extend(brief.path, [small.plugin("faulty:GOOD")])
    assert lines(grown).startswith(before)
    added = shorter(grown)[len(brief.records) :]
    assert added == [
        *(("tune", "good", trial) for trial in range(2)),
        ("final", "good", 0),
        *(("timing", name, window) for window in (2, 3) for name in ("adamw", "good")),
    ]
    assert [item["name"] for item in grown.manifest["methods"]] == ["adamw", "good"]
    assert grown.manifest["timing_batches"] == [["adamw"], ["adamw", "good"]]
    assert list(chain_breaks(grown.path / RECORDS)) == []
    # Trained as it would have been from the start.
    together = small.run(brief.path.parent, ["adamw", small.plugin("faulty:GOOD")], BRIEF)
    alike = [record for record in grown.records if record.phase != "timing"]
    assert equal_records(alike, [r for r in together.records if r.phase != "timing"]) == []


def test_seeds_are_added(brief: Run) -> None:
    before = lines(brief)
    grown = api.extend(brief.path, seeds=3)
    assert lines(grown).startswith(before)
    assert shorter(grown)[len(brief.records) :] == [("final", "adamw", 1), ("final", "adamw", 2)]
    assert [r.seed for r in grown.records if r.phase == "final"] == [
        final_seed(0, 0, index) for index in range(3)
    ]
    assert grown.manifest["final_seeds"] == 3
    # And a resumed run knows of them.
    assert api.resume(grown.path).records == grown.records


def test_a_reference_that_comes_later_is_timed_with_those_it_came_with(tmp_path: Path) -> None:
    first = small.run(tmp_path, [small.plugin("faulty:GOOD")], BRIEF)
    grown = api.extend(first.path, ["adamw"])
    timed = small.by_method(grown.records, "timing")
    assert [record.trial for record in timed["good"]] == [0, 1]
    assert [record.trial for record in timed["adamw"]] == [2, 3]


def test_what_cannot_be_added_is_refused_and_nothing_changes(brief: Run) -> None:
    before = lines(brief), (brief.path / MANIFEST).read_bytes()
    for methods, seeds, reason in (
        (["adamw"], None, "already in this run"),
        (["lion", "lion"], None, "two methods are named 'lion'"),
        (["adamv"], None, "unknown optimizer"),
        ([str(FAULTY) + ":NOTHING"], None, "is not there"),
        ([], 0, "0"),
        ([], -1, "-1"),
        ([], 10**6, "1000000 final seeds"),
    ):
        with pytest.raises(BenchError, match=reason):
            api.extend(brief.path, methods, seeds=seeds)
    grown = api.extend(brief.path, seeds=2)
    with pytest.raises(BenchError, match="--seeds 1, and this run has 2"):
        api.extend(grown.path, seeds=1)
    assert lines(grown).startswith(before[0])
    assert len(grown.records) == len(brief.records) + 1


# --- changed methods --------------------------------------------------------------------------


def edited(tmp_path: Path, old: str, new: str, name: str = "mine.py") -> Path:
    """A copy of the faulty methods that can be edited under a run."""
    file = tmp_path / name
    text = (file if file.exists() else FAULTY).read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


RATE = "super().__init__(groups, lr=1.0)"


def test_a_changed_method_is_refused_and_then_trained_again(tmp_path: Path) -> None:
    file = edited(tmp_path, RATE, RATE)
    run = small.run(tmp_path, ["adamw", f"{file}:GOOD"], BRIEF)
    before = lines(run)
    edited(tmp_path, "Faulty(torch.optim.SGD):", "Faulty(torch.optim.SGD):  # a comment")
    assert api.resume(run.path).records == run.records

    edited(tmp_path, "        super().step()", "        self.clock += 0\n        super().step()")
    for again in (lambda: api.resume(run.path), lambda: api.extend(run.path, ["lion"])):
        with pytest.raises(BenchError, match="the code of good changed since this run began"):
            again()
    assert lines(run) == before

    rerun = api.resume(run.path, rerun_stale=True)
    assert lines(rerun).startswith(before)
    fresh = rerun.records[len(run.records) :]
    assert [(r.phase, r.optimizer, r.trial) for r in fresh] == [
        *(("tune", "good", trial) for trial in range(2)),
        ("final", "good", 0),
        *(("timing", name, window) for window in (2, 3) for name in ("adamw", "good")),
    ]
    digests = {record.spec_digest for record in rerun.records if record.optimizer == "good"}
    assert len(digests) == 2
    today = {item["name"]: item["digest"] for item in rerun.manifest["methods"]}
    assert {r.spec_digest for r in fresh if r.optimizer == "good"} == {today["good"]}
    assert list(chain_breaks(rerun.path / RECORDS)) == []
    # From here on it is a run like any other.
    assert api.resume(run.path).records == rerun.records
    assert api.resume(run.path, rerun_stale=True).records == rerun.records


def test_a_changed_reference_is_timed_again_beside_all(tmp_path: Path) -> None:
    file = edited(tmp_path, RATE, RATE)
    protocol = replace(BRIEF, reference="good")
    run = small.run(tmp_path, ["adamw", f"{file}:GOOD"], protocol)
    edited(tmp_path, RATE, RATE.replace("1.0", "0.5"))
    rerun = api.resume(run.path, rerun_stale=True)
    fresh = [r for r in rerun.records[len(run.records) :] if r.phase == "timing"]
    assert [(r.optimizer, r.trial) for r in fresh] == [
        (name, window) for window in (2, 3) for name in ("adamw", "good")
    ]


def test_a_run_of_another_protocol_or_engine_is_refused(brief: Run) -> None:
    manifest = json.loads((brief.path / MANIFEST).read_text())
    for changes, reason in (
        ({"protocol_digest": "0"}, "another version of the training loop or of the protocol"),
        ({"data": {**manifest["data"], "digest": "0"}}, "the data is not what it was"),
    ):
        (brief.path / MANIFEST).write_text(json.dumps({**manifest, **changes}))
        with pytest.raises(BenchError, match=reason):
            api.resume(brief.path)


def test_records_of_other_points_are_told(brief: Run) -> None:
    kept = lines(brief).splitlines(keepends=True)
    record = json.loads(kept[1])
    record["hparams"]["lr"] *= 2
    changed = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    (brief.path / RECORDS).write_bytes(kept[0] + changed)
    with pytest.raises(BenchError, match="tune-adamw-1-0 has other hyper-parameters"):
        api.resume(brief.path)


def test_one_coordinator_writes_a_run(brief: Run) -> None:
    with RunWriter(brief.path):
        for again in (lambda: api.resume(brief.path), lambda: api.extend(brief.path, seeds=2)):
            with pytest.raises(BenchError, match=r"in use by another levelfield \(process \d+\)"):
                again()
    assert api.resume(brief.path).records == brief.records


# --- failures are records ---------------------------------------------------------------------

FAILURES = [
    ("RAISES", "error", r"RuntimeError: the sky fell \(faulty.py:\d+\)", 6),
    ("RAISES_AT_ONCE", "error", r"RuntimeError: no start", 0),
    ("RAISES_IN_BUILD", "error", r"KeyError: 'rank' \(faulty.py:\d+\)", 0),
    ("MEMORY", "oom", "MemoryError", 6),
    ("DEVICE_MEMORY", "oom", "OutOfMemoryError: CUDA: out", 6),
    ("HOST_MEMORY", "oom", "can't allocate memory", 6),
    ("ABORTS", "error", "SIGABRT", None),
    ("SEGFAULTS", "error", "SIGSEGV", None),
    ("KILLED", "killed", "SIGKILL, often the out-of-memory killer", None),
    ("EXITS", "error", "exit code 3 and no record", None),
    ("NAN_FIRST", "diverged", "training loss is nan at step 1", 2),
    ("NAN_LATE", "diverged", "loss is nan at step 1[45]", 15),
    ("RUNS_AWAY", "diverged", "above the initial", 16),
    ("STANDS_STILL", "undertrained", "above 0.95 x the initial", 16),
    ("BOASTS", "error", "what boasts counts makes no sense", 16),
    ("LEAVES_OUT", "error", "embed_tokens.weight'] left out", 0),
    ("HOLDS_TWICE", "error", "embed_tokens.weight'] held twice", 0),
    ("NONSENSE", "error", r"build of nonsense returned an? int", 0),
]


@pytest.fixture(scope="module")
def failures() -> dict[str, TrialRecord]:
    """Every way to fail, one process each."""
    requests = [small.request(small.plugin(f"faulty:{name}")) for name, *_ in FAILURES]
    records = small.execute(requests, slots=2)
    return dict(zip((name for name, *_ in FAILURES), records, strict=True))


@pytest.mark.parametrize(("name", "status", "reason", "steps"), FAILURES)
def test_a_failure_is_a_record_with_its_reason(
    failures: dict[str, TrialRecord],
    name: str,
    status: str,
    reason: str,
    steps: int | None,
) -> None:
    record = failures[name]
    assert record.status == status
    assert re.search(reason, record.reason or ""), record.reason
    assert "\n" not in (record.reason or "")
    assert record.steps == (steps or 0)
    assert record.tokens == record.steps * small.PROTOCOL.tokens_per_step
    assert record.hparams["lr"] == 0.5
    if steps:
        assert record.curve
        assert record.initial_loss is not None
        assert record.train_loss
        assert record.lr_trace
        assert record.state_bytes == 0
        assert record.batches_sha256 is not None
    if steps is not None and name != "RAISES_IN_BUILD":
        assert record.weights_sha256 is not None
    if record.selection_loss is None:
        assert record.missing["selection_loss"] == record.reason


def test_a_trial_that_takes_too_long_is_ended() -> None:
    protocol = small.changed(trial_timeout_s=1.5)
    hung, good = small.execute(
        [small.request(small.plugin(f"faulty:{name}"), protocol) for name in ("SLEEPS", "GOOD")],
        slots=2,
    )
    assert (hung.status, hung.reason) == ("timeout", "longer than trial_timeout_s = 1.5 s")
    assert good.status == "ok"


def test_what_a_method_prints_goes_to_stderr(root: Path) -> None:
    code = """
from levelfield.tests import small
(record,) = small.execute([small.request(small.plugin("faulty:SHOUTS"))])
print(record.status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout == "ok\n"
    # More than a pipe holds, and none of it lost.
    assert done.stderr.count("noise") == done.stderr.count("complaint") == 160_000


def test_a_run_goes_on_with_the_other_methods(tmp_path: Path) -> None:
    faulty = [small.plugin(f"faulty:{name}") for name in ("RAISES", "ABORTS", "NAN_FIRST")]
    run = small.run(tmp_path, [*faulty, "adamw"], BRIEF, slots=2)
    tried = small.by_method(run.records, "tune")
    statuses = {name: [record.status for record in tried[name]] for name in sorted(tried)}
    good = statuses.pop("adamw")
    assert statuses == {
        "raises": ["error"] * 2,
        "aborts": ["error"] * 2,
        "nan_first": ["diverged"] * 2,
    }
    assert set(good) <= {"ok", "undertrained"}
    phases: tuple[Phase, ...] = ("final", "timing")
    for phase in phases:
        assert set(small.by_method(run.records, phase)) == {"adamw"}
    assert "NaN" not in (run.path / RECORDS).read_text()
    assert exit_code(run.records, named(tried)) == 1
    # The other methods trained as if alone.
    alone = small.run(tmp_path, ["adamw"], BRIEF)
    assert equal_records(alone.records, [r for r in run.records if r.optimizer == "adamw"]) == []


def test_a_run_in_which_nothing_works_ends(tmp_path: Path) -> None:
    run = small.run(tmp_path, [small.plugin("faulty:NAN_FIRST")], BRIEF)
    assert shorter(run) == [("tune", "nan_first", 0), ("tune", "nan_first", 1)]
    assert exit_code(run.records, named(["nan_first"])) == 1
    assert api.resume(run.path).records == run.records


def test_a_diverged_rate_is_a_result_and_a_broken_trial_is_not(run: Run) -> None:
    first = next(record for record in run.records if record.phase == "tune")
    for status, code in (("diverged", 0), ("undertrained", 0), ("unsupported", 0)):
        records = [replace(first, status=status), *run.records[1:]]
        assert exit_code(records, named(["adamw", "lion"])) == code
    for status in ("error", "oom", "timeout", "killed"):
        broken = [replace(first, status=status), *run.records[1:]]
        assert exit_code(broken, named(["adamw", "lion"])) == 1
    # Superseded by a later record of the cell, it is history.
    assert exit_code([replace(first, status="error"), *run.records], named(["adamw", "lion"])) == 0
    finals = [r for r in run.records if not (r.phase == "final" and r.optimizer == "lion")]
    assert exit_code(finals, named(["adamw", "lion"])) == 1


# --- settings of a run ------------------------------------------------------------------------


def test_settings_and_seeds_are_in_the_manifest(tmp_path: Path) -> None:
    run = small.run(
        tmp_path, ["adamw"], settings=["budget.steps=12", "budget.trials=1"], seeds=1, seed=7
    )
    assert run.manifest["modified"] == ["budget.steps=12", "budget.trials=1"]
    assert run.manifest["protocol"]["budget"]["steps"] == 12
    assert (run.manifest["seed"], run.manifest["final_seeds"]) == (7, 1)
    assert [record.steps for record in run.records if record.phase != "timing"] == [12, 12]
    assert {record.seed for record in run.records} == {tune_seed(7, 0), final_seed(7, 0, 0)}


def test_a_broken_request_makes_no_folder(tmp_path: Path) -> None:
    for methods, more, reason in (
        (["adamv"], {}, "did you mean adamw"),
        ([], {}, "names no methods"),
        (["adamw"], {"seeds": 0}, "the number of final seeds = 0"),
        (["adamw"], {"seed": -1}, "--seed -1"),
        (["adamw"], {"slots": 0}, "--slots 0"),
        (["adamw"], {"device": "tpu"}, "unknown device"),
        (["adamw"], {"settings": ["budget.step=3"]}, "did you mean budget.steps"),
        (["adamw"], {"settings": ["budget.trials=0"]}, "budget.trials = 0"),
        (["adamw", "adamw"], {}, "two methods are named 'adamw'"),
    ):
        with pytest.raises(BenchError) as error:
            small.run(tmp_path, methods, **more)
        assert reason in str(error.value)
    assert list(tmp_path.iterdir()) == []
