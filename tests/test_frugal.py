"""FRUGAL against its equations, and that state is where it says it is."""

from __future__ import annotations

import copy
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
from levelfield.optimizers._frugal import Frugal
from levelfield.optimizers._frugal_parts import (
    count_blocks,
    count_columns,
    periods_over,
    select_blocks,
)
from levelfield.optimizers.frugal import SPEC, build
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
VARIANTS: tuple[dict[str, Any], ...] = (
    {"selection": "column"},
    {"selection": "column", "rho": 0.5, "inactive_lr_scale": 0.3},
    {"selection": "block", "rho": 0.5},
    {"selection": "block", "block_order": "ascending", "rho": 0.75},
    {"selection": "block", "block_order": "random", "rho": 0.5},
)
MODEL = (*SHAPES, ((9, 10), "matrix"), ((4, 2, 6), "matrix"))


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
) -> tuple[Frugal, Mapping[str, Any]]:
    hparams = {**SPEC.defaults(), **changes}
    return build(context(params, total_steps=total), hparams), hparams


def selection(optimizer: Frugal, params: tuple[Parameter, ...]) -> list[Array]:
    """For every parameter a mask of the coordinates that hold state, read off `state`."""
    masks = []
    for param in params:
        state = optimizer.state.get(param.tensor)
        mask = np.zeros(param.info.shape)
        if state is not None:
            mask[..., state["index"].numpy() if "index" in state else slice(None)] = 1.0
        if param.info.role != "matrix":
            mask = np.ones(param.info.shape)
        masks.append(mask)
    return masks


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


class Textbook:
    """The paper's equations over a whole tensor with a mask, in float64."""

    def __init__(self, start: Array, hparams: Mapping[str, Any], role: str) -> None:
        self.p = start.astype(np.float64)
        self.h = hparams
        self.rate = hparams["lr"] * (
            hparams["embed_multiplier"] if role in ("embed", "head") else 1
        )
        self.decay = 0.0 if role == "vector" else hparams["weight_decay"]
        self.restart()

    def restart(self) -> None:
        self.m, self.v, self.t = np.zeros_like(self.p), np.zeros_like(self.p), 0

    def step(self, g: Array, mask: Array, scale: float) -> None:
        b1, b2 = self.h["beta1"], self.h["beta2"]
        lr = self.rate * scale
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        m_hat, v_hat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        adam = lr * m_hat / (np.sqrt(v_hat) + self.h["eps"])
        sign = lr * self.h["inactive_lr_scale"] * np.sign(g)
        self.p = (1 - lr * self.decay) * self.p - np.where(mask == 1, adam, sign)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_follows_the_equations_across_refreshes(variant: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    optimizer, hparams = make(
        params, **variant, refresh_fraction=0.2, weight_decay=0.1, lr=0.02, embed_multiplier=3.0
    )
    books = [Textbook(p.tensor.detach().numpy().copy(), hparams, p.info.role) for p in params]
    grads = [known(p.info.shape, index) for index, p in enumerate(params)]
    scales = lr_scales(TOTAL)
    masks: list[Array] = []
    for t in range(TOTAL):
        go(optimizer, params, 1, start=t)
        if t % 8 == 0:
            masks = selection(optimizer, params)
            for param, book in zip(params, books, strict=True):
                if param.info.role == "matrix":
                    book.restart()
        for book, mask, grad in zip(books, masks, grads, strict=True):
            book.step(grad[t], mask, scales[t])
    assert optimizer.refreshes == 4
    for param, book in zip(params, books, strict=True):
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["column", "block"])
def test_all_active_without_refresh_is_adamw(kind: str) -> None:
    ours, plain, fused = parameters(MODEL), parameters(MODEL), parameters(MODEL)
    optimizer, _ = make(
        ours, selection=kind, rho=1.0, refresh_fraction=1.0, weight_decay=0.1, lr=0.01
    )
    go(optimizer, ours, TOTAL)
    for params, options in ((plain, {"foreach": False, "fused": False}), (fused, {"fused": True})):
        groups = context(params).groups({"lr": 0.01, "weight_decay": 0.1})
        go(torch.optim.AdamW(groups, **options), params, TOTAL)
    assert optimizer.refreshes == 0
    assert same_bits(values(ours), values(plain))
    for a, b in zip(values(ours), values(fused), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["column", "block"])
def test_nothing_active_is_signsgd_on_matrices_and_adamw_elsewhere(kind: str) -> None:
    ours, theirs = parameters(MODEL), parameters(MODEL)
    optimizer, _ = make(ours, selection=kind, rho=0.0, weight_decay=0.1, lr=0.01)
    go(optimizer, ours, TOTAL)
    groups = context(theirs).groups({"lr": 0.01, "weight_decay": 0.1})
    rest = [group for group in groups if group["role"] != "matrix"]
    go(torch.optim.AdamW(rest, foreach=False, fused=False), theirs, TOTAL)
    for index, param in enumerate(theirs):
        if param.info.role == "matrix":
            with torch.no_grad():
                for grad, scale in zip(
                    known(param.info.shape, index), lr_scales(TOTAL), strict=True
                ):
                    lr = 0.01 * scale
                    param.tensor.mul_(1 - lr * 0.1)
                    param.tensor.add_(torch.as_tensor(grad).float().sign(), alpha=-lr)
            assert ours[index].tensor not in optimizer.state
    assert same_bits(values(ours), values(theirs))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_after_a_refresh_every_active_coordinate_moves_by_lr(variant: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    optimizer, hparams = make(params, **variant, refresh_fraction=0.2, lr=0.02, eps=0.0)
    for t in range(TOTAL):
        before = values(params)
        go(optimizer, params, 1, start=t, scales=[1.0] * TOTAL)
        if t % 8:
            continue
        for param, old, mask in zip(params, before, selection(optimizer, params), strict=True):
            if param.info.role == "matrix":
                moved = (param.tensor.detach() - old).abs().numpy()
                want = np.where(mask == 1, 0.02, 0.02 * hparams["inactive_lr_scale"])
                np.testing.assert_allclose(moved, want, rtol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("total", [8, 24, 40, 60, 140])
def test_claimed_bytes_are_held_at_every_moment(variant: dict[str, Any], total: int) -> None:
    # 8 and 24 steps: periods below a step and of 1.2 steps; 140 * .05 rounds to above 7.
    params = parameters(MODEL)
    infos = [param.info for param in params]
    optimizer, hparams = make(params, total, **variant)
    for t in range(total):
        go(optimizer, params, 1, start=t, total=total)
        claim = SPEC.state_bytes(infos, hparams, (t + 1) / total)
        # By storage too: a view would pin the whole of what it was cut from.
        assert measured_state_bytes(optimizer) == stored_bytes([optimizer]) == claim
    assert optimizer.refreshes == len(SPEC.switches(hparams, total))
    assert [step for step, _ in optimizer.series["rho"]][1:] == list(SPEC.switches(hparams, total))


def test_claim_by_hand_and_shared_tables_cost_nothing() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(10, 6), role="matrix", dtype="bfloat16"),
        ParamInfo(name="c", shape=(3, 3), role="matrix"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
    ]
    rest = 2 * 4 * (44 + 4)
    hparams = SPEC.defaults()
    columns = 2 * 4 * 6 * 2 + 8 * 2 + 2 * 2 * 10 * 1 + 8
    assert SPEC.state_bytes(infos, hparams, 1.0) == rest + columns
    block = {**hparams, "selection": "block", "rho": 1 / 3}
    assert SPEC.state_bytes(infos, block, 0.0) == rest + 2 * 9 * 4
    assert SPEC.state_bytes(infos, block, 0.05) == rest + 2 * 9 * 4
    assert SPEC.state_bytes(infos, block, 0.051) == rest + 2 * 60 * 2
    assert SPEC.state_bytes(infos, block, 0.15) == rest + 2 * 60 * 4


def test_period_is_a_share_of_the_horizon() -> None:
    hparams = SPEC.defaults()
    assert SPEC.switches(hparams, 400) == tuple(range(20, 400, 20))
    assert len(SPEC.switches(hparams, 20)) == 19
    assert len(SPEC.switches(hparams, 140)) == len(SPEC.switches(hparams, 141)) == 19
    assert SPEC.switches({**hparams, "refresh_fraction": 0.15}, 10) == (1, 3, 4, 6, 7, 9)
    assert periods_over(140, 0.05 * 140) == periods_over(1.0, 0.05) == 19
    assert periods_over(5, math.inf) == 0


def test_shares_are_not_lost_to_rounding() -> None:
    assert 0.29 * 100 < 29
    assert count_columns(0.29, 100) == 29
    assert [count_columns(1 / 5, n) for n in (4, 5, 9, 10, 25)] == [0, 1, 1, 2, 5]
    assert [count_columns(1 / 3, n) for n in (2, 3, 5, 6, 9)] == [0, 1, 1, 2, 3]
    assert count_columns(1.0, 7) == 7
    # Halves go to even, as with Python's `round` in the reference code.
    assert [count_blocks(0.25, n) for n in (2, 6, 10, 14, 84)] == [0, 2, 2, 4, 21]
    assert count_blocks(1.0, 3) == 3


def test_windows_slide_and_wrap() -> None:
    def windows(order: str) -> list[list[int]]:
        return [select_blocks(5, 2, order, 2 * n, 0, n) for n in range(4)]

    assert windows("descending") == [[4, 3], [2, 1], [0, 4], [3, 2]]
    assert windows("ascending") == [[0, 1], [2, 3], [4, 0], [1, 2]]
    drawn = [tuple(select_blocks(14, 4, "random", 0, 3, n)) for n in range(20)]
    assert len(set(drawn)) > 15
    assert all(len(set(one)) == 4 and set(one) <= set(range(14)) for one in drawn)
    assert drawn != [tuple(select_blocks(14, 4, "random", 0, 4, n)) for n in range(20)]


def test_state_is_really_released() -> None:
    params = parameters(MODEL)
    optimizer, _ = make(params, selection="block", rho=0.5, refresh_fraction=0.2)
    matrices = [param.tensor for param in params if param.info.role == "matrix"]
    held: list[list[bool]] = []
    for t in range(TOTAL):
        go(optimizer, params, 1, start=t)
        held.append([matrix in optimizer.state for matrix in matrices])
        assert sum(held[-1]) == 3
    assert all(any(row[i] for row in held) and not all(row[i] for row in held) for i in range(6))

    columns, _ = make(params, selection="column", rho=0.4)
    go(columns, params, 1)
    for matrix in matrices:
        width = count_columns(0.4, matrix.shape[-1])
        state = columns.state[matrix]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (*matrix.shape[:-1], width)
        assert state["index"].dtype == torch.int64
        assert state["index"].untyped_storage().nbytes() == 8 * width
        assert len(set(state["index"].tolist())) == width


def test_old_buffers_go_before_new_ones_come() -> None:
    params = parameters(MODEL)
    optimizer, _ = make(params, rho=0.5)
    go(optimizer, params, 1)
    optimizer.select()
    for param in params:
        if param.info.role == "matrix":
            assert set(optimizer.state[param.tensor]) == {"step", "index"}


def test_a_new_share_acts_at_the_next_refresh_and_a_new_period_at_once() -> None:
    params = parameters(MODEL)
    optimizer, _ = make(params, rho=0.5, refresh_fraction=0.25)
    go(optimizer, params, 5)
    full = measured_state_bytes(optimizer)
    optimizer.rho = 0.2
    optimizer.period = 12.0
    go(optimizer, params, 7, start=5)
    assert (measured_state_bytes(optimizer), optimizer.refreshes) == (full, 0)
    go(optimizer, params, 1, start=12)
    assert measured_state_bytes(optimizer) < full
    go(optimizer, params, 27, start=13)
    assert [step for step, _ in optimizer.series["state_bytes"]] == [0, 12, 24, 36]
    assert optimizer.series["rho"] == [[0, 0.5], [12, 0.2], [24, 0.2], [36, 0.2]]
    assert optimizer.series["state_bytes"][-1][1] == measured_state_bytes(optimizer)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_goes_on_bit_for_bit(variant: dict[str, Any], dtype: torch.dtype) -> None:
    # Wide enough that bfloat16 cannot hold the index of a column.
    shapes = (*MODEL, ((3, 600), "matrix"))
    straight = parameters(shapes, dtype)
    optimizer, _ = make(straight, **variant, refresh_fraction=0.2)
    go(optimizer, straight, TOTAL)
    for stop in (1, 8, 13, 31):
        first = parameters(shapes, dtype)
        before, _ = make(first, **variant, refresh_fraction=0.2)
        go(before, first, stop)
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        second = parameters(shapes, dtype)
        with torch.no_grad():
            for old, new in zip(first, second, strict=True):
                new.tensor.copy_(old.tensor)
        after, _ = make(second, **variant, refresh_fraction=0.2)
        after.load_state_dict(torch.load(file, weights_only=False))
        go(after, second, TOTAL - stop, start=stop)
        assert same_bits(values(second), values(straight))
        assert after.series == optimizer.series
        assert after.refreshes == optimizer.refreshes == 4


def test_a_state_dict_does_not_change_with_the_optimizer_that_loaded_it() -> None:
    params = parameters(MODEL)
    optimizer, _ = make(params)
    go(optimizer, params, 3)
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved["frugal"])
    go(optimizer, params, 30, start=3)
    assert {k: v for k, v in saved["frugal"].items() if k != "generator"} == {
        k: v for k, v in before.items() if k != "generator"
    }
    assert torch.equal(saved["frugal"]["generator"], before["generator"])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_two_runs_are_equal_and_leave_the_global_generator_alone(variant: dict[str, Any]) -> None:
    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        here = torch.get_rng_state()
        params = parameters(MODEL)
        optimizer, _ = make(params, **variant)
        go(optimizer, params, TOTAL)
        assert torch.equal(torch.get_rng_state(), here)
        runs.append(values(params))
    assert same_bits(*runs)


def test_a_missing_gradient_moves_nothing_and_no_draw() -> None:
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


@pytest.mark.parametrize("kind", ["column", "block"])
def test_odd_shapes_layouts_and_a_rate_kept_as_a_tensor(kind: str) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 4), (4, 0), (2, 3, 5), (3, 1)]

    def tensors() -> list[torch.nn.Parameter]:
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        made.append(torch.nn.Parameter(torch.randn(8, 6).t()))
        made.append(torch.nn.Parameter(torch.randn(6, 8)[:, ::2]))
        return made

    ends = []
    for lr in (0.01, torch.tensor(0.01, dtype=torch.float64)):
        params = tensors()
        groups = [{"params": params[:4]}, {"params": params[4:], "weight_decay": 0.1}]
        optimizer = Frugal(groups, lr=lr, selection=kind, rho=0.5, period=3)
        for _ in range(8):
            for param in params:
                param.grad = torch.randn(param.shape)
            optimizer.step()
        assert all(param.isfinite().all() for param in params)
        ends.append([param.detach().clone() for param in params])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["column", "block"])
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
def test_a_step_reads_nothing_on_the_host(kind: str, lr: Any) -> None:
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (5, 3), (5,))]
    optimizer = Frugal(params, lr=lr, weight_decay=0.1, selection=kind, rho=0.5, period=2)
    for param in params:
        param.grad = torch.randn(param.shape)
    with NoHostReads():
        for _ in range(5):
            optimizer.step()
    assert optimizer.refreshes == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"rho": 1.5},
        {"period": 0.0},
        {"selection": "rows"},
        {"block_order": "mirror"},
        {"beta1": 1.0},
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted"):
        Frugal([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
