"""Sample sizes, power and equivalence: against scipy, closed forms and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from levelfield.bench import power
from levelfield.bench.power import Design
from levelfield.bench.stats import Missing

NAN, INF = math.nan, math.inf


def test_an_effect_of_one_sd_needs_ten_pairs() -> None:
    assert power.needed(0.6, 0.6, design="paired") == 10
    assert power.needed(-0.6, 0.6, design="paired") == 10
    assert power.needed(1.0, 1.0, design="two-sample") == 17  # a group: the textbook's number
    assert power.needed(1.0, 1.0) == 17


def test_power_is_the_non_central_t() -> None:
    bound = scipy_stats.t.ppf(0.975, 8)
    shift = 0.3 / (0.2 * math.sqrt(2 / 5))
    expected = scipy_stats.nct.sf(bound, 8, shift) + scipy_stats.nct.cdf(-bound, 8, shift)
    assert power.achieved_power(0.3, 0.2, 5, design="two-sample") == pytest.approx(expected)
    assert power.achieved_power(0.0, 0.2, 5, design="two-sample") == pytest.approx(0.05)
    assert power.achieved_power(1e9, 0.2, 5) == pytest.approx(1.0)


@pytest.mark.parametrize("design", ["welch", "two-sample", "paired"])
@pytest.mark.parametrize(("effect", "n"), [(0.5, 3), (1.5, 5), (4.0, 3), (3.0, 2)])
def test_power_is_what_simulated_tests_find(design: Design, effect: float, n: int) -> None:
    dice = np.random.default_rng(1)
    a, b = dice.normal(effect, 1, (20_000, n)), dice.normal(0, 1, (20_000, n))
    if design == "paired":
        found = scipy_stats.ttest_1samp(a, 0, axis=1).pvalue
    else:
        found = scipy_stats.ttest_ind(a, b, axis=1, equal_var=design == "two-sample").pvalue
    predicted = power.achieved_power(effect, 1.0, n, design=design)
    assert predicted == pytest.approx(np.mean(found <= 0.05), abs=0.012)


@pytest.mark.parametrize("design", ["welch", "two-sample", "paired"])
def test_detectable_and_needed_undo_power(design: Design) -> None:
    smallest = power.detectable(0.02, 5, design=design)
    assert not isinstance(smallest, Missing)
    assert power.achieved_power(smallest, 0.02, 5, design=design) == pytest.approx(0.8)
    assert power.needed(smallest * 1.0001, 0.02, design=design) == 5
    assert power.needed(smallest * 0.9999, 0.02, design=design) == 6


def test_equivalence_needs_what_the_approximation_says() -> None:
    """n = 8.56 sd^2 / margin^2 for many pairs, (z(.95) + z(.9))^2."""
    many = power.tost_needed(1.0, 0.1, design="paired")
    assert many == pytest.approx(856, abs=3)
    exact = power.tost_power(1.0, 857, 0.1, design="paired")
    assert exact == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize(("n", "margin"), [(3, 4.0), (5, 1.5), (12, 0.5)])
def test_tost_and_its_power_are_what_simulation_finds(n: int, margin: float) -> None:
    dice = np.random.default_rng(2)
    a, b = dice.normal(0, 1, (2, 4000, n))
    differences = a.mean(axis=1) - b.mean(axis=1)
    errors = np.sqrt((a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / n)
    reach = scipy_stats.t.ppf(0.95, 2 * n - 2) * errors
    inside = (np.abs(differences) + reach) < margin
    assert power.tost_power(1.0, n, margin) == pytest.approx(inside.mean(), abs=0.025)
    for i in range(20):
        found = power.tost(differences[i], errors[i], 2 * n - 2, margin)
        assert found.equivalent == inside[i]
        assert found.interval == pytest.approx(
            (differences[i] - reach[i], differences[i] + reach[i])
        )


def test_tost_p_is_the_larger_of_two_one_sided_ones() -> None:
    found = power.tost(0.004, 0.002, 6, 0.01)
    assert found.p == pytest.approx(scipy_stats.t.sf(3.0, 6))
    assert found.equivalent
    assert found.power is not None
    assert not power.tost(0.012, 0.002, 6, 0.01).equivalent


def test_what_makes_no_sense_says_so() -> None:
    for found in (
        power.achieved_power(1.0, 0.0, 5),
        power.achieved_power(1.0, NAN, 5),
        power.achieved_power(INF, 1.0, 5),
        power.achieved_power(1.0, 1.0, 1),
        power.needed(0.0, 1.0),
        power.needed(NAN, 1.0),
        power.needed(1e-9, 1.0),
        power.detectable(1.0, 1),
        power.tost_power(1.0, 3, 0.0),
        power.tost_needed(INF, 0.1),
    ):
        assert isinstance(found, Missing)
    for broken in (
        power.tost(None, 0.1, 4, 0.1),
        power.tost(NAN, 0.1, 4, 0.1),
        power.tost(0.0, 0.0, 4, 0.1),
        power.tost(0.0, 0.1, 4, -1.0),
    ):
        assert not broken.equivalent
        assert broken.p is None
        assert broken.reason


def test_large_effects_need_few_studies() -> None:
    """The tails' series gives up there; the answer is no larger for it."""
    assert power.needed(0.719, 0.0586) == 2
    assert power.needed(0.2456, 0.0645) == 3
    assert power.achieved_power(0.719, 0.0586, 40) == pytest.approx(1.0)
