"""Prodigy against its algorithm in float64, with one estimate over all parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.stepper import Parameter
from levelfield.optimizers.prodigy import SPEC, Prodigy, move_d
from levelfield.tests.first_order import ALL_SHAPES, STEPS, make
from levelfield.tests.optimizer_cases import (
    Array,
    as_gradient,
    drive,
    gradients,
    lr_scales,
    parameters,
    values,
)

VARIANTS: tuple[dict[str, Any], ...] = (
    {"weight_decay": 0.1, "d_coef": 2.0, "d0": 1e-3},
    {"safeguard_warmup": False, "d0": 1e-4},
    {"use_bias_correction": True, "beta1": 0.8, "beta2": 0.9, "beta3": 0.7, "d0": 1e-2},
    {"growth_rate": 1.3, "d0": 1e-3, "eps": 1e-2},
    {"slice_p": 3, "weight_decay": 0.1, "d0": 1e-3},
)


@dataclass
class Textbook:
    """Mishchenko & Defazio, algorithm 4, over all parameters, with the options of their code."""

    p: list[Array]
    decays: Sequence[float]
    h: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.p0 = [p.copy() for p in self.p]
        self.m, self.v, self.s = ([np.zeros_like(p) for p in self.p] for _ in range(3))
        self.d = self.d_max = self.h["d0"]
        self.r, self.t = 0.0, 0

    def step(self, grads: Sequence[Array], lr: float) -> None:
        h, d = self.h, self.d
        b1, b2 = h["beta1"], h["beta2"]
        b3 = math.sqrt(b2) if h["beta3"] is None else h["beta3"]
        self.t += 1
        bias = math.sqrt(1 - b2**self.t) / (1 - b1**self.t) if h["use_bias_correction"] else 1.0
        k = d * lr * bias
        self.r *= b3
        norm = 0.0
        for i, g in enumerate(grads):
            seen = np.zeros(g.size)
            seen[:: h["slice_p"]] = 1.0
            seen = seen.reshape(g.shape)
            self.r += d / h["d0"] * k * float((seen * g * (self.p0[i] - self.p[i])).sum())
            self.m[i] = b1 * self.m[i] + (1 - b1) * d * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * (d * g) ** 2
            self.s[i] = b3 * self.s[i] + d / h["d0"] * (d if h["safeguard_warmup"] else k) * g
            norm += float(np.abs(seen * self.s[i]).sum())
        estimate = h["d_coef"] * self.r / norm
        if d == h["d0"]:
            d = max(d, estimate)
        self.d_max = max(self.d_max, estimate)
        self.d = self.d_max if h["growth_rate"] is None else min(self.d_max, d * h["growth_rate"])
        for i, wd in enumerate(self.decays):
            denominator = np.sqrt(self.v[i]) + self.d * h["eps"]
            self.p[i] = (1 - k * wd) * self.p[i] - k * self.m[i] / denominator


def follow(
    params: Sequence[Parameter], hparams: Mapping[str, Any], stored_by: float = 1.0
) -> tuple[Textbook, list[float]]:
    """The textbook's run of `STEPS`, and its d before every step.

    Args:
        stored_by: what embedding and head are divided by before the run and multiplied with after.
    """
    scale = [stored_by if p.info.role in ("embed", "head") else 1.0 for p in params]
    start = [p.tensor.detach().double().numpy() / by for p, by in zip(params, scale, strict=True)]
    decays = [0.0 if p.info.role == "vector" else hparams["weight_decay"] for p in params]
    book, seen = Textbook(start, decays, hparams), []
    grads = [gradients(p.info.shape, STEPS, i) for i, p in enumerate(params)]
    for t, lr in enumerate(lr_scales(STEPS)):
        seen.append(book.d)
        book.step([by * g[t] for by, g in zip(scale, grads, strict=True)], lr)
    book.p = [by * p for by, p in zip(scale, book.p, strict=True)]
    return book, seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_follows_the_algorithm(variant: dict[str, Any], dtype: torch.dtype) -> None:
    params = parameters(ALL_SHAPES, dtype)
    optimizer, hparams = make(SPEC, params, **variant)
    book, seen = follow(params, hparams)
    drive(optimizer, params, STEPS)
    assert isinstance(optimizer, Prodigy)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    assert [step for step, _ in optimizer.series["d"]] == [4 * i for i in range(STEPS // 4)]
    found = [float(d) for _, d in optimizer.series["d"]]
    assert found == pytest.approx(seen[::4], rel=10 * tolerance)
    assert float(optimizer.d) == pytest.approx(book.d, rel=10 * tolerance)
    assert book.d > 2 * hparams["d0"]
    for param, expected in zip(params, book.p, strict=True):
        now = param.tensor.detach().double().numpy()
        np.testing.assert_allclose(now, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("by", [0.3, 4.0])
def test_the_multiplier_acts_as_if_tables_were_stored_divided_by_it(by: float) -> None:
    params = parameters(ALL_SHAPES, torch.float64)
    optimizer, hparams = make(SPEC, params, embed_multiplier=by, eps=0.0)
    book, _ = follow(params, hparams, stored_by=by)
    drive(optimizer, params, STEPS)
    assert isinstance(optimizer, Prodigy)
    assert float(optimizer.d) == pytest.approx(book.d, rel=1e-9)
    for param, expected in zip(params, book.p, strict=True):
        np.testing.assert_allclose(param.tensor.detach().numpy(), expected, rtol=0, atol=1e-9)


def test_the_groups_of_a_model_share_one_estimate() -> None:
    """Split into groups or not, it is the same run."""
    ends = []
    for split in (False, True):
        params = parameters(ALL_SHAPES, torch.float64)
        tensors = [param.tensor for param in params]
        groups = [{"params": [t]} for t in tensors] if split else [{"params": tensors}]
        optimizer = Prodigy(groups)
        drive(optimizer, params, STEPS)
        ends.append(values(params))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_the_size_of_the_gradient_does_not_matter() -> None:
    ends = []
    for size in (1.0, 1e-3):
        params = parameters(ALL_SHAPES, torch.float64)
        optimizer, _ = make(SPEC, params, eps=0.0)
        known = [gradients(param.info.shape, STEPS, i) for i, param in enumerate(params)]
        drive(
            optimizer,
            params,
            STEPS,
            grad_of=lambda i, t, size=size, known=known: size * known[i][t],  # type: ignore[misc]
        )
        ends.append(values(params))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_zero_gradients_at_first_leave_the_estimate_alone() -> None:
    params = parameters(ALL_SHAPES)
    before = values(params)
    optimizer, _ = make(SPEC, params, d0=1e-3)
    assert isinstance(optimizer, Prodigy)
    drive(optimizer, params, 2, grad_of=lambda index, _: np.zeros(params[index].info.shape))
    assert float(optimizer.d) == np.float32(1e-3)
    assert all(torch.equal(p.tensor, old) for p, old in zip(params, before, strict=True))
    drive(optimizer, params, STEPS)
    assert float(optimizer.d) > 2e-3
    assert all(torch.isfinite(p.tensor).all() for p in params)


def test_the_estimate_grows_at_most_by_its_rate_after_the_first() -> None:
    d, largest = torch.tensor(1e-3), torch.tensor(1e-3)
    path = []
    for estimate in (0.5e-3, 0.1, 0.05, 0.2, 0.0):  # the largest is remembered
        d, largest = move_d(d, largest, torch.tensor(estimate), float(torch.tensor(1e-3)), 1.1)
        path.append(float(d))
    assert path == pytest.approx([1e-3, 0.1, 0.1, 0.11, 0.121], rel=1e-5)
    free, _ = move_d(torch.tensor(0.1), torch.tensor(0.1), torch.tensor(0.7), 1e-3, None)
    assert float(free) == pytest.approx(0.7)


def test_a_sliced_method_holds_less() -> None:
    params = parameters(ALL_SHAPES)
    optimizer, hparams = make(SPEC, params, slice_p=3)
    drive(optimizer, params, 2)
    infos = [param.info for param in params]
    whole = sum(info.nbytes for info in infos)
    claim = SPEC.state_bytes(infos, hparams, 1.0)
    held = sum(
        value.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for value in state.values()
    )
    assert held == claim == 2 * whole + 2 * 4 * sum(math.ceil(info.numel / 3) for info in infos)


def test_bfloat16_weights_get_a_float32_estimate() -> None:
    ours, exact = parameters(ALL_SHAPES, torch.bfloat16), parameters(ALL_SHAPES, torch.float64)
    found = []
    for params in (ours, exact):
        optimizer, _ = make(SPEC, params, d0=1e-3)
        assert isinstance(optimizer, Prodigy)
        drive(optimizer, params, STEPS)
        found.append(optimizer.d)
    assert found[0].dtype == torch.float32
    # Not closer: small steps are lost in the weights themselves.
    assert float(found[0]) == pytest.approx(float(found[1]), rel=0.2)


def test_a_scalar_parameter_in_bfloat16() -> None:
    tensor = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
    optimizer = Prodigy([tensor], d0=0.1)
    for _ in range(3):
        tensor.grad = as_gradient(np.array(1.0), tensor)
        optimizer.step()
    assert float(tensor.detach()) < 1.0


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta3": -0.1}, {"d0": 0.0}, {"d_coef": 0.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is needed"):
        Prodigy([torch.nn.Parameter(torch.zeros(2))], **wrong)
