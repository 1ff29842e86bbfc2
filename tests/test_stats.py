"""Statistics against scipy, closed forms and hand-made cases."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats as scipy_stats

from levelfield.bench import space, stats
from levelfield.tests.report_records import record

NAN, INF = math.nan, math.inf


def test_t_interval_is_scipys() -> None:
    values = [1.9, 2.1, 2.05, 1.88, 2.3]
    low, high = stats.t_interval(values) or (NAN, NAN)
    mean = sum(values) / 5
    expected = scipy_stats.t.interval(0.95, 4, loc=mean, scale=scipy_stats.sem(values))
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, NAN], [1.0, INF]])
def test_no_interval_without_two_finite_values(values: list[float]) -> None:
    assert stats.t_interval(values) is None


def test_paired_t_is_scipys() -> None:
    a, b = [1.0, 1.2, 1.1, 1.4, 1.3], [1.1, 1.25, 1.3, 1.45, 1.5]
    expected = scipy_stats.ttest_rel(a, b).pvalue
    found = stats.paired_t([x - y for x, y in zip(a, b, strict=True)])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("differences", "p"), [([0.0, 0.0], 1.0), ([0.5, 0.5], 0.0), ([0.5], None), ([NAN, 1.0], None)]
)
def test_paired_t_at_the_edges(differences: list[float], p: float | None) -> None:
    assert stats.paired_t(differences) == p


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize("bad", [None, NAN, INF, -INF])
def test_what_is_not_finite_never_wins(bad: float | None) -> None:
    assert not stats.is_better(bad, 1.0)
    assert not stats.is_better(bad, 1.0, lower_is_better=False)
    assert stats.is_better(1.0, bad)
    assert not stats.is_better(bad, bad)


def test_best_skips_what_diverged_and_keeps_the_first_of_equals() -> None:
    trials = [
        record("a", trial=0, selection_loss=2.0),
        record("a", trial=1, selection_loss=1.0, status="diverged"),
        record("a", trial=2, selection_loss=NAN),
        record("a", trial=3, selection_loss=1.5),
        record("a", trial=4, selection_loss=1.5),
    ]
    found = stats.best(trials, lambda r: r.selection_loss)
    assert found is trials[3]
    assert stats.best(trials[1:3], lambda r: r.selection_loss) is None


def test_median_counts_what_failed() -> None:
    assert stats.median([1.0, 2.0, INF]) == 2.0
    assert stats.median([1.0, NAN]) == INF
    assert stats.median([1.0, 2.0]) == 1.5
    assert stats.median([]) is None


def test_tokens_to_target_interpolates_in_log_tokens() -> None:
    curve = [[100, 0, 4.0], [1000, 0, 3.0], [10000, 0, 2.0], [20000, 0, 1.9]]
    assert stats.tokens_to_target(curve, 2.5) == pytest.approx(1000 * math.sqrt(10))
    assert stats.tokens_to_target(curve, 4.5) == 100
    assert stats.tokens_to_target(curve, 1.0) is None


def test_tokens_to_target_needs_two_evaluations_in_a_row() -> None:
    dip = [[10, 0, 3.0], [20, 0, 1.0], [30, 0, 3.0], [40, 0, 1.9], [50, 0, 1.9]]
    assert stats.tokens_to_target(dip, 2.0) == pytest.approx(30 * (4 / 3) ** (1 / 1.1))
    assert stats.tokens_to_target(dip[:2], 2.0) is None
    assert stats.tokens_to_target([], 2.0) is None


def test_tokens_to_target_from_zero_tokens_is_linear() -> None:
    assert stats.tokens_to_target([[0, 0, 4.0], [100, 0, 2.0], [200, 0, 2.0]], 3.0) == 50


def test_spikes_by_construction() -> None:
    dice = random.Random(1)
    losses = [5 * math.exp(-step / 100) + 2 + dice.gauss(0, 0.02) for step in range(300)]
    assert stats.spikes(losses) == 0
    losses[150] += 1.0
    losses[250] += 1.0
    assert stats.spikes(losses) == 2
    losses[290] = NAN
    assert stats.spikes(losses) == 3


def test_spikes_without_noise_or_points() -> None:
    assert stats.spikes([3.0] * 100) == 0
    assert stats.spikes([3.0 - 0.01 * step for step in range(100)]) == 0
    assert stats.spikes([3.0] * 39) is None
    assert stats.spikes([]) is None


def test_edge_of_a_dimension_read_from_a_manifest() -> None:
    dim = space.log(1e-4, 1e-1, 1e-3).to_json()
    assert [stats.dim_edge(dim, v) for v in (1.1e-4, 1e-3, 0.09)] == ["low", None, "high"]
    natural = space.linear(0.0, 1.0, 0.5, bounds=(0.0, 1.0)).to_json()
    assert stats.dim_edge(natural, 0.0) is None
