"""IncreLoRA: scores against float64 formulas, growth, advance learning, the scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from levelfield.optimizers._adapter import LowRankLinear, set_masks
from levelfield.optimizers._adapter_scores import growth_steps, promoted
from levelfield.optimizers.increlora import RESERVE, add_penalty_, penalty, sensitivity_of
from levelfield.tests import adapter_cases as cases


def layer(rank: int = 4, width: tuple[int, int] = (7, 5), gains: float | None = 0.3) -> Any:
    generator = torch.Generator().manual_seed(5)
    made = LowRankLinear(nn.Linear(*width).double(), rank, 1.5, gains=gains).double()
    with torch.no_grad():
        for param in (made.lora_A, made.lora_B):
            param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64))
    return made


def test_a_layer_is_the_formula_and_masked_components_get_no_gradient() -> None:
    one = layer()
    set_masks([one], fixed=[[0.0, 1e-5, 0.0, 0.0]], learned=[[1.0, 0.0, 0.0, 0.0]])
    x = torch.randn(3, 7, dtype=torch.float64)
    gain = torch.tensor([0.3, 1e-5, 0.0, 0.0], dtype=torch.float64)
    weight = 1.5 * one.lora_B @ torch.diag(gain) @ one.lora_A
    torch.testing.assert_close(one(x), one.base(x) + x @ weight.T)
    torch.testing.assert_close(one.delta(), weight)
    one(x).square().sum().backward()
    assert torch.count_nonzero(one.lora_A.grad[2:]) == 0
    assert torch.count_nonzero(one.lora_B.grad[:, 2:]) == 0
    assert torch.count_nonzero(one.lora_E.grad[1:]) == 0
    assert bool((one.lora_A.grad[:2] != 0).all())


def test_the_sensitivity_is_that_of_the_materialised_update() -> None:
    one, seen = layer(), []
    set_masks([one], learned=[[1.0, 1.0, 0.0, 0.0]], fixed=[[0.0] * 4])
    x = torch.randn(2, 6, 7, dtype=torch.float64)
    one.on_output = lambda inputs, grad: seen.append(sensitivity_of(one, inputs, grad).detach())
    one(x).pow(3).sum().backward()
    change = one.delta().detach().requires_grad_()
    (nn.functional.linear(x, one.base.weight + change, one.base.bias)).pow(3).sum().backward()
    assert change.grad is not None
    expected = float((change.detach() * change.grad).abs().sum()) / math.sqrt(35)
    assert [float(s) for s in seen] == pytest.approx([expected], rel=1e-6)


def test_growth_follows_the_scores() -> None:
    """The averages and the choices, again in float64 from the sensitivities that were seen."""
    case = cases.start("increlora", steps=60, share=0.25)
    rule, seen = case.rule, []
    inside = rule.sensitivity
    rule.sensitivity = lambda: seen.append(inside()) or seen[-1]
    i, u = np.zeros(12), np.zeros(12)
    ranks, steps = [1] * 12, []
    for step in range(60):
        grows = rule.plain["grows"]
        case.take(1)
        if grows:
            s = seen[-1].double().numpy()
            assert (s >= 0).all()
            i = 0.85 * i + 0.15 * s
            u = 0.85 * u + 0.15 * np.abs(s - i)
            np.testing.assert_allclose(rule.kept.state["importance"], i, rtol=1e-4)
            np.testing.assert_allclose(rule.kept.state["uncertainty"], u, rtol=1e-4)
        if rule.ranks != ranks:
            gained = [b - a for a, b in zip(ranks, rule.ranks, strict=True)]
            best = np.argsort(-(i * u), kind="stable")[: sum(gained)]
            assert {int(m) for m in best} == {m for m, g in enumerate(gained) if g}
            assert set(gained) <= {0, 1}
            ranks = list(rule.ranks)
            steps.append(step + 1)
    assert steps == [2, 3, 4, 5]  # three modules each, from twice the interval on
    assert sum(ranks) == 24
    assert len(seen) == 5  # scored until the budget, and no further
    assert growth_steps(case.hparams, 60)[:4] == (2, 3, 4, 5)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_promoted_fits_the_budget_and_the_cap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = rng.integers(1, 5, 9).tolist()
    values = rng.integers(0, 3, 9).astype(float).tolist()  # with ties
    budget, most = int(sum(ranks) + rng.integers(-2, 6)), int(rng.integers(1, 6))
    chosen = promoted(values, ranks, cap=4, budget=budget, most=most)
    able = [m for m in range(9) if ranks[m] < 4]
    assert len(chosen) == len(set(chosen)) == max(0, min(most, budget - sum(ranks), len(able)))
    assert set(chosen) <= set(able)
    left = [values[m] for m in able if m not in chosen]
    assert not chosen or min(values[m] for m in chosen) >= max(left, default=-1.0)


@pytest.mark.parametrize("method", ["increlora", "adapad"])
def test_no_module_has_room_that_its_budget_can_never_fill(method: str) -> None:
    case = cases.start(method, cap=10**6)
    assert case.rule.cap == 24 - 12 + 1


def moves(eps: float) -> tuple[float, float]:
    """How far committed and reserve rows of A go in 50 steps before any growth, on average."""
    case = cases.start("increlora", steps=200, interval=0.5, penalty=0.0, eps=eps)
    before = [one.lora_A.detach().clone() for one in case.rule.modules]
    case.take(50)
    far = [
        (one.lora_A.detach() - a).norm(dim=1)
        for one, a in zip(case.rule.modules, before, strict=True)
    ]
    rows = torch.stack(far).mean(0)
    assert torch.count_nonzero(rows[2:]) == 0  # unused ones rest
    return float(rows[0]), float(rows[1])


def test_a_reserve_learns_in_advance_if_eps_is_small_enough() -> None:
    committed, reserve = moves(1e-12)
    assert 1 / 3 < reserve / committed < 3
    committed, damped = moves(1e-6)
    assert damped < 0.05 * committed  # the trap: a gradient of 1e-5 disappears behind eps


def test_without_advance_nothing_is_in_reserve() -> None:
    case = cases.start("increlora", steps=200, interval=0.5, penalty=0.0, advance=False)
    before = [one.lora_A.detach().clone() for one in case.rule.modules]
    case.take(10)
    for one, a in zip(case.rule.modules, before, strict=True):
        assert torch.equal(one.lora_A[1:], a[1:])
    width = sum(one.width for one in case.rule.modules)
    assert case.told["trained_parameters"] == width + 12


def test_growth_hardly_changes_the_function_unless_the_scale_is_live() -> None:
    ratios = {}
    for live in (False, True):
        case = cases.start("increlora", steps=40, interval=0.25, live_scale=live)
        case.take(20)
        grown = [m for m, rank in enumerate(case.rule.ranks) if rank == 2]
        case = cases.start("increlora", steps=40, interval=0.25, live_scale=live)
        case.take(19)
        before = [one.delta().detach() for one in case.rule.modules]
        weights = case.weights()
        case.take(1)
        with torch.no_grad():  # the same weights, with the masks and scales after growth
            for param, value in zip(case.params, weights, strict=True):
                param.tensor.copy_(value)
        after = [one.delta().detach() for one in case.rule.modules]
        ratios[live] = [float(after[m].norm() / before[m].norm()) for m in grown]
        assert len(grown) == 1
        rest = [m for m in range(12) if m not in grown]
        for m in rest:
            torch.testing.assert_close(after[m], before[m])
    assert ratios[False] == pytest.approx([1.0], rel=1e-2)
    assert ratios[True] == pytest.approx([0.5], rel=1e-2)


def test_the_penalty_and_its_gradient_are_of_committed_components_alone() -> None:
    made, ranks = [layer(), layer(width=(4, 6))], [2, 1]
    expected = torch.autograd.grad(
        penalty(made, ranks, 0.1), [p for one in made for p in (one.lora_A, one.lora_B)]
    )
    by_hand = []
    for one, rank in zip(made, ranks, strict=True):
        a, b = one.lora_A.detach().numpy(), one.lora_B.detach().numpy()
        by_hand += [abs((a[k] ** 2).sum() - 1) for k in range(rank)]
        by_hand += [abs((b[:, k] ** 2).sum() - 1) for k in range(rank)]
    assert float(penalty(made, ranks, 0.1).detach()) == pytest.approx(0.1 * np.mean(by_hand))
    for one in made:
        one.lora_A.grad = torch.ones_like(one.lora_A)
        one.lora_B.grad = torch.ones_like(one.lora_B)
    with torch.no_grad():
        add_penalty_(made, ranks, 0.1)
    found = [p.grad - 1.0 for one in made for p in (one.lora_A, one.lora_B)]
    for value, slope in zip(found, expected, strict=True):
        torch.testing.assert_close(value, slope, rtol=1e-10, atol=1e-12)
    assert torch.count_nonzero(expected[0][2:]) == 0


def test_a_step_adds_the_gradient_of_the_penalty() -> None:
    case = cases.start("increlora", penalty=0.3)
    made, ranks = case.rule.modules, case.rule.ranks
    case.loss(case.model, 0).backward()
    pairs = [tensor for one in made for tensor in (one.lora_A, one.lora_B)]
    before = [tensor.grad.clone() for tensor in pairs]
    slopes = torch.autograd.grad(penalty(made, ranks, 0.3), pairs)
    case.rule.before(0)
    for tensor, grad, slope in zip(pairs, before, slopes, strict=True):
        torch.testing.assert_close(tensor.grad, grad + slope)
        assert torch.count_nonzero(slope) > 0


def test_a_reserve_is_not_deployed() -> None:
    case = cases.start("increlora", steps=60, interval=0.2)
    assert all(one.gain().tolist()[1:] == pytest.approx([RESERVE, 0, 0, 0, 0, 0, 0])
               for one in case.rule.modules)  # fmt: skip
    case.take(30)
    with case.stepper.evaluating():
        for one, rank in zip(case.rule.modules, case.rule.ranks, strict=True):
            assert torch.count_nonzero(one.gain().detach()) == rank


def test_at_the_budget_reserves_are_switched_off() -> None:
    case = cases.start("increlora", steps=60, share=1.0)
    case.take(1)
    assert all(float(one.fixed.sum()) == pytest.approx(RESERVE) for one in case.rule.modules)
    case.take(4)
    assert sum(case.rule.ranks) == 24
    assert all(float(one.fixed.sum()) == 0.0 for one in case.rule.modules)
    width = sum(one.width for one in case.rule.modules)
    # Most at once: twelve committed and twelve in reserve, and every committed one's gain.
    assert case.told["trained_parameters"] >= 2 * width + 12
