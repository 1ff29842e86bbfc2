"""APOLLO and APOLLO-Mini against their equations; common promises are in `test_galore`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import _apollo, apollo, apollo_mini
from levelfield.optimizers._apollo import Apollo, projector_seed
from levelfield.optimizers._projection import limit_growth_, random_projector
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

TOTAL = 30
SHAPES = (((9, 5), "matrix"), ((5, 9), "matrix"), ((6, 6), "matrix"), ((4, 2, 6), "matrix"))
GRADIENTS = [gradients(shape, TOTAL, index) for index, (shape, _) in enumerate(SHAPES)]
PERIOD = 6
SPECS = (apollo.SPEC, apollo_mini.SPEC)
over_specs = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def make(
    spec: OptimizerSpec, params: tuple[Parameter, ...], **changes: Any
) -> tuple[Apollo, Mapping[str, Any]]:
    hparams = {**spec.defaults(), "refresh_fraction": PERIOD / TOTAL, **changes}
    return apollo.build(context(params, total_steps=TOTAL), hparams), hparams


def go(optimizer: Apollo, params: tuple[Parameter, ...], steps: int, start: int = 0) -> None:
    drive(
        optimizer,
        params,
        steps,
        start=start,
        total=TOTAL,
        grad_of=lambda index, t: GRADIENTS[index][t],
    )


class Textbook:
    """Algorithm 1 of the paper with the code's order, for a matrix in float64.

    Everything is done for m >= n, a channel a row; a matrix with m < n comes transposed.
    """

    def __init__(self, start: Array, h: Mapping[str, Any]) -> None:
        self.p, self.h, self.t = start, h, 0
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.q: float | None = None
        self.limited = 0

    def step(self, g: Array, rows: Array, scale: float) -> None:
        """`rows` [r, n]: the random projector."""
        h, lr = self.h, self.h["lr"] * scale
        self.t += 1
        low = g @ rows.T
        self.m = h["beta1"] * self.m + (1 - h["beta1"]) * low
        self.v = h["beta2"] * self.v + (1 - h["beta2"]) * low**2
        n = self.m / (np.sqrt(self.v) + h["eps"])
        if h["scaling"] == "channel":
            factors = [
                np.linalg.norm(a) / (np.linalg.norm(b) + 1e-8) for a, b in zip(n, low, strict=True)
            ]
        else:
            factors = [np.linalg.norm(n) / (np.linalg.norm(low) + 1e-8)] * len(g)
        s = np.diag(factors) @ g
        size = float(np.linalg.norm(s))
        if h["growth"] is not None:
            if self.q is not None and size > h["growth"] * (self.q + 1e-8):
                s *= h["growth"] * (self.q + 1e-8) / size
                self.limited += 1
            self.q = float(np.linalg.norm(s))
        bias = np.sqrt(1 - h["beta2"] ** self.t) / (1 - h["beta1"] ** self.t)
        if h["decay_order"] == "before":
            self.p = self.p - lr * h["weight_decay"] * self.p
        self.p = self.p - lr * bias * math.sqrt(h["scale"]) * s
        if h["decay_order"] == "after":
            self.p = self.p - lr * h["weight_decay"] * self.p


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (apollo.SPEC, {}),
        (apollo.SPEC, {"scale": 3.0, "rank_fraction": 0.5, "eps": 1e-2}),
        (apollo.SPEC, {"growth": None, "decay_order": "before"}),
        (apollo.SPEC, {"growth": 1.2}),
        (apollo_mini.SPEC, {"growth": 1.1}),
        (apollo_mini.SPEC, {"growth": None, "scale": 2.0}),
    ],
    ids=lambda case: getattr(case, "name", None) or str(case),
)
def test_follows_the_equations_across_refreshes(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    params = parameters(SHAPES, torch.float64)
    optimizer, hparams = make(spec, params, lr=0.02, weight_decay=0.3, projector="kept", **changes)
    start = values(params)
    turned = [shape[0] < np.prod(shape[1:]) for shape, _ in SHAPES]

    def flat(matrix: Array, index: int) -> Array:
        matrix = matrix.reshape(len(matrix), -1)
        return matrix.T if turned[index] else matrix

    books = [Textbook(flat(value.numpy(), i), hparams) for i, value in enumerate(start)]
    for t, scale in enumerate(lr_scales(TOTAL)):
        go(optimizer, params, 1, start=t)
        for index, (param, book) in enumerate(zip(params, books, strict=True)):
            held = optimizer.state[param.tensor]["projector"].numpy()
            rows = held.T if turned[index] else held
            book.step(flat(GRADIENTS[index][t], index), rows, scale)
    for index, (param, book) in enumerate(zip(params, books, strict=True)):
        ours = flat(param.tensor.detach().numpy(), index)
        np.testing.assert_allclose(ours, book.p, rtol=0, atol=1e-9)
        assert np.abs(ours - flat(start[index].numpy(), index)).max() > 1e-2
        assert (book.limited > 0) == (hparams["growth"] is not None)


@over_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_regenerated_projector_is_the_kept_one(spec: OptimizerSpec, dtype: torch.dtype) -> None:
    ends = []
    for projector in _apollo.PROJECTORS:
        params = parameters(SHAPES, dtype)
        optimizer, _ = make(spec, params, projector=projector)
        go(optimizer, params, TOTAL)
        ends.append(values(params))
        holds = {"projector" in state for state in optimizer.state.values()}
        assert holds == {projector == "kept"}
    assert same_bits(*ends)


@over_specs
@pytest.mark.parametrize("front", [False, True])
def test_every_channel_keeps_the_direction_of_its_gradient(
    spec: OptimizerSpec, front: bool
) -> None:
    params = parameters(SHAPES, torch.float64)
    optimizer, hparams = make(spec, params, scale_front=front)
    last = [math.inf] * len(params)
    for t in range(TOTAL):
        before = values(params)
        go(optimizer, params, 1, start=t)
        step = t + 1
        bias = math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        rate = hparams["lr"] * lr_scales(TOTAL)[t] * bias
        for index, (param, old) in enumerate(zip(params, before, strict=True)):
            moved = (old - param.tensor.detach()).flatten(1)
            grad = torch.as_tensor(GRADIENTS[index][t]).flatten(1)
            axis = 1 if grad.shape[0] >= grad.shape[1] else 0
            if spec.name == "apollo_mini":
                moved, grad, axis = moved.reshape(1, -1), grad.reshape(1, -1), 1
            cosine = torch.nn.functional.cosine_similarity(moved, grad, dim=axis)
            torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=0, atol=1e-6)
            size = float(moved.norm()) / rate
            assert size <= 1.01 * last[index] * (1 + 1e-6)
            last[index] = size


@over_specs
def test_the_root_of_scale_enters_before_or_behind_the_limiter(spec: OptimizerSpec) -> None:
    moved = {}
    for scale, front in ((1.0, False), (4.0, False), (4.0, True)):
        params = parameters(SHAPES, torch.float64)
        before = values(params)
        optimizer, _ = make(spec, params, scale=scale, scale_front=front, lr=1e-3)
        go(optimizer, params, TOTAL)
        moved[scale, front] = [a - b for a, b in zip(values(params), before, strict=True)]
    for one, two, front in zip(moved[1.0, False], moved[4.0, False], moved[4.0, True], strict=True):
        torch.testing.assert_close(two, 2 * one, rtol=0, atol=1e-12)
        torch.testing.assert_close(front, two, rtol=1e-6, atol=1e-9)


def test_projections_keep_norms_on_average() -> None:
    for shape in ((9, 5), (5, 9)):
        grad = torch.as_tensor(GRADIENTS[0][0]).reshape(shape)
        squares = []
        for seed in range(2000):
            drawn = random_projector(grad, 3, seed)
            low = grad @ drawn.mT if shape == (9, 5) else drawn.mT @ grad
            squares.append(low.square().sum(1 if shape == (9, 5) else 0))
        mean = torch.stack(squares).mean(0)
        want = grad.square().sum(1 if shape == (9, 5) else 0)
        torch.testing.assert_close(mean, want, rtol=0.1, atol=0)
    many = random_projector(torch.zeros(400, 300), 4, 1)
    assert many.shape == (4, 300)
    assert random_projector(torch.zeros(300, 400), 4, 1).shape == (300, 4)
    assert float(many.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(many.var()) == pytest.approx(1 / 4, rel=0.15)


def test_seeds_differ_by_run_parameter_and_refresh() -> None:
    seeds = {projector_seed(s, p, n) for s in range(8) for p in range(8) for n in range(8)}
    assert len(seeds) == 512
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert projector_seed(2**62 - 1, 3, 5) == projector_seed(2**62 - 1, 3, 5)

    shapes = (((5, 9), "matrix"), ((5, 9), "matrix"))
    drawn = []
    for seed in (17, 18):
        params = parameters(shapes)
        ctx = context(params, total_steps=TOTAL)
        ctx.generator.manual_seed(seed)
        hparams = {**apollo.SPEC.defaults(), "projector": "kept", "refresh_fraction": 0.1}
        optimizer = apollo.build(ctx, hparams)
        for t in range(6):
            drive(
                optimizer,
                params,
                1,
                start=t,
                total=TOTAL,
                grad_of=lambda index, t: GRADIENTS[1][t],
            )
            if t % 3 == 0:
                drawn += [optimizer.state[param.tensor]["projector"] for param in params]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not torch.equal(one, other)


def test_the_limiter_by_hand() -> None:
    state: dict[str, Any] = {}
    sizes = [2.0, 1.0, 5.0, 5.0, 0.0, 3.0, 1.0]
    through = [2.0, 1.0, 1.1, 1.21, 0.0, 3.0, 1.0]  # a norm of 0 lets the next pass
    for size, want in zip(sizes, through, strict=True):
        update = torch.tensor([[size, 0.0]], dtype=torch.float64)
        got = limit_growth_(update, state, 1.1)
        assert got is update
        assert float(got.norm()) == pytest.approx(want, rel=1e-7)
        assert float(state["norm"]) == pytest.approx(want, rel=1e-7)
        assert state["norm"].ndim == 0


def test_the_norm_stays_in_float32_through_a_state_dict() -> None:
    params = parameters(SHAPES, torch.bfloat16)
    optimizer, _ = make(apollo.SPEC, params)
    go(optimizer, params, 3)
    fresh, _ = make(apollo.SPEC, params)
    fresh.load_state_dict(optimizer.state_dict())
    for param in params:
        norm = optimizer.state[param.tensor]["norm"]
        assert norm.dtype == fresh.state[param.tensor]["norm"].dtype == torch.float32
        assert torch.equal(norm, fresh.state[param.tensor]["norm"])
        assert optimizer.state[param.tensor]["exp_avg"].dtype == torch.bfloat16


def test_mini_holds_two_rows_a_matrix() -> None:
    params = parameters(SHAPES)
    optimizer, _ = make(apollo_mini.SPEC, params)
    go(optimizer, params, 2)
    for (shape, _), param in zip(SHAPES, params, strict=True):
        longer = max(shape[0], math.prod(shape[1:]))
        state = optimizer.state[param.tensor]
        assert state["exp_avg"].numel() == state["exp_avg_sq"].numel() == longer
