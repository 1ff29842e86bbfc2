"""Sweeps, divergence, profiles, Pareto sets and ladders on hand-made numbers."""

from __future__ import annotations

import math

import pytest
from scipy import stats as scipy_stats

from levelfield.bench import frontier, robustness
from levelfield.bench.samples import Sample
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Estimate, Missing, holm
from levelfield.tests.report_records import record

NAN, INF = math.nan, math.inf
SWEEP = {1e-4: 3.0, 1e-3: 2.02, 1e-2: 2.0, 1e-1: 2.005, 1e0: 9.0}


# --- the sweep --------------------------------------------------------------------------------


def swept(lr: float, loss: float | None, status: str = "ok", phase: str = "sweep") -> TrialRecord:
    return record("a", phase=phase, hparams={"lr": lr}, selection_loss=loss, status=status)


def test_a_sweep_averages_seeds_and_caps_what_failed() -> None:
    records = [
        *(swept(1e-2, 2.0), swept(1e-2, None, "diverged"), swept(1e-3, 3.0), swept(1e-3, 3.2)),
        *(swept(1e-1, 8.0, "undertrained"), swept(1e-3, 1.0, phase="tune")),
    ]
    found = robustness.sweep_losses(records, "lr", cap=5.5)
    assert list(found) == [1e-3, 1e-2, 1e-1]
    assert list(found.values()) == pytest.approx([3.1, 3.75, 5.5])
    assert robustness.sweep_losses([], "lr", cap=5.5) == {}


def test_sensitivity_is_the_mean_excess() -> None:
    expected = (1.0 + 0.02 + 0.0 + 0.005 + 3.5) / 5
    assert robustness.lr_sensitivity(SWEEP, 5.5) == pytest.approx(expected)
    assert robustness.lr_sensitivity(dict.fromkeys(SWEEP, 2.0), 5.5) == 0.0


def test_a_basin_is_interpolated_in_log_rate() -> None:
    found = robustness.basin(SWEEP)
    assert not isinstance(found, robustness.Missing)
    # Half of the way from 1e-2 to 1e-3, and (2.01 - 2.005) / (9 - 2.005) of a decade above 1e-1.
    assert found.decades == pytest.approx(0.5 + 1 + 0.005 / 6.995)
    assert (found.low, found.high) == pytest.approx((10**-2.5, 10 ** (-1 + 0.005 / 6.995)))
    assert (found.open_low, found.open_high) == (False, False)
    assert str(found) == "1.50 decades"


def test_a_basin_that_leaves_the_sweep_is_open() -> None:
    found = robustness.basin({1e-3: 3.0, 1e-2: 2.0, 1e-1: 2.001})
    assert not isinstance(found, Missing)
    assert (found.open_low, found.open_high) == (False, True)
    assert str(found) == ">= 1.01 decades"
    flat = robustness.basin({1e-3: 2.0, 1e-2: 2.0, 1e-1: 2.0})
    assert not isinstance(flat, Missing)
    assert (flat.open_low, flat.open_high, flat.decades) == (True, True, pytest.approx(2.0))


def test_a_second_valley_is_not_part_of_the_basin() -> None:
    found = robustness.basin({1e-4: 2.0, 1e-3: 2.5, 1e-2: 2.0, 1e-1: 3.0})
    assert not isinstance(found, Missing)
    assert found.decades == pytest.approx(0.01 / 0.5)
    assert found.open_low


@pytest.mark.parametrize(
    "sweep",
    [{}, {1e-3: 2.0, 1e-2: 2.0}, {**SWEEP, 1e-5: NAN}, {**SWEEP, 1e-5: INF}, {**SWEEP, 0.0: 2.0}],
)
def test_sweeps_that_say_nothing(sweep: dict[float, float]) -> None:
    assert isinstance(robustness.lr_sensitivity(sweep, 5.5), Missing)
    assert isinstance(robustness.basin(sweep), Missing)
    assert isinstance(robustness.lr_sensitivity(SWEEP, NAN), Missing)
    assert isinstance(robustness.basin(SWEEP, within=-1.0), Missing)


def test_divergence_leaves_out_what_broke() -> None:
    statuses = ["ok"] * 6 + ["undertrained", "diverged", "diverged", "oom", "killed", "error"]
    found = robustness.divergence_rate([record("a", status=status) for status in statuses])
    expected = scipy_stats.binomtest(2, 9).proportion_ci(method="exact")
    assert isinstance(found, Estimate)
    assert (found.value, found.n) == (2 / 9, 9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert isinstance(robustness.divergence_rate([record("a", status="oom")]), Missing)


@pytest.mark.parametrize("hits", [0, 5])
def test_a_share_of_none_or_all_has_an_interval(hits: int) -> None:
    found = robustness.binomial(hits, 5)
    expected = scipy_stats.binomtest(hits, 5).proportion_ci(method="exact")
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert isinstance(robustness.binomial(1, 0), Missing)


# --- profiles ---------------------------------------------------------------------------------

TIMES: dict[str, dict[str, float | None]] = {
    "adamw": {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0},
    "muon": {"a": 5.0, "b": 10.0, "c": 60.0, "d": None},
    "slow": {"a": 50.0, "b": NAN, "c": 120.0},
}


def test_profiles_and_scores_by_hand() -> None:
    profile = frontier.performance_profile(TIMES, (1.0, 2.0, 4.0))
    assert profile == {"adamw": [0.5, 1.0, 1.0], "muon": [0.5, 0.75, 0.75], "slow": [0, 0, 0.25]}
    scores = frontier.b_scores(TIMES)
    assert scores == pytest.approx({"adamw": (2 / 3 * 2 + 2) / 4, "muon": (2 + 2 / 3) / 4,
                                    "slow": 0.0})  # fmt: skip
    taus = [1 + 3 * (step + 0.5) / 30_000 for step in range(30_000)]
    fine = frontier.performance_profile(TIMES, taus)
    assert not isinstance(fine, Missing)
    assert {m: sum(r) / len(r) for m, r in fine.items()} == pytest.approx(scores, abs=1e-4)


def test_a_profile_against_a_fixed_method() -> None:
    found = frontier.ratios(TIMES, baseline="adamw")
    assert not isinstance(found, Missing)
    assert found["muon"] == {"a": 0.5, "b": 0.5, "c": 2.0, "d": INF}
    assert set(found["adamw"].values()) == {1.0}


def test_profiles_of_too_little() -> None:
    three = {m: {w: t for w, t in row.items() if w != "d"} for m, row in TIMES.items()}
    for found in (
        frontier.b_scores(three),
        frontier.performance_profile(three, (1.0,)),
        frontier.ratios({}),
        frontier.ratios(TIMES, baseline="nobody"),
        frontier.b_scores(TIMES, r_max=1.0),
    ):
        assert isinstance(found, Missing)
    nobody = {"a": dict.fromkeys("abcd"), "b": dict.fromkeys("abcd")}
    assert frontier.b_scores(nobody) == {"a": 0.0, "b": 0.0}


# --- Pareto and ladder ------------------------------------------------------------------------


def test_dominance_needs_intervals_apart() -> None:
    rows = {
        "best": {"loss": (1.0, 1.1), "bytes": (8.0, 8.0)},
        "near": {"loss": (1.05, 1.2), "bytes": (8.0, 8.0)},
        "far": {"loss": (1.3, 1.4), "bytes": (8.0, 8.0)},
        "small": {"loss": (1.5, 1.6), "bytes": (0.0, 0.0)},
        "big": {"loss": (0.9, 1.05), "bytes": (16.0, 16.0)},
        "unknown": {"loss": (INF, INF), "bytes": (99.0, 99.0)},
        "other": {"loss": (9.0, 9.0)},
    }
    assert frontier.dominated_by(rows) == {
        **{name: [] for name in rows},
        "far": ["best", "near"],
    }


def test_a_ladder_is_differences_of_neighbours() -> None:
    values = {"plain": [2.0, 2.1, 2.05], "rate": [1.8, 1.82, 1.85], "muon": [1.7, 1.75, 1.72]}
    rungs = [Sample(name=n, values=dict(enumerate(v))) for n, v in values.items()]
    steps = frontier.gain_ladder(rungs, test="pooled")
    assert [(s.a, s.b) for s in steps] == [("rate", "plain"), ("muon", "rate")]
    expected = [
        scipy_stats.ttest_ind(values["rate"], values["plain"]),
        scipy_stats.ttest_ind(values["muon"], values["rate"]),
    ]
    assert [s.p for s in steps] == pytest.approx([e.pvalue for e in expected])
    assert [s.p_holm for s in steps] == pytest.approx(holm([e.pvalue for e in expected]))
    total = sum(s.difference or 0.0 for s in steps)
    assert total == pytest.approx(sum(values["muon"]) / 3 - sum(values["plain"]) / 3)
    assert frontier.gain_ladder(rungs[:1]) == ()
