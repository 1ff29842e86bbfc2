"""First-order methods against textbook references in float64, written from the papers in numpy.

No reference calls a function of the library. AdEMAMix, MARS, Cautious AdamW, SGD, Signum and Muon
with AdamW's step size are here; the others have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import (
    ademamix,
    cautious_adamw,
    mars,
    muon_rms,
    sgd,
    signsgd,
    signum,
)
from levelfield.tests.first_order import ALL_SHAPES, STEPS, TOTAL, make
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    drive,
    gradient,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)

Hparams = Mapping[str, Any]
Reference = Callable[[Array, Sequence[Array], Sequence[float], float, Hparams], Array]


# --- references: (p, gradients, rates, weight decay, hyper-parameters) -> p ----------------------


def ref_sgd(p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams) -> Array:
    """Polyak's heavy ball, torch's form: L2 decay, dampening from the second step on."""
    buffer = None
    for g, lr in zip(grads, lrs, strict=True):
        g = g + wd * p
        damped = (1 - h["dampening"]) * g
        buffer = g if buffer is None else h["momentum"] * buffer + damped
        p = p - lr * (g + h["momentum"] * buffer if h["nesterov"] else buffer)
    return p


def ref_signum(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams
) -> Array:
    """Bernstein et al., algorithm 2; Nesterov's form over a sum of gradients, not an average."""
    heavy, beta = np.zeros_like(p), h["beta"]
    for g, lr in zip(grads, lrs, strict=True):
        heavy = beta * heavy + g
        p = p - lr * (np.sign(g + beta * heavy if h["nesterov"] else heavy) + wd * p)
    return p


def ref_ademamix(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams
) -> Array:
    """Pagliardini et al., algorithm 1, with their schedulers of alpha and beta3."""
    b1, b2 = h["beta1"], h["beta2"]
    b3_end, warm = 1 - 1 / (h["slow_fraction"] * TOTAL), h["warmup_fraction"] * TOTAL
    m1, m2, v = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        alpha = min(t * h["alpha"] / warm, h["alpha"])
        share, log_start, log_end = min(1.0, t / warm), math.log(b1), math.log(b3_end)
        b3 = math.exp(log_start * log_end / ((1 - share) * log_end + share * log_start))
        m1 = b1 * m1 + (1 - b1) * g
        m2 = b3 * m2 + (1 - b3) * g
        v = b2 * v + (1 - b2) * g**2
        root = np.sqrt(v / (1 - b2**t)) + h["eps"]
        p = p - lr * ((m1 / (1 - b1**t) + alpha * m2) / root + wd * p)
    return p


def ref_cautious(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams
) -> Array:
    """Liang et al.: AdamW, masked where update and gradient differ in sign."""
    b1, b2, m, v = h["beta1"], h["beta2"], np.zeros_like(p), np.zeros_like(p)
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + h["eps"])
        agree = (np.sign(u) == np.sign(g)) & (g != 0)
        scale = {
            "mean": 1 / max(agree.mean(), 1e-3),
            "count": agree.size / (agree.sum() + 1),
        }[h["mask_scale"]]
        p = p - lr * wd * p - lr * scale * np.where(agree, u, 0.0)
    return p


def ref_mars(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams
) -> Array:
    """Yuan et al., MARS-AdamW (approximate); AdamW for vectors."""
    matrix = p.ndim > 1
    b1, b2 = (h["beta1"], h["beta2"]) if matrix else (h["vector_beta1"], h["vector_beta2"])
    m, v, last = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        c = g
        if matrix:
            c = g + h["gamma"] * b1 / (1 - b1) * (g - last)
            norm = math.sqrt(float((c**2).sum()))
            if h["clip"] == "tensor" and norm > 1:
                c = c / norm
        else:
            lr = lr * h["vector_lr_ratio"]
        m = b1 * m + (1 - b1) * c
        v = b2 * v + (1 - b2) * c**2
        root = np.sqrt(v / (1 - b2**t)) + h["eps"]
        p = p - lr * (m / (1 - b1**t) / root + wd * p)
        last = g
    return p


def ref_muon_rms(
    p: Array, grads: Sequence[Array], lrs: Sequence[float], wd: float, h: Hparams
) -> Array:
    """Liu et al.: a sum of gradients; Newton-Schulz by its effect on the singular values."""
    shape = p.shape
    p = p.reshape(shape[0], -1)
    buffer, mu = np.zeros_like(p), h["momentum"]
    for flat, lr in zip(grads, lrs, strict=True):
        g = flat.reshape(p.shape)
        buffer = mu * buffer + g
        left, s, right = np.linalg.svd(g + mu * buffer, full_matrices=False)
        s = s / (np.linalg.norm(s) + 1e-7 / (1 - mu))  # a sum is 1 / (1 - mu) averages
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        p = p - lr * (0.2 * math.sqrt(max(p.shape)) * (left * s) @ right + wd * p)
    return p.reshape(shape)


CASES: list[tuple[OptimizerSpec, Reference, dict[str, Any]]] = [
    (sgd.SPEC, ref_sgd, {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}),
    (sgd.SPEC, ref_sgd, {"lr": 0.02, "momentum": 0.8, "nesterov": True}),
    (sgd.SPEC, ref_sgd, {"lr": 0.02, "dampening": 0.5}),
    (signum.SPEC, ref_signum, {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}),
    (signum.SPEC, ref_signum, {"lr": 0.02, "beta": 0.8, "nesterov": True}),
    (
        ademamix.SPEC,
        ref_ademamix,
        {"lr": 0.02, "weight_decay": 0.3, "warmup_fraction": 15 / TOTAL, "embed_multiplier": 3.0},
    ),
    (ademamix.SPEC, ref_ademamix, {"lr": 0.02, "eps": 0.1, "alpha": 2.0, "slow_fraction": 0.3}),
    (cautious_adamw.SPEC, ref_cautious, {"lr": 0.02, "weight_decay": 0.3, "eps": 1e-2}),
    (cautious_adamw.SPEC, ref_cautious, {"lr": 0.02, "mask_scale": "count", "beta2": 0.9}),
    (mars.SPEC, ref_mars, {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}),
    (mars.SPEC, ref_mars, {"lr": 0.02, "clip": None, "gamma": 0.3, "eps": 1e-2}),
    (muon_rms.SPEC, ref_muon_rms, {"lr": 0.02, "weight_decay": 0.3}),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[2]}")
def test_matches_its_textbook_reference(
    case: tuple[OptimizerSpec, Reference, dict[str, Any]], dtype: torch.dtype
) -> None:
    spec, reference, changes = case
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4  # of parameters of size one
    params = parameters(ALL_SHAPES, dtype, spec.roles)
    start = [value.double().numpy() for value in values(params)]
    optimizer, hparams = make(spec, params, **changes)
    drive(optimizer, params, STEPS)
    for index, param in enumerate(params):
        table = param.info.role in ("embed", "head")
        lr = hparams["lr"] * (hparams["embed_multiplier"] if table else 1.0)
        wd = 0.0 if param.info.role == "vector" else hparams["weight_decay"]
        grads = gradients(param.info.shape, STEPS, index)
        rates = [lr * scale for scale in lr_scales(STEPS)]
        expected = reference(start[index], grads, rates, wd, hparams)
        found = param.tensor.detach().double().numpy()
        # SGD's steps have the size of the gradients: so have their roundings.
        size = max(1.0, float(np.abs(expected - start[index]).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)
        assert np.abs(expected - start[index]).max() > 100 * tolerance


# --- reductions ----------------------------------------------------------------------------------

PLAIN = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "lr": 0.01, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (ademamix.SPEC, {**PLAIN, "alpha": 0.0}),
        (cautious_adamw.SPEC, {**PLAIN, "mask_scale": "none"}),
        (
            mars.SPEC,
            {
                **PLAIN,
                "gamma": 0.0,
                "clip": None,
                "vector_lr_ratio": 1.0,
                "vector_beta1": 0.9,
                "vector_beta2": 0.99,
            },
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_without_its_idea_it_is_adamw(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    # One sign for every gradient of an element: momentum and gradient agree everywhere.
    ours, theirs = parameters(dtype=torch.float64), parameters(dtype=torch.float64)

    def grad_of(index: int, t: int) -> Array:
        shape = ours[index].info.shape
        return gradient(shape, index) * (1 + 0.5 * math.sin(t))

    optimizer, _ = make(spec, ours, **changes)
    groups = context(theirs).groups({"lr": 0.01, "weight_decay": 0.1})
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-6, foreach=False)
    for one, params in ((optimizer, ours), (adamw, theirs)):
        drive(one, params, STEPS, grad_of=grad_of)
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_signum_without_momentum_is_signsgd() -> None:
    ours, theirs = parameters(), parameters()
    drive(make(signum.SPEC, ours, beta=0.0, lr=0.01, weight_decay=0.1)[0], ours, STEPS)
    drive(make(signsgd.SPEC, theirs, lr=0.01, weight_decay=0.1)[0], theirs, STEPS)
    assert same_bits(values(ours), values(theirs))


def one_by_one(spec: OptimizerSpec, grads: Sequence[Sequence[float]], **changes: Any) -> Array:
    """Positions after every step of a vector that starts at 0."""
    count = len(grads[0])
    info = ParamInfo(name="p", shape=(count,), role="matrix", dtype="float64")
    param = Parameter(info, torch.nn.Parameter(torch.zeros(count, dtype=torch.float64)))
    optimizer, _ = make(spec, [param], **changes)
    seen = []
    for t, grad in enumerate(grads):
        drive(optimizer, [param], 1, scales=[1.0], grad_of=lambda _, s, g=grad: np.array(g))
        assert t == len(seen)
        seen.append(param.tensor.detach().numpy().copy())
    return np.array(seen)


@pytest.mark.parametrize("scale", ["mean", "count", "none"])
def test_cautious_looks_at_the_current_gradient(scale: str) -> None:
    path = one_by_one(
        cautious_adamw.SPEC, [[1.0, 1.0]] * 5 + [[-0.01, 1.0]], lr=0.1, mask_scale=scale
    )
    assert path[4, 0] < path[3, 0]
    assert path[5, 0] == path[4, 0]  # its momentum is positive still, its gradient is not
    moved = path[5, 1] - path[4, 1]
    assert moved / -0.1 == pytest.approx({"mean": 2.0, "count": 1.0, "none": 1.0}[scale], rel=1e-5)


def test_cautious_bounds_the_scale_of_its_mask() -> None:
    momentum, grad = torch.ones(5000), -torch.ones(5000)
    grad[0] = 1.0
    assert cautious_adamw.cautious_mask(momentum, grad, "mean").max() == pytest.approx(1000)


def test_mars_clips_all_tensors_as_one_if_asked() -> None:
    shapes: list[tuple[tuple[int, ...], Role]] = [((3, 4), "matrix"), ((5, 2), "embed")]
    params = parameters(shapes, torch.float64)
    optimizer, hparams = make(mars.SPEC, params, clip="whole", lr=0.01)
    drive(optimizer, params, 1)
    boost = 1 + hparams["gamma"] * 0.95 / 0.05
    grads = [boost * gradients(param.info.shape, 1, i)[0] for i, param in enumerate(params)]
    norm = math.sqrt(sum(float((grad**2).sum()) for grad in grads))
    assert norm > 1
    for param, grad in zip(params, grads, strict=True):
        held = optimizer.state[param.tensor]["exp_avg"].numpy()
        np.testing.assert_allclose(held, 0.05 * grad / norm, rtol=1e-12)


def test_ademamix_without_a_fast_momentum_holds_none() -> None:
    params = parameters(ALL_SHAPES)
    optimizer, hparams = make(ademamix.SPEC, params, beta1=0.0)
    drive(optimizer, params, 2)
    claim = ademamix.SPEC.state_bytes([param.info for param in params], hparams, 1.0)
    assert stored_bytes([optimizer]) == claim == 2 * sum(param.info.nbytes for param in params)


def test_ademamix_schedules() -> None:
    assert ademamix.slow_beta(0.1 * TOTAL, 0.9) == 1 - 1 / 40
    assert ademamix.slow_beta(3.0, 0.9) == 0.9  # never faster than the fast one
    lives = [ademamix.half_life(ademamix.beta_at(t, 0.9, 0.999, 100)) for t in range(1, 121)]
    assert np.diff(lives[:100]) == pytest.approx(lives[1] - lives[0])
    assert ademamix.beta_at(1, 0.0, 0.0, 10) == 0.0
    assert lives[99] == lives[119] == ademamix.half_life(0.999)
    assert [ademamix.alpha_at(t, 8.0, 100) for t in (1, 50, 100, 200)] == [0.08, 4.0, 8.0, 8.0]
