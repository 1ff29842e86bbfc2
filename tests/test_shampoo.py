"""Shampoo against its equations, its roots on spread spectra, its grafting against Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from levelfield.bench.spec import ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers._curvature import eigh
from levelfield.optimizers.shampoo import SPEC, Shampoo, accumulate_, cut, inverse_root
from levelfield.tests.curvature_cases import TOTAL, Promises, make
from levelfield.tests.optimizer_cases import (
    Array,
    as_gradient,
    drive,
    gradients,
    lr_scales,
    parameters,
    values,
)

MATRICES: tuple[tuple[tuple[int, ...], Role], ...] = (
    ((6, 4), "matrix"),
    ((3, 8), "matrix"),
    ((5, 5), "matrix"),
    ((1, 7), "matrix"),
    ((2, 3, 4), "matrix"),
    ((4, 1), "matrix"),
)


class TestPromises(Promises):
    spec = SPEC
    busy: ClassVar = {"refresh_fraction": 1 / 8, "max_preconditioner_dim": 5, "eps": 1e-8}


def root_of(matrix: Array, exponent: float, eps: float) -> Array:
    """(A + eps I)^-exponent by a singular value decomposition: A is positive semi-definite."""
    left, s, _ = np.linalg.svd(matrix, hermitian=True)
    return np.asarray((left * (s + eps) ** -exponent) @ left.T)


def textbook(p: Array, grads: Sequence[Array], lrs: Sequence[float], h: Mapping[str, Any]) -> Array:
    """Shi et al., algorithms 1 to 3, on one block; grafting and bias corrections included."""
    p = p.copy()
    rows, columns = p.shape
    m, v = np.zeros_like(p), np.zeros_like(p)
    left, right = np.zeros((rows, rows)), np.zeros((columns, columns))
    b1, b2, bg = h["beta1"], h["beta2"], h["graft_beta2"]
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        weight = 1 - b2 if b2 < 1 else 1
        left = b2 * left + weight * np.einsum("ik,jk->ij", g, g)
        right = b2 * right + weight * np.einsum("ki,kj->ij", g, g)
        m = b1 * m + (1 - b1) * g
        v = bg * v + (1 - bg) * g**2
        m_hat = m / (1 - b1**t)
        direction = m_hat / (np.sqrt(v / (1 - bg**t)) + h["graft_eps"])
        if t >= h["start"]:
            if t == h["start"] or t % h["period"] == 0:
                corrected = 1 - b2**t if b2 < 1 else 1
                p_root = root_of(left / corrected, h["exponent"], h["eps"])
                q_root = root_of(right / corrected, h["exponent"], h["eps"])
            turned = p_root @ m_hat @ q_root
            direction = turned * np.linalg.norm(direction) / np.linalg.norm(turned)
        p -= lr * (direction + h["weight_decay"] * p)
    return p


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"refresh_fraction": 1 / 24, "start_fraction": 1 / 24},
    {"start_fraction": 7 / 24, "beta2": 0.9},
    {"beta2": 1.0, "beta1": 0.0},
    {"exponent": 0.5, "graft_beta2": 0.9, "graft_eps": 1e-3, "eps": 1e-3},
    {"max_preconditioner_dim": 3},
    {"max_preconditioner_dim": 2, "beta2": 0.9},
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_matches_its_textbook_reference(changes: dict[str, Any]) -> None:
    params = parameters(MATRICES, torch.float64)
    start = [value.numpy() for value in values(params)]
    common = {"lr": 0.02, "weight_decay": 0.3, "eps": 1e-7}
    fractions = {"refresh_fraction": 1 / 8, "start_fraction": 1 / 6}
    optimizer, h = make(SPEC, params, **{**common, **fractions, **changes})
    drive(optimizer, params, TOTAL)
    steps = {"period": h["refresh_fraction"], "start": h["start_fraction"]}
    h = {**h, **{name: round(share * TOTAL) for name, share in steps.items()}}
    rates = [h["lr"] * scale for scale in lr_scales(TOTAL)]
    size = h["max_preconditioner_dim"]
    for index, param in enumerate(params):
        shape = param.info.shape
        flat = start[index].reshape(shape[0], -1)
        grads = [g.reshape(flat.shape) for g in gradients(shape, TOTAL, index)]
        expected = np.full_like(flat, np.nan)
        for top in range(0, flat.shape[0], size):
            for left in range(0, flat.shape[1], size):
                at = np.s_[top : top + size, left : left + size]
                expected[at] = textbook(flat[at], [g[at] for g in grads], rates, h)
        got = param.tensor.detach().numpy().reshape(flat.shape)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8, err_msg=str(shape))
        assert np.abs(got - flat).max() > 1e-2


def test_float32_follows_float64() -> None:
    ends = []
    for dtype in (torch.float32, torch.float64):
        params = parameters(MATRICES, dtype)
        optimizer, _ = make(SPEC, params, lr=0.02, eps=1e-3, refresh_fraction=1 / 8)
        drive(optimizer, params, TOTAL)
        ends.append(values(params))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-4)


def spread(size: int, decades: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """A symmetric matrix, its basis and its eigenvalues, falling over `decades`."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]
    eigenvalues = 3.0 * np.logspace(0, -decades, size)
    return np.asarray((basis * eigenvalues) @ basis.T), basis, eigenvalues


@pytest.mark.parametrize("size", [1, 2, 17, 40])
@pytest.mark.parametrize("exponent", [0.25, 0.5])
def test_root_of_a_spread_spectrum(size: int, exponent: float) -> None:
    matrix, basis, eigenvalues = spread(size, decades=8)
    eps = 1e-6
    expected = (basis * (eigenvalues + eps) ** -exponent) @ basis.T
    root = inverse_root(torch.as_tensor(matrix), exponent, eps)
    assert root is not None
    np.testing.assert_allclose(root.numpy(), expected, rtol=0, atol=1e-7)
    # Its own definition: root^(1/e) undoes A + eps I.
    power = np.linalg.matrix_power(root.numpy(), round(1 / exponent))
    np.testing.assert_allclose(power @ (matrix + eps * np.eye(size)), np.eye(size), atol=1e-7)


def test_root_in_float32() -> None:
    matrix, basis, eigenvalues = spread(24, decades=3)
    root = inverse_root(torch.as_tensor(matrix).float(), 0.25, 1e-4)
    assert root is not None
    assert root.dtype == torch.float32
    expected = (basis * (eigenvalues + 1e-4) ** -0.25) @ basis.T
    np.testing.assert_allclose(root.numpy(), expected, rtol=0, atol=1e-3)


def test_negative_eigenvalues_lift_the_spectrum() -> None:
    basis = spread(3, 1)[1]
    matrix = (basis * [2.0, 0.5, -0.1]) @ basis.T
    root = inverse_root(torch.as_tensor(matrix), 0.25, 1e-2)
    assert root is not None
    expected = (basis * np.array([2.11, 0.61, 0.01]) ** -0.25) @ basis.T
    np.testing.assert_allclose(root.numpy(), expected, rtol=1e-9)


def test_what_fails_in_float32_is_tried_in_float64() -> None:
    asked: list[torch.dtype] = []

    def solve(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(matrix.dtype)
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no")  # type: ignore[attr-defined]
        found = torch.linalg.eigh(matrix)
        return found[0], found[1]

    matrix = torch.as_tensor(spread(6, 2)[0]).float()
    found = eigh(matrix, solve)
    assert found is not None
    assert asked == [torch.float32, torch.float64]
    assert found[0].dtype == found[1].dtype == torch.float32
    torch.testing.assert_close((found[1] * found[0]) @ found[1].mT, matrix, rtol=0, atol=1e-5)
    assert eigh(torch.full((3, 3), torch.nan)) is None


def test_a_failed_root_keeps_the_one_before() -> None:
    params = parameters([((3, 4), "matrix")])
    optimizer, _ = make(SPEC, params, refresh_fraction=1 / 12)
    drive(optimizer, params, 4, total=TOTAL)
    block = optimizer.state[params[0].tensor]["blocks"][0]
    kept = block["left_root"].clone()
    drive(optimizer, params, 2, start=4, total=TOTAL, grad_of=lambda i, t: np.full((3, 4), np.nan))
    assert optimizer.refreshes == 4  # steps 1, 2, 4 and 6
    assert torch.equal(block["left_root"], kept)


def test_grafted_steps_have_the_size_of_adams() -> None:
    """Also block by block, and in another direction."""
    shapes: tuple[tuple[tuple[int, ...], Role], ...] = (((8, 5), "matrix"), ((4, 9), "matrix"))
    params, twins = parameters(shapes, torch.float64), parameters(shapes, torch.float64)
    ours, _ = make(
        SPEC, params, lr=0.01, max_preconditioner_dim=4, refresh_fraction=1 / 12, weight_decay=0.0
    )
    adam = torch.optim.Adam([param.tensor for param in twins], lr=0.01, betas=(0.9, 0.999))
    for t in range(TOTAL):
        before = values(params), values(twins)
        drive(ours, params, 1, start=t, total=TOTAL)
        drive(adam, twins, 1, start=t, total=TOTAL)
        for index, shape in enumerate(((8, 5), (4, 9))):
            moved = values(params)[index] - before[0][index]
            adams = values(twins)[index] - before[1][index]
            for place in cut(*shape, 4):
                torch.testing.assert_close(
                    moved[place].norm(), adams[place].norm(), rtol=1e-9, atol=0
                )
            assert not torch.allclose(moved, adams, rtol=1e-3)


def test_is_adamw_until_it_starts() -> None:
    params, twins = (parameters(MATRICES, torch.float64) for _ in range(2))
    ours, _ = make(SPEC, params, lr=0.02, weight_decay=0.1, start_fraction=2.0)
    adamw = torch.optim.AdamW([p.tensor for p in twins], lr=0.02, weight_decay=0.1)
    drive(ours, params, TOTAL)
    drive(adamw, twins, TOTAL)
    for a, b in zip(values(params), values(twins), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert ours.refreshes == 0


def test_blocks_are_matrices_of_their_own() -> None:
    whole = parameters([((7, 5), "matrix")], torch.float64)
    optimizer, _ = make(SPEC, whole, max_preconditioner_dim=4, refresh_fraction=1 / 8)
    parts = []
    for place in cut(7, 5, 4):
        data = whole[0].tensor.detach()[place].clone()
        info = ParamInfo(name=str(place), shape=tuple(data.shape), role="matrix", dtype="float64")
        parts.append(Parameter(info, torch.nn.Parameter(data)))
    other, _ = make(SPEC, tuple(parts), refresh_fraction=1 / 8)
    known = gradients((7, 5), TOTAL, 0)
    drive(optimizer, whole, TOTAL)
    places = cut(7, 5, 4)
    drive(other, parts, TOTAL, grad_of=lambda index, t: known[t][places[index]])
    for place, part in zip(places, parts, strict=True):
        torch.testing.assert_close(
            whole[0].tensor.detach()[place], part.tensor.detach(), rtol=0, atol=1e-10
        )
    assert len(parts) == 4


def test_cut_covers_every_element_once() -> None:
    for rows, columns, size in ((7, 5, 4), (8, 8, 4), (1, 9, 4), (3, 3, 100)):
        count = np.zeros((rows, columns))
        for place in cut(rows, columns, size):
            count[place] += 1
            assert max(count[place].shape) <= size
        assert (count == 1).all()


def test_a_sum_where_beta2_is_one() -> None:
    factor, side = torch.ones(2, 2), torch.tensor([[1.0], [2.0]])
    accumulate_(factor, side, 1.0)
    assert factor.tolist() == [[2.0, 3.0], [3.0, 5.0]]
    accumulate_(factor, side, 0.5)
    assert factor.tolist() == [[1.5, 2.5], [2.5, 4.5]]


@pytest.mark.parametrize("total", [24, 60, 400])
def test_roots_are_computed_at_the_steps_that_switches_names(total: int) -> None:
    params = parameters([((2, 3), "matrix")])
    optimizer, h = make(SPEC, params, total)
    grad = as_gradient(np.ones((2, 3)), params[0].tensor)
    seen = []
    for t in range(total):
        before = optimizer.refreshes
        params[0].tensor.grad = grad
        optimizer.step()
        if optimizer.refreshes > before:
            seen.append(t)
    assert tuple(seen) == SPEC.switches(h, total)
    assert len(seen) >= 5


def test_late_start_and_period() -> None:
    h = {**SPEC.defaults(), "start_fraction": 0.25, "refresh_fraction": 0.1}
    assert SPEC.switches(h, 40) == (9, 11, 15, 19, 23, 27, 31, 35, 39)
    assert SPEC.switches({**h, "start_fraction": 2.0}, 40) == ()
    assert SPEC.switches(SPEC.defaults(), 400) == tuple(range(9, 400, 10))
    assert SPEC.switches(SPEC.defaults(), 60) == tuple(range(1, 60, 2))


def test_claim_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(3, 2, 2), role="matrix", dtype="bfloat16"),
        ParamInfo(name="c", shape=(3, 3), role="matrix", tied_to="a"),
    ]
    hparams = {**SPEC.defaults(), "max_preconditioner_dim": 8}
    a = 2 * 4 * 60 + 2 * 4 * (36 + 64) + 2 * 4 * (36 + 4)
    b = 2 * 2 * 12 + 2 * 4 * (9 + 16)
    assert SPEC.state_bytes(infos, hparams, 0.5) == a + b


@pytest.mark.parametrize(
    "wrong",
    [{"beta1": 1.0}, {"beta2": 0.0}, {"beta2": 1.1}, {"period": 0}, {"start": 0}],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is needed"):
        Shampoo([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
    with pytest.raises(ValueError, match="takes matrices"):
        Shampoo([torch.nn.Parameter(torch.zeros(2))])
