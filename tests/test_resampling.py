"""Sign flips and bootstraps: against enumeration and scipy, and where they refuse."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from levelfield.bench import resampling
from levelfield.bench.stats import Estimate, Missing

NAN, INF = math.nan, math.inf
VALUES = [float(x) for x in np.random.default_rng(0).lognormal(0, 0.5, 30)]


def test_sign_flip_is_the_enumeration() -> None:
    differences = [0.3, -0.1, 0.25, 0.4, 0.05, 0.6, 0.2, -0.02]
    signs = itertools.product((1, -1), repeat=8)
    sums = [abs(sum(s * d for s, d in zip(row, differences, strict=True))) for row in signs]
    expected = sum(x >= abs(sum(differences)) - 1e-12 for x in sums) / 256
    assert resampling.sign_flip(differences) == pytest.approx(expected)
    scipys = scipy_stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert resampling.sign_flip(differences) == pytest.approx(scipys.pvalue)


def test_sign_flip_reaches_its_smallest_value() -> None:
    assert resampling.sign_flip([1.0] * 8) == 2 / 256
    assert resampling.sign_flip([0.0] * 8) == 1.0


@pytest.mark.parametrize(
    ("differences", "tests"),
    [([1.0] * 3, 1), ([1.0] * 5, 1), ([1.0] * 8, 7), ([], 1), ([NAN] * 8, 1), ([1.0] * 21, 1)],
)
def test_sign_flip_refuses(differences: list[float], tests: int) -> None:
    found = resampling.sign_flip(differences, tests=tests)
    assert isinstance(found, Missing)
    assert found.reason


@pytest.mark.parametrize(("kind", "scipys"), [("bca", "BCa"), ("percentile", "percentile")])
def test_bootstrap_of_a_mean_is_scipys(kind: str, scipys: str) -> None:
    found = resampling.bootstrap_mean(VALUES, kind=kind, resamples=20_000)  # type: ignore[arg-type]
    expected = scipy_stats.bootstrap(
        (VALUES,), np.mean, method=scipys, n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(np.mean(VALUES))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_bootstrap_refuses_few_values_and_bad_ones() -> None:
    assert isinstance(resampling.bootstrap_mean([1.0] * 19), Missing)
    assert isinstance(resampling.bootstrap_mean([1.0] * 20 + [INF]), Missing)
    flat = resampling.bootstrap_mean([1.0] * 20)
    assert isinstance(flat, Estimate)
    assert (flat.low, flat.high) == (1.0, 1.0)


def test_two_level_is_its_own_definition() -> None:
    """Trial i is chosen if i is drawn and nothing better: (1 - i/N)^N - (1 - (i + 1)/N)^N."""
    n = 24
    losses = [1.0 + 0.1 * i for i in range(n)]
    finals = {i: [2.0 + 0.1 * i] for i in range(6)}
    found = resampling.two_level(losses, finals, resamples=20_000)
    chances = [(1 - i / n) ** n - (1 - (i + 1) / n) ** n for i in range(6)]
    below = list(itertools.accumulate(chances))
    high = next(i for i, total in enumerate(below) if total / below[-1] > 0.975)
    assert isinstance(found, Estimate)
    assert (found.value, found.low) == (2.0, 2.0)
    assert found.high == pytest.approx(2.0 + 0.1 * high)
    assert found.note == resampling.TWO_LEVEL_VALID


@pytest.mark.parametrize(
    ("losses", "finals"),
    [
        ([1.0] * 5, {0: [1.0]}),
        ([INF] * 24, {0: [1.0]}),
        ([1.0 + i for i in range(24)], {0: [1.0]}),  # a third of resamples choose another trial
        ([1.0 + i for i in range(24)], {0: [], 1: [1.0]}),
        ([1.0 + i for i in range(24)], {0: [NAN]}),
    ],
)
def test_two_level_refuses(losses: list[float], finals: dict[int, list[float]]) -> None:
    found = resampling.two_level(losses, finals)
    assert isinstance(found, Missing)
    assert found.reason


def test_a_failed_trial_never_wins() -> None:
    losses = [NAN, INF, *(1.0 + i for i in range(24))]
    found = resampling.two_level(losses, {i: [float(i)] for i in range(2, 9)})
    assert isinstance(found, Estimate)
    assert found.value == 2.0
