"""A trial is fair by construction: the same start, the same tokens, the same trials for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from levelfield.bench.spec import Phase, Schedule, TrialRecord
from levelfield.bench.store import Run
from levelfield.bench.study import final_seed, tune_seed
from levelfield.tests import small

METHODS = (
    "adamw",
    small.plugin("odd:NOISY"),
    small.plugin("odd:OBSERVING"),
    small.plugin("odd:TWO_PASSES"),
    small.plugin("odd:OWN"),
    small.plugin("odd:MATRICES"),
    small.plugin("faulty:RAISES"),
    small.plugin("faulty:NAN_LATE"),
)
SEED = tune_seed(4, 0)
FAILING = {"raises", "nan_late"}
PHASES: tuple[Phase, ...] = ("tune", "final", "timing")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight methods of very different habits, one trial at a time."""
    return small.run(tmp_path_factory.mktemp("fairness"), METHODS, seed=4)


def of_phase(run: Run, phase: Phase) -> list[TrialRecord]:
    return [record for record in run.records if record.phase == phase]


def whole(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those that were not stopped on the way."""
    return [record for record in records if record.reason is None or "final loss" in record.reason]


def test_every_method_gets_its_trials_whatever_becomes_of_them(run: Run) -> None:
    tried = small.by_method(run.records, "tune")
    assert len(tried) == len(METHODS)
    assert {len(records) for records in tried.values()} == {small.PROTOCOL.budget.trials}
    for records in tried.values():
        assert [record.trial for record in records] == [0, 1, 2]
    assert {record.status for record in tried["raises"]} == {"error"}
    assert {record.status for record in tried["nan_late"]} == {"diverged"}


def timed_alike(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Without the timing of controllers, which goes on to their horizon."""
    return [r for r in records if r.phase != "timing" or "control" not in r.series]


def test_equal_seeds_give_equal_weights_and_tokens(run: Run) -> None:
    for phase in PHASES:
        by_seed: dict[int, set[tuple[str | None, ...]]] = {}
        for record in timed_alike(whole(of_phase(run, phase))):
            start = (record.weights_sha256, record.batches_sha256)
            by_seed.setdefault(record.seed, set()).add(start)
        assert all(len(starts) == 1 for starts in by_seed.values())
        assert len(by_seed) == (small.PROTOCOL.budget.seeds if phase == "final" else 1)
    # A trial that stopped early started from the same weights.
    tuned = of_phase(run, "tune")
    assert len({record.weights_sha256 for record in tuned}) == 1
    assert len({record.initial_loss for record in tuned}) == 1


def test_seeds_differ_in_weights_and_tokens(run: Run) -> None:
    trained = [*of_phase(run, "tune"), *of_phase(run, "final")]
    seeds = {record.seed for record in trained}
    assert len({record.weights_sha256 for record in trained}) == len(seeds) == 3
    assert len({record.batches_sha256 for record in whole(trained)}) == len(seeds)


def test_batches_differ_between_steps_not_methods_when_one_stops_early(run: Run) -> None:
    short = {r.batches_sha256 for r in of_phase(run, "tune") if r.optimizer == "raises"}
    # The method failed in its seventh step: it has seen what `adamw` had seen by then.
    seen = small.train("adamw", small.changed(steps=7, schedule=Schedule(warmup=0.0)), seed=SEED)
    assert short == {seen.batches_sha256}


def test_final_seeds_are_fresh_and_paired(run: Run) -> None:
    tuned = {record.seed for record in of_phase(run, "tune")}
    assert tuned == {SEED}
    finals = small.by_method(run.records, "final")
    assert set(finals) == set(small.by_method(run.records, "tune")) - FAILING
    for records in finals.values():
        assert [(record.trial, record.seed) for record in records] == [
            (index, final_seed(4, 0, index)) for index in range(2)
        ]
        assert tuned.isdisjoint(record.seed for record in records)


def test_finals_are_seed_major(run: Run) -> None:
    finals = of_phase(run, "final")
    names = [record.optimizer for record in finals[: len(finals) // 2]]
    assert len(set(names)) == len(names)
    assert [record.optimizer for record in finals] == names * 2
    assert [record.seed for record in finals] == sorted(record.seed for record in finals)


def test_timing_alternates_and_repeats(run: Run) -> None:
    timed = of_phase(run, "timing")
    names = [record.optimizer for record in timed[: len(timed) // 2]]
    assert set(names) == set(small.by_method(run.records, "tune")) - FAILING
    assert [record.optimizer for record in timed] == names * small.PROTOCOL.timing.windows


def test_phases_follow_each_other(run: Run) -> None:
    order = [PHASES.index(record.phase) for record in run.records]
    assert order == sorted(order)


def test_finals_and_timing_use_the_best_point(run: Run) -> None:
    for name, finals in small.by_method(run.records, "final").items():
        tried = [
            record
            for record in small.by_method(run.records, "tune")[name]
            if record.status == "ok" and record.selection_loss is not None
        ]
        best = min(tried, key=lambda record: (record.selection_loss, record.trial))
        others = (*finals, *small.by_method(run.records, "timing")[name])
        assert all(record.hparams == best.hparams for record in others)


def test_tokens_and_steps_are_equal(run: Run) -> None:
    for phase in PHASES:
        trained = timed_alike(whole(of_phase(run, phase)))
        assert {record.optimizer for record in trained} >= {"adamw", "noisy", "two_passes", "own"}
        assert len({(record.steps, record.tokens) for record in trained}) == 1
    assert {r.passes for r in of_phase(run, "final") if r.optimizer == "two_passes"} == {32.0}


def test_rates_follow_one_schedule_unless_a_method_has_its_own(run: Run) -> None:
    finals = small.by_method(run.records, "final")
    traces = {
        str(record.lr_trace)
        for name, records in finals.items()
        for record in records
        if name != "own"
    }
    assert len(traces) == 1
    assert str(finals["own"][0].lr_trace) not in traces


def test_another_seed_of_the_run_gives_other_trials(run: Run, tmp_path: Path) -> None:
    protocol = small.changed(trials=1, seeds=1)
    other = small.run(tmp_path, ["adamw"], protocol, seed=5)
    assert {record.seed for record in other.records} == {tune_seed(5, 0), final_seed(5, 0, 0)}
    known = {record.weights_sha256 for record in run.records}
    assert known.isdisjoint(record.weights_sha256 for record in other.records)
