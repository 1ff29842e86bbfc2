"""Methods against textbook references in float64, written from the papers in numpy.

No reference calls a function of the library. Where a method keeps float64 parameters in float64,
it is run so and the tolerance is that of rounding; float32 is checked with its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from levelfield.bench.spec import OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import _ops, adafactor, adamw, adamw_split, lion, muon, signsgd
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    as_gradient,
    build,
    drive,
    gradient,
    gradients,
    lr_scales,
    measured_state_bytes,
    parameters,
    same_bits,
    state_tensors,
    values,
)

STEPS = 24
SPECS = tuple(m.SPEC for m in (adamw, adamw_split, lion, signsgd, adafactor, muon))
OWN = tuple(spec for spec in SPECS if spec.implementation == "own")
ALL_SHAPES: tuple[tuple[tuple[int, ...], Role], ...] = (*SHAPES, ((2, 3, 4), "matrix"))

over_specs = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
over_own = pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)


# --- references: (p, gradients, rates, weight decay, hyper-parameters, dtype) -> p -------------

Hparams = Mapping[str, Any]
Reference = Callable[[Array, Sequence[Array], Sequence[float], float, Hparams, torch.dtype], Array]


def ref_adamw(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    h: Hparams,
    dtype: torch.dtype,
) -> Array:
    """Loshchilov & Hutter, algorithm 2, with their eta_t * alpha as lr and lambda as lr * wd."""
    m, v = np.zeros_like(p), np.zeros_like(p)
    b1, b2 = h["beta1"], h["beta2"]
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        v_hat = v / (1 - b2**t)
        p = p - lr * (m_hat / (np.sqrt(v_hat) + h["eps"]) + wd * p)
    return p


def ref_lion(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    h: Hparams,
    dtype: torch.dtype,
) -> Array:
    """Chen et al., algorithm 2."""
    m = np.zeros_like(p)
    for g, lr in zip(grads, lrs, strict=True):
        c = h["beta1"] * m + (1 - h["beta1"]) * g
        p = p - lr * (np.sign(c) + wd * p)
        m = h["beta2"] * m + (1 - h["beta2"]) * g
    return p


def ref_signum(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    h: Hparams,
    dtype: torch.dtype,
) -> Array:
    """Bernstein et al., algorithm 2, with `beta` 0 algorithm 1; decay decoupled."""
    m, beta = np.zeros_like(p), h.get("beta", 0.0)
    for g, lr in zip(grads, lrs, strict=True):
        m = beta * m + (1 - beta) * g
        p = p - lr * (np.sign(m) + wd * p)
    return p


def ref_adafactor(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    h: Hparams,
    dtype: torch.dtype,
) -> Array:
    """Shazeer & Stern, algorithms 4 and 5, with means for sums and eps1 as a floor."""
    eps1 = torch.finfo(dtype).eps if h["eps1"] is None else h["eps1"]
    row = column = whole = np.float64(0.0)
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        beta2 = 1 - t ** h["beta2_decay"]
        square = g**2
        if p.ndim >= 2:
            row = beta2 * row + (1 - beta2) * square.mean(-1, keepdims=True)
            column = beta2 * column + (1 - beta2) * square.mean(-2, keepdims=True)
            v = row * column / np.maximum(row.mean(-2, keepdims=True), eps1)
        else:
            whole = beta2 * whole + (1 - beta2) * square
            v = whole
        u = g / np.sqrt(np.maximum(v, eps1**2))
        u = u / max(1.0, float(np.sqrt(np.mean(u**2))) / h["clip"])
        alpha = max(h["eps2"], float(np.sqrt(np.mean(p**2)))) * min(lr, 1 / math.sqrt(t))
        p = p - lr * wd * p - alpha * u
    return p


def quintic(s: Array) -> Array:
    """What five Newton-Schulz steps do to a singular value."""
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def ref_muon(
    p: Array,
    grads: Sequence[Array],
    lrs: Sequence[float],
    wd: float,
    h: Hparams,
    dtype: torch.dtype,
) -> Array:
    """Jordan et al.; Newton-Schulz by its effect on the singular values, no product of matrices."""
    shape = p.shape
    p = p.reshape(shape[0], -1)
    rows, columns = p.shape
    scale = {
        "original": max(1, rows / columns) ** 0.5,
        "match_rms": 0.2 * max(rows, columns) ** 0.5,
    }[h["adjust"]]
    buffer, mu = np.zeros_like(p), h["momentum"]
    for flat, lr in zip(grads, lrs, strict=True):
        g = flat.reshape(rows, columns)
        buffer = mu * buffer + (1 - mu) * g
        mixed = (1 - mu) * g + mu * buffer if h["nesterov"] else buffer
        left, s, right = np.linalg.svd(mixed, full_matrices=False)
        o = (left * quintic(s / (np.linalg.norm(s) + 1e-7))) @ right
        p = p - lr * (scale * o + wd * p)
    return p.reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison: a method with changed hyper-parameters against its reference."""

    spec: OptimizerSpec
    reference: Reference
    tolerance: float
    """Largest difference accepted, for parameters of size one moved by about `lr` a step."""
    dtype: torch.dtype = torch.float64
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        changed = [f"{key}={value}" for key, value in self.changes.items()]
        return "-".join([self.spec.name, str(self.dtype).removeprefix("torch."), *changed])


def _cases(
    spec: OptimizerSpec, reference: Reference, variants: Sequence[Hparams], float32: float
) -> list[Case]:
    """Every variant in float64 to 1e-10, and the first in float32 to `float32`."""
    found = [
        Case(spec=spec, reference=reference, tolerance=1e-10, changes=changes)
        for changes in variants
    ]
    first = Case(
        spec=spec,
        reference=reference,
        tolerance=float32,
        dtype=torch.float32,
        changes=variants[0],
    )
    return [*found, first]


CASES = [
    *_cases(
        adamw.SPEC,
        ref_adamw,
        [
            {"lr": 0.02, "weight_decay": 0.3},
            {"lr": 0.02, "beta2": 0.9, "eps": 1e-2},
            {"lr": 0.02, "weight_decay": 0.3, "fused": False},
        ],
        float32=5e-6,
    ),
    *_cases(
        adamw_split.SPEC,
        ref_adamw,
        [{"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}],
        float32=5e-6,
    ),
    *_cases(
        lion.SPEC,
        ref_lion,
        [
            {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 0.3},
            {"lr": 0.02, "beta1": 0.95, "beta2": 0.98},
        ],
        float32=5e-6,
    ),
    *_cases(
        signsgd.SPEC,
        ref_signum,
        [{"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}, {"lr": 0.02}],
        float32=5e-6,
    ),
    *_cases(
        adafactor.SPEC,
        ref_adafactor,
        [
            {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0},
            {"lr": 1.0},  # above 1 / sqrt(t) in most steps: the cap is that
            {"lr": 0.02, "eps1": 1e-1},  # the floor acts
        ],
        float32=2e-5,
    ),
    *_cases(
        muon.SPEC,
        ref_muon,
        [
            {"lr": 0.02, "weight_decay": 0.3},
            {"lr": 0.02, "weight_decay": 0.3, "adjust": "match_rms"},
            {"lr": 0.02, "nesterov": False},
        ],
        float32=5e-5,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_its_textbook_reference(case: Case) -> None:
    params = parameters(ALL_SHAPES, case.dtype, case.spec.roles)
    start = [value.double().numpy() for value in values(params)]
    optimizer, hparams = build(case.spec, params, **case.changes)
    drive(optimizer, params, STEPS)
    for index, param in enumerate(params):
        table = param.info.role in ("embed", "head")
        lr = hparams["lr"] * (hparams.get("embed_multiplier", 1.0) if table else 1.0)
        wd = 0.0 if param.info.role == "vector" else hparams["weight_decay"]
        grads = gradients(param.info.shape, STEPS, index)
        rates = [lr * scale for scale in lr_scales(STEPS)]
        expected = case.reference(start[index], grads, rates, wd, hparams, case.dtype)
        np.testing.assert_allclose(
            param.tensor.detach().double().numpy(),
            expected,
            rtol=0.0,
            atol=case.tolerance,
            err_msg=param.info.name,
        )
        assert np.abs(expected - start[index]).max() > 100 * case.tolerance


# --- reductions: one method becomes another ----------------------------------------------------


def test_lion_with_equal_betas_is_signum() -> None:
    params = parameters(dtype=torch.float64)
    start = [value.numpy() for value in values(params)]
    optimizer, _ = build(lion.SPEC, params, lr=0.01, beta1=0.9, beta2=0.9)
    drive(optimizer, params, STEPS)
    rates = [0.01 * scale for scale in lr_scales(STEPS)]
    for index, param in enumerate(params):
        grads = gradients(param.info.shape, STEPS, index)
        expected = ref_signum(start[index], grads, rates, 0.0, {"beta": 0.9}, torch.float64)
        np.testing.assert_allclose(param.tensor.detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_adam_without_betas_and_eps_is_signsgd(fused: bool) -> None:
    common = {"lr": 0.01, "weight_decay": 0.1}
    ours, theirs = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    sign, _ = build(signsgd.SPEC, ours, **common)
    adam, _ = build(adamw.SPEC, theirs, beta1=0.0, beta2=0.0, eps=0.0, fused=fused, **common)
    drive(sign, ours, STEPS)
    drive(adam, theirs, STEPS)
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_split_with_multiplier_one_is_adamw() -> None:
    ours, theirs = parameters(), parameters()
    for spec, params in ((adamw.SPEC, ours), (adamw_split.SPEC, theirs)):
        optimizer, _ = build(spec, params)
        drive(optimizer, params, STEPS)
    assert same_bits(values(ours), values(theirs))


def _by_hand(spec: OptimizerSpec, grads: Sequence[float], **changes: Any) -> float:
    """One element that starts at 1, after one step a gradient at a constant rate."""
    info = ParamInfo(name="p", shape=(1,), role="matrix", dtype="float64")
    param = Parameter(info, torch.nn.Parameter(torch.ones(1, dtype=torch.float64)))
    optimizer, _ = build(spec, [param], **changes)
    drive(
        optimizer,
        [param],
        len(grads),
        scales=[1.0] * len(grads),
        grad_of=lambda _, t: np.array([grads[t]]),
    )
    return float(param.tensor.detach())


def test_lion_decays_before_the_step_and_uses_the_old_momentum() -> None:
    # m = .5 after the first step; .9 * .5 - .1 * 4 > 0 with the old m, the new one is -1.75
    moved = _by_hand(lion.SPEC, [1.0, -4.0], lr=0.1, beta1=0.9, beta2=0.5)
    assert moved == pytest.approx(1 - 0.1 - 0.1, abs=1e-15)
    decayed = _by_hand(lion.SPEC, [1.0], lr=0.1, weight_decay=0.5)
    assert decayed == pytest.approx(1 * (1 - 0.05) - 0.1, abs=1e-15)


def test_signsgd_leaves_an_element_without_gradient() -> None:
    assert _by_hand(signsgd.SPEC, [0.0, 0.0]) == 1.0


# --- shared functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_step_has_the_bits_of_torch(weight_decay: float) -> None:
    ours, theirs = parameters(), parameters()
    reference = torch.optim.AdamW(
        [param.tensor for param in theirs],
        lr=0.01,
        betas=(0.9, 0.95),
        weight_decay=weight_decay,
        foreach=False,
    )
    drive(reference, theirs, STEPS, scales=[1.0] * STEPS)
    for index, param in enumerate(ours):
        tensor = param.tensor.detach()
        m, v = torch.zeros_like(tensor), torch.zeros_like(tensor)
        for t, grad in enumerate(gradients(param.info.shape, STEPS, index), start=1):
            _ops.adamw_(
                tensor,
                as_gradient(grad, tensor),
                m,
                v,
                t,
                lr=0.01,
                beta1=0.9,
                beta2=0.95,
                eps=1e-8,
                weight_decay=weight_decay,
            )
    assert same_bits(values(ours), values(theirs))


@pytest.mark.parametrize("step", [1, 2, 50])
def test_both_places_of_eps(step: int) -> None:
    rng = np.random.default_rng(step)
    m, v = rng.standard_normal((3, 4)), 10 ** rng.uniform(-8, 0, (3, 4))
    b1, b2, eps = 0.9, 0.99, 1e-3
    root = math.sqrt(1 - b2**step)
    after = m / (1 - b1**step) / (np.sqrt(v) / root + eps)
    before = m / (1 - b1**step) * root / (np.sqrt(v) + eps)
    arguments = (torch.as_tensor(m), torch.as_tensor(v), step, b1, b2, eps)
    np.testing.assert_allclose(_ops.adam_direction(*arguments).numpy(), after, rtol=1e-13)
    np.testing.assert_allclose(_ops.adam_direction_hf(*arguments).numpy(), before, rtol=1e-13)
    assert np.abs(after / before - 1).max() > 1e-2
    np.testing.assert_array_equal(arguments[0].numpy(), m)  # the moments are left alone
    np.testing.assert_array_equal(arguments[1].numpy(), v)


def test_quintic_bounds() -> None:
    wide, narrow = quintic(np.geomspace(0.001, 1, 9999)), quintic(np.geomspace(0.02, 1, 9999))
    assert narrow.min() > 0.68
    assert narrow.max() < 1.14
    assert wide.min() > 0.47
    assert wide.max() < 1.21
    assert quintic(np.array(1e-6)) < 1e-3  # what is tiny stays small


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (7, 7), (1, 6), (6, 1)])
def test_newton_schulz_maps_a_known_spectrum(shape: tuple[int, int]) -> None:
    matrix = torch.as_tensor(gradient(shape, 3, decades=1.5))
    result = _ops.newton_schulz(matrix, 5, torch.float64)
    assert result.shape == shape
    left, s, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    mapped = quintic(s / (np.linalg.norm(s) + 1e-7))
    np.testing.assert_allclose(result.numpy(), (left * mapped) @ right, rtol=0, atol=1e-12)
    large = s / np.linalg.norm(s) >= 0.02
    assert large.any()
    assert ((mapped[large] > 0.68) & (mapped[large] < 1.14)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_newton_schulz_commutes_with_the_transpose_and_ignores_scale(dtype: torch.dtype) -> None:
    matrix = torch.as_tensor(gradient((8, 3), 5))
    straight = _ops.newton_schulz(matrix, 5, dtype)
    turned = _ops.newton_schulz(matrix.mT, 5, dtype).mT
    torch.testing.assert_close(straight, turned, rtol=0, atol=1e-5)
    scaled = _ops.newton_schulz(matrix * 1e3, 5, dtype)
    torch.testing.assert_close(straight, scaled, rtol=0, atol=1e-4)


def test_newton_schulz_multiplies_on_the_smaller_side() -> None:
    small, large = 4, 32
    expected = 5 * 2 * (2 * small**2 * large + small**3)
    for shape in ((small, large), (large, small)):
        with FlopCounterMode(display=False) as counter:
            _ops.newton_schulz(torch.ones(shape), 5, torch.float32)
        assert counter.get_total_flops() == expected


def test_newton_schulz_of_zero_is_zero() -> None:
    assert not _ops.newton_schulz(torch.zeros(4, 3), 5, torch.float32).any()


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)])
def test_match_rms_gives_an_update_of_a_fifth(shape: tuple[int, int]) -> None:
    info = ParamInfo(name="p", shape=shape, role="matrix")
    param = Parameter(info, torch.nn.Parameter(torch.zeros(shape)))
    optimizer, hparams = build(muon.SPEC, [param], adjust="match_rms")
    noise = np.random.default_rng(1).standard_normal(shape)
    drive(optimizer, [param], 1, scales=[1.0], grad_of=lambda _, t: noise)
    rms = float(param.tensor.detach().square().mean().sqrt())
    assert rms / hparams["lr"] == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize(
    ("adjust", "theirs"), [("original", None), ("match_rms", "match_rms_adamw")]
)
def test_muon_agrees_with_torch_to_bfloat16_noise(adjust: str, theirs: str | None) -> None:
    params, twins = (parameters(SHAPES, torch.float32, ("matrix",)) for _ in range(2))
    ours, _ = build(muon.SPEC, params, adjust=adjust, weight_decay=0.1)
    reference = torch.optim.Muon(
        [param.tensor for param in twins], lr=0.02, weight_decay=0.1, adjust_lr_fn=theirs
    )
    # well-conditioned gradients: bfloat16 loses the small singular values of others
    easy = partial(_well_conditioned, params)
    for optimizer, driven in ((ours, params), (reference, twins)):
        drive(optimizer, driven, 3, scales=[1.0] * 3, grad_of=easy)
    for a, b in zip(values(params), values(twins), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=3 * 0.02 * 0.05)


def _well_conditioned(params: Sequence[Parameter], index: int, t: int) -> Array:
    return gradient(params[index].info.shape, 100 * index + t, decades=0.5)


def test_muon_refuses_vectors_and_unknown_scales() -> None:
    vector = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="takes matrices"):
        muon.Muon([vector])
    with pytest.raises(ValueError, match="accepted are original, match_rms"):
        muon.Muon([torch.nn.Parameter(torch.zeros(3, 3))], adjust="spectral")


# --- what every method promises ------------------------------------------------------------------


@over_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes_are_as_claimed(spec: OptimizerSpec, dtype: torch.dtype) -> None:
    params = parameters(ALL_SHAPES, dtype, spec.roles)
    optimizer, hparams = build(spec, params)
    infos = [param.info for param in params]
    shared = ParamInfo(name="twin", shape=(99, 9), role="matrix", tied_to=infos[0].name)
    for steps in (1, 2):
        drive(optimizer, params, steps)
        claimed = spec.state_bytes(infos, hparams, 1.0)
        assert measured_state_bytes(optimizer) == claimed
        assert spec.state_bytes([*infos, shared], hparams, 0.0) == claimed
    assert {tensor.dtype for tensor in state_tensors(optimizer)} <= {dtype}
    assert all(torch.isfinite(value).all() for value in values(params))


@over_specs
def test_two_runs_have_the_same_bits(spec: OptimizerSpec) -> None:
    results = []
    for _ in range(2):
        params = parameters(ALL_SHAPES, roles=spec.roles)
        optimizer, _ = build(spec, params)
        drive(optimizer, params, STEPS)
        results.append(values(params))
    assert same_bits(*results)


@over_specs
def test_a_restored_run_goes_on_with_the_same_bits(spec: OptimizerSpec) -> None:
    straight = parameters(ALL_SHAPES, roles=spec.roles)
    optimizer, _ = build(spec, straight)
    drive(optimizer, straight, 11, total=STEPS)
    saved, weights = copy.deepcopy(optimizer.state_dict()), values(straight)
    drive(optimizer, straight, STEPS - 11, start=11, total=STEPS)

    restored = parameters(ALL_SHAPES, roles=spec.roles)
    with torch.no_grad():
        for param, weight in zip(restored, weights, strict=True):
            param.tensor.copy_(weight)
    second, _ = build(spec, restored)
    second.load_state_dict(saved)
    drive(second, restored, STEPS - 11, start=11, total=STEPS)
    assert same_bits(values(straight), values(restored))


@over_specs
def test_parameters_without_gradient_are_left_alone(spec: OptimizerSpec) -> None:
    params = parameters(ALL_SHAPES, roles=spec.roles)
    before = values(params)
    optimizer, _ = build(spec, params, weight_decay=0.3)
    drive(
        optimizer,
        params,
        3,
        grad_of=lambda index, t: gradient(params[index].info.shape, t) if index % 2 else None,
    )
    for index, (param, old) in enumerate(zip(params, before, strict=True)):
        assert torch.equal(param.tensor, old) == (index % 2 == 0)
        assert index % 2 == 1 or param.tensor not in optimizer.state


@over_specs
def test_gradients_are_not_overwritten(spec: OptimizerSpec) -> None:
    params = parameters(ALL_SHAPES, roles=spec.roles)
    optimizer, _ = build(spec, params, weight_decay=0.3)
    drive(optimizer, params, 3)
    for index, param in enumerate(params):
        last = as_gradient(gradients(param.info.shape, 3, index)[-1], param.tensor)
        assert param.tensor.grad is not None
        assert torch.equal(param.tensor.grad, last)


@over_specs
def test_memory_layout_does_not_matter(spec: OptimizerSpec) -> None:
    shapes = tuple((shape, role) for shape, role in SHAPES if len(shape) == 2)
    results = []
    for layout in ("rows", "columns", "strided"):
        params = parameters(shapes, torch.float64, spec.roles)
        if layout != "rows":
            params = tuple(_laid_out(param, layout) for param in params)
        optimizer, _ = build(spec, params, weight_decay=0.3)
        drive(optimizer, params, 6)
        results.append(values(params))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def _laid_out(param: Parameter, layout: str) -> Parameter:
    data = param.tensor.detach()
    if layout == "columns":
        return Parameter(param.info, torch.nn.Parameter(data.mT.contiguous().mT))
    return Parameter(param.info, torch.nn.Parameter(data.repeat_interleave(2, dim=1)[:, ::2]))


@over_own
def test_empty_and_0_dim_parameters(spec: OptimizerSpec) -> None:
    shapes: list[tuple[tuple[int, ...], Role]] = [
        ((0, 4), "matrix"),
        ((4, 0), "matrix"),
        ((), "vector"),
        ((0,), "vector"),
        ((3, 2), "matrix"),
    ]
    params = parameters(shapes, roles=spec.roles)
    before = values(params)
    optimizer, _ = build(spec, params)
    drive(optimizer, params, 3, grad_of=lambda index, t: np.ones(params[index].info.shape))
    for param, old in zip(params, before, strict=True):
        assert torch.isfinite(param.tensor).all()
        assert torch.equal(param.tensor, old) == (old.numel() == 0)


@over_own
def test_a_rate_kept_as_a_tensor_gives_the_same_step(spec: OptimizerSpec) -> None:
    results = []
    for as_tensor in (False, True):
        params = parameters(ALL_SHAPES, torch.float64, spec.roles)
        optimizer, _ = build(spec, params, weight_decay=0.3)
        for group in optimizer.param_groups:
            lr = torch.tensor(group["lr"], dtype=torch.float64)
            group["lr"] = lr if as_tensor else group["lr"]
        for index, param in enumerate(params):
            param.tensor.grad = as_gradient(gradient(param.info.shape, index), param.tensor)
        optimizer.step()
        results.append(values(params))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@over_own
@pytest.mark.parametrize("lr_as_tensor", [False, True])
def test_a_step_reads_nothing_on_the_host(spec: OptimizerSpec, lr_as_tensor: bool) -> None:
    with FakeTensorMode():  # raises when a value is asked for
        tensors = [
            torch.nn.Parameter(torch.empty(shape)) for shape, role in SHAPES if role in spec.roles
        ]
        params = [
            Parameter(ParamInfo(name=str(i), shape=tuple(t.shape), role="matrix"), t)
            for i, t in enumerate(tensors)
        ]
        optimizer, _ = build(spec, params, weight_decay=0.3)
        for group in optimizer.param_groups:
            group["lr"] = torch.empty(()) if lr_as_tensor else group["lr"]
        for _ in range(2):
            for tensor in tensors:
                tensor.grad = torch.empty_like(tensor)
            optimizer.step()


@over_specs
def test_a_closure_is_called_with_gradients_on(spec: OptimizerSpec) -> None:
    params = parameters(ALL_SHAPES, roles=spec.roles)
    optimizer, _ = build(spec, params)

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum(param.tensor.square().sum() for param in params)
        assert isinstance(loss, torch.Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    first = optimizer.step(closure)
    assert first is not None
    assert closure() < first


@over_specs
def test_every_hyper_parameter_is_accounted_for(spec: OptimizerSpec) -> None:
    """Nothing that a group holds as a number or a switch is left at a hidden default."""
    params = parameters(ALL_SHAPES, roles=spec.roles)
    optimizer, hparams = build(spec, params)
    accepted = {_plain(value) for value in hparams.values()}
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key in ("params", "infos", "role", "initial_lr") or _is_torch_switch(value):
                continue
            parts = value if isinstance(value, tuple) else (value,)
            assert {_plain(part) for part in parts} <= accepted | {_plain(0.0)}, key


def _plain(value: Any) -> str:
    return repr(float(value)) if isinstance(value, int | float) else repr(value)


def _is_torch_switch(value: Any) -> bool:
    """`maximize`, `amsgrad`, `capturable`...: off, and no part of the method."""
    return value is None or value is False


@over_specs
def test_the_default_is_inside_the_space(spec: OptimizerSpec) -> None:
    for dim in spec.space.values():
        assert dim.low <= dim.default <= dim.high
