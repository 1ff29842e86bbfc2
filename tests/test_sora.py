"""SoRA: the proximal step, the code's other one, and what is left of the gates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from levelfield.optimizers.sora import code_threshold_, soft_threshold_
from levelfield.tests import adapter_cases as cases

GATES = torch.tensor([-3.0, -1.5, -0.7, -0.2, 0.0, 0.4, 0.9, 1.0, 1.7, 2.5], dtype=torch.float64)


def test_the_proximal_step_minimises_its_problem() -> None:
    """argmin_g (g - x)^2 / 2 + xi |g|, by a search that knows no formula."""
    gate = GATES.clone()
    soft_threshold_(gate, 0.8)
    for x, g in zip(GATES.tolist(), gate.tolist(), strict=True):

        def problem(v: float, x: float = x) -> float:
            return 0.5 * (v - x) ** 2 + 0.8 * abs(v)

        found = min(
            (
                optimize.minimize_scalar(problem, bounds=b, method="bounded")
                for b in ((-5, 0), (0, 5))
            ),
            key=lambda one: one.fun,
        )
        assert problem(g) <= found.fun + 1e-9
        assert g == pytest.approx(float(found.x), abs=1e-4)


def test_the_code_zeroes_up_to_twice_the_threshold() -> None:
    gate = GATES.clone()
    code_threshold_(gate, 0.8)
    expected = [-2.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 1.7]
    np.testing.assert_allclose(gate.numpy(), expected, atol=1e-12)
    soft = GATES.clone()
    soft_threshold_(soft, 0.8)
    np.testing.assert_allclose(
        soft.numpy(), [-2.2, -0.7, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.9, 1.7], atol=1e-12
    )


def gates(case: cases.Case) -> torch.Tensor:
    return torch.cat([p.tensor.detach() for p in case.params if "lora_E" in p.info.name])


@pytest.mark.parametrize("shrink", ["prox", "code"])
def test_the_threshold_is_the_rate_times_lambda(shrink: str) -> None:
    """At once against the same run without: the difference of a first step is the threshold."""
    free = cases.start("sora", sparsity=0.0, weight_decay=0.0)
    case = cases.start("sora", sparsity=5.0, shrink=shrink, weight_decay=0.0)
    for one in (free, case):
        one.take(1, scale=0.25)
    lr = case.hparams["lr"]
    xi = 5.0 * lr * (0.25 if shrink == "prox" else 1.0)
    expected = gates(free).clone()
    (soft_threshold_ if shrink == "prox" else code_threshold_)(expected, xi)
    torch.testing.assert_close(gates(case), expected, rtol=0, atol=1e-7)
    assert bool((gates(case) != gates(free)).all())


def test_gates_start_normal_and_close_for_good_or_open_again() -> None:
    case = cases.start("sora", sparsity=4.0)
    start = gates(case)
    assert abs(float(start.mean())) < 0.3
    assert 0.8 < float(start.std()) < 1.2
    case.take(cases.STEPS)
    left = int(gates(case).count_nonzero())
    assert 0 < left < len(start)
    assert sum(case.told["ranks"].values()) == left
    width = {
        name: module.in_features + module.out_features
        for name, module in ((n, layer.base) for n, layer in case.rule.layers.items())
    }
    deployed = sum(case.told["ranks"][name] * width[name] for name in width)
    assert case.told["deployed_parameters"] == deployed
    assert case.told["trained_parameters"] == 8 * (sum(width.values()) + 12)


def test_factors_and_head_decay_and_gates_do_not() -> None:
    case = cases.start("sora")
    decay = {
        id(param): group["weight_decay"]
        for optimizer in case.stepper.optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    }
    for param in case.params:
        assert decay[id(param.tensor)] == (0.1 if param.tensor.ndim == 2 else 0.0)
    assert gates(case).ndim == 1


def test_more_lambda_leaves_fewer() -> None:
    left = []
    for sparsity in (0.0, 2.0, 8.0):
        case = cases.start("sora", sparsity=sparsity, steps=20)
        case.take(20)
        left.append(int(gates(case).count_nonzero()))
    assert left == sorted(left, reverse=True)
    assert left[0] == 96 > left[1] > left[2]


def test_the_codes_l1_term_is_a_mean() -> None:
    plain, with_l1 = (cases.start("sora", l1=eta, clip_norm=None) for eta in (0.0, 9.6))
    slopes = []
    for case in (plain, with_l1):
        case.loss(case.model, 0).backward()
        case.rule.before(0)
        slopes.append(torch.cat([g.grad for g in case.rule.gates]))
    torch.testing.assert_close(slopes[1] - slopes[0], 0.1 * gates(plain).sign())
