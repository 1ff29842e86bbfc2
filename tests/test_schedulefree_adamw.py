"""Schedule-Free AdamW: its three sequences, and evaluations that change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.spec import Protocol
from levelfield.bench.stepper import Stepper
from levelfield.optimizers.schedulefree_adamw import (
    SPEC,
    ScheduleFreeAdamW,
    ScheduleFreeStepper,
)
from levelfield.tests import small
from levelfield.tests.first_order import ALL_SHAPES, STEPS, TOTAL, make
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    drive,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)


def textbook(
    start: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Mapping[str, Any]
) -> tuple[Array, Array]:
    """Defazio et al., algorithm 1, with x, y and z all written out: y and x after the last step."""
    x, y, z, v = start.copy(), start.copy(), start.copy(), np.zeros_like(start)
    b1, b2, warm = h["beta1"], h["beta2"], h["warmup"] * TOTAL
    largest, weights = 0.0, 0.0
    for t, (g, base) in enumerate(zip(grads, lrs, strict=True), start=1):
        lr = base * (min(1.0, t / warm) if warm else 1.0)
        largest = max(largest, lr)
        weight = t ** h["power"] * largest ** h["lr_power"]
        weights += weight
        v = b2 * v + (1 - b2) * g**2
        z = z - lr * (g / (np.sqrt(v / (1 - b2**t)) + h["eps"]) + wd * y)
        x = (1 - weight / weights) * x + weight / weights * z
        y = b1 * x + (1 - b1) * z
    return y, x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.02, "weight_decay": 0.3, "warmup": 10 / TOTAL, "embed_multiplier": 3.0},
        {"lr": 0.02, "power": 1.0, "lr_power": 1.0, "warmup": 0.0, "eps": 1e-2},
        {"lr": 0.02, "beta1": 1.0, "beta2": 0.9},
    ],
    ids=str,
)
def test_follows_the_three_sequences(changes: dict[str, Any], dtype: torch.dtype) -> None:
    tolerance = 1e-10 if dtype == torch.float64 else 5e-6
    params = parameters(ALL_SHAPES, dtype)
    start = [value.double().numpy() for value in values(params)]
    optimizer, hparams = make(SPEC, params, **changes)
    drive(optimizer, params, STEPS)
    assert isinstance(optimizer, ScheduleFreeAdamW)
    books = []
    for index, param in enumerate(params):
        table = param.info.role in ("embed", "head")
        lr = hparams["lr"] * (hparams["embed_multiplier"] if table else 1.0)
        wd = 0.0 if param.info.role == "vector" else hparams["weight_decay"]
        grads = gradients(param.info.shape, STEPS, index)
        rates = [lr * scale for scale in lr_scales(STEPS)]
        books.append(textbook(start[index], grads, rates, wd, hparams))
    for param, (y, _) in zip(params, books, strict=True):
        found = param.tensor.detach().double().numpy()
        np.testing.assert_allclose(found, y, rtol=0, atol=tolerance)
        assert np.abs(y - found).max() < 1e-4 < np.abs(y).max()
    with optimizer.averaged():
        for param, (y, x) in zip(params, books, strict=True):
            found = param.tensor.detach().double().numpy()
            np.testing.assert_allclose(found, x, rtol=0, atol=tolerance)
            assert hparams["beta1"] == 1.0 or np.abs(x - y).max() > 100 * tolerance


def test_what_is_evaluated_is_the_plain_average_of_the_steps() -> None:
    """Without a warm-up all weights are equal."""
    params = parameters(ALL_SHAPES, torch.float64)
    optimizer, _ = make(SPEC, params, warmup=0.0, lr=0.02)
    assert isinstance(optimizer, ScheduleFreeAdamW)
    sums = [np.zeros(param.info.shape) for param in params]
    for t in range(STEPS):
        drive(optimizer, params, 1, start=t, total=STEPS, scales=[1.0] * STEPS)
        for total, param in zip(sums, params, strict=True):
            total += optimizer.state[param.tensor]["z"].numpy()
    with optimizer.averaged():
        for total, param in zip(sums, params, strict=True):
            found = param.tensor.detach().numpy()
            np.testing.assert_allclose(found, total / STEPS, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluating_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    ends = []
    for often in (False, True):
        params = parameters(ALL_SHAPES, dtype)
        stepper = _stepper(params)
        (optimizer,) = stepper.optimizers
        for t in range(STEPS):
            drive(optimizer, params, 1, start=t, total=STEPS)
            before = values(params)
            if often:
                with stepper.evaluating():
                    assert not same_bits(values(params), before) or t == 0
                assert same_bits(values(params), before)
        ends.append(values(params))
    assert same_bits(*ends)


def _stepper(params: Any) -> Stepper:
    hparams = {**SPEC.defaults(), "lr": 0.01}
    assert callable(SPEC.build)
    built = SPEC.build(context(params, total_steps=TOTAL), hparams)
    assert isinstance(built, Stepper)
    return built


def test_weights_come_back_when_an_evaluation_fails() -> None:
    params = parameters(ALL_SHAPES)
    stepper = _stepper(params)
    drive(stepper.optimizers[0], params, 5)
    before = values(params)
    with pytest.raises(ZeroDivisionError), stepper.evaluating():
        _fail()
    assert same_bits(values(params), before)


def _fail() -> None:
    raise ZeroDivisionError


def test_before_the_first_step_there_is_one_point() -> None:
    params = parameters(ALL_SHAPES)
    before = values(params)
    with _stepper(params).evaluating():
        assert same_bits(values(params), before)


def test_a_fallback_is_stepped_and_cleared_too() -> None:
    params = parameters(ALL_SHAPES)
    ours, rest = params[:4], params[4:]
    fallback = torch.optim.AdamW([param.tensor for param in rest], lr=0.1)
    optimizer = ScheduleFreeAdamW([param.tensor for param in ours])
    stepper = ScheduleFreeStepper(optimizer, fallback, None)
    before = values(params)
    for param in params:
        param.tensor.grad = torch.ones_like(param.tensor)
    stepper.update(1.0)
    assert list(stepper.optimizers) == [optimizer, fallback]
    for param, old in zip(params, before, strict=True):
        assert not torch.equal(param.tensor, old)
        assert param.tensor.grad is None
    with stepper.evaluating():
        pass
    saved = stepper.state_dict()
    assert len(saved["optimizers"]) == 2


def test_training_evaluates_the_average_and_never_scales_the_rate() -> None:
    """What a trial reports does not depend on how often it looks."""
    losses = []
    for every in (3, 8):
        protocol: Protocol = small.changed(
            evaluation=small.Evaluation(every=every, sequences=8), steps=16
        )
        record = small.train(SPEC.name, protocol, lr=0.01)
        assert record.status == "ok", record.reason
        assert {factor for _, factor in record.lr_trace} == {1.0}
        losses.append((record.selection_loss, record.train_loss))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("wrong", [{"beta1": 0.0}, {"beta1": 1.1}, {"beta2": 1.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is needed"):
        ScheduleFreeAdamW([torch.nn.Parameter(torch.zeros(2))], **wrong)
