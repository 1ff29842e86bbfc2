"""Runs on disk: nothing is lost, nothing is half written, nothing odd passes in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from levelfield.bench import store
from levelfield.bench.digest import to_plain
from levelfield.bench.spec import SCHEMA, BenchError, Protocol, TrialRecord
from levelfield.bench.store import RunWriter, chain_breaks, equal_records, load_run

MANIFEST = {"schema": SCHEMA, "run_id": "r", "interruptions": []}

FULL = TrialRecord(
    run_id="20250301T101500Z-smoke-3fa91c",
    phase="final",
    protocol="smoke",
    optimizer="lion",
    trial=1,
    study=1,
    seed=2**60,
    hparams={"lr": 3e-5, "fused": True, "betas": [0.9, 0.99], "name": "é\u2028", "none": None},
    tuned=("lr", "beta2"),
    status="diverged",
    reason='a "reason"\nof two lines',
    initial_loss=5.5,
    selection_loss=2.25,
    report_loss=0.1 + 0.2,
    tokens=1024,
    steps=16,
    passes=16.5,
    wall_s={"setup": 0.25, "windows": [0.5, 0.75]},
    tokens_per_s=1e5,
    parameters=139_000,
    state_bytes=2**40,
    state_tensors=4,
    claimed_state_bytes=8,
    peak_bytes={"weights": 4, "total": 16, "rss": 32, "nvml": None},
    curve=[[64, 0.5, 5.0], [128, 1.0, 4.0]],
    train_loss=[[1, 5.0]],
    lr_trace=[[0, 0.1]],
    host_reads=5,
    spikes=3,
    max_grad_norm=7.5,
    weights_sha256="a" * 64,
    batches_sha256="b" * 64,
    spec_digest="c" * 64,
    protocol_digest="d" * 64,
    data_digest="e" * 64,
    refreshes=9,
    series={"rho": [[0, 0.25]]},
    missing={"nvml": "no GPU"},
    scores={"report": {"accuracy": 0.75}},
    score_curve=[[64, 0.5]],
    adapter={"deployed_parameters": 3},
    final_sha256="f",
    joules=12.5,
    retries=2,
    device="cuda:1",
    previous_sha256=None,
)


def record(trial: int = 0, **changes: Any) -> TrialRecord:
    """A small record of a tuning trial."""
    plain: dict[str, Any] = {
        "run_id": "r",
        "phase": "tune",
        "protocol": "p",
        "optimizer": "adamw",
        "trial": trial,
        "seed": 0,
        "hparams": {"lr": 1e-3},
        "tuned": ("lr",),
        "status": "ok",
        "selection_loss": 2.5,
    }
    return TrialRecord(**{**plain, **changes})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three records."""
    path = tmp_path / "runs" / "r"
    with RunWriter.create(path, MANIFEST) as writer:
        for trial in range(3):
            writer.append(record(trial))
    return path


def lines(run: Path) -> list[bytes]:
    return (run / store.RECORDS).read_bytes().splitlines(keepends=True)


# --- what is written is read -------------------------------------------------------------------


def test_every_field_comes_back(tmp_path: Path) -> None:
    unset = [
        f.name for f in fields(FULL) if getattr(FULL, f.name) == f.default and f.name != "schema"
    ]
    assert unset == ["previous_sha256"]
    with RunWriter.create(tmp_path / "r", MANIFEST) as writer:
        written = writer.append(FULL)
    assert written == FULL
    (read,) = load_run(tmp_path / "r").records
    assert read == FULL
    assert isinstance(read.tuned, tuple)


def test_unset_fields_stay_unknown(run: Path) -> None:
    read = load_run(run).records[0]
    assert to_plain(read) == to_plain(record(0))
    assert read.report_loss is None
    assert json.loads(lines(run)[0])["peak_bytes"] == {}


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_never_reaches_the_disk(tmp_path: Path, odd: float) -> None:
    with RunWriter.create(tmp_path / "r", {**MANIFEST, "odd": odd}) as writer:
        writer.append(record(selection_loss=odd, curve=[[64, 0.5, odd]], hparams={"lr": odd}))
        writer.update_manifest(more=[odd])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    for name in (store.MANIFEST, store.RECORDS):
        json.loads((tmp_path / "r" / name).read_text(), parse_constant=refuse)
    read = load_run(tmp_path / "r")
    assert read.records[0].selection_loss is None
    assert read.records[0].curve == [[64, 0.5, None]]
    assert read.records[0].hparams == {"lr": None}
    assert read.manifest["odd"] is None
    assert read.manifest["more"] == [None]


def test_a_protocol_in_the_manifest_is_plain_data(tmp_path: Path) -> None:
    protocol = Protocol(name="p", summary="s")
    RunWriter.create(tmp_path / "r", {**MANIFEST, "protocol": protocol})
    assert load_run(tmp_path / "r").manifest["protocol"] == to_plain(protocol)


def test_an_unknown_field_of_a_line_is_no_obstacle(run: Path) -> None:
    data = {**json.loads(lines(run)[2]), "of_a_later_version": 1}
    text = b"".join(lines(run)[:2]) + json.dumps(data).encode() + b"\n"
    (run / store.RECORDS).write_bytes(text)
    assert len(load_run(run).records) == 3
    # The chain goes on from the line as it lies there, not as it would be written today.
    with RunWriter(run) as writer:
        writer.append(record(3))
    assert list(chain_breaks(run / store.RECORDS)) == []


# --- the chain ---------------------------------------------------------------------------------


def test_records_form_a_chain_across_writers(run: Path) -> None:
    with RunWriter(run) as writer:
        assert [r.trial for r in writer.records] == [0, 1, 2]
        writer.append(record(3))
    links = [json.loads(line)["previous_sha256"] for line in lines(run)]
    assert links[0] is None
    assert len(set(links)) == 4
    assert list(chain_breaks(run / store.RECORDS)) == []


def test_an_edited_line_breaks_the_chain(run: Path) -> None:
    edited = lines(run)
    edited[1] = edited[1].replace(b'"selection_loss":2.5', b'"selection_loss":1.5')
    assert edited[1] != lines(run)[1]
    (run / store.RECORDS).write_bytes(b"".join(edited))
    assert list(chain_breaks(run / store.RECORDS)) == ["line 3 does not follow from line 2"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda all_: [all_[0], all_[2]], 1),  # removed
        (lambda all_: [all_[1], all_[0], all_[2]], 3),  # swapped
        (lambda all_: [all_[0], all_[0], *all_[1:]], 1),  # doubled
        (lambda all_: [all_[0], b"garbage\n", *all_[1:]], 2),
        (lambda all_: [all_[0], b"[1]\n", *all_[1:]], 2),
        (lambda all_: all_, 0),
    ],
)
def test_lines_moved_about_break_the_chain(
    run: Path, change: Callable[[list[bytes]], list[bytes]], found: int
) -> None:
    (run / store.RECORDS).write_bytes(b"".join(change(lines(run))))
    assert len(list(chain_breaks(run / store.RECORDS))) == found


# --- torn and bad lines ------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b'{"run_id":"r","ph', b"{}", b"\xff\xfe\x00", b"\xe2\x80"])
def test_a_torn_last_line_is_moved_aside(run: Path, tail: bytes) -> None:
    whole = (run / store.RECORDS).read_bytes()
    (run / store.RECORDS).write_bytes(whole + tail)

    read = load_run(run)  # only reads
    assert [r.trial for r in read.records] == [0, 1, 2]
    assert read.notes == ("the last line of records.jsonl is torn and was left out",)
    assert (run / store.RECORDS).read_bytes() == whole + tail
    assert not (run / store.TORN).exists()

    with RunWriter(run) as writer:
        assert writer.notes == ["a torn last line of records.jsonl was moved to records.torn"]
        assert (run / store.RECORDS).read_bytes() == whole
        writer.append(record(3))
    kept = (run / store.TORN).read_text(encoding="utf-8")
    assert kept == tail.decode("utf-8", errors="replace") + "\n"
    assert list(chain_breaks(run / store.RECORDS)) == []
    read = load_run(run)
    assert [r.trial for r in read.records] == [0, 1, 2, 3]
    assert read.notes == ("1 torn line(s) lie in records.torn",)


def test_a_second_torn_line_is_kept_too(run: Path) -> None:
    for tail in ("first", "second"):
        with open(run / store.RECORDS, "a") as file:
            file.write(tail)
        with RunWriter(run):
            pass
    assert (run / store.TORN).read_text() == "first\nsecond\n"
    assert load_run(run).notes == ("2 torn line(s) lie in records.torn",)


def test_a_first_line_that_is_torn_leaves_an_empty_file(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "r", MANIFEST):
        (tmp_path / "r" / store.RECORDS).write_bytes(b'{"run')
    with RunWriter(tmp_path / "r") as writer:
        assert writer.records == []
        assert writer.append(record()).previous_sha256 is None
    assert len(load_run(tmp_path / "r").records) == 1


def _without(name: str) -> Callable[[bytes], bytes]:
    def change(line: bytes) -> bytes:
        data = json.loads(line)
        del data[name]
        return json.dumps(data).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: b"garbage", "line 2 is not a record"),
        (lambda line: line.rstrip()[:-9], "line 2 is not a record"),
        (lambda line: b"\xff", "line 2 is not a record"),
        (lambda line: b"", "line 2 is not a record"),
        (lambda line: b"[1]", "line 2 is not a record"),
        (lambda line: b"null", "line 2 is not a record"),
        (_without("optimizer"), "line 2 lacks a field: .*optimizer"),
        (_without("tuned"), "line 2 lacks a field: 'tuned'"),
        (
            lambda line: line.rstrip().replace(b'"schema":1', b'"schema":2'),
            r"line 2 has schema 2 \(this version reads up to 1\)",
        ),
        (
            lambda line: line.rstrip().replace(b'"schema":1', b'"schema":"1"'),
            "line 2 has schema 1 ",
        ),
    ],
)
def test_a_bad_line_in_the_middle_is_told_by_its_number(
    run: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    first, second, third = lines(run)
    bad = first + change(second) + b"\n" + third
    (run / store.RECORDS).write_bytes(bad)
    with pytest.raises(BenchError, match=message):
        load_run(run)
    # The refused writer changes nothing, and leaves no lock behind.
    for _ in range(2):
        with pytest.raises(BenchError, match=message):
            RunWriter(run).__enter__()
    assert (run / store.RECORDS).read_bytes() == bad
    (run / store.RECORDS).write_bytes(first + second + third)
    with RunWriter(run) as writer:
        assert len(writer.records) == 3


# --- folders that are not runs -----------------------------------------------------------------


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"no run at .*manifest\.json") as caught:
        load_run(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="no run at"):
        load_run(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(BenchError, match="no run at"):
        load_run(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"schema": 2}', "has schema 2"),
        (b'{"schema": "new"}', "has schema new"),
        (b'{"schema": null}', "has schema None"),
    ],
)
def test_a_bad_manifest_is_told(run: Path, text: bytes, message: str) -> None:
    (run / store.MANIFEST).write_bytes(text)
    with pytest.raises(BenchError, match=message) as caught:
        load_run(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [store.MANIFEST, store.RECORDS])
def test_a_folder_in_the_place_of_a_file_is_told(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(BenchError, match=f"cannot read .*{name}: Is a directory"):
        load_run(run)


def test_a_run_without_records_is_a_run(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "r", MANIFEST)
    read = load_run(str(tmp_path / "r"))
    assert (read.records, read.notes) == ((), ())


# --- one writer --------------------------------------------------------------------------------


def test_a_second_writer_is_refused_in_one_line(run: Path) -> None:
    with RunWriter(run) as first:
        with pytest.raises(BenchError, match="in use by another levelfield") as caught:
            RunWriter(run).__enter__()
        assert f"(process {os.getpid()})" in str(caught.value)
        assert "\n" not in str(caught.value)
        first.append(record(3))  # the refused one took nothing away
        assert len(load_run(run).records) == 4  # reading needs no lock
    with RunWriter(run) as writer:
        assert len(writer.records) == 4


HOLD = """
import sys
from pathlib import Path
from levelfield.bench.store import RunWriter
with RunWriter(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_writer_in_another_process_is_refused_and_its_death_frees_the_run(run: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BenchError, match=rf"in use by .* \(process {other.pid}\)"):
            RunWriter(run).__enter__()
        other.kill()
        other.wait(timeout=10)
        with RunWriter(run) as writer:  # no stale lock
            assert len(writer.records) == 3


def test_a_run_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot open"):
        RunWriter(tmp_path / "nothing").__enter__()
    assert list(tmp_path.iterdir()) == []


# --- disks -------------------------------------------------------------------------------------

FILL = """
import os, resource, signal, sys
from pathlib import Path
from levelfield.bench.spec import BenchError
from levelfield.bench.store import RECORDS, RunWriter, read_records
from dataclasses import replace
run = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RunWriter(run) as writer:
    before = (run / RECORDS).read_bytes()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    new = replace(writer.records[0], trial=3)
    for work in (lambda: writer.append(new), lambda: writer.update_manifest(more="x" * 10**5)):
        manifest = writer.manifest
        try:
            work()
        except BenchError as error:
            print(error)
        assert (run / RECORDS).read_bytes() == before
        assert writer.manifest == manifest
        assert len(writer.records) == 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    writer.append(new)
    assert (run / RECORDS).read_bytes().startswith(before)
"""


def test_a_full_disk_loses_nothing(run: Path) -> None:
    """The file may grow by 100 bytes: a record is written in part, and taken back."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(run)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    append, manifest = done.stdout.splitlines()
    assert append == (
        f"cannot write {run / store.RECORDS}: File too large (free the disk, then "
        f"`levelfield run --resume {run}`; 3 records are safe)"
    )
    assert manifest.startswith(f"cannot write {run / store.MANIFEST}: File too large")
    assert len(load_run(run).records) == 4
    assert list(chain_breaks(run / store.RECORDS)) == []
    assert list(run.glob("*.part")) == list(run.glob(".*.part")) == []


def test_a_disk_that_fails_on_sync_loses_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run / store.RECORDS).read_bytes()

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    with RunWriter(run) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(BenchError, match="Input/output error"):
                writer.append(record(3))
            with pytest.raises(BenchError, match="Input/output error"):
                writer.update_manifest(seed=1)
        assert (run / store.RECORDS).read_bytes() == before
        writer.append(record(3))
    assert list(chain_breaks(run / store.RECORDS)) == []


def test_a_torn_line_that_cannot_be_moved_stays(run: Path) -> None:
    with open(run / store.RECORDS, "ab") as file:
        file.write(b"torn")
    (run / store.TORN).mkdir()
    for _ in range(2):  # and the lock is free again
        with pytest.raises(BenchError, match=r"cannot write .*: Is a directory"):
            RunWriter(run).__enter__()
    assert (run / store.RECORDS).read_bytes().endswith(b"\ntorn")


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BenchError, match=r"cannot make the run folder .*--out") as caught:
        RunWriter.create(tmp_path / "file" / "r", MANIFEST)
    assert "\n" not in str(caught.value)


def test_a_run_folder_is_never_taken_twice(run: Path) -> None:
    before = (run / store.MANIFEST).read_bytes()
    with pytest.raises(BenchError, match="cannot make the run folder"):
        RunWriter.create(run, {"schema": SCHEMA, "run_id": "other"})
    assert (run / store.MANIFEST).read_bytes() == before


def test_the_manifest_is_whole_or_as_before(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter(run) as writer:
        writer.update_manifest(seed=1)
        assert writer.manifest == {**MANIFEST, "seed": 1}

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", die)
            with pytest.raises(KeyboardInterrupt):
                writer.update_manifest(seed=2)
        assert writer.manifest == {**MANIFEST, "seed": 1}

        def fail(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(BenchError, match="Permission denied"):
                writer.update_manifest(seed=2)
        assert writer.manifest == {**MANIFEST, "seed": 1}
        writer.update_manifest(seed=2)
    assert load_run(run).manifest["seed"] == 2


# --- trials under way --------------------------------------------------------------------------


def test_what_started_and_left_no_record_is_remembered(run: Path) -> None:
    with RunWriter(run) as writer:
        for key in ("tune-lion-1-0", "tune-adamw-1-0"):
            writer.mark(key)
        assert writer.interrupted() == ("tune-adamw-1-0", "tune-lion-1-0")
        writer.unmark("tune-lion-1-0")
        writer.unmark("tune-lion-1-0")
    assert RunWriter(run).interrupted() == ("tune-adamw-1-0",)


def test_a_lost_folder_of_markers_is_made_again(run: Path) -> None:
    (run / store.RUNNING).rmdir()
    writer = RunWriter(run)
    assert writer.interrupted() == ()
    writer.mark("a")
    assert writer.interrupted() == ("a",)


# --- equality ----------------------------------------------------------------------------------

FREE: dict[str, Any] = {
    "run_id": "other",
    "wall_s": {"setup": 9.0},
    "tokens_per_s": 1.0,
    "joules": None,
    "retries": 0,
    "previous_sha256": "f" * 64,
    "curve": [[64, 0.75, 5.0], [128, 2.0, 4.0]],
    "peak_bytes": {"weights": 4, "total": 16, "rss": 33, "nvml": 7},
}
"""Changes that leave `FULL` equal."""

BOUND: dict[str, Any] = {
    "study": 0,
    "protocol": "other",
    "hparams": {**FULL.hparams, "lr": 4e-5},
    "tuned": ("lr",),
    "status": "ok",
    "reason": None,
    "initial_loss": 5.0,
    "selection_loss": None,
    "report_loss": 0.3,
    "tokens": 1025,
    "steps": 15,
    "passes": 16.0,
    "parameters": 1,
    "state_bytes": 1,
    "state_tensors": 5,
    "claimed_state_bytes": 9,
    "peak_bytes": {"weights": 4, "total": 17, "rss": 32, "nvml": None},
    "curve": [[64, 0.5, 5.0], [128, 1.0, 4.5]],
    "train_loss": [],
    "lr_trace": [[0, 0.2]],
    "host_reads": 6,
    "spikes": None,
    "max_grad_norm": 7.0,
    "weights_sha256": "",
    "batches_sha256": "",
    "spec_digest": "",
    "protocol_digest": "",
    "data_digest": "",
    "refreshes": 8,
    "series": {},
    "scores": {},
    "score_curve": [[64, 0.75]],
    "adapter": {},
    "final_sha256": None,
    "missing": {},
    "device": "cpu",
    "schema": 0,
}
"""Changes that make `FULL` another record."""

KEYS = {"phase", "optimizer", "trial", "seed"}


def test_every_field_is_free_bound_or_a_key() -> None:
    names = {f.name for f in fields(TrialRecord)}
    assert FREE.keys() | BOUND.keys() | KEYS == names
    assert FREE.keys() & BOUND.keys() == {"curve", "peak_bytes"}


@pytest.mark.parametrize("name", FREE)
def test_clocks_chain_and_retries_are_no_difference(name: str) -> None:
    changed = replace(FULL, **{name: FREE[name]})
    assert changed != FULL
    assert equal_records([FULL], [changed]) == []


@pytest.mark.parametrize("name", BOUND)
def test_any_other_field_is_a_difference(name: str) -> None:
    changed = replace(FULL, **{name: BOUND[name]})
    assert equal_records([FULL], [changed]) == [f"{FULL.key} differs in {name}"]


@pytest.mark.parametrize(
    ("name", "value"), [("phase", "tune"), ("optimizer", "x"), ("trial", 2), ("seed", 1)]
)
def test_another_key_is_another_cell(name: str, value: Any) -> None:
    changed = replace(FULL, **{name: value})
    assert equal_records([FULL], [changed]) == sorted(
        [f"{FULL.key} only in the first", f"{changed.key} only in the second"]
    )


def test_order_is_free_and_the_last_of_a_cell_counts(run: Path) -> None:
    records = load_run(run).records
    assert equal_records(records, reversed(records)) == []
    assert equal_records(records, [record(n) for n in range(3)]) == []
    stale = replace(records[1], selection_loss=9.0)
    assert equal_records([stale, *records], records) == []
    assert len(equal_records([*records, stale], records)) == 1
    assert equal_records(records, records[:2]) == [f"{records[2].key} only in the first"]
