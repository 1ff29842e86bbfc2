"""The two methods without public code: Frank-Wolfe on a simplex, and ranks that are numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levelfield.optimizers.ard_lora import START, SoftRankLinear, hardening_step, largest
from levelfield.optimizers.debora import away_step, period_of
from levelfield.tests import adapter_cases as cases


def test_frank_wolfe_finds_a_minimum_inside_the_simplex() -> None:
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(8)) * 3.0
    s = torch.full((8,), 3.0 / 8, dtype=torch.float64)
    start = float(((s - torch.from_numpy(target)) ** 2).sum())
    for step in range(3000):
        s = away_step(s, s - torch.from_numpy(target), 3.0, step, 8)
        assert float(s.sum()) == pytest.approx(3.0)
        assert float(s.min()) > 0.0  # nothing may be dropped
    assert float(((s - torch.from_numpy(target)) ** 2).sum()) < 1e-4 * start


def test_the_best_of_a_fixed_order_are_left() -> None:
    """A linear objective: its minimum is a corner, and the worst go first."""
    g = torch.arange(10, dtype=torch.float64) ** 3
    s, left = torch.full((10,), 0.4, dtype=torch.float64), [10]
    for step in range(60):
        s = away_step(s, g, 4.0, step, 4)
        left.append(int(s.count_nonzero()))
        assert float(s.sum()) == pytest.approx(4.0)
    assert left == sorted(left, reverse=True)
    assert set(np.flatnonzero(s.numpy())) == {0, 1, 2, 3}
    assert float(s @ g) < 0.1 * 0.4 * float(g.sum())


def test_a_step_goes_where_it_gains_more_and_drops_what_it_flees() -> None:
    s = torch.tensor([1.0, 1.0, 1.0, 0.0])
    flee = away_step(s, torch.tensor([0.0, 0.0, 9.0, -50.0]), 3.0, 0, 1)
    torch.testing.assert_close(flee, s + 0.4 * (s - torch.tensor([0.0, 0.0, 3.0, 0.0])) * (s > 0))
    assert float(flee[3]) == 0.0  # what was dropped stays so, however good
    dropped = away_step(flee, torch.tensor([0.0, 0.0, 9.0, 0.0]), 3.0, 1, 1)
    torch.testing.assert_close(dropped, torch.tensor([1.5, 1.5, 0.0, 0.0]))
    toward = away_step(s, torch.tensor([-9.0, 0.0, 0.0, 0.0]), 3.0, 0, 1)
    gamma = 2 / 6
    torch.testing.assert_close(toward, (1 - gamma) * s + gamma * torch.tensor([3.0, 0, 0, 0]))
    kept = away_step(s, torch.tensor([0.0, 0.0, 9.0, 0.0]), 3.0, 0, 3)  # no fewer than three
    assert int(kept.count_nonzero()) == 3


def test_debora_takes_apart_the_batches_of_the_two_levels() -> None:
    case = cases.start("debora", steps=120)
    period = period_of(120, 48 - 24)
    assert period == 2
    for step in range(12):
        weights = case.weights()
        gains = torch.cat([layer.fixed.clone() for layer in case.rule.modules])
        case.take(1)
        upper = step > 0 and step % period == 0
        assert cases.same_bits(weights, case.weights()) is upper
        now = torch.cat([layer.fixed for layer in case.rule.modules])
        assert torch.equal(gains, now) is not upper
        assert float(now.sum()) == pytest.approx(24.0, rel=1e-5)
        assert not any(layer.fixed.requires_grad for layer in case.rule.modules)
    case.take(108)
    assert 24 <= sum(case.told["ranks"].values()) < 40
    assert case.rule.kept.refreshes == 59


def test_a_soft_rank_is_a_row_of_sigmoids() -> None:
    layer = SoftRankLinear(torch.nn.Linear(5, 3), 4, 2.0, dropout=0.0, rank=2, temperature=0.5)
    assert layer.soft_rank().item() == pytest.approx(2.0)
    expected = [1 / (1 + math.exp(-(2.0 - i - 0.5) / 0.5)) for i in range(4)]
    assert layer.gain().tolist() == pytest.approx(expected, rel=1e-6)
    assert layer.lora_E is not None
    with torch.no_grad():
        layer.lora_E.fill_(50.0)
    assert layer.soft_rank().item() == 4.0  # the cap
    assert math.log1p(math.exp(START)) == pytest.approx(1.0)


def test_ranks_become_whole_numbers_at_one_threshold() -> None:
    gains = torch.sigmoid(
        torch.tensor([[1.9], [0.6], [3.2]]) - torch.arange(4)[None, :].float() - 0.5
    )
    for budget in (3, 6, 9):
        ranks = largest(gains, budget)
        assert sum(ranks) == budget
        chosen = [gains[m, i].item() for m, r in enumerate(ranks) for i in range(r)]
        rest = [gains[m, i].item() for m, r in enumerate(ranks) for i in range(r, 4)]
        assert min(chosen) >= max(rest)


def test_ard_lora_hardens_once_and_then_leaves_its_scales() -> None:
    case = cases.start("ard_lora", steps=30)
    last = hardening_step(case.hparams, 30)
    assert last == 24
    case.take(last - 1)
    assert case.rule.plain["ranks"] is None
    case.take(1)
    ranks = list(case.rule.plain["ranks"])
    assert sum(ranks) == 24
    for layer, rank in zip(case.rule.modules, ranks, strict=True):
        assert layer.gain().tolist() == [1.0] * rank + [0.0] * (4 - rank)
    scales = [p.tensor.detach().clone() for p in case.params if "lora_E" in p.info.name]
    case.take(6)
    after = [p.tensor for p in case.params if "lora_E" in p.info.name]
    assert cases.same_bits(scales, after)


def test_the_scales_have_the_gradient_of_the_objective() -> None:
    """lambda (|a|_1 + beta |a(t) - a(t-1)|) by autograd, of scales that rose and that fell."""
    case = cases.start("ard_lora", smooth=0.3)
    rule = case.rule
    rule.kept.state["lambda"].fill_(0.7)
    with torch.no_grad():
        for index, exponent in enumerate(rule.exponents):
            exponent += 0.2 * (-1) ** index
            exponent.grad = torch.ones_like(exponent)
    free = torch.cat([exponent.detach() for exponent in rule.exponents]).requires_grad_()
    scales = torch.nn.functional.softplus(free)
    (slope,) = torch.autograd.grad(0.7 * (scales + 0.3 * (scales - 1.0).abs()).sum(), free)
    rule.before(0)
    found = torch.cat([exponent.grad for exponent in rule.exponents]) - 1.0
    torch.testing.assert_close(found, slope)
    torch.testing.assert_close(rule.kept.state["scales"], scales.detach())


def test_lambda_rises_above_the_budget_and_pulls_ranks_down() -> None:
    wide, tight = (
        cases.start("ard_lora", budget=budget, dual_rate=0.5, steps=60, lr=0.05)
        for budget in (36, 12)
    )
    totals = []
    for case in (wide, tight):
        case.take(40)
        totals.append(float(sum(layer.soft_rank().item() for layer in case.rule.soft)))
    assert totals[1] < totals[0] - 2
    assert float(tight.rule.kept.state["lambda"]) > float(wide.rule.kept.state["lambda"])
