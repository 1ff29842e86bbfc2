"""The reference's law, its inversion and its refusals."""

from __future__ import annotations

import math
import random

import pytest

from levelfield.bench import speedup
from levelfield.bench.speedup import Law
from levelfield.bench.stats import Estimate, Missing

TOKENS = [1e6, 2e6, 4e6, 8e6, 16e6]
ALPHA, BETA, B = 60.0, 1.5, 0.3


def horizons(noise: float = 0.0, seeds: int = 3, count: int = 5) -> dict[float, list[float]]:
    dice = random.Random(3)
    return {
        d: [BETA + ALPHA * d**-B + dice.gauss(0, noise) for _ in range(seeds)]
        for d in TOKENS[:count]
    }


@pytest.fixture(scope="module")
def law() -> Law:
    found = speedup.fit_law(horizons())
    assert isinstance(found, Law)
    return found


def test_the_fit_finds_an_exact_law(law: Law) -> None:
    assert (law.beta, law.b) == pytest.approx((BETA, B), rel=1e-3)
    assert law.alpha == pytest.approx(ALPHA, rel=1e-2)
    assert law.invert(BETA + ALPHA * 3e6**-B) == pytest.approx(3e6, rel=1e-4)


def test_an_outlying_seed_moves_the_fit_little() -> None:
    spoilt = horizons()
    spoilt[4e6][0] += 1.0
    found = speedup.fit_law(spoilt)
    assert isinstance(found, Law)
    assert found.loss(4e6) == pytest.approx(BETA + ALPHA * 4e6**-B, abs=0.02)


def test_nothing_is_inverted_outside_the_range(law: Law) -> None:
    for loss in (law.lowest - 0.01, law.highest + 0.01, math.nan, math.inf):
        assert isinstance(law.invert(loss), Missing)


def test_speedup_is_the_ratio_of_tokens() -> None:
    loss = BETA + ALPHA * 6e6**-B
    found = speedup.speedup(horizons(), 4e6, [loss] * 3, resamples=20)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(1.5, rel=1e-3)
    assert (found.low, found.high) == pytest.approx((1.5, 1.5), rel=1e-3)


def test_the_interval_holds_the_truth_and_grows_with_noise() -> None:
    loss = BETA + ALPHA * 6e6**-B
    widths = []
    for noise in (0.002, 0.01):
        losses = [loss + noise * step for step in (-1, 0.2, 0.8)]
        found = speedup.speedup(horizons(noise), 4e6, losses, resamples=60)
        assert isinstance(found, Estimate)
        assert found.low is not None
        assert found.high is not None
        assert found.low < 1.5 < found.high
        widths.append(found.high - found.low)
    assert widths[0] < widths[1]


def test_too_few_seeds_of_the_method_give_no_interval() -> None:
    found = speedup.speedup(horizons(), 4e6, [BETA + ALPHA * 6e6**-B])
    assert isinstance(found, Estimate)
    assert found.low is None
    assert found.note


def test_close_to_the_end_of_the_range_there_is_no_interval(law: Law) -> None:
    losses = [law.lowest + 0.0005 + step for step in (-0.02, 0.0, 0.02)]
    found = speedup.speedup(horizons(0.0), 4e6, losses, resamples=40)
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == (None, None)
    assert "range" in found.note


@pytest.mark.parametrize(
    "given",
    [
        {},
        horizons(count=4),
        horizons(seeds=2),
        {**horizons(), 4e6: [2.0, math.nan, 2.0]},
        {**horizons(), 4e6: [2.0, math.inf, 2.0]},
        {**horizons(), -1.0: [2.0, 2.0, 2.0]},
        {d: [2.0, 2.0, 2.0] for d in TOKENS},
        {d: [d, d, d] for d in TOKENS},
    ],
)
def test_fits_that_mean_nothing_are_refused(given: dict[float, list[float]]) -> None:
    found = speedup.fit_law(given)
    assert isinstance(found, Missing)
    assert found.reason
    assert isinstance(speedup.speedup(given, 4e6, [2.0] * 3), Missing)


@pytest.mark.parametrize("losses", [[], [math.nan, 2.0, 2.0], [0.5] * 3])
def test_a_method_off_the_scale_is_refused(losses: list[float]) -> None:
    assert isinstance(speedup.speedup(horizons(), 4e6, losses), Missing)


def test_the_local_slope_agrees_near_one(law: Law) -> None:
    reference = law.loss(4e6)
    near = law.loss(4.2e6)
    assert speedup.local_speedup(law, reference, near) == pytest.approx(1.05, abs=0.005)
    assert speedup.local_speedup(law, reference, reference) == 1.0
    assert isinstance(speedup.local_speedup(law, law.beta, near), Missing)
    assert isinstance(speedup.local_speedup(law, reference, math.nan), Missing)
