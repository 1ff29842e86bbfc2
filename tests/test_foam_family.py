"""FOAM-Mini, 8-bit FOAM, FOAM with Adam-mini and with Muon against their equations."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import adam_mini, foam, foam_8bit, foam_adam_mini, foam_mini, foam_muon
from levelfield.optimizers import muon as plain_muon
from levelfield.optimizers._foam import block_size
from levelfield.optimizers._quant import dynamic_map
from levelfield.optimizers.foam_8bit import Foam8bit
from levelfield.optimizers.foam_muon import FoamMuon
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    as_gradient,
    context,
    drive,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)

TOTAL = 30
MODEL: tuple[tuple[tuple[int, ...], Role], ...] = (
    *SHAPES,
    ((9, 10), "matrix"),
    ((4, 2, 6), "matrix"),
    ((12, 50), "matrix"),
)
HEADS = {(6, 4): 2, (12, 50): 4, (9, 10): 2}
"""Heads of a shape; 9 rows are not 2 heads."""
FAMILY = (foam_mini.SPEC, foam_8bit.SPEC, foam_adam_mini.SPEC, foam_muon.SPEC)
ON = {"min_elements": 40, "quant_block": 16}
"""8 bits for all but the smallest of the matrices above."""
VARIANTS: tuple[tuple[OptimizerSpec, dict[str, Any]], ...] = (
    (foam_mini.SPEC, {}),
    (foam_mini.SPEC, {"second_moment": "sq_of_mean", "alpha": 1.0}),
    (foam_8bit.SPEC, {}),
    (foam_8bit.SPEC, ON),
    (foam_8bit.SPEC, {**ON, "level": 1, "second_moment": "sq_of_mean"}),
    (foam_8bit.SPEC, {**ON, "level": "row"}),
    (foam_adam_mini.SPEC, {}),
    (foam_adam_mini.SPEC, {"value_blocks": "whole", "level": 1}),
    (foam_adam_mini.SPEC, {"value_blocks": "head", "residual": False}),
    (foam_muon.SPEC, {}),
    (foam_muon.SPEC, {"nesterov": False, "adjust": "match_rms", "level": 1}),
    (foam_muon.SPEC, {"level": "row", "residual": False}),
)
over_variants = pytest.mark.parametrize(
    ("spec", "changes"), VARIANTS, ids=lambda value: getattr(value, "name", str(value))
)
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@cache
def known(shape: tuple[int, ...], index: int) -> list[Array]:
    return gradients(shape, TOTAL, index)


def model(
    spec: OptimizerSpec,
    dtype: torch.dtype = torch.float32,
    shapes: Sequence[tuple[tuple[int, ...], Role]] = MODEL,
) -> tuple[Parameter, ...]:
    """Parameters of the roles a method takes; one matrix is a value projection, some have heads."""
    found = []
    for param in parameters(shapes, dtype, spec.roles):
        info = param.info
        named = "layer.v_proj.weight" if info.shape == (12, 50) else info.name
        info = ParamInfo(
            name=named,
            shape=info.shape,
            role=info.role,
            dtype=info.dtype,
            heads=HEADS.get(info.shape),
        )
        found.append(Parameter(info, param.tensor))
    return tuple(found)


def make(
    spec: OptimizerSpec, params: Sequence[Parameter], total: int = TOTAL, **changes: Any
) -> tuple[Any, Mapping[str, Any]]:
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    return spec.build(context(params, total_steps=total), hparams), hparams


def go(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Parameter],
    steps: int,
    *,
    start: int = 0,
    **options: Any,
) -> None:
    def grad_of(index: int, t: int) -> Array:
        return known(params[index].info.shape, index)[t]

    drive(
        optimizer, params, steps, **{"start": start, "total": TOTAL, "grad_of": grad_of, **options}
    )


# --- the equations, in float64 with products by A and E ------------------------------------------


def folding(length: int, level: int | str) -> tuple[Array, Array]:
    """A and E of g~ = G A and its unfolding by E."""
    size = length if level == "row" else 2 ** int(level)
    blocks = math.ceil(length / size)
    a = np.array([[(j // size == b) / size for b in range(blocks)] for j in range(length)])
    return a, a.T * size


def nearest(x: Array, signed: bool, block: int) -> Array:
    """x after a trip through 8 bits."""
    entries = np.array(dynamic_map(signed), dtype=np.float32).astype(np.float64)
    flat = x.reshape(-1).copy()
    for start in range(0, x.size, block):
        part = flat[start : start + block]
        largest = float(np.float32(np.abs(part).max()))
        if largest > 0:
            codes = np.abs(part[:, None] / largest - entries).argmin(axis=1)
            flat[start : start + block] = entries[codes] * largest
    return flat.reshape(x.shape)


def quintic_ns(x: Array, steps: int) -> Array:
    """Newton-Schulz through the singular values."""
    left, s, right = np.linalg.svd(x, full_matrices=False)
    s = s / (np.linalg.norm(s) + 1e-7)
    for _ in range(steps):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return np.asarray((left * s) @ right)


def mini_blocks(info: ParamInfo, values: str) -> int:
    """How many blocks Adam-mini cuts a parameter into."""
    if info.role == "vector":
        return 1
    rows = info.shape[0]
    if info.role != "matrix":
        return rows
    if "v_proj" in info.name:
        heads = info.heads or rows
        return {"row": rows, "head": heads, "whole": 1}[values]
    return info.heads if info.heads and rows % info.heads == 0 else rows


class Textbook:
    def __init__(self, spec: OptimizerSpec, param: Parameter, h: Mapping[str, Any]) -> None:
        self.spec, self.info, self.h, self.t = spec, param.info, h, 0
        self.p = param.tensor.detach().double().numpy().copy()
        role = self.info.role
        self.folds = role == "matrix"
        self.rate = h["lr"] * (h["embed_multiplier"] if role in ("embed", "head") else 1)
        self.decay = 0.0 if role == "vector" else h["weight_decay"]
        self.a, self.e = folding(self.p.shape[-1], h["level"] if self.folds else 0)
        self.m = np.zeros_like(self.p) @ self.a
        self.v: Any = 0.0
        self.r = self.m

    def step(self, g: Array, scale: float) -> None:
        lr, h = self.rate * scale, self.h
        self.t += 1
        mean = g @ self.a
        self.r = g - mean @ self.e
        r = self.r if h["residual"] else 0.0
        if self.spec is foam_muon.SPEC:
            mu = h["momentum"]
            self.m = mu * self.m + (1 - mu) * mean
            u = (1 - mu) * mean + mu * self.m if h["nesterov"] else self.m
            flat = (u @ self.e + r).reshape(g.shape[0], -1)
            rows, columns = flat.shape
            factor = math.sqrt(max(1.0, rows / columns))
            if h["adjust"] == "match_rms":
                factor = 0.2 * math.sqrt(max(rows, columns))
            o = quintic_ns(flat, h["steps"]).reshape(g.shape)
            self.p = (1 - lr * self.decay) * self.p - lr * factor * o
            return
        b1, b2 = h["beta1"], h["beta2"]
        self.m = b1 * self.m + (1 - b1) * mean
        if self.spec is foam_adam_mini.SPEC:
            blocks = mini_blocks(self.info, h["value_blocks"])
            now = (g**2).reshape(blocks, -1).mean(axis=1, keepdims=True)
            self.v = b2 * self.v + (1 - b2) * now
            v = np.broadcast_to(self.v, (blocks, g.size // blocks)).reshape(g.shape)
        else:
            square = g**2 @ self.a if h["second_moment"] == "mean_of_sq" else mean**2
            self.v = b2 * self.v + (1 - b2) * square
            v = self.v @ self.e
        update = (self.m @ self.e + r) / (np.sqrt(v + np.square(r)) + h["eps"])
        step = lr * math.sqrt(1 - b2**self.t) / (1 - b1**self.t)
        self.p = self.p - step * (h["alpha"] if self.folds else 1.0) * update
        self.p = self.p - lr * self.decay * self.p
        if self.folds and g.size >= h.get("min_elements", math.inf):
            self.m = nearest(self.m, True, h["quant_block"])
            self.v = nearest(self.v, False, h["quant_block"])


@over_variants
def test_follows_the_equations(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    params = model(spec, torch.float64)
    eps = {} if spec is foam_muon.SPEC else {"eps": 1e-4}
    optimizer, hparams = make(
        spec, params, weight_decay=0.1, embed_multiplier=3.0, **eps, **changes
    )
    books = [Textbook(spec, param, hparams) for param in params]
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
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=1e-9, atol=1e-10)
    assert [step for step, _ in optimizer.series["delta"]] == list(range(TOTAL))
    np.testing.assert_allclose([d for _, d in optimizer.series["delta"]], deltas, rtol=1e-10)


# --- reductions ----------------------------------------------------------------------------------


def end(spec: OptimizerSpec, dtype: torch.dtype = torch.float32, **changes: Any) -> list[Any]:
    params = model(spec, dtype)
    optimizer, _ = make(spec, params, weight_decay=0.1, **changes)
    go(optimizer, params, TOTAL)
    return values(params)


def close(one: Sequence[Any], other: Sequence[Any], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_mini_is_foam_with_a_block_a_row() -> None:
    assert block_size("row", 11) == 11
    assert block_size(4, 11) == 16
    # where a row is a power of two long, a level folds it just so
    shapes: Sequence[tuple[tuple[int, ...], Role]] = [((6, 8), "matrix"), ((3, 8), "matrix")]
    ends = []
    for spec, changes in ((foam_mini.SPEC, {}), (foam.SPEC, {"level": 3})):
        params = model(spec, shapes=shapes)
        optimizer, _ = make(spec, params, **changes)
        go(optimizer, params, TOTAL)
        ends.append(values(params))
        state = optimizer.state[params[0].tensor]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (6, 1)
    assert same_bits(*ends)


def test_mini_takes_the_mean_of_the_row_itself() -> None:
    # a level that fills the row up with zeros makes its mean smaller
    param = Parameter(
        ParamInfo(name="p", shape=(1, 5), role="matrix"), torch.nn.Parameter(torch.zeros(1, 5))
    )
    for level, mean in (("row", 3.0), (3, 15 / 8)):
        optimizer, _ = make(foam_mini.SPEC, [param], level=level)
        drive(optimizer, [param], 1, grad_of=lambda index, t: np.arange(1.0, 6.0)[None])
        state = optimizer.state[param.tensor]
        assert float(state["exp_avg"]) == pytest.approx(0.1 * mean)


def test_8bit_without_a_large_matrix_is_foam() -> None:
    params = model(foam_8bit.SPEC)
    optimizer, _ = make(foam_8bit.SPEC, params, weight_decay=0.1)
    go(optimizer, params, TOTAL)
    assert same_bits(values(params), end(foam.SPEC))
    assert optimizer.refreshes == 0
    assert not optimizer.state_holders


def test_8bit_drifts_little_from_foam_on_a_quadratic() -> None:
    # Not nothing: an average that changes by less than half a step of the map stands still.
    ends = []
    target = np.random.default_rng(3).standard_normal((64, 96))
    for spec in (foam.SPEC, foam_8bit.SPEC):
        param = Parameter(
            ParamInfo(name="p", shape=(64, 96), role="matrix"),
            torch.nn.Parameter(torch.zeros(64, 96)),
        )
        optimizer, _ = make(spec, [param], lr=0.01, total=100)

        def grad_of(index: int, t: int, tensor: torch.Tensor = param.tensor) -> Array:
            return np.asarray(tensor.detach().double().numpy() - target)

        drive(optimizer, [param], 100, scales=[1.0] * 100, grad_of=grad_of)
        ends.append(float(np.square(param.tensor.detach().double().numpy() - target).sum()))
    assert ends[0] < 0.8 * np.square(target).sum()
    assert 0 < abs(ends[1] - ends[0]) < 0.01 * ends[0]
    assert isinstance(optimizer, Foam8bit)
    assert optimizer.refreshes == 100


def test_adam_mini_at_level_zero_is_adam_mini() -> None:
    # a vanishing eps has no place
    for values_ in ("row", "head", "whole"):
        changes = {"lr": 0.01, "eps": 1e-14, "value_blocks": values_}
        ends = []
        for spec, more in (
            (foam_adam_mini.SPEC, {"level": 0, "alpha": 1.0}),
            (adam_mini.SPEC, {"beta1": 0.9, "beta2": 0.95}),
        ):
            params = model(spec, torch.float64)
            optimizer, _ = make(spec, params, **changes, **more)
            go(optimizer, params, TOTAL)
            ends.append(values(params))
        close(*ends, 1e-9)


def test_adam_mini_of_one_fold_a_row_is_mini() -> None:
    shapes: Sequence[tuple[tuple[int, ...], Role]] = [((6, 7), "matrix"), ((3, 8), "matrix")]
    ends = []
    for spec, changes in ((foam_mini.SPEC, {}), (foam_adam_mini.SPEC, {"level": "row"})):
        params = model(spec, torch.float64, shapes)
        optimizer, _ = make(spec, params, weight_decay=0.1, **changes)
        go(optimizer, params, TOTAL)
        ends.append(values(params))
    close(*ends, 1e-12)


def test_adam_mini_with_equal_sizes_in_a_block_is_foam() -> None:
    # mean(G^2) over a row is that over a fold: signs alone differ
    rng = np.random.default_rng(0)
    grads = [rng.choice([-1.0, 1.0], (6, 8)) * rng.uniform(0.1, 9, (6, 1)) for _ in range(TOTAL)]
    ends = []
    for spec in (foam.SPEC, foam_adam_mini.SPEC):
        params = model(spec, torch.float64, [((6, 8), "matrix")])
        optimizer, _ = make(spec, params)
        go(optimizer, params, TOTAL, grad_of=lambda index, t: grads[t])
        ends.append(values(params))
    close(*ends, 1e-12)


@pytest.mark.parametrize("adjust", ["original", "match_rms"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_at_level_zero_is_muon(nesterov: bool, adjust: str) -> None:
    changes = {"nesterov": nesterov, "adjust": adjust}
    one = end(foam_muon.SPEC, torch.float64, level=0, **changes)
    close(one, end(plain_muon.SPEC, torch.float64, **changes), 1e-9)


def test_muon_of_a_gradient_constant_in_its_folds_is_muon() -> None:
    shapes: Sequence[tuple[tuple[int, ...], Role]] = [((6, 8), "matrix"), ((3, 12), "matrix")]

    def grad_of(index: int, t: int) -> Array:
        return np.repeat(known(shapes[index][0], index)[t][:, ::4], 4, axis=1)

    ends = []
    for spec in (plain_muon.SPEC, foam_muon.SPEC):
        params = model(spec, torch.float64, shapes)
        optimizer, _ = make(spec, params)
        go(optimizer, params, TOTAL, grad_of=grad_of)
        ends.append(values(params))
    close(*ends, 1e-9)


# --- bytes ---------------------------------------------------------------------------------------


@over_variants
@over_dtypes
def test_claimed_bytes_are_held(
    spec: OptimizerSpec, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    params = model(spec, dtype)
    infos = [param.info for param in params]
    optimizer, hparams = make(spec, params, **changes)
    for t in range(3):
        go(optimizer, params, 1, start=t)
        assert stored_bytes([optimizer]) == spec.state_bytes(infos, hparams, (t + 1) / TOTAL)
    assert all(param.tensor.isfinite().all() for param in params)


def test_claims_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(64, 100), role="matrix", heads=4),
        ParamInfo(name="x.v_proj.weight", shape=(6, 10), role="matrix", dtype="bfloat16", heads=2),
        ParamInfo(name="e", shape=(11, 4), role="embed", dtype="bfloat16"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
        ParamInfo(name="x.bias", shape=(4,), role="vector"),
    ]

    def claim(spec: OptimizerSpec, **changes: Any) -> int:
        return spec.state_bytes(infos, {**spec.defaults(), **changes}, 1.0)

    rest = 2 * (2 * 44 + 4 * 4 + 4 * 4)
    assert claim(foam_mini.SPEC) == 2 * (4 * 64 + 2 * 6) + rest
    # 1,600 folds in 7 blocks; the small matrix and the table in float32; two maps
    in_float32 = 2 * 4 * (6 * 3 + 44 + 4 + 4)
    assert claim(foam_8bit.SPEC) == 2 * (1600 + 4 * 7) + in_float32 + 2 * 1024
    assert claim(foam_8bit.SPEC, min_elements=6401) == 2 * 4 * 1600 + in_float32
    tables = 2 * (44 + 11) + 4 * (4 + 1) + 4 * (4 + 4)
    assert claim(foam_adam_mini.SPEC) == 4 * (1600 + 4) + 2 * (18 + 6) + tables
    whole = claim(foam_adam_mini.SPEC, value_blocks="whole")
    assert whole == 4 * (1600 + 4) + 2 * (18 + 1) + tables
    matrices = [info for info in infos if info.role == "matrix"]
    hparams = foam_muon.SPEC.defaults()
    assert foam_muon.SPEC.state_bytes(matrices, hparams, 1.0) == 4 * 1600 + 2 * 18


def test_8bit_state_is_bytes_and_the_rest_is_float32() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        params = model(foam_8bit.SPEC, dtype)
        optimizer, _ = make(foam_8bit.SPEC, params, **ON)
        go(optimizer, params, 2)
        for param in params:
            state = optimizer.state[param.tensor]
            large = param.info.role == "matrix" and param.info.numel >= 40
            assert state["exp_avg"].dtype == (torch.uint8 if large else torch.float32)
            assert ("exp_avg_sq_largest" in state) == large
        assert len(optimizer.state_holders) == 1


def test_8bit_counts_the_steps_that_kept_8_bits() -> None:
    params = model(foam_8bit.SPEC)
    optimizer, _ = make(foam_8bit.SPEC, params, min_elements=600)
    only = [index for index, param in enumerate(params) if param.info.numel >= 600]
    assert len(only) == 1

    def grad_of(index: int, t: int) -> Array | None:
        absent = index in only and t % 2 == 1
        return None if absent else known(params[index].info.shape, index)[t]

    go(optimizer, params, 6, grad_of=grad_of)
    assert optimizer.refreshes == 3


# --- what every method promises ------------------------------------------------------------------


@over_variants
@over_dtypes
def test_round_trip_goes_on_bit_for_bit(
    spec: OptimizerSpec, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    straight = model(spec, dtype)
    optimizer, _ = make(spec, straight, **changes)
    go(optimizer, straight, TOTAL)
    first = model(spec, dtype)
    before, _ = make(spec, first, **changes)
    go(before, first, 17)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    second = model(spec, dtype)
    with torch.no_grad():
        for old, new in zip(first, second, strict=True):
            new.tensor.copy_(old.tensor)
    after, _ = make(spec, second, **changes)
    after.load_state_dict(torch.load(file, weights_only=False))
    go(after, second, TOTAL - 17, start=17)
    assert same_bits(values(second), values(straight))
    assert after.series == optimizer.series
    assert stored_bytes([after]) == stored_bytes([optimizer])
    assert getattr(after, "refreshes", None) == getattr(optimizer, "refreshes", None)


@over_variants
def test_two_runs_have_the_same_bits(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    assert same_bits(end(spec, **changes), end(spec, **changes))


@over_variants
def test_a_missing_gradient_moves_nothing(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    straight, holed = model(spec), model(spec)
    one, _ = make(spec, straight, **changes)
    two, _ = make(spec, holed, **changes)
    go(one, straight, 5)
    go(
        two,
        holed,
        5,
        grad_of=lambda index, t: None if index == 0 else known(holed[index].info.shape, index)[t],
    )
    assert same_bits(values(straight)[1:], values(holed)[1:])
    assert same_bits(values(model(spec))[:1], values(holed)[:1])


@over_variants
def test_gradients_are_not_overwritten(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    params = model(spec)
    optimizer, _ = make(spec, params, weight_decay=0.3, **changes)
    go(optimizer, params, 3)
    for index, param in enumerate(params):
        last = as_gradient(known(param.info.shape, index)[2], param.tensor)
        assert param.tensor.grad is not None
        assert torch.equal(param.tensor.grad, last)


@over_variants
def test_odd_shapes_layouts_and_a_rate_kept_as_a_tensor(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 4), (4, 0), (2, 3, 5), (3, 1)]
    ends = []
    for as_tensor in (False, True):
        torch.manual_seed(0)
        tensors = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        tensors.append(torch.nn.Parameter(torch.randn(8, 6).t()))
        tensors.append(torch.nn.Parameter(torch.randn(6, 8)[:, ::2]))
        params = [
            Parameter(
                ParamInfo(
                    name=f"p{index}",
                    shape=tuple(tensor.shape),
                    role="matrix" if tensor.ndim > 1 else "vector",
                ),
                tensor,
            )
            for index, tensor in enumerate(tensors)
        ]
        params = [param for param in params if param.info.role in spec.roles]
        optimizer, _ = make(spec, params, weight_decay=0.1, **changes)
        for group in optimizer.param_groups:
            lr = torch.tensor(group["lr"], dtype=torch.float64)
            group["lr"] = lr if as_tensor else group["lr"]
        for _ in range(4):
            for param in params:
                param.tensor.grad = torch.randn(param.tensor.shape)
            optimizer.step()
        assert all(param.tensor.isfinite().all() for param in params)
        ends.append(values(params))
    close(*ends, 1e-5)


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


@over_variants
def test_a_step_reads_nothing_on_the_host(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    params = model(spec)
    optimizer, _ = make(spec, params, weight_decay=0.1, **changes)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    for index, param in enumerate(params):
        param.tensor.grad = as_gradient(known(param.info.shape, index)[0], param.tensor)
    with NoHostReads():
        for _ in range(3):
            optimizer.step()
    assert len(optimizer.series["delta"]) == 3


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (foam_mini.SPEC, {"level": "column"}),
        (foam_mini.SPEC, {"level": -1}),
        (foam_8bit.SPEC, {"quant_block": 0}),
        (foam_8bit.SPEC, {"beta2": 1.0}),
        (foam_adam_mini.SPEC, {"value_blocks": "column"}),
        (foam_muon.SPEC, {"momentum": 1.0}),
        (foam_muon.SPEC, {"adjust": "spectral"}),
        (foam_muon.SPEC, {"level": 0.5}),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_refuses_what_it_cannot_do(spec: OptimizerSpec, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted"):
        make(spec, model(spec), **wrong)


def test_muon_refuses_vectors() -> None:
    with pytest.raises(ValueError, match="a matrix is needed"):
        FoamMuon([torch.nn.Parameter(torch.zeros(3))])
