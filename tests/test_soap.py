"""SOAP against its equations in the original space, and against the Adam that it turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from levelfield.bench.spec import ParamInfo
from levelfield.optimizers.soap import SPEC, Soap, first_basis, next_basis, sides, turn
from levelfield.tests.curvature_cases import TOTAL, Promises, make
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    drive,
    gradient,
    gradients,
    lr_scales,
    parameters,
    values,
)

MODEL = (*SHAPES, ((2, 3, 4), "matrix"))


class TestPromises(Promises):
    spec = SPEC
    busy: ClassVar = {"refresh_fraction": 1 / 6}


def textbook(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    bases: Mapping[int, Array],
    h: Mapping[str, Any],
) -> Array:
    """Vyas et al., algorithms 3 and 4: M in the original space, turned when it is used.

    `bases` are the first ones: what the eigenvectors of a singular factor are is up to the solver.
    """
    p = p.copy()
    two = np.eye(p.shape[0]), np.eye(p.shape[1])
    q = [bases.get(side, two[side]) for side in (0, 1)]
    m, v = np.zeros_like(p), np.zeros_like(p)
    b1, b2 = h["beta1"], h["beta2"]
    bs = b2 if h["shampoo_beta"] is None else h["shampoo_beta"]
    factors = [np.zeros((size, size)) for size in p.shape]
    t = 0
    for number, (g, lr) in enumerate(zip(grads, lrs, strict=True)):
        if number == 0:
            factors = [(1 - bs) * g @ g.T, (1 - bs) * g.T @ g]
            if h["skip_first"]:
                continue
        t += 1
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (q[0].T @ g @ q[1]) ** 2
        turned = q[0].T @ m @ q[1]
        c1, c2 = (1 - b1**t, 1 - b2**t) if h["correct_bias"] else (1.0, 1.0)
        if h["eps_placement"] == "after":
            n = (turned / c1) / (np.sqrt(v / c2) + h["eps"])
        else:
            n = np.sqrt(c2) / c1 * turned / (np.sqrt(v) + h["eps"])
        n = q[0] @ n @ q[1].T
        if h["normalize_grads"]:
            n *= np.sqrt(c2) / c1 / np.sqrt(np.mean(n**2))
        if h["decay_order"] == "before":
            p = p - lr * wd * p - lr * n
        else:
            p = p - lr * n
            p = p - lr * wd * p
        if number > 0:
            factors = [
                bs * factors[0] + (1 - bs) * g @ g.T,
                bs * factors[1] + (1 - bs) * g.T @ g,
            ]
        if t % h["period"] == 0:
            for side in bases:
                old = q[side]
                if h["reorder"]:
                    order = np.argsort(-np.diag(old.T @ factors[side] @ old))
                    old = old[:, order]
                    v = v[order] if side == 0 else v[:, order]
                q[side] = np.linalg.qr(factors[side] @ old)[0]
    return p


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"skip_first": False, "table_sides": "both"},
    {"eps_placement": "after", "decay_order": "before", "eps": 1e-2, "beta2": 0.99},
    {"eps_placement": "before", "eps": 1e-2, "beta2": 0.99},
    {"reorder": False, "shampoo_beta": 0.8, "beta1": 0.9},
    {"normalize_grads": True},
    {"correct_bias": False, "normalize_grads": True},
    {"max_precond_dim": 5, "embed_multiplier": 3.0},
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_matches_its_textbook_reference(changes: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    start = [value.numpy() for value in values(params)]
    # The first refresh waits until gradients of rank one fill the factor of (1, 7).
    fractions = {"refresh_fraction": 1 / 3}
    optimizer, h = make(SPEC, params, **{"lr": 0.02, "weight_decay": 0.3, **fractions, **changes})
    drive(optimizer, params, 1, total=TOTAL)
    first = [
        {side: q.numpy().copy() for side, q in optimizer.state[param.tensor]["bases"].items()}
        for param in params
    ]
    drive(optimizer, params, TOTAL - 1, start=1, total=TOTAL)
    h = {**h, "period": round(h["refresh_fraction"] * TOTAL)}
    for index, param in enumerate(params):
        shape, role = param.info.shape, param.info.role
        lr = h["lr"] * (h["embed_multiplier"] if role in ("embed", "head") else 1.0)
        wd = 0.0 if role == "vector" else h["weight_decay"]
        flat = (shape[0], -1) if len(shape) > 1 else (-1, 1)
        expected = textbook(
            start[index].reshape(flat),
            [g.reshape(flat) for g in gradients(shape, TOTAL, index)],
            [lr * scale for scale in lr_scales(TOTAL)],
            wd,
            first[index],
            h,
        )
        got = param.tensor.detach().numpy().reshape(flat)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8, err_msg=param.info.name)
        assert np.abs(got - start[index].reshape(flat)).max() > 1e-2


def test_which_sides_are_turned() -> None:
    assert sides((6, 4), "matrix", 10, "hidden") == (0, 1)
    assert sides((6, 4), "matrix", 5, "hidden") == (1,)
    assert sides((6, 4), "embed", 10, "hidden") == (1,)
    assert sides((6, 4), "head", 10, "hidden") == (1,)
    assert sides((6, 4), "head", 10, "both") == (0, 1)
    assert sides((6, 4), "embed", 5, "both") == (1,)
    assert sides((2, 3, 4), "matrix", 5, "hidden") == (0,)
    assert sides((4,), "vector", 10, "both") == sides((), "vector", 10, "both") == ()


def test_without_bases_it_is_adamw() -> None:
    params, twins = (parameters(MODEL, torch.float64) for _ in range(2))
    ours, _ = make(
        SPEC,
        params,
        lr=0.02,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        max_precond_dim=0,
        skip_first=False,
        eps_placement="after",
        eps=1e-3,
    )
    adam = torch.optim.AdamW([p.tensor for p in twins], lr=0.02, eps=1e-3, weight_decay=0.0)
    drive(ours, params, TOTAL)
    drive(adam, twins, TOTAL)
    for a, b in zip(values(params), values(twins), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert ours.refreshes == 0


def test_first_step_moves_nothing_and_does_not_count() -> None:
    params = parameters(MODEL)
    before = values(params)
    optimizer, _ = make(SPEC, params, weight_decay=0.5)
    drive(optimizer, params, 1, total=TOTAL)
    for param, old in zip(params, before, strict=True):
        assert torch.equal(param.tensor, old)
        assert optimizer.state[param.tensor]["step"] == 0
        assert not optimizer.state[param.tensor]["exp_avg"].any()
    drive(optimizer, params, 1, start=1, total=TOTAL)
    assert all(
        not torch.equal(p.tensor, old) and optimizer.state[p.tensor]["step"] == 1
        for p, old in zip(params, before, strict=True)
    )


def test_first_basis_is_the_eigenbasis_by_falling_eigenvalue() -> None:
    shape = (6, 4)
    params = parameters([(shape, "matrix")], torch.float64)
    optimizer, h = make(SPEC, params)
    drive(optimizer, params, 1, total=TOTAL)
    g = gradients(shape, TOTAL, 0)[0]
    state = optimizer.state[params[0].tensor]
    for side, factor in ((0, g @ g.T), (1, g.T @ g)):
        np.testing.assert_allclose(
            state["factors"][side].numpy(), (1 - h["beta2"]) * factor, rtol=0, atol=1e-12
        )
        u = state["bases"][side].numpy()
        diagonal = u.T @ factor @ u
        eigenvalues = np.sort(np.linalg.eigvalsh(factor))[::-1]
        np.testing.assert_allclose(diagonal, np.diag(eigenvalues), atol=1e-10)
    broken = first_basis(torch.full((3, 3), torch.nan))
    assert torch.equal(broken, torch.eye(3))


def test_bases_stay_orthogonal_and_come_to_diagonalise() -> None:
    params = parameters([((12, 9), "matrix"), ((9, 12), "matrix")])
    optimizer, _ = make(SPEC, params, total=200, beta2=0.99)
    base = [gradient((12, 9), 1, decades=1.0), gradient((9, 12), 2, decades=1.0)]
    noise = np.random.default_rng(0)

    def grad_of(index: int, t: int) -> Array:
        shape = params[index].info.shape
        return np.asarray(base[index] @ noise.standard_normal((shape[1], shape[1])))

    drive(optimizer, params, 200, grad_of=grad_of)
    assert optimizer.refreshes == 39
    for param in params:
        state = optimizer.state[param.tensor]
        for side, q in state["bases"].items():
            torch.testing.assert_close(q.mT @ q, torch.eye(len(q)), rtol=0, atol=1e-5)
            turned = q.mT @ state["factors"][side] @ q
            off = turned - turned.diag().diag()
            assert float(off.norm() / turned.norm()) < 0.1


def test_refresh_orders_columns_and_v_alike() -> None:
    eigenvalues = torch.tensor([1.0, 5.0, 3.0, 4.0], dtype=torch.float64)
    basis = torch.as_tensor(np.linalg.qr(np.random.default_rng(3).standard_normal((4, 4)))[0])
    factor = (basis * eigenvalues) @ basis.mT
    renewed, order = next_basis(factor, basis, reorder=True)
    assert order is not None
    assert order.tolist() == [1, 3, 2, 0]
    torch.testing.assert_close(renewed.abs(), basis[:, order].abs(), rtol=0, atol=1e-12)
    unordered, none = next_basis(factor, basis, reorder=False)
    assert none is None
    torch.testing.assert_close(unordered.abs(), basis.abs(), rtol=0, atol=1e-12)

    # A whole step: v of the columns follows, m keeps its place in the original space.
    params = parameters([((1, 4), "matrix")], torch.float64)
    optimizer, _ = make(SPEC, params, refresh_fraction=1 / 24, beta2=0.9, beta1=0.9)
    drive(optimizer, params, 1, total=TOTAL)
    state = optimizer.state[params[0].tensor]
    state["bases"][1].copy_(basis)
    state["factors"][1].copy_(factor * 1e6)
    state["exp_avg_sq"].copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    state["exp_avg"].copy_(torch.tensor([[1.0, -2.0, 3.0, 0.5]]))
    before = turn(state["exp_avg"], state["bases"], back=True)
    drive(optimizer, params, 1, start=1, total=TOTAL, grad_of=lambda i, t: np.zeros((1, 4)))
    torch.testing.assert_close(
        state["exp_avg_sq"],
        0.9 * torch.tensor([[2.0, 4.0, 3.0, 1.0]], dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )
    after = turn(state["exp_avg"], state["bases"], back=True)
    torch.testing.assert_close(after, 0.9 * before, rtol=0, atol=1e-12)


def test_turning_back_undoes_turning() -> None:
    matrix = torch.as_tensor(gradient((5, 3), 1))
    bases: dict[int, Tensor] = {
        side: torch.as_tensor(np.linalg.qr(np.random.default_rng(side).standard_normal((n, n)))[0])
        for side, n in enumerate((5, 3))
    }
    turned = turn(matrix, bases)
    torch.testing.assert_close(turned, bases[0].mT @ matrix @ bases[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(turn(turned, bases, back=True), matrix, rtol=0, atol=1e-12)
    assert turn(matrix, {}) is matrix


@pytest.mark.parametrize("skip_first", [True, False])
@pytest.mark.parametrize("total", [24, 60, 400])
def test_bases_are_renewed_at_the_steps_that_switches_names(total: int, skip_first: bool) -> None:
    params = parameters([((2, 3), "matrix"), ((3,), "vector")])
    optimizer, h = make(SPEC, params, total, skip_first=skip_first)
    seen = []
    for t in range(total):
        before = optimizer.refreshes
        for param in params:
            param.tensor.grad = torch.ones_like(param.tensor)
        optimizer.step()
        if optimizer.refreshes > before:
            seen.append(t)
    assert tuple(seen) == SPEC.switches(h, total)
    assert len(seen) >= 5


def test_claim_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(3, 2, 2), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
    ]
    rest = 2 * 4 * 4 + 2 * 2 * 12 + 2 * 4 * (9 + 16) + 2 * 4 * 44 + 2 * 4 * 16
    h = SPEC.defaults()
    assert SPEC.state_bytes(infos, h, 0.5) == rest + 2 * 4 * 60 + 2 * 4 * (36 + 100)
    small = {**h, "max_precond_dim": 8}
    assert SPEC.state_bytes(infos, small, 0.5) == rest + 2 * 4 * 60 + 2 * 4 * 36
    both = {**h, "table_sides": "both"}
    assert SPEC.state_bytes(infos, both, 0.5) == SPEC.state_bytes(infos, h, 0.5) + 2 * 4 * 121


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta1": 1.0},
        {"shampoo_beta": 1.0},
        {"period": 0},
        {"eps_placement": "middle"},
        {"decay_order": "never"},
        {"table_sides": "left"},
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted are"):
        Soap([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
