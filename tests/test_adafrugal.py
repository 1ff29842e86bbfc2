"""AdaFRUGAL's controls against their rules, its claims, and FRUGAL in a basis from the SVD."""

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
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import GradientStepper, Parameter
from levelfield.optimizers import adafrugal, adafrugal_rho, adafrugal_t, frugal
from levelfield.optimizers._adafrugal import LinearShare, LossAwareFrugal, periods, stalls
from levelfield.optimizers._frugal import Frugal, leading_basis
from levelfield.optimizers._frugal_parts import count_rank
from levelfield.tests.optimizer_cases import (
    SHAPES,
    Array,
    build,
    context,
    drive,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)
from levelfield.tests.small import changed, train

TOTAL = 50
"""Steps of most runs: T is 2, 4 and 8."""
EVERY = 3
"""Steps between two evaluations."""
MODEL = (*SHAPES, ((9, 10), "matrix"), ((4, 2, 6), "matrix"), ((4, 40), "matrix"))
ADAPTIVE = (adafrugal_rho.SPEC, adafrugal_t.SPEC, adafrugal.SPEC)
SELECTIONS = ("column", "svd", "block")
RULES = ("modulus", "elapsed")
EIGHTS = {"refresh_fraction": 0.16}


@cache
def known(shape: tuple[int, ...], index: int) -> list[Array]:
    return gradients(shape, TOTAL, index)


def known_grad(params: Sequence[Parameter], index: int, t: int) -> Array:
    return known(params[index].info.shape, index)[t % TOTAL]


def losses(kind: str, count: int) -> list[float]:
    """What the evaluations find: one that stalls from the start, at random, or never."""
    rng = np.random.default_rng(sum(map(ord, kind)))
    if kind == "stalls":
        return [5.0 - 1e-3 * i for i in range(count)]
    if kind == "falls":
        return [5.0 * 0.9**i for i in range(count)]
    return list(5.0 * np.exp(-np.cumsum(rng.choice([-0.01, 0.02, 0.05, 0.2], count))))


def make(
    spec: OptimizerSpec, params: Sequence[Parameter], total: int = TOTAL, **changes: Any
) -> tuple[Frugal, Mapping[str, Any]]:
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    optimizer = spec.build(context(params, total_steps=total), hparams)
    assert isinstance(optimizer, Frugal)
    return optimizer, hparams


def go(
    optimizer: Frugal,
    params: Sequence[Parameter],
    steps: int,
    *,
    start: int = 0,
    total: int = TOTAL,
    told: Sequence[float] | None = None,
    every: int = EVERY,
) -> None:
    """Steps with an evaluation before the first one and after every `every`, as in the harness."""
    for t in range(start, start + steps):
        if told is not None and t % every == 0 and isinstance(optimizer, LossAwareFrugal):
            optimizer.observe(told[t // every])
        drive(
            optimizer,
            params,
            1,
            start=t,
            total=total,
            grad_of=lambda i, t: known_grad(params, i, t),
        )


# --- the rules, written from the paper's words with whole steps ----------------------------------


def textbook_schedule(
    hparams: Mapping[str, Any], told: Sequence[float], total: int = TOTAL, every: int = EVERY
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """[(step, rho)] of every selection and [(step, T)] of every change of T."""
    period = hparams["refresh_fraction"] * total
    longest = hparams.get("max_fraction", hparams["refresh_fraction"]) * total
    selections, changes, before, last = [], [(0, period)], None, 0
    for k in range(total):
        if k % every == 0:
            now = told[k // every]
            if before is not None and "growth" in hparams:
                relative = (before - now) / before
                if hparams["loss_change"] == "absolute":
                    relative = abs(relative)
                if relative < hparams["tau_low"] and period < longest:
                    period = min(longest, period * hparams["growth"])
                    changes.append((k, period))
            before = now
        elapsed = hparams.get("refresh_rule") == "elapsed"
        if k == 0 or (k - last >= period if elapsed else k % period == 0):
            last, rho = k, hparams.get("rho")
            if rho is None:
                start, end = hparams["rho_start"], hparams["rho_end"]
                over = hparams["decay_fraction"] * total
                rho = max(end, start - (start - end) * k / over)
            selections.append((k, rho))
    return selections, changes


@pytest.mark.parametrize("kind", ["stalls", "falls", "random", "other"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("spec", [adafrugal_t.SPEC, adafrugal.SPEC], ids=lambda spec: spec.name)
def test_both_controls_follow_the_paper(spec: OptimizerSpec, rule: str, kind: str) -> None:
    for change in ("signed", "absolute"):
        params = parameters(MODEL)
        optimizer, hparams = make(
            spec, params, refresh_rule=rule, loss_change=change, refresh_fraction=0.08,
            max_fraction=0.32,
        )  # fmt: skip
        told = losses(kind, TOTAL)
        go(optimizer, params, TOTAL, told=told)
        selections, changes = textbook_schedule(hparams, told)
        assert [k for k, _ in optimizer.series["rho"]] == [k for k, _ in selections]
        np.testing.assert_allclose(
            [rho for _, rho in optimizer.series["rho"]], [rho for _, rho in selections], rtol=1e-12
        )
        assert optimizer.series["T"] == [list(point) for point in changes]
        assert optimizer.refreshes == len(selections) - 1
    assert (len(changes) > 1) == (kind != "falls")


def test_rho_falls_linearly_and_no_further() -> None:
    share = LinearShare(0.25, 0.01, 80.0)
    assert (share(0), share(40), share(80), share(99)) == (0.25, pytest.approx(0.13), 0.01, 0.01)
    params = parameters(MODEL)
    optimizer, _ = make(adafrugal_rho.SPEC, params, decay_fraction=1.0, rho_end=0.0)
    go(optimizer, params, TOTAL)
    rho = [value for _, value in optimizer.series["rho"]]
    np.testing.assert_allclose(rho, 0.25 - 0.25 * np.arange(0, TOTAL, 2) / TOTAL)
    assert (np.diff(rho) < 0).all()


def test_what_counts_as_a_stall() -> None:
    assert stalls(2.0, 1.99, 0.01, "signed")
    assert not stalls(2.0, 1.5, 0.25, "signed")  # exactly tau is no stall
    assert stalls(2.0, 2.5, 0.01, "signed")
    assert not stalls(2.0, 2.5, 0.01, "absolute")
    assert stalls(2.0, 2.01, 0.01, "absolute")


def test_a_period_grows_to_its_largest_and_never_falls() -> None:
    optimizer, _ = make(adafrugal_t.SPEC, parameters(MODEL), 100)
    assert isinstance(optimizer, LossAwareFrugal)
    seen = []
    for loss in (math.nan, 5.0, 4.0, math.inf, math.nan, 3.99, 3.0, 2.99, 9.0, 1.0, 1.0):
        optimizer.observe(loss)
        seen.append(optimizer.period)
    # the first loss is compared with nothing; one that is not finite is as if never told
    assert seen == [4.0, 4.0, 4.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 16.0, 16.0]
    assert optimizer.series["T"] == [[0, 4.0], [0, 8.0], [0, 16.0]]
    uneven, _ = make(adafrugal_t.SPEC, parameters(MODEL), 100, growth=3.0)
    assert isinstance(uneven, LossAwareFrugal)
    for _ in range(5):
        uneven.observe(1.0)
    assert [value for _, value in uneven.series["T"]] == [4.0, 12.0, 16.0]
    assert periods({**adafrugal_t.SPEC.defaults(), "growth": 3.0}) == [0.04, 0.12, 0.16]
    assert periods({**adafrugal_t.SPEC.defaults(), "growth": 1.0}) == [0.04]


def test_only_what_needs_losses_asks_for_them() -> None:
    for spec in ADAPTIVE:
        optimizer, _ = make(spec, parameters(MODEL))
        stepper = GradientStepper([optimizer], clip_norm=None)
        assert stepper.observes == (spec is not adafrugal_rho.SPEC)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("total", [25, 60, 100, 400])
def test_the_mechanism_is_exercised_whatever_the_losses(rule: str, total: int) -> None:
    params = parameters([((2, 4), "matrix")])
    for kind in ("stalls", "falls"):
        for every in (1, 3, total // 16):
            optimizer, _ = make(adafrugal.SPEC, params, total, refresh_rule=rule)
            told = losses(kind, total)
            go(optimizer, params, total, total=total, told=told, every=max(1, every))
            assert optimizer.refreshes >= 6


# --- the update ----------------------------------------------------------------------------------


def textbook_basis(g: Array, rank: int) -> tuple[Array, bool]:
    """P with orthonormal columns on the smaller side, and whether that is the left one."""
    left, _, right = np.linalg.svd(g.reshape(-1, g.shape[-1]), full_matrices=False)
    wide = g.size // g.shape[-1] < g.shape[-1]
    return (left[:, :rank], True) if wide else (right[:rank].T, False)


class Textbook:
    """One tensor in float64: Adam on g @ P or P.T @ g, its direction carried back, signs of rest.

    A selection of columns is P made of unit vectors.
    """

    def __init__(self, start: Array, hparams: Mapping[str, Any], role: str) -> None:
        self.p, self.h = start.astype(np.float64), hparams
        self.rate = hparams["lr"] * (
            hparams["embed_multiplier"] if role in ("embed", "head") else 1
        )
        self.decay = 0.0 if role == "vector" else hparams["weight_decay"]
        self.select(None)

    def select(self, basis: tuple[Array, bool] | None) -> None:
        self.basis, self.m, self.v, self.t = basis, np.float64(0), np.float64(0), 0

    def step(self, g: Array, scale: float) -> None:
        lr, b1, b2, shape = self.rate * scale, self.h["beta1"], self.h["beta2"], g.shape
        self.t += 1
        rest = np.zeros_like(g)
        if self.basis is not None:
            p, left = self.basis
            g = g.reshape(-1, shape[-1])
            part = p.T @ g if left else g @ p
            rest = g - (p @ part if left else part @ p.T)
        else:
            part = g
        self.m = b1 * self.m + (1 - b1) * part
        self.v = b2 * self.v + (1 - b2) * part**2
        up = (self.m / (1 - b1**self.t)) / (np.sqrt(self.v / (1 - b2**self.t)) + self.h["eps"])
        if self.basis is not None:
            up = p @ up if left else up @ p.T
        sign = self.h["inactive_lr_scale"] * np.sign(rest)
        self.p = (1 - lr * self.decay) * self.p - lr * (up + sign).reshape(shape)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (frugal.SPEC, {"selection": "svd", "rho": 0.4, **EIGHTS}),
        (frugal.SPEC, {"selection": "svd", "rho": 0.6, "inactive_lr_scale": 0.3, **EIGHTS}),
        (adafrugal_rho.SPEC, {"rho_start": 0.8, "rho_end": 0.1}),
        (adafrugal_rho.SPEC, {"rho_start": 0.8, "rho_end": 0.1, "selection": "svd"}),
        (adafrugal_t.SPEC, {"rho": 0.5, "refresh_rule": "elapsed"}),
        (adafrugal_t.SPEC, {"rho": 0.5, "selection": "svd"}),
        (adafrugal.SPEC, {"rho_start": 0.6, "rho_end": 0.2}),
        (adafrugal.SPEC, {"rho_start": 0.6, "rho_end": 0.2, "refresh_rule": "elapsed"}),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_follows_the_equations_across_refreshes(
    spec: OptimizerSpec, changes: dict[str, Any]
) -> None:
    params = parameters(MODEL, torch.float64)
    optimizer, hparams = make(
        spec, params, weight_decay=0.1, lr=0.02, embed_multiplier=3.0, eps=1e-6, **changes
    )
    told = losses("random", TOTAL)
    due = dict(textbook_schedule(hparams, told)[0])
    books = [Textbook(p.tensor.detach().numpy().copy(), hparams, p.info.role) for p in params]
    scales = lr_scales(TOTAL)
    for t in range(TOTAL):
        go(optimizer, params, 1, start=t, told=told)
        for index, (param, book) in enumerate(zip(params, books, strict=True)):
            grad = known_grad(params, index, t)
            if param.info.role == "matrix" and t in due:
                columns = param.info.shape[-1]
                if hparams["selection"] == "svd":
                    rows = grad.size // columns
                    rank = round(due[t] * min(rows, columns))
                    book.select(textbook_basis(grad, rank))
                else:
                    count = math.floor(due[t] * columns + 1e-9)
                    state = optimizer.state.get(param.tensor)
                    index_ = [] if state is None else state["index"].tolist()
                    assert len(set(index_)) == count
                    book.select((np.eye(columns)[:, index_], False))
            book.step(grad, scales[t])
    assert optimizer.refreshes == len(due) - 1 >= 5
    for param, book in zip(params, books, strict=True):
        np.testing.assert_allclose(param.tensor.detach().numpy(), book.p, rtol=1e-8, atol=1e-9)


def test_without_its_controls_it_is_frugal() -> None:
    common = {"lr": 0.01, "weight_decay": 0.1, "refresh_fraction": 0.08}
    still = {"rho_start": 0.3, "rho_end": 0.3}
    for selection in SELECTIONS:
        ends = []
        for spec, changes in (
            (frugal.SPEC, {"rho": 0.3}),
            (adafrugal_rho.SPEC, still),
            (adafrugal_t.SPEC, {"rho": 0.3, "growth": 1.0}),
            (adafrugal_t.SPEC, {"rho": 0.3, "tau_low": -1e9, "refresh_rule": "elapsed"}),
            (adafrugal.SPEC, {**still, "growth": 1.0}),
        ):
            params = parameters(MODEL)
            optimizer, _ = make(spec, params, selection=selection, **common, **changes)
            go(optimizer, params, TOTAL, told=losses("stalls", TOTAL))
            ends.append(values(params))
        assert all(same_bits(ends[0], other) for other in ends[1:])


def test_one_control_alone_is_the_method_of_that_name() -> None:
    told, ends = losses("stalls", TOTAL), []
    for spec, changes in (
        (adafrugal.SPEC, {"growth": 1.0}),
        (adafrugal_rho.SPEC, {}),
        (adafrugal.SPEC, {"rho_end": 0.25}),
        (adafrugal_t.SPEC, {}),
    ):
        params = parameters(MODEL)
        optimizer, _ = make(spec, params, **changes)
        go(optimizer, params, TOTAL, told=told)
        ends.append(values(params))
    assert same_bits(ends[0], ends[1])
    assert same_bits(ends[2], ends[3])
    assert not same_bits(ends[0], ends[2])


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("total", [8, 24, 50, 140])
def test_claimed_bytes_of_a_falling_share_are_held_at_every_moment(
    selection: str, total: int
) -> None:
    for changes in ({}, {"decay_fraction": 1.0, "rho_start": 0.9}, {"block_order": "random"}):
        params = parameters(MODEL)
        infos = [param.info for param in params]
        optimizer, hparams = make(adafrugal_rho.SPEC, params, total, selection=selection, **changes)
        held = []
        for t in range(total):
            go(optimizer, params, 1, start=t, total=total)
            held.append(stored_bytes([optimizer]))
            assert held[-1] == adafrugal_rho.state_bytes(infos, hparams, (t + 1) / total)
        switches = adafrugal_rho.SPEC.switches(hparams, total)
        assert optimizer.refreshes == len(switches)
        changed_at = [t for t in range(1, total) if held[t] != held[t - 1]]
        assert set(changed_at) <= set(switches)
        if selection != "block":
            assert held == sorted(held, reverse=True)
            assert held[-1] < held[0]
        assert optimizer.series["state_bytes"] == [[t, held[t]] for t in (0, *switches)]


@pytest.mark.parametrize("selection", ["column", "svd"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["stalls", "falls", "random", "other"])
def test_claimed_bytes_hold_whatever_the_losses(selection: str, rule: str, kind: str) -> None:
    for spec in (adafrugal_t.SPEC, adafrugal.SPEC):
        for total, growth in ((30, 2.0), (50, 2.0), (77, 2.0), (50, 1.5)):
            params = parameters(MODEL[-4:])
            infos = [param.info for param in params]
            optimizer, hparams = make(
                spec, params, total, selection=selection, refresh_rule=rule, growth=growth
            )
            told = losses(kind, total)
            for t in range(total):
                go(optimizer, params, 1, start=t, total=total, told=told)
                claim = spec.state_bytes(infos, hparams, (t + 1) / total)
                held = stored_bytes([optimizer])
                assert held <= claim
                if spec is adafrugal_t.SPEC or t == 0:
                    assert held == claim
            if growth == 2.0 or rule == "elapsed":
                assert held == claim


def test_claims_that_are_bounds_are_not_crossed() -> None:
    # the paper's law to the very end, T's that do not divide one another, whole matrices
    odd = {"decay_fraction": 1.0, "growth": 1.4, "refresh_fraction": 0.05, "max_fraction": 0.19}
    for total in (60, 100):
        for kind in ("stalls", "random", "other", "third"):
            for selection in SELECTIONS:
                params = parameters(MODEL)
                infos = [param.info for param in params]
                optimizer, hparams = make(adafrugal.SPEC, params, total, selection=selection, **odd)
                told = losses(kind, total)
                for t in range(total):
                    go(optimizer, params, 1, start=t, total=total, told=told)
                    claim = adafrugal.state_bytes(infos, hparams, (t + 1) / total)
                    assert stored_bytes([optimizer]) <= claim


def test_claims_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(6, 10), role="matrix"),
        ParamInfo(name="b", shape=(40, 6), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
    ]
    rest = 2 * 4 * 44

    def columns(a: int, b: int) -> int:
        return 2 * 4 * 6 * a + 8 * a + 2 * 2 * 40 * b + 8 * b

    falling = adafrugal_rho.SPEC.defaults()
    # rho is .25 - .3 k until k = .8; selections at .04 i
    assert adafrugal_rho.state_bytes(infos, falling, 0.0) == rest + columns(2, 1)
    assert adafrugal_rho.state_bytes(infos, falling, 0.2) == rest + columns(2, 1)
    assert adafrugal_rho.state_bytes(infos, falling, 0.201) == rest + columns(1, 1)
    assert adafrugal_rho.state_bytes(infos, falling, 1.0) == rest
    half = {**adafrugal_t.SPEC.defaults(), "rho": 0.5}
    assert adafrugal_t.state_bytes(infos, half, 0.7) == rest + columns(5, 3)
    assert adafrugal_t.state_bytes(infos, {**half, "selection": "svd"}, 0.7) == (
        rest + 4 * 3 * (2 * 10 + 6) + 2 * 3 * (2 * 40 + 6)
    )
    # one block of two: the larger one
    assert adafrugal_t.state_bytes(infos, {**half, "selection": "block"}, 0.7) == rest + 4 * 240
    most = {**half, "selection": "block", "rho": 0.9}
    assert adafrugal_t.state_bytes(infos, most, 0.7) == rest + 2 * (4 * 60 + 2 * 240)
    both = adafrugal.SPEC.defaults()
    assert adafrugal.state_bytes(infos, both, 0.32) == rest + columns(2, 1)
    assert adafrugal.state_bytes(infos, both, 0.38) == rest + columns(1, 1)
    assert adafrugal.state_bytes(infos, both, 0.961) == rest


def test_in_training_the_controls_act_and_the_claim_holds() -> None:
    protocol = changed(steps=50)
    for spec in ADAPTIVE:
        record = train(spec.name, protocol, lr=3e-3)
        assert record.status in ("ok", "undertrained"), record.reason
        assert record.state_bytes == record.claimed_state_bytes
        assert record.refreshes is not None
        assert record.refreshes >= 5
        assert ("T" in record.series) == (spec is not adafrugal_rho.SPEC)
    assert len(record.series["T"]) > 1
    sizes = [held for _, held in record.series["state_bytes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


# --- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("spec", ADAPTIVE, ids=lambda spec: spec.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_goes_on_bit_for_bit(
    spec: OptimizerSpec, selection: str, dtype: torch.dtype
) -> None:
    told = losses("other", TOTAL)
    straight = parameters(MODEL, dtype)
    optimizer, _ = make(spec, straight, selection=selection)
    go(optimizer, straight, TOTAL, told=told)
    for stop in (1, 8, 13, 31):
        first = parameters(MODEL, dtype)
        before, _ = make(spec, first, selection=selection)
        go(before, first, stop, told=told)
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        second = parameters(MODEL, dtype)
        with torch.no_grad():
            for old, new in zip(first, second, strict=True):
                new.tensor.copy_(old.tensor)
        after, _ = make(spec, second, selection=selection)
        after.load_state_dict(torch.load(file, weights_only=False))
        assert stored_bytes([after]) == stored_bytes([before])
        assert (after.rho, after.period, after.anchor) == (before.rho, before.period, before.anchor)
        if isinstance(before, LossAwareFrugal) and isinstance(after, LossAwareFrugal):
            assert after.last_loss == before.last_loss is not None
        go(after, second, TOTAL - stop, start=stop, told=told)
        assert same_bits(values(second), values(straight))
        assert after.series == optimizer.series
        assert after.refreshes == optimizer.refreshes


@pytest.mark.parametrize("selection", SELECTIONS)
def test_two_runs_have_the_same_bits(selection: str) -> None:
    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        params = parameters(MODEL)
        optimizer, _ = make(adafrugal.SPEC, params, selection=selection)
        go(optimizer, params, TOTAL, told=losses("random", TOTAL))
        runs.append(values(params))
    assert same_bits(*runs)


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_step_reads_nothing_on_the_host(selection: str, lr: Any) -> None:
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (5, 3), (5,))]
    optimizer = LossAwareFrugal(
        params, lr=lr, weight_decay=0.1, selection=selection, rho=0.5, period=2, max_period=4
    )
    for param in params:
        param.grad = torch.randn(param.shape)
    with NoHostReads():
        for _ in range(5):
            optimizer.step()
    assert optimizer.refreshes == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"growth": 0.5},
        {"max_fraction": 0.01},
        {"loss_change": "squared"},
        {"refresh_rule": "never"},
        {"rho_end": 0.3},
        {"rho_start": 1.1},
        {"decay_fraction": 0.0},
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted"):
        build(adafrugal.SPEC, parameters(MODEL), **wrong)


# --- FRUGAL in a basis from the gradient's SVD ---------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 4), (3, 8), (5, 5), (4, 2, 6)])
def test_a_basis_is_orthonormal_and_owns_its_memory(shape: tuple[int, ...]) -> None:
    grad = known(shape, 1)[0]
    matrix = torch.as_tensor(grad.reshape(-1, shape[-1]))
    for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        basis = leading_basis(matrix.to(dtype), 2)
        assert basis.untyped_storage().nbytes() == basis.numel() * basis.element_size()
        assert basis.dtype == dtype
        flat = basis if matrix.shape[0] >= matrix.shape[1] else basis.mT
        assert flat.shape == (2, min(matrix.shape))
        torch.testing.assert_close(flat @ flat.mT, torch.eye(2, dtype=dtype), rtol=0, atol=atol)
    # of all pairs of directions these hold most of the gradient
    full = np.linalg.svd(matrix.numpy())[1]
    flat = leading_basis(matrix, 2)
    part = (
        matrix @ flat.mT if flat.shape[0] == 2 and flat.shape[1] == shape[-1] else flat.mT @ matrix
    )
    np.testing.assert_allclose(np.linalg.norm(part.numpy()), np.linalg.norm(full[:2]), rtol=1e-12)


def test_a_whole_basis_is_adam_in_it_and_moves_nothing_by_sign() -> None:
    shapes = [(shape, role) for shape, role in MODEL if role == "matrix"]
    params = parameters(shapes, torch.float64)
    optimizer, hparams = make(frugal.SPEC, params, selection="svd", rho=1.0, refresh_fraction=1.0)
    ends, scales = values(params), lr_scales(TOTAL)
    go(optimizer, params, TOTAL)
    for index, (param, end) in enumerate(zip(params, ends, strict=True)):
        grads = [g.reshape(-1, param.info.shape[-1]) for g in known(param.info.shape, index)]
        p, left = textbook_basis(grads[0], min(grads[0].shape))
        m = v = np.float64(0)
        w = end.numpy().reshape(grads[0].shape).copy()
        for t, g in enumerate(grads, start=1):
            low = p.T @ g if left else g @ p
            m, v = 0.9 * m + 0.1 * low, 0.999 * v + 0.001 * low**2
            up = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            w = w - hparams["lr"] * scales[t - 1] * (p @ up if left else up @ p.T)
        np.testing.assert_allclose(
            param.tensor.detach().numpy().reshape(w.shape), w, rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("total", [8, 24, 50])
def test_claimed_bytes_of_a_basis_are_held(dtype: torch.dtype, total: int) -> None:
    params = parameters(MODEL, dtype)
    infos = [param.info for param in params]
    optimizer, hparams = make(frugal.SPEC, params, total, selection="svd")
    for t in range(total):
        go(optimizer, params, 1, start=t, total=total)
        claim = frugal.SPEC.state_bytes(infos, hparams, (t + 1) / total)
        assert stored_bytes([optimizer]) == claim


def test_ranks_are_rounded_as_in_the_reference() -> None:
    # round(rho min(m, n)), halves to even; 1 row or a thin matrix gets none
    shapes = [(8, 6), (6, 8), (10, 20), (1, 7), (768, 2048), (4, 2, 6)]
    assert [count_rank(0.25, shape) for shape in shapes] == [2, 2, 2, 0, 192, 2]
    assert count_rank(1.0, (5, 5)) == 5


def test_odd_shapes_layouts_and_gradients_in_a_basis() -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (0,), (0, 4), (4, 0), (2, 3, 5), (3, 1)]
    ends = []
    for lr in (0.01, torch.tensor(0.01, dtype=torch.float64)):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        params.append(torch.nn.Parameter(torch.randn(8, 6).t()))
        params.append(torch.nn.Parameter(torch.randn(6, 8)[:, ::2]))
        groups = [{"params": params[:4]}, {"params": params[4:], "weight_decay": 0.1}]
        optimizer = Frugal(groups, lr=lr, selection="svd", rho=0.5, period=3)
        for step in range(8):
            for param in params:
                # no gradient at a refresh: the basis comes with the first one after it
                param.grad = None if step == 3 else torch.randn(param.shape)
            optimizer.step()
        assert all(param.isfinite().all() for param in params)
        ends.append([param.detach().clone() for param in params])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_reaches_the_weights() -> None:
    param = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = Frugal([param], selection="svd", rho=0.5)
    param.grad = torch.full((4, 4), math.nan)
    optimizer.step()
    assert param.isnan().any()
