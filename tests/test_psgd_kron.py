"""PSGD-Kron against its equations with explicit inverses, and that it whitens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from levelfield.bench.spec import ParamInfo
from levelfield.optimizers.psgd_kron import (
    SPEC,
    Kron,
    balance_,
    norm_lower_bound,
    probability,
    triangular_sides,
    whiten,
)
from levelfield.tests.curvature_cases import TOTAL, Promises, make
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    drive,
    gradients,
    lr_scales,
    parameters,
    values,
)

MODEL = (*SHAPES, ((2, 3, 4), "matrix"))


class TestPromises(Promises):
    spec = SPEC
    busy: ClassVar = {"balance_every": 2}


def bound(matrix: Array) -> float:
    """Xi-Lin Li's lower bound of a symmetric matrix's largest |eigenvalue|."""
    column = matrix[:, np.argmax((matrix**2).sum(0))]
    turned = matrix @ column
    return float(np.linalg.norm(matrix @ turned / np.linalg.norm(turned)))


class Textbook:
    """One parameter as a matrix: the group's update of Q with full matrices and inverses."""

    def __init__(self, p: Array, kinds: Sequence[bool], h: Mapping[str, Any]) -> None:
        self.p, self.h, self.kinds = p.copy(), h, kinds
        self.m = np.zeros_like(p)
        scale = h["init_scale"] ** (1 / len(kinds))
        self.q = [scale * np.eye(size) for size, _ in zip(p.shape, kinds, strict=False)]
        self.t = 0

    def fit(self, x: Array, z: Array) -> None:
        u = self.q[0]
        v = self.q[1] if len(self.q) == 2 else np.eye(x.shape[1])
        x = x + np.sqrt(2.0**-23) * np.abs(x).mean() * z
        a = u @ x @ v.T
        b = np.linalg.inv(u).T @ z @ np.linalg.inv(v)
        grams = [(a @ a.T, b @ b.T), (a.T @ a, b.T @ b)]
        for side, triangular in enumerate(self.kinds):
            up, down = grams[side]
            if triangular:
                step = np.triu(up - down) / bound(up + down)
            else:
                step = np.diag(np.diag(up - down) / np.diag(up + down).max())
            self.q[side] = self.q[side] - self.h["precond_lr"] * step @ self.q[side]

    def balance(self) -> None:
        if len(self.q) < 2:
            return
        largest = [np.abs(q).max() for q in self.q]
        mean = math.sqrt(largest[0] * largest[1])
        self.q = [q * mean / top for q, top in zip(self.q, largest, strict=True)]

    def step(self, g: Array, z: Array | None, balance: bool, lr: float, wd: float) -> None:
        self.t += 1
        self.m = self.h["beta1"] * self.m + (1 - self.h["beta1"]) * g
        m = self.m / (1 - self.h["beta1"] ** self.t)
        if balance:
            self.balance()
        if z is not None:
            self.fit(m if self.h["momentum_into_precond"] else g, z)
        # The Kronecker product in full, on the matrix as one long vector.
        v = self.q[1] if len(self.q) == 2 else np.eye(g.shape[1])
        whole = np.kron(self.q[0].T @ self.q[0], v.T @ v)
        d = (whole @ m.reshape(-1)).reshape(g.shape)
        d = d * min(1.0, self.h["clip_rms"] / np.sqrt(np.mean(d**2)))
        self.p = self.p - lr * (d + wd * self.p)


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum_into_precond": False, "precond_lr": 0.3, "table_sides": "both"},
    {"max_prob": 0.5, "min_prob": 0.2, "init_scale": 3.0, "beta1": 0.8},
    {"max_size_triangular": 4, "clip_rms": 0.4, "embed_multiplier": 3.0},
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_matches_its_textbook_reference(changes: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    start = [value.numpy() for value in values(params)]
    common = {"lr": 0.02, "weight_decay": 0.3, "balance_every": 3}
    optimizer, h = make(SPEC, params, **{**common, **changes})
    drive(optimizer, params, TOTAL)

    books = []
    for index, param in enumerate(params):
        shape, role = param.info.shape, param.info.role
        flat = (shape[0], -1) if len(shape) > 1 else (-1, 1)
        kinds = [
            triangular
            for _, triangular in triangular_sides(
                shape, role, h["max_size_triangular"], h["table_sides"]
            )
        ]
        books.append(Textbook(start[index].reshape(flat), kinds, h))
    noise = torch.Generator().manual_seed(17)  # as in `context`
    # Noise is drawn group by group, and a group is a role.
    roles = list(dict.fromkeys(param.info.role for param in params))
    order = sorted(range(len(params)), key=lambda index: roles.index(params[index].info.role))
    since = updates = 0
    for t, scale in enumerate(lr_scales(TOTAL)):
        fall = max(0.0, t - h["flat_fraction"] * TOTAL) / (h["anneal_fraction"] * TOTAL)
        chance = min(h["max_prob"], max(h["min_prob"], h["max_prob"] * math.exp(-fall)))
        since += 1
        update = since >= 1 / chance
        updates += update
        since = 0 if update else since
        for index in order:
            book, param = books[index], params[index]
            g = gradients(param.info.shape, TOTAL, index)[t].reshape(book.p.shape)
            z = None
            if update:
                z = torch.randn(book.p.shape, generator=noise, dtype=torch.float64).numpy()
            role = param.info.role
            lr = h["lr"] * (h["embed_multiplier"] if role in ("embed", "head") else 1.0) * scale
            wd = 0.0 if role == "vector" else h["weight_decay"]
            book.step(g, z, update and updates % h["balance_every"] == 0, lr, wd)
    assert optimizer.refreshes == updates
    assert 5 <= updates < TOTAL
    for book, param, old in zip(books, params, start, strict=True):
        got = param.tensor.detach().numpy().reshape(book.p.shape)
        np.testing.assert_allclose(got, book.p, rtol=0, atol=1e-9, err_msg=param.info.name)
        assert np.abs(got - old.reshape(book.p.shape)).max() > 1e-2
        for q, want in zip(optimizer.state[param.tensor]["q"], book.q, strict=True):
            full = q.numpy() if q.dim() == 2 else np.diag(q.numpy())
            np.testing.assert_allclose(full, want, rtol=1e-8, atol=1e-10)
            assert np.array_equal(full, np.triu(full))


def test_it_whitens_gradients_of_a_known_covariance() -> None:
    rng = np.random.default_rng(0)
    rows, columns = 6, 4
    mix = [
        np.linalg.qr(rng.standard_normal((n, n)))[0] * np.logspace(0, -1, n)
        for n in (rows, columns)
    ]
    params = parameters([((rows, columns), "matrix")], torch.float64)
    optimizer, _ = make(SPEC, params, total=600, beta1=0.0, flat_fraction=1.0, lr=0.0)

    def grad_of(index: int, t: int) -> Array:
        return np.asarray(0.01 * mix[0] @ rng.standard_normal((rows, columns)) @ mix[1].T)

    drive(optimizer, params, 600, scales=[1.0] * 600, grad_of=grad_of)
    qs = optimizer.state[params[0].tensor]["q"]
    sample = np.stack([grad_of(0, 0) for _ in range(4000)])
    white = np.stack([whiten(qs, torch.as_tensor(g)).numpy() for g in sample])
    before, after = (
        np.linalg.eigvalsh(np.cov(x.reshape(len(x), -1).T)) for x in (0.01 * sample, white)
    )
    assert before[-1] / before[0] > 5e3
    assert after[-1] / after[0] < 20
    assert 0.2 < np.sqrt(after.mean()) < 2.0


def test_which_sides_are_triangular() -> None:
    assert triangular_sides((6, 4), "matrix", 10, "hidden") == [(6, True), (4, True)]
    assert triangular_sides((6, 4), "matrix", 5, "hidden") == [(6, False), (4, True)]
    assert triangular_sides((6, 4), "embed", 10, "hidden") == [(6, False), (4, True)]
    assert triangular_sides((6, 4), "head", 10, "both") == [(6, True), (4, True)]
    assert triangular_sides((1, 7), "matrix", 10, "both") == [(1, False), (7, True)]
    assert triangular_sides((2, 3, 4), "matrix", 20, "both") == [(2, True), (12, True)]
    assert triangular_sides((5,), "vector", 10, "both") == [(5, False)]
    assert triangular_sides((), "vector", 10, "both") == [(1, False)]


@pytest.mark.parametrize("size", [1, 2, 5, 30])
def test_bound_is_below_the_norm_and_near_it(size: int) -> None:
    for seed in range(20):
        factor = np.random.default_rng(seed).standard_normal((size, size + 1))
        matrix = factor @ factor.T
        found = float(norm_lower_bound(torch.as_tensor(1e-12 * matrix))) * 1e12
        norm = np.linalg.norm(matrix, 2)
        assert 0.5 * norm < found <= norm * (1 + 1e-12)


def test_balancing_leaves_the_product() -> None:
    rng = np.random.default_rng(1)
    qs = [torch.as_tensor(1e3 * np.triu(rng.random((5, 5)))), torch.as_tensor(rng.random(3))]
    matrix = torch.as_tensor(rng.standard_normal((5, 3)))
    before = whiten(qs, matrix)
    balance_(qs)
    torch.testing.assert_close(whiten(qs, matrix), before, rtol=1e-12, atol=0)
    assert float(qs[0].abs().max()) == pytest.approx(float(qs[1].abs().max()))


def test_schedule_is_the_codes_at_four_thousand_steps() -> None:
    h = SPEC.defaults()
    flat, anneal = h["flat_fraction"] * 4000, h["anneal_fraction"] * 4000
    assert (flat, anneal) == (500, 1000)
    for step in (0, 499, 500, 501, 1500, 3999, 4010, 9000):
        code = min(1.0, max(0.03, math.exp(-0.001 * (step - 500))))
        assert probability(step, 1.0, 0.03, flat, anneal) == pytest.approx(code)
    assert probability(3999, 1.0, 0.03, flat, anneal) < 0.0304


@pytest.mark.parametrize(("total", "updates"), [(24, 7), (60, 18), (400, 125)])
def test_updates_of_a_run(total: int, updates: int) -> None:
    params = parameters([((2, 3), "matrix")])
    optimizer, h = make(SPEC, params, total)
    (change,) = SPEC.switches(h, total)
    seen = []
    for t in range(total):
        before = optimizer.refreshes
        params[0].tensor.grad = torch.ones_like(params[0].tensor)
        optimizer.step()
        if optimizer.refreshes > before:
            seen.append(t)
    assert len(seen) == updates
    assert seen[:change] == list(range(change))
    assert change not in seen
    assert max(np.diff(seen)) <= 34


def test_the_size_of_a_step_is_bounded() -> None:
    params = parameters(MODEL, torch.float64)
    before = values(params)
    optimizer, h = make(SPEC, params, lr=0.1, init_scale=1e6)
    drive(optimizer, params, 1, scales=[1.0])
    for param, old in zip(params, before, strict=True):
        rms = float((param.tensor.detach() - old).square().mean().sqrt())
        assert rms == pytest.approx(0.1 * h["clip_rms"])


def test_claim_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(3, 2, 2), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
    ]
    rest = 4 * (4 + 4) + 2 * 12 + 4 * (9 + 16) + 4 * 44 + 4 * (11 + 16)
    h = SPEC.defaults()
    assert SPEC.state_bytes(infos, h, 0.5) == rest + 4 * 60 + 4 * (36 + 100)
    assert SPEC.state_bytes(infos, {**h, "max_size_triangular": 8}, 0.5) == (
        rest + 4 * 60 + 4 * (36 + 10)
    )
    both = {**h, "table_sides": "both"}
    assert SPEC.state_bytes(infos, both, 0.5) - SPEC.state_bytes(infos, h, 0.5) == 4 * (121 - 11)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta1": 1.0},
        {"min_prob": 0.0},
        {"max_prob": 1.5},
        {"min_prob": 0.6, "max_prob": 0.5},
        {"anneal_steps": 0.0},
        {"table_sides": "left"},
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted are"):
        Kron([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
