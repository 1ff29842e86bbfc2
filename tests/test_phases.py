"""Studies, freeze, sweep, transfer, budgets that are not in steps, families, controls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from levelfield.bench import api, family, horizons, study
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import BenchError, Budget, Protocol, TrialRecord, Tuner, Variant
from levelfield.bench.store import Run, equal_records, load_run
from levelfield.tests import small

STUDIES = replace(
    small.PROTOCOL,
    budget=Budget(steps=12, trials=3, studies=2, seeds=2, sweep=3, sweep_seeds=1),
    tuner=Tuner(reserve=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two methods, two studies each, a sweep."""
    return small.run(tmp_path_factory.mktemp("studies"), ["adamw", "lion"], STUDIES, slots=2)


def of(run: Run, phase: str, method: str) -> list[TrialRecord]:
    return [r for r in run.records if (r.phase, r.optimizer) == (phase, method)]


def test_every_study_has_its_trials_and_its_own_seed(run: Run) -> None:
    for method in ("adamw", "lion"):
        cells = sorted((r.study, r.trial, r.seed) for r in of(run, "tune", method))
        assert cells == [(s, t, 100 * s) for s in range(2) for t in range(3)]


def test_finals_are_paired_within_a_study_and_disjoint_between(run: Run) -> None:
    seeds = {m: [(r.study, r.seed) for r in of(run, "final", m)] for m in ("adamw", "lion")}
    assert seeds["adamw"] == seeds["lion"] or sorted(seeds["adamw"]) == sorted(seeds["lion"])
    assert sorted(seeds["adamw"]) == [(0, 1), (0, 2), (1, 101), (1, 102)]


def test_more_finals_leave_the_old_ones_as_they_are(run: Run, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    before = (copy / "records.jsonl").read_bytes()
    more = api.extend(copy, seeds=3, slots=2)
    assert (copy / "records.jsonl").read_bytes().startswith(before)
    for method in ("adamw", "lion"):
        cells = sorted((r.study, r.trial, r.seed) for r in of(more, "final", method))
        assert cells == [(s, 100 * s + i, 100 * s + 1 + i) for s in range(2) for i in range(3)]


def test_finals_train_the_best_point_of_their_own_study(run: Run) -> None:
    facts = run.manifest["studies"]
    for method in ("adamw", "lion"):
        tuned = {(r.study, r.trial): r for r in of(run, "tune", method)}
        for final in of(run, "final", method):
            best = facts[f"{method}#{final.study}"]["best_trial"]
            assert final.hparams == tuned[final.study, best].hparams


def test_no_seed_is_shared_between_phases(run: Run) -> None:
    seeds: dict[str, set[int]] = {}
    for record in run.records:
        if record.phase != "timing":  # a window of steps, evaluated nowhere
            seeds.setdefault(record.phase, set()).add(record.seed)
    phases = list(seeds)
    for one in phases:
        assert all(not seeds[one] & seeds[other] for other in phases if other != one)


def test_the_sweep_moves_the_scale_alone_around_the_first_study(run: Run) -> None:
    for method in ("adamw", "lion"):
        best = next(r for r in of(run, "final", method) if r.study == 0).hparams
        sweep = of(run, "sweep", method)
        factors = [r.hparams["lr"] / best["lr"] for r in sorted(sweep, key=lambda r: r.trial)]
        assert factors == pytest.approx([10**-0.5, 1, 10**0.5], rel=1e-5)
        for record in sweep:
            assert {**record.hparams, "lr": 0} == {**best, "lr": 0}


def test_what_judges_the_finals_is_frozen_and_hashed(run: Run) -> None:
    freeze = run.manifest["freeze"]
    assert set(freeze["best"]) == {"adamw#0", "adamw#1", "lion#0", "lion#1"}
    assert freeze["margin_nats"] == STUDIES.margin_nats
    assert len(freeze["sha256"]) == 64
    assert set(freeze["spaces"]) == {"adamw", "lion"}


def test_one_slot_and_two_give_the_same_records(run: Run, tmp_path: Path) -> None:
    other = small.run(tmp_path, ["adamw", "lion"], STUDIES, slots=1)
    assert equal_records(run.records, other.records) == []
    assert run.manifest["freeze"]["sha256"] == other.manifest["freeze"]["sha256"]


def test_a_resume_adds_nothing(run: Run) -> None:
    before = (run.path / "records.jsonl").read_bytes()
    api.resume(run.path, slots=1)
    assert (run.path / "records.jsonl").read_bytes() == before


def test_transfer_trains_another_runs_points_on_the_seeds_of_the_finals(
    run: Run, tmp_path: Path
) -> None:
    target = small.changed(STUDIES, name="target", steps=14)
    moved = api.run(target, ["adamw"], out=tmp_path, slots=2, tuned_from=run.path)
    finals, transfers = of(moved, "final", "adamw"), of(moved, "transfer", "adamw")
    assert sorted(r.seed for r in finals) == sorted(r.seed for r in transfers)
    points = {r.study: r.hparams for r in of(run, "final", "adamw")}
    assert {r.study: dict(r.hparams) for r in transfers} == points
    assert all(r.report_loss is not None for r in transfers)
    assert moved.manifest["transfer"]["run_id"] == run.manifest["run_id"]


def test_transfer_of_a_method_that_was_not_tuned_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="holds no tuned point of signsgd"):
        api.run(small.PROTOCOL, ["signsgd"], out=tmp_path, tuned_from=run.path)
    assert list(tmp_path.iterdir()) == []


# --- budgets ----------------------------------------------------------------------------------


def budget(unit: str, amount: float | None, **more: int) -> Protocol:
    changed = replace(small.PROTOCOL.budget, unit=unit, amount=amount, **more)
    return replace(small.PROTOCOL, budget=changed)


def timed(seconds: float) -> TrialRecord:
    record = small.train("adamw", phase="calibrate")
    return replace(record, wall_s={"windows": [seconds]}, joules=None)


@pytest.mark.parametrize(
    ("unit", "amount", "steps"),
    [("steps", None, 16), ("tokens", 64 * 40 + 63, 40), ("passes", 30.0, 30)],
)
def test_counted_units_become_steps(unit: str, amount: float | None, steps: int) -> None:
    spec = OPTIMIZERS.load("adamw").value
    assert horizons.steps(budget(unit, amount), spec, []) == steps


def test_a_method_of_two_passes_gets_half_the_steps() -> None:
    spec = replace(OPTIMIZERS.load("adamw").value, passes=2.0)
    assert horizons.steps(budget("passes", 60.0), spec, []) == 30


def test_seconds_become_steps_by_the_median_window() -> None:
    spec = OPTIMIZERS.load("adamw").value
    records = [timed(0.010), timed(0.020), timed(0.500)]
    assert horizons.steps(budget("seconds", 1.0), spec, records) == 50


def test_joules_need_a_device_that_counts_them() -> None:
    spec = OPTIMIZERS.load("adamw").value
    with pytest.raises(BenchError, match="energy of adamw could not be measured"):
        horizons.steps(budget("joules", 5.0), spec, [timed(0.01)])
    # 10 timed steps of 10 ms took 20 J, whatever came before them.
    powered = [replace(timed(0.01), joules=20.0, wall_s={"windows": [0.01], "step": 0.1})]
    assert horizons.steps(budget("joules", 100.0), spec, powered) == 50


def test_a_budget_that_buys_no_warm_up_is_refused() -> None:
    spec = OPTIMIZERS.load("adamw").value
    with pytest.raises(BenchError, match="buy 2 steps of adamw"):
        horizons.steps(budget("tokens", 2 * 64.0), spec, [])


@pytest.mark.parametrize(
    ("unit", "amount"), [("tokens", None), ("steps", 5.0), ("passes", -1.0), ("seconds", 0.0)]
)
def test_unit_and_amount_go_together(unit: str, amount: float | None) -> None:
    with pytest.raises(BenchError, match=r"budget\.(unit|amount)"):
        study.check_budget(budget(unit, amount), 2)


def test_equal_seconds_are_calibrated_once_and_kept(tmp_path: Path) -> None:
    asked = budget("seconds", 0.2, trials=1, seeds=1)
    done = api.run(asked, ["adamw", "lion"], out=tmp_path, slots=1)
    kept = done.manifest["horizons"]
    assert set(kept) == {"adamw", "lion"}
    for record in done.records:
        if record.phase in ("tune", "final"):
            assert record.steps == kept[record.optimizer]
            assert record.lr_trace[-1][1] == pytest.approx(0.1)  # the rate decays fully
    again = api.resume(done.path, slots=1)
    assert again.manifest["horizons"] == kept
    assert len(again.records) == len(done.records)


# --- families and controls --------------------------------------------------------------------

FAMILY = replace(
    small.changed(trials=1, seeds=1),
    name="sizes",
    axis="parameters",
    variants=(
        Variant(name="h8", settings=("model.hidden=8", "budget.steps=12")),
        Variant(name="h16", settings=("budget.steps=14",)),
    ),
)


def test_a_family_runs_every_variant_and_resumes(tmp_path: Path) -> None:
    methods = study.load_methods(["adamw"])
    done = family.run_family(FAMILY, methods, origin="test", out=tmp_path, slots=1)
    assert [name for name, _ in done.runs] == ["h8", "h16"]
    sizes = [run.records[0].parameters for _, run in done.runs]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert sizes[0] < sizes[1]
    assert [run.records[0].steps for _, run in done.runs] == [12, 14]
    before = {name: len(run.records) for name, run in done.runs}
    again = family.resume_family(done.path)
    assert {name: len(run.records) for name, run in again.runs} == before


def test_a_wrong_variant_is_told_before_anything_runs(tmp_path: Path) -> None:
    broken = replace(FAMILY, variants=(Variant(name="x", settings=("model.hiden=8",)),))
    with pytest.raises(BenchError, match=r"did you mean model\.hidden"):
        family.run_family(broken, study.load_methods(["adamw"]), origin="test", out=tmp_path)
    twice = replace(FAMILY, variants=FAMILY.variants[:1] * 2)
    with pytest.raises(BenchError, match="names a variant twice"):
        family.members(twice)
    assert list(tmp_path.iterdir()) == []


def test_one_method_under_two_names_is_tuned_independently(tmp_path: Path) -> None:
    control = replace(small.changed(trials=6, seeds=1), reference="adamw@a")
    done = api.run(control, ["adamw@a", "adamw@b"], out=tmp_path, slots=2)
    one, other = (
        [dict(r.hparams) for r in sorted(of(done, "tune", name), key=lambda r: r.trial)]
        for name in ("adamw@a", "adamw@b")
    )
    assert one[0] == other[0]  # the defaults
    assert one[-1] != other[-1]  # the samplers are independent
    assert load_run(done.path).manifest["methods"][1]["reference"] == "adamw@b"


def test_unpaired_finals_share_no_seed(tmp_path: Path) -> None:
    control = replace(small.changed(trials=1, seeds=2), paired=False)
    done = api.run(control, ["adamw@a", "adamw@b"], out=tmp_path, slots=2)
    seeds = [r.seed for r in done.records if r.phase == "final"]
    assert len(seeds) == 4
    assert len(set(seeds)) == 4


def test_the_manifest_says_what_the_studies_found(run: Run) -> None:
    facts = run.manifest["studies"]["adamw#0"]
    assert set(facts) == {"best_trial", "ranges", "edges", "beyond_edge_trials"}
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts["ranges"]) == {"lr", "beta2"}
