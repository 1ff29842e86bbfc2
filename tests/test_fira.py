"""Fira against its equations; what all low-rank methods promise is in `test_galore`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.stepper import Parameter
from levelfield.optimizers import fira, galore
from levelfield.optimizers._projection import LowRank
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    drive,
    gradients,
    lr_scales,
    parameters,
    values,
)

TOTAL = 30
SHAPES = (((9, 5), "matrix"), ((5, 9), "matrix"), ((6, 6), "matrix"), ((4, 2, 6), "matrix"))
GRADIENTS = [gradients(shape, TOTAL, index) for index, (shape, _) in enumerate(SHAPES)]
PERIOD = 6


def make(spec: Any, params: tuple[Parameter, ...], **changes: Any) -> tuple[LowRank, Any]:
    hparams = {**spec.defaults(), "refresh_fraction": PERIOD / TOTAL, **changes}
    optimizer = spec.build(context(params, total_steps=TOTAL), hparams)
    assert isinstance(optimizer, LowRank)
    return optimizer, hparams


def go(optimizer: LowRank, params: tuple[Parameter, ...], steps: int, start: int = 0) -> None:
    drive(
        optimizer,
        params,
        steps,
        start=start,
        total=TOTAL,
        grad_of=lambda index, t: GRADIENTS[index][t],
    )


class Textbook:
    """The paper's algorithm, with its residual or the code's, for a matrix in float64.

    Everything is done for m >= n, a channel a row; a matrix with m < n comes transposed.
    """

    def __init__(self, start: Array, h: Mapping[str, Any]) -> None:
        self.p, self.h, self.t = start, h, 0
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.q: float | None = None
        self.limited = 0

    def step(self, g: Array, rows: Array, scale: float) -> None:
        """`rows` [r, n]: the projector's vectors."""
        h, lr = self.h, self.h["lr"] * scale
        self.t += 1
        low = g @ rows.T
        self.m = h["beta1"] * self.m + (1 - h["beta1"]) * low
        self.v = h["beta2"] * self.v + (1 - h["beta2"]) * low**2
        n = self.m / (np.sqrt(self.v) + h["eps"])
        share = h["alpha"] if h["residual"] == "code" else 1.0
        s = np.array(g - share * low @ rows)
        for j in range(len(s)):
            s[j] *= np.linalg.norm(n[j]) / (np.linalg.norm(low[j]) + 1e-8)
        size = float(np.linalg.norm(s))
        if self.q is not None and size > h["growth"] * (self.q + 1e-8):
            s *= h["growth"] * (self.q + 1e-8) / size
            self.limited += 1
        self.q = float(np.linalg.norm(s))
        bias = np.sqrt(1 - h["beta2"] ** self.t) / (1 - h["beta1"] ** self.t)
        self.p = self.p - lr * bias * (h["alpha"] * n @ rows + s)
        self.p = self.p - lr * h["weight_decay"] * self.p


def leading(g: Array, held: Array) -> Array:
    """The leading right singular vectors of `g` with the signs of `held` [r, n]."""
    found = np.linalg.svd(g, full_matrices=False)[2][: len(held)]
    along = np.sum(found * held, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(along), 1.0, atol=1e-8)
    return np.asarray(found * np.sign(along))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"residual": "paper"},
        {"residual": "paper", "growth": 1.2, "rank_fraction": 0.5, "eps": 1e-2},
        {"alpha": 1.5, "growth": 1.05},
    ],
    ids=str,
)
def test_follows_the_equations_across_refreshes(changes: dict[str, Any]) -> None:
    params = parameters(SHAPES, torch.float64)
    optimizer, hparams = make(fira.SPEC, params, lr=0.02, weight_decay=0.3, **changes)
    books, rows = [], [np.zeros((0, 0))] * len(params)
    turned = [shape[0] < np.prod(shape[1:]) for shape, _ in SHAPES]

    def flat(values: Array, index: int) -> Array:
        matrix = values.reshape(len(values), -1)
        return matrix.T if turned[index] else matrix

    for index, value in enumerate(values(params)):
        books.append(Textbook(flat(value.numpy(), index), hparams))
    for t, scale in enumerate(lr_scales(TOTAL)):
        go(optimizer, params, 1, start=t)
        for index, param in enumerate(params):
            g = flat(GRADIENTS[index][t], index)
            if t % PERIOD == 0:
                held = optimizer.state[param.tensor]["projector"].numpy()
                rows[index] = leading(g, held.T if turned[index] else held)
            books[index].step(g, rows[index], scale)
    for index, (param, book) in enumerate(zip(params, books, strict=True)):
        ours = flat(param.tensor.detach().numpy(), index)
        np.testing.assert_allclose(ours, book.p, rtol=0, atol=1e-9)
        assert 0 < book.limited < TOTAL - 1  # the limiter acts, and does not always
        norm = float(optimizer.state[param.tensor]["norm"])
        assert norm == pytest.approx(book.q, rel=1e-9)


def test_the_residuals_differ_unless_alpha_is_one() -> None:
    ends = {}
    for alpha in (0.25, 1.0):
        for residual in fira.RESIDUALS:
            params = parameters(SHAPES, torch.float64)
            optimizer, _ = make(fira.SPEC, params, alpha=alpha, residual=residual)
            go(optimizer, params, 8)
            ends[alpha, residual] = values(params)
    for a, b in zip(ends[1.0, "code"], ends[1.0, "paper"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    for a, b in zip(ends[0.25, "code"], ends[0.25, "paper"], strict=True):
        assert (a - b).abs().max() > 1e-3


def test_at_full_rank_the_papers_residual_vanishes_and_galore_is_left() -> None:
    ours, theirs = parameters(SHAPES, torch.float64), parameters(SHAPES, torch.float64)
    one, _ = make(fira.SPEC, ours, residual="paper", rank_fraction=1.0)
    other, _ = make(galore.SPEC, theirs, rank_fraction=1.0)
    go(one, ours, TOTAL)
    go(other, theirs, TOTAL)
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_the_limiter_sees_the_residual_alone() -> None:
    params = parameters(SHAPES[:1], torch.float64)
    loose, tight = (values(params)[0] for _ in range(2))
    moved = {}
    for name, growth in (("loose", 1e9), ("tight", 1.0)):
        params = parameters(SHAPES[:1], torch.float64)
        optimizer, _ = make(fira.SPEC, params, growth=growth, residual="paper", lr=0.01)
        go(optimizer, params, 5)
        before = values(params)[0]
        go(optimizer, params, 1, start=5)
        held = optimizer.state[params[0].tensor]["projector"]
        moved[name] = ((values(params)[0] - before), held)
    (loose, held), (tight, same) = moved["loose"], moved["tight"]
    assert torch.equal(held, same)
    # the paper's residual has no part inside the subspace: there the limiter changes nothing
    torch.testing.assert_close(loose @ held.mT, tight @ held.mT, rtol=0, atol=1e-12)
    out = torch.eye(5, dtype=torch.float64) - held.mT @ held
    assert (tight @ out).norm() < 0.9 * (loose @ out).norm()


def test_after_a_zero_norm_the_residual_passes() -> None:
    params = parameters(SHAPES[:1], torch.float64)
    optimizer, _ = make(fira.SPEC, params)
    drive(optimizer, params, 1, total=TOTAL, grad_of=lambda index, t: np.zeros((9, 5)))
    assert float(optimizer.state[params[0].tensor]["norm"]) == 0.0
    go(optimizer, params, 1, start=1)
    assert float(optimizer.state[params[0].tensor]["norm"]) > 1e-2
