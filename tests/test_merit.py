"""Figures of merit: against closed forms and enumeration on hand-made records."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from levelfield.bench import merit, stats
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Estimate, Missing
from levelfield.tests.report_records import record

NAN, INF = math.nan, math.inf
CURVE = [[0, 0.0, 5.0], [100, 1.0, 4.0], [1000, 9.0, 3.0], [10_000, 90.0, 2.0], [11_000, 99.0, 1.9]]


# --- how soon ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "loss"),
    [(0, 5.0), (50, 4.5), (100, 4.0), (math.sqrt(1e5), 3.5), (1000, 3.0), (11_000, 1.9)],
)
def test_a_curve_is_read_in_log_tokens(tokens: float, loss: float) -> None:
    assert merit.loss_at(CURVE, tokens) == pytest.approx(loss)


def test_nothing_is_read_off_a_curve_where_it_is_not() -> None:
    assert merit.loss_at(CURVE, 11_001) is None
    assert merit.loss_at(CURVE, -1) is None
    assert merit.loss_at([], 1) is None
    assert merit.loss_at([[100, 0, 4.0], [200, 0, NAN]], 150) is None


def test_targets_are_the_references_median_curve() -> None:
    higher = [[t, s, loss + 0.2] for t, s, loss in CURVE]
    lowest = [[t, s, loss - 1.0] for t, s, loss in CURVE]
    found = merit.targets([CURVE, higher, lowest], (0.1, 1.0), 10_000)
    assert found == pytest.approx({0.1: 3.0, 1.0: 2.0})
    failed = merit.targets([CURVE, higher, []], (1.0,), 10_000)
    assert failed[1.0] == pytest.approx(2.2)
    assert isinstance(merit.targets([CURVE, [], []], (1.0,), 10_000)[1.0], Missing)
    assert isinstance(merit.targets([], (1.0,), 10_000)[1.0], Missing)


def test_cost_to_a_target_in_three_units() -> None:
    later = [[2 * t, s, loss] for t, s, loss in CURVE]
    never = [[t, s, loss + 9] for t, s, loss in CURVE]
    found = merit.to_target([CURVE, later, CURVE], 3.0, tokens_per_step=50, step_s=0.5)
    assert isinstance(found, merit.Reached)
    assert (found.tokens, found.steps, found.seconds) == pytest.approx((1000, 20, 10))
    assert (found.reached, found.finals) == (3, 3)
    missed = merit.to_target([CURVE, later, never], 3.0, tokens_per_step=50)
    assert isinstance(missed, merit.Reached)
    assert (missed.tokens, missed.steps, missed.reached) == pytest.approx((2000, 40, 2))
    assert missed.seconds is None
    none = merit.to_target([CURVE, never, []], 3.0, tokens_per_step=50)
    assert isinstance(none, Missing)
    assert none.reason == "reached by 1 of 3 finals on 2 evaluations in a row"
    for target, step in ((NAN, 50.0), (INF, 50.0), (3.0, 0.0)):
        assert isinstance(merit.to_target([CURVE], target, step), Missing)


# --- exchangeable trials ----------------------------------------------------------------------

DEFAULTS = {"lr": 1e-3, "embed_multiplier": 1.0}


def trial(number: int, lr: float, multiplier: float = 1.0, **more: Any) -> TrialRecord:
    hparams = {"lr": lr, "embed_multiplier": multiplier, "eps": 1e-8}
    return record("a", phase="tune", trial=number, hparams=hparams, **more)


BRACKETED = [
    *(trial(0, 1e-3), trial(1, 0.00316228), trial(2, 0.000316228)),
    *(trial(3, 0.0012, 0.4), trial(4, 1e-3, 3.0), trial(5, 0.002, 1.0), trial(6, 0.01, 1.0)),
]


def numbers(found: tuple[TrialRecord, ...] | Missing) -> list[int]:
    return [] if isinstance(found, Missing) else [r.trial for r in found]


def test_exchangeable_trials_are_what_is_left_after_the_bracket() -> None:
    def of(records: list[TrialRecord], **tuner: Any) -> list[int]:
        return numbers(merit.exchangeable(records, scale="lr", defaults=DEFAULTS, **tuner))

    assert of(BRACKETED, kind="bracket") == [3, 4, 5, 6]
    assert of(BRACKETED, kind="bracket", reserve=2) == [3, 4]
    assert of(BRACKETED[:5], kind="bracket", reserve=2, trials=7) == [3, 4]
    assert of(BRACKETED, kind="sobol") == [1, 2, 3, 4, 5, 6]
    assert of(BRACKETED[::-1], kind="random") == [1, 2, 3, 4, 5, 6]
    assert of(BRACKETED, kind="tpe") == []
    assert of(BRACKETED[:3], kind="bracket") == []
    assert of([], kind="sobol") == []


def test_a_failed_trial_counts_as_the_initial_loss() -> None:
    trials = [
        trial(0, 1e-3, selection_loss=2.0),
        trial(1, 1e-3, selection_loss=1.0, status="diverged"),
        trial(2, 1e-3, selection_loss=None, status="oom"),
        trial(3, 1e-3, selection_loss=NAN),
        trial(4, 1e-3, selection_loss=9.0, status="undertrained"),
    ]
    assert merit.trial_losses(trials, cap=5.5) == [2.0, 5.5, 5.5, 5.5, 5.5]


# --- how hard to tune -------------------------------------------------------------------------

LOSSES = [2.5, 2.0, 3.0, 5.5, 2.2, 2.0, 5.5]


@pytest.mark.parametrize("k", range(1, 8))
def test_expected_best_is_the_mean_over_all_subsets(k: int) -> None:
    subsets = list(itertools.combinations(LOSSES, k))
    expected = sum(min(subset) for subset in subsets) / len(subsets)
    assert merit.expected_best(LOSSES, k) == pytest.approx(expected)


def test_expected_best_refuses_what_means_nothing() -> None:
    for found in (
        merit.expected_best(LOSSES, 0),
        merit.expected_best(LOSSES, 8),
        merit.expected_best([], 1),
        merit.expected_best([1.0, INF], 1),
        merit.expected_best([1.0, NAN], 1),
        merit.expected_best_curve([1.0]),
        merit.expected_best_curve([1.0, NAN, 2.0]),
        merit.tuning_gain([1.0]),
        merit.tuning_gain([1.0, INF]),
        merit.omega_tunability([]),
        merit.omega_tunability([NAN]),
    ):
        assert isinstance(found, Missing)
        assert found.reason


def test_bands_stop_at_half_of_the_trials() -> None:
    found = merit.expected_best_curve(LOSSES)
    assert not isinstance(found, Missing)
    values = [point.value for point in found]
    assert values == pytest.approx([merit.expected_best(LOSSES, k) for k in range(1, 8)])
    assert values == sorted(values, reverse=True)
    assert [point.low is None for point in found] == [False] * 3 + [True] * 4
    first = found[0]
    assert isinstance(first, Estimate)
    assert first.low is not None
    assert first.high is not None
    # For k = 1 the band is that of a mean: sd / sqrt(N) wide on both sides.
    centre = sum(LOSSES) / 7
    spread = 1.96 * math.sqrt(sum((x - centre) ** 2 for x in LOSSES) / 7 / 7)
    assert first.high - first.low == pytest.approx(2 * spread, rel=0.1)


def test_tuning_gain_and_tunability_by_hand() -> None:
    losses = [1.0, 2.0, 4.0]
    best = [7 / 3, (1.0 * 2 + 2.0 * 1) / 3, 1.0]
    assert merit.tuning_gain(losses) == pytest.approx(best[0] - best[2])
    assert merit.omega_tunability(losses) == pytest.approx(sum(best) / 3)
    early = (3 * best[0] + 2 * best[1] + best[2]) / 6
    assert merit.omega_tunability(losses, "early") == pytest.approx(early)
    assert merit.tuning_gain([2.0, 2.0]) == 0.0


# --- spikes (bench.stats) ---------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 39, 40, 400])
def test_a_run_too_short_for_spikes_says_why(steps: int) -> None:
    reason = stats.spikes_missing(steps)
    assert (reason is None) == (steps >= 40)
    assert (stats.spikes([3.0] * steps) is None) == (reason is not None)


def test_a_steep_descent_is_no_spike() -> None:
    """Without its trend removed, a window of a falling loss would hide or invent spikes."""
    fall = [6.0 * 0.97**step + 0.001 * math.sin(7 * step) for step in range(200)]
    assert stats.spikes(fall) == 0
    fall[120] += 0.6  # less than the loss fell over the window before it
    assert stats.spikes(fall) == 1
