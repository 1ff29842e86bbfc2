"""CAME against its algorithm in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.spec import ParamInfo
from levelfield.optimizers.came import SPEC, Came
from levelfield.tests.first_order import ALL_SHAPES, STEPS, TOTAL, make
from levelfield.tests.optimizer_cases import (
    Array,
    drive,
    gradients,
    lr_scales,
    parameters,
    state_tensors,
    values,
)


def textbook(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Mapping[str, Any]
) -> Array:
    """Luo et al., algorithm 2, with means for sums; vectors as in the authors' code."""
    b1, b2, b3 = h["beta1"], h["beta2"], 1 - 1 / (h["residual_fraction"] * TOTAL)
    m = np.zeros_like(p)
    r = c = v = big_r = big_c = np.float64(0.0)
    for g, lr in zip(grads, lrs, strict=True):
        square = g**2 + h["eps1"]
        if p.ndim > 1:
            r = b2 * r + (1 - b2) * square.mean(-1, keepdims=True)
            c = b2 * c + (1 - b2) * square.mean(-2, keepdims=True)
            u = g / np.sqrt(r * c / r.mean(-2, keepdims=True))
        else:
            v = b2 * v + (1 - b2) * square
            u = g / np.sqrt(v)
        u = u / max(1.0, math.sqrt(float((u**2).mean())) / h["clip"])
        m = b1 * m + (1 - b1) * u
        step = m
        if p.ndim > 1:
            instability = (u - m) ** 2 + h["eps2"]
            big_r = b3 * big_r + (1 - b3) * instability.mean(-1, keepdims=True)
            big_c = b3 * big_c + (1 - b3) * instability.mean(-2, keepdims=True)
            step = m / np.sqrt(big_r * big_c / big_r.mean(-2, keepdims=True))
        p = p - lr * (step + wd * p)
    return p


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.01, "weight_decay": 0.3, "embed_multiplier": 3.0},
        {"lr": 0.01, "beta1": 0.7, "beta2": 0.9, "residual_fraction": 0.02},
        {"lr": 0.01, "eps1": 1e-2, "eps2": 1e-2, "clip": 0.3},
    ],
    ids=str,
)
def test_follows_the_algorithm(changes: dict[str, Any], dtype: torch.dtype) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    params = parameters(ALL_SHAPES, dtype)
    start = [value.double().numpy() for value in values(params)]
    optimizer, hparams = make(SPEC, params, **changes)
    drive(optimizer, params, STEPS)
    for index, param in enumerate(params):
        table = param.info.role in ("embed", "head")
        lr = hparams["lr"] * (hparams["embed_multiplier"] if table else 1.0)
        wd = 0.0 if param.info.role == "vector" else hparams["weight_decay"]
        grads = gradients(param.info.shape, STEPS, index)
        rates = [lr * scale for scale in lr_scales(STEPS)]
        expected = textbook(start[index], grads, rates, wd, hparams)
        found = param.tensor.detach().double().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
        assert np.abs(expected - start[index]).max() > 50 * tolerance


def test_a_step_does_not_depend_on_the_size_of_the_gradient() -> None:
    ends = []
    for size in (1.0, 1e-4):
        params = parameters(ALL_SHAPES, torch.float64)
        optimizer, _ = make(SPEC, params)
        known = [gradients(param.info.shape, STEPS, i) for i, param in enumerate(params)]
        drive(
            optimizer,
            params,
            STEPS,
            grad_of=lambda i, t, size=size, known=known: size * known[i][t],  # type: ignore[misc]
        )
        ends.append(values(params))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_rows_that_never_see_a_gradient_stay() -> None:
    params = parameters([((11, 4), "embed")])
    before = values(params)[0]
    optimizer, _ = make(SPEC, params, weight_decay=0.0)

    def grad_of(index: int, t: int) -> Array:
        grad = gradients((11, 4), STEPS, 3)[t]
        grad[2:] = 0.0
        return grad

    drive(optimizer, params, STEPS, grad_of=grad_of)
    now = params[0].tensor.detach()
    assert torch.isfinite(now).all()
    assert torch.equal(now[2:], before[2:])
    assert not torch.isclose(now[:2], before[:2]).any()


def test_state_of_bfloat16_weights_is_float32() -> None:
    params = parameters(ALL_SHAPES, torch.bfloat16)
    optimizer, _ = make(SPEC, params)
    drive(optimizer, params, 2)
    assert {tensor.dtype for tensor in state_tensors(optimizer)} == {torch.float32}


def test_claim_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(2, 3, 4), role="matrix", dtype="bfloat16"),
        ParamInfo(name="c", shape=(7,), role="vector", dtype="float64"),
        ParamInfo(name="d", shape=(0, 7), role="matrix"),
        ParamInfo(name="e", shape=(6, 10), role="head", tied_to="a"),
    ]
    expected = 4 * (60 + 2 * 16) + 4 * (24 + 2 * 2 * 7) + 8 * 14
    assert SPEC.state_bytes(infos, SPEC.defaults(), 1.0) == expected


def test_the_memory_of_the_residual_is_a_share_of_the_run() -> None:
    params = parameters(ALL_SHAPES)
    optimizer, _ = make(SPEC, params)
    assert {group["beta3"] for group in optimizer.param_groups} == {1 - 1 / 80}
    short, _ = make(SPEC, params, residual_fraction=1e-3)
    assert {group["beta3"] for group in short.param_groups} == {0.0}


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta3": -0.1}, {"clip": 0.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is needed"):
        Came([torch.nn.Parameter(torch.zeros(2))], **wrong)
