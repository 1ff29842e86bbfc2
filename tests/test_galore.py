"""GaLore against its equations; what GaLore, Fira and APOLLO promise alike."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import _apollo, _projection, apollo, apollo_mini, fira, galore
from levelfield.optimizers._projection import LowRank
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    context,
    drive,
    gradient,
    gradients,
    lr_scales,
    measured_state_bytes,
    parameters,
    same_bits,
    values,
)

TOTAL = 40
MODEL = (*SHAPES, ((9, 10), "matrix"), ((4, 2, 6), "matrix"))

CASES: tuple[tuple[OptimizerSpec, dict[str, Any]], ...] = (
    (galore.SPEC, {}),
    (galore.SPEC, {"rank_fraction": 0.6, "weight_decay": 0.1}),
    (fira.SPEC, {"weight_decay": 0.1}),
    (apollo.SPEC, {}),
    (apollo.SPEC, {"projector": "kept", "growth": None}),
    (apollo_mini.SPEC, {"weight_decay": 0.1}),
    (apollo_mini.SPEC, {"projector": "kept"}),
)
over_cases = pytest.mark.parametrize(
    ("spec", "changes"), CASES, ids=lambda case: getattr(case, "name", None) or str(case)
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
    spec: OptimizerSpec, params: tuple[Parameter, ...], total: int = TOTAL, **changes: Any
) -> tuple[LowRank, Mapping[str, Any]]:
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    optimizer = spec.build(context(params, total_steps=total), hparams)
    assert isinstance(optimizer, LowRank)
    return optimizer, hparams


def singular_vectors(matrix: Array, held: Array) -> Array:
    """Leading singular vectors of the smaller side, as many as `held` has, with its signs."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    if matrix.shape[0] >= matrix.shape[1]:
        found = right[: held.shape[0]]
        along = np.sum(found * held, axis=1, keepdims=True)
    else:
        found = left[:, : held.shape[1]]
        along = np.sum(found * held, axis=0, keepdims=True)
    np.testing.assert_allclose(np.abs(along), 1.0, atol=1e-8)
    return np.asarray(found * np.sign(along))


class Textbook:
    """Algorithm 2 of the paper with the code's order of eps and decay, in float64."""

    def __init__(self, param: Parameter, hparams: Mapping[str, Any]) -> None:
        self.p = param.tensor.detach().numpy().astype(np.float64)
        self.h, self.t = hparams, 0
        role = param.info.role
        self.matrix = role == "matrix"
        self.rate = hparams["lr"] * (
            hparams["embed_multiplier"] if role in ("embed", "head") else 1
        )
        self.decay = 0.0 if role == "vector" else hparams["weight_decay"]
        self.m: Any = 0.0
        self.v: Any = 0.0

    def normalised(self, g: Array) -> Array:
        b1, b2, eps = self.h["beta1"], self.h["beta2"], self.h["eps"]
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        if self.h.get("eps_placement") == "after":
            v_hat = self.v / (1 - b2**self.t)
            return np.asarray(self.m / (1 - b1**self.t) / (np.sqrt(v_hat) + eps))
        bias = np.sqrt(1 - b2**self.t) / (1 - b1**self.t)
        return np.asarray(bias * self.m / (np.sqrt(self.v) + eps))

    def step(self, grad: Array, projector: Array | None, scale: float) -> None:
        """`projector`: rows are its vectors if there are no more columns than rows."""
        lr = self.rate * scale
        self.t += 1
        if projector is None:
            update = self.normalised(grad)
        else:
            flat = grad.reshape(grad.shape[0], -1)
            if flat.shape[0] >= flat.shape[1]:
                update = self.normalised(flat @ projector.T) @ projector
            else:
                update = projector @ self.normalised(projector.T @ flat)
            update = self.h["alpha"] * update.reshape(grad.shape)
        self.move(update, lr)

    def move(self, update: Array, lr: float) -> None:
        if self.h["decay_order"] == "after":
            self.p = (self.p - lr * update) * (1 - lr * self.decay)
        else:
            self.p = self.p * (1 - lr * self.decay) - lr * update


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eps_placement": "after", "eps": 1e-2},
        {"eps": 1e-2, "alpha": 2.0},
        {"decay_order": "before", "rank_fraction": 0.5},
        {"rank_fraction": 1.0},
    ],
    ids=str,
)
def test_follows_the_equations_across_refreshes(changes: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    common = {"refresh_fraction": 0.2, "weight_decay": 0.3, "lr": 0.02, "embed_multiplier": 3.0}
    optimizer, hparams = make(galore.SPEC, params, **common, **changes)
    books = [Textbook(param, hparams) for param in params]
    projectors: list[Array | None] = [None] * len(params)
    start = values(params)
    for t, scale in enumerate(lr_scales(TOTAL)):
        go(optimizer, params, 1, start=t)
        for index, (param, book) in enumerate(zip(params, books, strict=True)):
            grad = known(param.info.shape, index)[t]
            if book.matrix and t % 8 == 0:
                held = optimizer.state[param.tensor]["projector"].numpy()
                projectors[index] = singular_vectors(grad.reshape(grad.shape[0], -1), held)
            book.step(grad, projectors[index], scale)
    assert optimizer.refreshes == 4
    for param, book, old in zip(params, books, start, strict=True):
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=0, atol=1e-9)
        assert np.abs(book.p - old.numpy()).max() > 1e-2


def test_full_rank_without_refresh_is_adam_in_the_turned_basis() -> None:
    shapes = [(shape, role) for shape, role in MODEL if role == "matrix" and len(shape) == 2]
    params, plain = parameters(shapes, torch.float64), parameters(shapes, torch.float64)
    full = {"rank_fraction": 1.0, "alpha": 1.0, "refresh_fraction": 1.0, "lr": 0.02}
    optimizer, _ = make(galore.SPEC, params, eps_placement="after", **full)
    go(optimizer, params, TOTAL)
    go(torch.optim.AdamW(context(plain).groups({"lr": 0.02}), eps=1e-6), plain, TOTAL)
    assert optimizer.refreshes == 0
    for index, (param, other) in enumerate(zip(params, plain, strict=True)):
        held = optimizer.state[param.tensor]["projector"]
        tall = param.info.shape[0] >= param.info.shape[1]
        before = parameters(shapes, torch.float64)[index].tensor.detach()
        low = torch.nn.Parameter(before @ held.mT if tall else held.mT @ before)
        turned = torch.optim.AdamW([low], lr=0.02, weight_decay=0.0, eps=1e-6, foreach=False)
        for grad, scale in zip(known(param.info.shape, index), lr_scales(TOTAL), strict=True):
            g = torch.as_tensor(grad)
            low.grad = g @ held.mT if tall else held.mT @ g
            turned.param_groups[0]["lr"] = 0.02 * scale
            turned.step()
        want = low.detach() @ held if tall else held @ low.detach()
        torch.testing.assert_close(param.tensor.detach(), want, rtol=0, atol=1e-11)
        if min(param.info.shape) > 1:  # Adam depends on the basis
            assert (param.tensor - other.tensor).abs().max() > 1e-3


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (7, 7), (1, 6), (6, 1)])
@pytest.mark.parametrize("rank", [1, 3, 9])
def test_projectors_are_orthonormal_and_lead(shape: tuple[int, int], rank: int) -> None:
    grad = torch.as_tensor(gradient(shape, 3)).float()
    held = _projection.singular_projector(grad, rank)
    kept = min(rank, *shape)
    tall = shape[0] >= shape[1]
    assert held.shape == ((kept, shape[1]) if tall else (shape[0], kept))
    assert held.is_contiguous()
    assert held.untyped_storage().nbytes() == 4 * held.numel()
    gram = held @ held.mT if tall else held.mT @ held
    torch.testing.assert_close(gram, torch.eye(kept), rtol=0, atol=1e-5)
    low = _projection.project(grad, held)
    spectrum = torch.linalg.svdvals(grad)
    torch.testing.assert_close(torch.linalg.svdvals(low), spectrum[:kept], rtol=1e-4, atol=1e-6)
    back = _projection.project_back(low, held, grad.shape)
    lost = spectrum[kept:].square().sum().sqrt()
    torch.testing.assert_close((grad - back).norm(), lost, rtol=1e-3, atol=1e-5)


def test_ranks_follow_the_smaller_side() -> None:
    # The paper's h / 4 for every matrix of a LLaMA: attention h x h, the others f x h and h x f.
    for shape in ((512, 512), (1376, 512), (512, 1376)):
        assert _projection.rank_of(0.25, *shape) == 128
    assert [_projection.rank_of(0.25, n, 99) for n in (1, 2, 5, 8)] == [1, 1, 1, 2]
    assert _projection.rank_of(1.0, 7, 9) == 7


def test_moments_go_on_in_the_new_basis() -> None:
    params = parameters([((9, 10), "matrix")], torch.float64)
    optimizer, _ = make(galore.SPEC, params, refresh_fraction=0.2, rank_fraction=0.4)
    go(optimizer, params, 8)
    state = optimizer.state[params[0].tensor]
    old = {name: state[name].clone() for name in ("exp_avg", "exp_avg_sq", "projector")}
    go(optimizer, params, 1, start=8)
    assert optimizer.refreshes == 1
    assert (state["projector"] - old["projector"]).abs().max() > 1e-3
    low = state["projector"].mT @ torch.as_tensor(known((9, 10), 0)[8])
    torch.testing.assert_close(state["exp_avg"], 0.9 * old["exp_avg"] + 0.1 * low)
    torch.testing.assert_close(state["exp_avg_sq"], 0.999 * old["exp_avg_sq"] + 0.001 * low**2)
    assert state["step"] == 9


def test_only_the_subspace_moves() -> None:
    params = parameters([((9, 10), "matrix"), ((10, 4), "matrix")], torch.float64)
    before = values(params)
    optimizer, _ = make(galore.SPEC, params, refresh_fraction=1.0)
    go(optimizer, params, 5)
    for param, old in zip(params, before, strict=True):
        moved = param.tensor.detach() - old
        rank = _projection.rank_of(0.25, *param.info.shape)
        assert int(torch.linalg.matrix_rank(moved, rtol=1e-9)) == rank


# --- what the four promise alike -----------------------------------------------------------------


@over_cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes_are_as_claimed(
    spec: OptimizerSpec, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    params = parameters(MODEL, dtype)
    infos = [param.info for param in params]
    optimizer, hparams = make(spec, params, **changes)
    for t in range(5):  # a refresh at 2 and 4
        go(optimizer, params, 1, start=t)
        claim = spec.state_bytes(infos, hparams, (t + 1) / TOTAL)
        assert measured_state_bytes(optimizer) == stored_bytes([optimizer]) == claim
    assert all(torch.isfinite(value).all() for value in values(params))
    assert optimizer.refreshes == 2


def test_claims_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(60, 20), role="matrix"),
        ParamInfo(name="b", shape=(20, 60), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
        ParamInfo(name="g", shape=(4,), role="vector"),
    ]
    rest = 2 * 4 * (44 + 4)
    moments, projector = 2 * 5 * 60 * (4 + 2), 5 * 20 * (4 + 2)
    for spec in (galore.SPEC, fira.SPEC):
        assert spec.state_bytes(infos, spec.defaults(), 1.0) == rest + moments + projector
    hparams = apollo.SPEC.defaults()
    assert apollo.SPEC.state_bytes(infos, hparams, 1.0) == rest + moments
    hparams["projector"] = "kept"
    assert apollo.SPEC.state_bytes(infos, hparams, 1.0) == rest + moments + projector
    hparams = apollo_mini.SPEC.defaults()
    assert apollo_mini.SPEC.state_bytes(infos, hparams, 1.0) == rest + 2 * 60 * (4 + 2)
    hparams["projector"] = "kept"
    assert apollo_mini.SPEC.state_bytes(infos, hparams, 1.0) == rest + (2 * 60 + 20) * (4 + 2)


@over_cases
def test_refreshes_are_those_that_the_spec_names(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    assert spec.switches({**spec.defaults(), **changes}, 400) == tuple(range(20, 400, 20))
    params = parameters([((3, 2), "matrix")])
    kept = {"projector": "kept"} if spec.name.startswith("apollo") else {}
    optimizer, hparams = make(spec, params, total=100, **{**changes, **kept})
    held, seen = None, []
    for t in range(100):
        go(optimizer, params, 1, start=t, total=100)
        now = optimizer.state[params[0].tensor]["projector"].clone()
        if held is not None and not torch.equal(now, held):
            seen.append(t)
        held = now
    assert tuple(seen) == spec.switches(hparams, 100)
    assert optimizer.refreshes == len(seen) == 19


@over_cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_goes_on_bit_for_bit(
    spec: OptimizerSpec, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    changes = {**changes, "refresh_fraction": 0.2}
    straight = parameters(MODEL, dtype)
    optimizer, _ = make(spec, straight, **changes)
    go(optimizer, straight, 20)
    for stop in (1, 8, 13):
        first = parameters(MODEL, dtype)
        before, _ = make(spec, first, **changes)
        go(before, first, stop, total=TOTAL)
        saved = copy.deepcopy(before.state_dict())
        second = parameters(MODEL, dtype)
        with torch.no_grad():
            for old, new in zip(first, second, strict=True):
                new.tensor.copy_(old.tensor)
        after, _ = make(spec, second, **changes)
        if isinstance(after, _apollo.Apollo):
            after.seed = 1  # the state dict brings the right one
        after.load_state_dict(saved)
        go(after, second, 20 - stop, start=stop, total=TOTAL)
        assert same_bits(values(second), values(straight))
        assert after.refreshes == optimizer.refreshes == 2


@over_cases
def test_two_runs_are_equal_and_leave_the_global_generator_alone(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        here = torch.get_rng_state()
        params = parameters(MODEL)
        optimizer, _ = make(spec, params, **changes)
        go(optimizer, params, 12)
        assert torch.equal(torch.get_rng_state(), here)
        runs.append(values(params))
    assert same_bits(*runs)


@over_cases
def test_embedding_head_and_vectors_get_adamw(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    common = {"lr": 0.02, "embed_multiplier": 3.0, "weight_decay": 0.3}
    optimizer, hparams = make(spec, params, **{**changes, **common})
    books = [Textbook(param, {**hparams, "eps_placement": "before"}) for param in params]
    go(optimizer, params, 24)
    for index, (param, book) in enumerate(zip(params, books, strict=True)):
        if book.matrix:
            continue
        for grad, scale in zip(known(param.info.shape, index), lr_scales(TOTAL)[:24], strict=False):
            book.step(grad, None, scale)
        # `go` of 24 steps has the scales of a horizon of TOTAL
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=0, atol=1e-10)


@over_cases
def test_missing_and_zero_gradients(spec: OptimizerSpec, changes: dict[str, Any]) -> None:
    params = parameters(MODEL)
    before = values(params)
    optimizer, _ = make(spec, params, **changes)

    def some(index: int, t: int) -> Array | None:
        shape = MODEL[index][0]
        if index == 0:
            return None
        return np.zeros(shape) if t == 0 else known(shape, index)[t]

    go(optimizer, params, 7, grad_of=some)
    assert torch.equal(params[0].tensor, before[0])
    assert params[0].tensor not in optimizer.state
    for param, old in zip(params[1:], before[1:], strict=True):
        assert torch.isfinite(param.tensor).all()
        assert not torch.equal(param.tensor, old)
    # one whose first gradient comes between two refreshes
    assert optimizer.clock % optimizer.period != 0
    go(optimizer, params, 1, start=7)
    assert optimizer.state[params[0].tensor]["step"] == 1
    assert not torch.equal(params[0].tensor, before[0])


@over_cases
def test_divergence_shows_in_the_weights_and_raises_nothing(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    for bad in (np.nan, np.inf):
        params = parameters([((6, 4), "matrix"), ((3, 8), "matrix")])
        optimizer, _ = make(spec, params, **changes)
        go(optimizer, params, 1)
        broken = [
            np.where(np.arange(s[0])[:, None] == 1, bad, np.ones(s)) for s in ((6, 4), (3, 8))
        ]
        go(optimizer, params, 2, start=1, grad_of=lambda index, t, made=broken: made[index])
        assert not any(torch.isfinite(param.tensor).all() for param in params)


@over_cases
def test_odd_shapes_layouts_and_a_rate_kept_as_a_tensor(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 4), (4, 0), (2, 3, 5), (3, 1)]

    def tensors() -> list[torch.nn.Parameter]:
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        made.append(torch.nn.Parameter(torch.randn(8, 6).t()))
        made.append(torch.nn.Parameter(torch.randn(6, 8)[:, ::2]))
        return made

    ends = []
    for as_tensor in (False, True):
        params = tensors()
        infos = [ParamInfo(name="p", shape=tuple(p.shape), role="matrix") for p in params]
        optimizer, _ = make(
            spec, tuple(map(Parameter, infos, params)), **{**changes, "weight_decay": 0.1}
        )
        optimizer.period = 3
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"]) if as_tensor else group["lr"]
        for _ in range(8):
            for param in params:
                param.grad = torch.randn(param.shape)
            optimizer.step()
        assert all(param.isfinite().all() for param in params)
        ends.append([param.detach().clone() for param in params])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


@over_cases
@pytest.mark.parametrize("lr_as_tensor", [False, True])
def test_a_step_reads_nothing_on_the_host(
    spec: OptimizerSpec, changes: dict[str, Any], lr_as_tensor: bool
) -> None:
    params = parameters(MODEL)
    optimizer, _ = make(spec, params, **changes)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"]) if lr_as_tensor else group["lr"]
    for index, param in enumerate(params):
        param.tensor.grad = torch.as_tensor(known(param.info.shape, index)[0]).float()
    grads = [param.tensor.grad for param in params]
    copies = [grad.clone() for grad in grads if grad is not None]
    with NoHostReads():
        for _ in range(5):
            optimizer.step()
    assert optimizer.refreshes == 2
    assert same_bits(copies, [grad for grad in grads if grad is not None])  # left alone


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (galore.GaLore, {"eps_placement": "none"}),
        (galore.GaLore, {"decay_order": "first"}),
        (galore.GaLore, {"period": 0}),
        (galore.GaLore, {"beta2": 1.0}),
        (fira.Fira, {"residual": "none"}),
        (fira.Fira, {"growth": 0.5}),
        (_apollo.Apollo, {"scaling": "row"}),
        (_apollo.Apollo, {"projector": "lost"}),
        (_apollo.Apollo, {"growth": math.nan}),
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(method: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted"):
        partial(method, [torch.nn.Parameter(torch.zeros(2, 2))])(**wrong)
