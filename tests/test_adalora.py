"""AdaLoRA's schedule, scores, masks and penalty against float64 formulas of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from levelfield.bench.reference import load_spec
from levelfield.optimizers._adalora import add_penalty_, phases
from levelfield.optimizers.adalora import switches
from levelfield.tests import adapter_cases as cases

Array = np.ndarray[Any, np.dtype[np.float64]]
BETA, STEPS = 0.85, 40
SHAPES = {"init_rank": 4, "rank": 2, "start": 0.1, "settle": 0.3, "every": 0.05}


def budget(t: int, total: int, start: int, settle: int, first: int, last: int) -> int:
    if t <= start:
        return first
    if t > total - settle:
        return last
    rest = 1 - (t - start) / (total - settle - start)
    return int(last + (first - last) * rest**3)


class Reference:
    """I and U of every weight, and the masks that follow."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.importance: dict[str, Array] = {}
        self.uncertainty: dict[str, Array] = {}

    def take(self, weights: Mapping[str, Array], grads: Mapping[str, Array]) -> None:
        for name, w in weights.items():
            now = np.abs(w * grads[name])
            i = self.importance.get(name, np.zeros_like(w))
            u = self.uncertainty.get(name, np.zeros_like(w))
            i = BETA * i + (1 - BETA) * now
            self.importance[name] = i
            self.uncertainty[name] = BETA * u + (1 - BETA) * np.abs(now - i)

    def triplets(self) -> dict[str, Array]:
        """Score of every triplet, by module."""
        s = {n: self.importance[n] * self.uncertainty[n] for n in self.importance}
        return {
            m: s[f"{m}.lora_E.default"][:, 0]
            + s[f"{m}.lora_A.default"].mean(1)
            + s[f"{m}.lora_B.default"].mean(0)
            for m in self.names
        }

    def kept(self, keep: int) -> dict[str, list[bool]]:
        """The triplets above the threshold, by module."""
        found = self.triplets()
        every = np.sort(np.concatenate([found[m] for m in self.names]))
        threshold = every[len(every) - keep - 1]
        return {m: [bool(x) for x in found[m] > threshold] for m in self.names}


def test_scores_masks_and_budget_are_those_of_the_formulas() -> None:
    case = cases.start("adalora", steps=STEPS, prepare=lambda model: model.double(), **SHAPES)
    rule = case.rule
    named = {n: p for n, p in case.model.named_parameters() if "lora_" in n}
    names = sorted(n.removesuffix(".lora_E.default") for n in named if "lora_E" in n)
    reference = Reference(names)
    total, (start, settle, every) = STEPS, phases(case.hparams, STEPS)
    assert (start, settle, every) == (4, 12, 2)
    inside, pruned = rule.after, []

    def after(step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        t = step + 1
        values = {n: p.detach().numpy().copy() for n, p in named.items()}
        slopes = {n: grads[id(p)].numpy().copy() for n, p in named.items()}
        inside(step, lr_scale, grads)
        if t < total - settle:
            reference.take(values, slopes)
            for n in named:
                np.testing.assert_allclose(
                    rule.allocator.exp_avg_ipt[n], reference.importance[n], rtol=1e-12
                )
                np.testing.assert_allclose(
                    rule.allocator.exp_avg_unc[n], reference.uncertainty[n], rtol=1e-12
                )
        if t > start and (t >= total - settle or t % every == 0):
            keep = budget(t, total, start, settle, 48, 24)
            if t <= total - settle:
                pruned.append((t, reference.kept(keep)))
            expected = pruned[-1][1]  # the last pattern stays
            assert sum(map(sum, expected.values())) == keep
            for m in names:
                e, before = named[f"{m}.lora_E.default"], values[f"{m}.lora_E.default"]
                mask = np.array(expected[m])
                np.testing.assert_array_equal(e.detach().numpy()[:, 0], before[:, 0] * mask)
        else:
            for n, p in named.items():
                np.testing.assert_array_equal(p.detach().numpy(), values[n])

    rule.after = after
    case.take(STEPS)
    assert [t for t, _ in pruned] == list(switches(case.hparams, STEPS))
    assert len({str(kept) for _, kept in pruned}) > 3  # the masks really change
    last = pruned[-1][1]
    assert case.told["ranks"] == {m: sum(last[m]) for m in names}
    width = {n: m.in_features + m.out_features for n, m in modules().items()}
    deployed = sum(sum(last[m]) * width[m] for m in names)  # E is folded into B
    assert case.told["deployed_parameters"] == deployed
    assert case.told["trained_parameters"] == 4 * (sum(width.values()) + 12)
    assert rule.kept.refreshes == len(pruned)


def modules() -> dict[str, Any]:
    from levelfield.optimizers._adapter import find_targets

    return dict(find_targets(cases.bert(), "all-linear"))


def test_a_pruned_triplet_may_come_back_until_the_last_phase() -> None:
    case = cases.start("adalora", steps=STEPS, **SHAPES)
    singular = [p.tensor for p in case.params if "lora_E" in p.info.name]
    zeros = []
    for _ in range(STEPS):
        case.take(1)
        zeros.append(sum(int((e == 0).sum()) for e in singular))
    assert zeros[5] > 0  # pruned after step 6
    assert zeros[6] == 0  # all train on
    assert zeros[27:] == [24] * 13


def test_the_penalty_is_the_mean_unsquared_frobenius_norm() -> None:
    generator = torch.Generator().manual_seed(3)
    made = [
        (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(), columns)
        for shape, columns in (((3, 7), False), ((5, 3), True), ((3, 4), False))
    ]
    terms = []
    for tensor, columns in made:
        v = tensor.T if columns else tensor
        terms.append(torch.linalg.matrix_norm(v @ v.T - torch.eye(3, dtype=torch.float64)))
    expected = torch.autograd.grad(0.1 * torch.stack(terms).mean(), [t for t, _ in made])
    for tensor, _ in made:
        tensor.grad = torch.ones_like(tensor)
    with torch.no_grad():
        add_penalty_(made, 0.1)
    for (tensor, _), slope in zip(made, expected, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad - 1.0, slope, rtol=1e-12, atol=1e-14)


def test_the_penalty_pulls_factors_to_orthogonality() -> None:
    def error(gamma: float) -> float:
        case = cases.start("adalora", penalty=gamma, clip_norm=None, lr=1e-2)
        case.take(cases.STEPS)
        rows = [p.tensor.detach() for p in case.params if "lora_A" in p.info.name]
        return sum(float((a @ a.mT - torch.eye(len(a))).norm()) for a in rows)

    assert error(1.0) < 0.7 * error(0.0)


@pytest.mark.parametrize("total", [8, 16, 60, 400, 6700])
def test_phases_fit_any_horizon(total: int) -> None:
    hparams = load_spec("adalora").value.defaults()
    start, settle, every = phases(hparams, total)
    assert 0 <= start < total - settle
    assert 1 <= every <= max(1, total // 10)
    if total == 6700:  # the CoLA script
        assert (start, every) == (804, 10)
        assert settle == pytest.approx(3500, abs=20)
