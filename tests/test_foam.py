"""FOAM against its equations: folding, the residual, both second moments, its bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import ParamInfo
from levelfield.bench.stepper import Parameter
from levelfield.optimizers._foam import Foam, blocked, fold, unfold
from levelfield.optimizers.foam import SPEC, build
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    context,
    drive,
    gradients,
    lr_scales,
    measured_state_bytes,
    parameters,
    same_bits,
    values,
)

TOTAL = 40
MODEL = (*SHAPES, ((9, 10), "matrix"), ((4, 2, 6), "matrix"))
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"second_moment": "sq_of_mean"},
    {"level": 1, "alpha": 1.0},
    {"level": 8, "second_moment": "sq_of_mean"},
    {"level": 3, "residual": False},
)


@cache
def known(shape: tuple[int, ...], index: int) -> list[Array]:
    return gradients(shape, TOTAL, index)


def go(
    optimizer: torch.optim.Optimizer,
    params: tuple[Parameter, ...],
    steps: int,
    *,
    total: int = TOTAL,
    **options: Any,
) -> None:
    """`drive` with the gradients above, drawn once for all tests; they repeat after TOTAL steps."""

    def grad_of(index: int, t: int) -> Array:
        return known(params[index].info.shape, index)[t % TOTAL]

    drive(optimizer, params, steps, **{"total": total, "grad_of": grad_of, **options})


def make(
    params: tuple[Parameter, ...], total: int = TOTAL, **changes: Any
) -> tuple[Foam, Mapping[str, Any]]:
    hparams = {**SPEC.defaults(), **changes}
    return build(context(params, total_steps=total), hparams), hparams


def folding(length: int, size: int) -> Array:
    """A in g~ = G A, [length, blocks]: 1 / size where the column belongs to the block."""
    return np.array(
        [[(j // size == b) / size for b in range(math.ceil(length / size))] for j in range(length)]
    )


class Textbook:
    """The paper's equations as matrix products with A and E, in float64."""

    def __init__(self, start: Array, hparams: Mapping[str, Any], role: str) -> None:
        self.p, self.h, self.t = start.astype(np.float64), hparams, 0
        folds = role == "matrix"
        self.alpha = hparams["alpha"] if folds else 1.0
        self.rate = hparams["lr"] * (
            hparams["embed_multiplier"] if role in ("embed", "head") else 1
        )
        self.decay = 0.0 if role == "vector" else hparams["weight_decay"]
        size = 2 ** hparams["level"] if folds else 1
        self.a = folding(start.shape[-1], size)
        self.e = self.a.T * size
        self.m = self.v = np.zeros_like(self.p) @ self.a
        self.r = self.p

    def step(self, g: Array, scale: float) -> None:
        b1, b2, lr = self.h["beta1"], self.h["beta2"], self.rate * scale
        self.t += 1
        mean = g @ self.a
        square = g**2 @ self.a if self.h["second_moment"] == "mean_of_sq" else mean**2
        self.r = g - mean @ self.e
        self.m = b1 * self.m + (1 - b1) * mean
        self.v = b2 * self.v + (1 - b2) * square
        r = self.r if self.h["residual"] else 0.0
        update = (self.m @ self.e + r) / (np.sqrt(self.v @ self.e + r**2) + self.h["eps"])
        step = lr * math.sqrt(1 - b2**self.t) / (1 - b1**self.t)
        self.p = self.p - step * self.alpha * update
        self.p = self.p - lr * self.decay * self.p


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_follows_the_equations(variant: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    optimizer, hparams = make(params, **variant, weight_decay=0.1, embed_multiplier=3.0, eps=1e-4)
    books = [Textbook(p.tensor.detach().numpy().copy(), hparams, p.info.role) for p in params]
    go(optimizer, params, TOTAL)
    deltas = []
    for t, scale in enumerate(lr_scales(TOTAL)):
        parts, wholes = 0.0, 0.0
        for index, (param, book) in enumerate(zip(params, books, strict=True)):
            grad = known(param.info.shape, index)[t]
            book.step(grad, scale)
            if param.info.role == "matrix":
                parts, wholes = parts + (book.r**2).sum(), wholes + (grad**2).sum()
        deltas.append(math.sqrt(parts / wholes))
    for param, book in zip(params, books, strict=True):
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=1e-10, atol=1e-12)
    assert [step for step, _ in optimizer.series["delta"]] == list(range(TOTAL))
    np.testing.assert_allclose([d for _, d in optimizer.series["delta"]], deltas, rtol=1e-10)


@pytest.mark.parametrize("second_moment", ["mean_of_sq", "sq_of_mean"])
def test_level_zero_is_adam(second_moment: str) -> None:
    shapes = [(shape, role) for shape, role in MODEL if role == "matrix"]
    ours, hf, torchs = (parameters(shapes, torch.float64) for _ in range(3))
    change = {"level": 0, "alpha": 1.0, "second_moment": second_moment}
    optimizer, _ = make(ours, **change, eps=1e-3)
    go(optimizer, ours, TOTAL)
    assert all(delta == 0.0 for _, delta in optimizer.series["delta"])
    for index, param in enumerate(hf):
        p, m, v = param.tensor.detach().numpy(), 0.0, 0.0
        for t, scale in enumerate(lr_scales(TOTAL), start=1):
            g = known(param.info.shape, index)[t - 1]
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
            corrected = 0.01 * scale * math.sqrt(1 - 0.95**t) / (1 - 0.9**t)
            p -= corrected * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(ours[index].tensor.detach().numpy(), p, rtol=1e-10, atol=1e-12)
    # With a vanishing eps its place does not matter: torch's Adam.
    again = parameters(shapes, torch.float64)
    tiny, _ = make(again, **change, eps=1e-14)
    go(tiny, again, TOTAL)
    theirs = torch.optim.Adam(
        context(torchs).groups({"lr": 0.01}), betas=(0.9, 0.95), eps=1e-14, foreach=False
    )
    go(theirs, torchs, TOTAL)
    for a, b in zip(values(again), values(torchs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_the_other_roles_get_plain_adam_at_the_full_rate() -> None:
    ours, theirs = parameters(MODEL), parameters(MODEL)
    optimizer, _ = make(ours, embed_multiplier=2.0, eps=1e-12)
    go(optimizer, ours, TOTAL)
    groups = context(theirs).groups({"lr": 0.01, "embed_multiplier": 2.0})
    go(torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-12, foreach=False), theirs, TOTAL)
    for a, b in zip(ours, theirs, strict=True):
        if a.info.role != "matrix":
            torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-5, atol=1e-6)


def constant_in_blocks(index: int, t: int) -> Array:
    return np.repeat(known(SQUARES[index][0], index)[t][:, ::4], 4, axis=1)


SQUARES = (((6, 8), "matrix"), ((3, 12), "matrix"))


def test_a_gradient_constant_in_its_blocks_leaves_no_residual() -> None:
    ends = {}
    for second_moment in ("mean_of_sq", "sq_of_mean"):
        for residual in (True, False):
            params = parameters(SQUARES, torch.float64)
            optimizer, _ = make(params, second_moment=second_moment, residual=residual)
            go(optimizer, params, TOTAL, grad_of=constant_in_blocks)
            assert all(delta < 1e-15 for _, delta in optimizer.series["delta"])
            ends[second_moment, residual] = values(params)
    first, *others = ends.values()
    for other in others:
        for a, b in zip(first, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_second_moments_differ_by_the_variance_inside_a_block() -> None:
    torch.manual_seed(3)
    grad = torch.randn(5, 8, dtype=torch.float64)
    v = {}
    for second_moment in ("mean_of_sq", "sq_of_mean"):
        params = parameters([((5, 8), "matrix")], torch.float64)
        optimizer, _ = make(params, second_moment=second_moment)
        go(optimizer, params, 1, grad_of=lambda index, t: grad.numpy())
        v[second_moment] = optimizer.state[params[0].tensor]["exp_avg_sq"] / 0.05
    variance = grad.reshape(5, 2, 4).var(-1, correction=0)
    torch.testing.assert_close(v["mean_of_sq"] - v["sq_of_mean"], variance)
    assert (v["mean_of_sq"] > v["sq_of_mean"]).all()


def test_an_odd_row_is_filled_up_with_zeros_that_count() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0, 6.0, 5.0, 2.0, 8.0]])
    assert fold(x, 4).tolist() == [[3.0, 3.75]]
    assert fold(x, 2).tolist() == [[2.0, 4.0, 3.5, 4.0]]
    assert unfold(fold(x, 4), 4, 7).tolist() == [[3.0] * 4 + [3.75] * 3]
    assert torch.equal(fold(x, 1), x)
    # A block longer than the row: one number a row, its zeros counted though never laid out.
    assert fold(x, 16).tolist() == [[27 / 16]]
    assert blocked(x, 2**40).shape == (1, 1, 7)
    assert unfold(fold(x, 16), 16, 7).tolist() == [[27 / 16] * 7]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 64])
def test_fold_and_unfold_are_the_products_with_a_and_e(length: int, size: int) -> None:
    x = torch.randn(3, 2, length, dtype=torch.float64)
    a = torch.as_tensor(folding(length, size)).reshape(length, -(-length // size)).to(x)
    torch.testing.assert_close(fold(x, size), x @ a)
    torch.testing.assert_close(unfold(x @ a, size, length), x @ a @ (size * a.T))


def test_a_large_level_keeps_one_number_a_row() -> None:
    params = parameters([((6, 20), "matrix")])
    optimizer, hparams = make(params, level=30)
    go(optimizer, params, 3)
    state = optimizer.state[params[0].tensor]
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (6, 1)
    assert SPEC.state_bytes([params[0].info], hparams, 1.0) == 2 * 6 * 4


@pytest.mark.parametrize("variant", [*VARIANTS, {"level": 0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_claimed_bytes_are_held(variant: dict[str, Any], dtype: torch.dtype) -> None:
    params = parameters(MODEL, dtype)
    infos = [param.info for param in params]
    optimizer, hparams = make(params, **variant)
    for t in range(3):
        go(optimizer, params, 1, start=t)
        claim = SPEC.state_bytes(infos, hparams, (t + 1) / TOTAL)
        assert measured_state_bytes(optimizer) == stored_bytes([optimizer]) == claim
    assert all(param.tensor.isfinite().all() for param in params)


def test_claim_by_hand_and_shared_tables_cost_nothing() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(10, 8), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
    ]
    assert SPEC.state_bytes(infos, SPEC.defaults(), 1.0) == 2 * (
        4 * 6 * 3 + 2 * 10 * 2 + 4 * 44 + 4 * 4
    )


@pytest.mark.parametrize("total", [1, 100, 150, 1000])
def test_delta_is_recorded_at_no_more_than_a_hundred_steps(total: int) -> None:
    params = parameters([((2, 4), "matrix")])
    optimizer, _ = make(params, total)
    go(optimizer, params, total, total=total)
    points = optimizer.series["delta"]
    assert min(total, 50) <= len(points) <= 100
    assert all(0.0 <= delta <= 1.0 for _, delta in points)


def test_delta_of_no_gradient_is_zero_and_without_matrices_there_is_none() -> None:
    params = parameters([((2, 4), "matrix")])
    optimizer, _ = make(params)
    go(optimizer, params, 2, grad_of=lambda index, t: np.zeros((2, 4)))
    assert optimizer.series == {"delta": [[0, 0.0], [1, 0.0]]}
    vectors = parameters([((4,), "vector")])
    optimizer, _ = make(vectors)
    go(optimizer, vectors, 2)
    assert optimizer.series == {"delta": []}


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
def test_a_step_reads_nothing_on_the_host(lr: Any) -> None:
    params = [torch.nn.Parameter(torch.randn(3, 5)), torch.nn.Parameter(torch.randn(5))]
    optimizer = Foam(params, lr=lr, weight_decay=0.1)
    for param in params:
        param.grad = torch.randn(param.shape)
    with NoHostReads():
        for _ in range(3):
            optimizer.step()
    assert len(optimizer.series["delta"]) == 3


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_goes_on_bit_for_bit(variant: dict[str, Any], dtype: torch.dtype) -> None:
    straight = parameters(MODEL, dtype)
    optimizer, _ = make(straight, **variant)
    go(optimizer, straight, TOTAL)
    first = parameters(MODEL, dtype)
    before, _ = make(first, **variant)
    go(before, first, 17)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    second = parameters(MODEL, dtype)
    with torch.no_grad():
        for old, new in zip(first, second, strict=True):
            new.tensor.copy_(old.tensor)
    after, _ = make(second, **variant)
    after.load_state_dict(torch.load(file, weights_only=False))
    go(after, second, TOTAL - 17, start=17)
    assert same_bits(values(second), values(straight))
    assert after.series == optimizer.series


def test_two_runs_are_equal() -> None:
    runs = []
    for _ in range(2):
        params = parameters(MODEL)
        optimizer, _ = make(params)
        go(optimizer, params, TOTAL)
        runs.append(values(params))
    assert same_bits(*runs)


def test_a_missing_gradient_moves_nothing() -> None:
    straight, holed = parameters(MODEL), parameters(MODEL)
    one, _ = make(straight)
    two, _ = make(holed)
    go(one, straight, TOTAL)
    go(
        two,
        holed,
        TOTAL,
        grad_of=lambda index, t: None if index == 0 else known(MODEL[index][0], index)[t],
    )
    assert same_bits(values(straight)[1:], values(holed)[1:])
    assert same_bits(values(parameters(MODEL))[:1], values(holed)[:1])


@pytest.mark.parametrize("level", [0, 1, 2, 8])
def test_odd_shapes_layouts_and_a_rate_kept_as_a_tensor(level: int) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 4), (4, 0), (2, 3, 5), (3, 1)]
    ends = []
    for lr in (0.01, torch.tensor(0.01, dtype=torch.float64)):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        params.append(torch.nn.Parameter(torch.randn(8, 6).t()))
        params.append(torch.nn.Parameter(torch.randn(6, 8)[:, ::2]))
        groups = [{"params": params[:4]}, {"params": params[4:], "weight_decay": 0.1}]
        optimizer = Foam(groups, lr=lr, level=level)
        for _ in range(8):
            for param in params:
                param.grad = torch.randn(param.shape)
            optimizer.step()
        assert all(param.isfinite().all() for param in params)
        ends.append([param.detach().clone() for param in params])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"level": -1}, {"level": 1.5}, {"second_moment": "mean"}, {"beta2": 1.0}], ids=str
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted"):
        Foam([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
