"""Moments in 8 and 4 bits: the map, the blocks and the step in numpy against what libraries do.

torchao compiles its step, for a minute; here it runs the same code as it is written (the stance
`force_eager` of torch.compiler), but for the one test marked slow.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from levelfield.bench import registry, study
from levelfield.bench.meter import StorageTracker, state_bytes, state_tensors
from levelfield.bench.spec import BenchError, OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import Parameter, set_lr
from levelfield.cli import main
from levelfield.optimizers import adamw_4bit_ao, adamw_8bit, adamw_8bit_ao, galore_8bit
from levelfield.tests.optimizer_cases import (
    Array,
    as_gradient,
    context,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)

STEPS = 24
SHAPES: tuple[tuple[tuple[int, ...], Role], ...] = (
    ((64, 80), "matrix"),
    ((80, 64), "matrix"),
    ((70, 61), "matrix"),
    ((6, 4), "matrix"),
    ((70, 64), "embed"),
    ((64, 70), "head"),
    ((8,), "vector"),
)
"""Large tensors, tall and wide, one that fills no whole number of blocks, and small ones."""
BORROWED = {spec.name: spec for spec in (adamw_8bit.SPEC, adamw_8bit_ao.SPEC, adamw_4bit_ao.SPEC)}
SPECS = {**BORROWED, "galore_8bit": galore_8bit.SPEC}


@pytest.fixture
def eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


def needs(spec: OptimizerSpec) -> None:
    for module in spec.requires:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


over_borrowed = pytest.mark.parametrize("name", list(BORROWED))
over_all = pytest.mark.parametrize("name", list(SPECS))


def make(
    name: str, params: Sequence[Parameter], **changes: Any
) -> tuple[torch.optim.Optimizer, Mapping[str, Any]]:
    spec = SPECS[name]
    needs(spec)
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    optimizer: torch.optim.Optimizer = spec.build(context(params, total_steps=STEPS), hparams)
    return optimizer, hparams


def one_step(
    optimizer: torch.optim.Optimizer, params: Sequence[Parameter], grads: Sequence[Array], lr: float
) -> None:
    """A step with every base rate times `lr`."""
    for group in optimizer.param_groups:
        group.setdefault("base_lr", float(group["lr"]))
        set_lr(group, group["base_lr"] * lr)
    for param, grad in zip(params, grads, strict=True):
        param.tensor.grad = as_gradient(grad, param.tensor)
    optimizer.step()


def all_gradients(params: Sequence[Parameter], steps: int = STEPS) -> list[list[Array]]:
    """By step, then by parameter."""
    known = [gradients(param.info.shape, steps, index) for index, param in enumerate(params)]
    return [list(of_step) for of_step in zip(*known, strict=True)]


def go(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Parameter],
    steps: int,
    start: int = 0,
    total: int = STEPS,
) -> None:
    grads, scales = all_gradients(params, total), lr_scales(total)
    for t in range(start, start + steps):
        one_step(optimizer, params, grads[t], scales[t])


# --- the textbook, in numpy, float64 ------------------------------------------------------------


def dynamic_map(bits: int, signed: bool) -> Array:
    """Dettmers et al.: a decade an exponent, twice as many steps in each than in the one below."""
    exponents = bits - 1
    entries = [0.0, 1.0]
    for exponent in range(exponents):
        edges = np.linspace(0.1, 1.0, 2 ** (exponent + (not signed)) + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (exponent + 1 - exponents)
        entries += list(middles)
        entries += list(-middles) if signed else []
    return np.sort(np.asarray(entries))


def entries_of(bits: int, signed: bool) -> Array:
    if bits == 4 and not signed:  # Li et al.: linear, without zero
        return np.arange(1, 17) / 16
    return dynamic_map(bits, signed)


@dataclass(frozen=True)
class Codes:
    """A quantised moment as a method holds it: numbers of entries, flat, and a scale a block."""

    numbers: Array
    scales: Array
    block: int

    def values(self, entries: Array) -> Array:
        scales = np.repeat(self.scales, self.block)[: self.numbers.size]
        return np.asarray(entries[self.numbers.astype(int)] * scales)


def quantise(x: Array, entries: Array, block: int, grid: int = 0) -> Codes:
    """The nearest entry to each element over the largest of its block.

    With a `grid` the quotient is first rounded to one of so many steps over [-1, 1].
    """
    flat = x.reshape(-1)
    cells = np.concatenate([flat, np.zeros(-flat.size % block)]).reshape(-1, block)
    largest = np.abs(cells).max(axis=1)
    scaled = cells / np.maximum(largest, 1e-12)[:, None]
    if grid:
        scaled = np.floor((scaled + 1) / 2 * grid + 0.5) * 2 / grid - 1
    numbers = np.abs(scaled[:, :, None] - entries).argmin(-1).reshape(-1)[: flat.size]
    return Codes(numbers, largest, block)


class Textbook:
    """AdamW of one parameter between a dequantised and a quantised state."""

    def __init__(self, info: ParamInfo, hparams: Mapping[str, Any], bits: int, block: int) -> None:
        self.h, self.bits, self.block = hparams, bits, block
        self.lr = hparams["lr"]
        if info.role in ("embed", "head"):
            self.lr *= hparams["embed_multiplier"]
        self.decay = hparams["weight_decay"] if info.role != "vector" else 0.0
        self.maps = [entries_of(bits, True), entries_of(bits, False)]

    def step(
        self, p: Array, moments: Sequence[Array], grad: Array, lr: float, t: int
    ) -> tuple[Array, list[Array]]:
        b1, b2, lr = self.h["beta1"], self.h["beta2"], lr * self.lr
        m = b1 * moments[0] + (1 - b1) * grad
        v = b2 * moments[1] + (1 - b2) * grad**2
        p = p * (1 - lr * self.decay)
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + self.h["eps"])
        return p, [m, v]


def numpy(tensor: Tensor) -> Array:
    return np.array(tensor.detach().double().numpy())


def held(optimizer: torch.optim.Optimizer, param: Tensor) -> Sequence[Codes | Array]:
    """Both moments of a parameter: codes if they are quantised, values if not."""
    state = optimizer.state[param]
    if "state1" in state:  # bitsandbytes
        pairs = [(state["state1"], "absmax1"), (state["state2"], "absmax2")]
        if state["state1"].dtype != torch.uint8:
            return [numpy(moment) for moment, _ in pairs]
        return [Codes(numpy(x).reshape(-1), numpy(state[name]), 256) for x, name in pairs]
    moments = [state["exp_avg"], state["exp_avg_sq"]]
    if "exp_avg_largest" in state:  # ours
        scales = [state["exp_avg_largest"], state["exp_avg_sq_largest"]]
        return [
            Codes(numpy(x).reshape(-1), numpy(scale), 256)
            for x, scale in zip(moments, scales, strict=True)
        ]
    if not hasattr(moments[0], "codes"):
        return [numpy(moment) for moment in moments]
    found = []
    for moment in moments:  # torchao
        numbers = numpy(moment.codes).reshape(-1)
        if numbers.size < moment.numel():
            numbers = np.stack([numbers // 16, numbers % 16], axis=1).reshape(-1)
        found.append(Codes(numbers, numpy(moment.scale), moment.block_size))
    return found


BITS = {"adamw_8bit": (8, 256), "adamw_8bit_ao": (8, 256), "adamw_4bit_ao": (4, 128)}
GRID = {"adamw_8bit": 65535}
"""bitsandbytes on the CPU looks its codes up in a table; see `adamw_8bit`."""


@pytest.mark.usefixtures("eager")
@over_borrowed
@pytest.mark.parametrize("changes", [{}, {"eps": 1e-2, "beta2": 0.95}], ids=str)
def test_every_step_is_dequantise_adamw_quantise(name: str, changes: dict[str, Any]) -> None:
    """From the state held before each step: weights to 2e-6, scales to 1e-5, codes but for ties.

    In float32 an element may fall on the other side of the middle of two entries.
    """
    bits, block = BITS[name]
    params = parameters(SHAPES)
    common: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0}
    optimizer, hparams = make(name, params, **common, **changes)
    books = [Textbook(param.info, hparams, bits, block) for param in params]
    grid = GRID.get(name, 0)
    quantised, ties, codes = set(), 0, 0
    for t, (grads, lr) in enumerate(zip(all_gradients(params), lr_scales(STEPS), strict=True), 1):
        wanted = []
        for param, book, grad in zip(params, books, grads, strict=True):
            before: list[Array] = [np.zeros(param.info.shape)] * 2
            if t > 1:
                before = [
                    moment.values(entries).reshape(param.info.shape)
                    if isinstance(moment, Codes)
                    else moment
                    for moment, entries in zip(
                        held(optimizer, param.tensor), book.maps, strict=True
                    )
                ]
            wanted.append(book.step(numpy(param.tensor), before, grad, lr, t))
        one_step(optimizer, params, grads, lr)
        for param, book, (p, moments) in zip(params, books, wanted, strict=True):
            np.testing.assert_allclose(numpy(param.tensor), p, rtol=2e-6, atol=2e-6)
            after = held(optimizer, param.tensor)
            for entries, moment, found in zip(book.maps, moments, after, strict=True):
                if not isinstance(found, Codes):
                    scale = np.abs(moment).max()
                    np.testing.assert_allclose(found, moment, rtol=1e-5, atol=1e-6 * scale)
                    continue
                quantised.add(param.info.name)
                want = quantise(moment, entries, block, grid)
                np.testing.assert_allclose(found.scales, want.scales, rtol=1e-5)
                apart = found.numbers != want.numbers
                ties += int(apart.sum())
                codes += apart.size
                first, second = (
                    entries[x[apart].astype(int)] for x in (found.numbers, want.numbers)
                )
                assert np.abs(first - second).max(initial=0) <= np.diff(entries).max()
                assert grid or np.abs(found.numbers - want.numbers).max() <= 1
    assert ties <= 2e-4 * codes, f"{ties} of {codes}"
    others = {
        "adamw_8bit": {"p2.matrix", "p5.head"},  # the last block may be a short one
        "adamw_8bit_ao": set(),
        "adamw_4bit_ao": {"p4.embed", "p5.head"},
    }[name]
    assert quantised == {"p0.matrix", "p1.matrix"} | others


def test_the_table_of_bitsandbytes() -> None:
    """On the CPU no code but those nearest to a point of its grid: zero is not among them."""
    pytest.importorskip("bitsandbytes")
    x = torch.linspace(-1, 1, 100 * 255).view(100, 255)
    whole = torch.cat([x, torch.ones(100, 1)], dim=1).reshape(-1)
    for signed in (True, False):
        part = whole if signed else whole.abs()
        entries = dynamic_map(8, signed)
        table = torch.as_tensor(entries, dtype=torch.float32)
        found, _ = torch.ops.bitsandbytes.quantize_blockwise(part, table, 256)
        want = quantise(numpy(part), entries, 256, GRID["adamw_8bit"])
        assert (found.numpy() != want.numbers).mean() < 2e-4
        zeros = torch.cat([torch.zeros(255), torch.ones(1)])
        codes, _ = torch.ops.bitsandbytes.quantize_blockwise(zeros, table, 256)
        kept = entries[codes.numpy()[:255]]
        assert set(np.abs(kept).round(9)) == {2.125e-5 if signed else 1.5625e-5}


@pytest.mark.usefixtures("eager")
@over_borrowed
def test_the_whole_way_stays_near_adamw(name: str) -> None:
    """Against AdamW without quantisation: as near as the bits allow, and not the same."""
    params, plain = parameters(SHAPES), parameters(SHAPES)
    start = values(params)
    optimizer, hparams = make(name, params, lr=0.02)
    go(optimizer, params, STEPS)
    groups = context(plain).groups(hparams)
    betas = (hparams["beta1"], hparams["beta2"])
    go(torch.optim.AdamW(groups, betas=betas, eps=hparams["eps"]), plain, STEPS)
    for param, other, old in zip(params, plain, start, strict=True):
        moved = (other.tensor.detach() - old).norm()
        off = float((param.tensor - other.tensor).detach().norm() / moved)
        if param.info.numel < 4096:
            assert off < 1e-5
        else:
            assert off < (0.02 if BITS[name][0] == 8 else 0.35), param.info.name
    assert not torch.equal(params[0].tensor, plain[0].tensor)


def test_galore_8bit_is_dequantise_galore_quantise() -> None:
    """The same for GaLore, in float64, across refreshes: weights to 1e-9, codes but for ties.

    The maps and scales are float32's, so a code stands for its value to 6e-8 of it.
    """
    params = parameters(SHAPES, torch.float64)
    common: dict[str, Any] = {
        "lr": 0.02,
        "weight_decay": 0.3,
        "embed_multiplier": 3.0,
        "alpha": 2.0,
    }
    optimizer, hparams = make(
        "galore_8bit",
        params,
        refresh_fraction=0.25,
        rank_fraction=0.9,
        eps=1e-3,
        **common,
    )
    books = [Textbook(param.info, hparams, 8, 256) for param in params]
    plain_maps = [numpy(entries) for entries in optimizer._maps(torch.device("cpu"))]  # type: ignore[attr-defined]
    for kept, book_map in zip(plain_maps, books[0].maps, strict=True):
        np.testing.assert_allclose(kept, book_map, rtol=1e-6)
    quantised, ties, codes = set(), 0, 0
    for t, (grads, lr) in enumerate(zip(all_gradients(params), lr_scales(STEPS), strict=True), 1):
        before = {}
        for param in params:
            if t > 1:
                before[param.info.name] = [
                    moment.values(entries) if isinstance(moment, Codes) else moment.reshape(-1)
                    for moment, entries in zip(
                        held(optimizer, param.tensor), plain_maps, strict=True
                    )
                ]
        old = [numpy(value) for value in values(params)]
        one_step(optimizer, params, grads, lr)
        for param, book, grad, p in zip(params, books, grads, old, strict=True):
            matrix = param.info.role == "matrix"
            tall = matrix and param.info.shape[0] >= param.info.shape[1]
            low, projector = grad, None
            if matrix:
                projector = numpy(optimizer.state[param.tensor]["projector"])
                if t % 6 == 1:
                    span = np.linalg.svd(grad, full_matrices=False)
                    lead = span[2][: len(projector)] if tall else span[0][:, : projector.shape[1]].T
                    ours = projector if tall else projector.T
                    np.testing.assert_allclose(np.abs((lead * ours).sum(1)), 1.0, atol=1e-6)
                low = grad @ projector.T if tall else projector.T @ grad
            moments = [
                moment.reshape(low.shape)
                for moment in before.get(param.info.name, [np.zeros(low.size)] * 2)
            ]
            moved, moments = book.step(np.zeros_like(low), moments, low, lr, t)
            if projector is not None:
                moved = 2.0 * (moved @ projector if tall else projector @ moved)
            want = (p + moved) * (1 - lr * book.lr * book.decay)
            np.testing.assert_allclose(numpy(param.tensor), want, rtol=0, atol=1e-9)
            for entries, moment, found in zip(
                plain_maps, moments, held(optimizer, param.tensor), strict=True
            ):
                if not isinstance(found, Codes):
                    np.testing.assert_allclose(found, moment, rtol=1e-9, atol=1e-15)
                    continue
                quantised.add(param.info.name)
                nearest = quantise(moment, entries, 256)
                np.testing.assert_allclose(found.scales, nearest.scales, rtol=1e-6)
                apart = np.abs(found.numbers - nearest.numbers)
                ties += int(apart.sum())
                codes += apart.size
    assert optimizer.refreshes == 3  # type: ignore[attr-defined]
    assert ties <= 2e-5 * codes, f"{ties} of {codes}"
    assert quantised == {"p0.matrix", "p1.matrix", "p4.embed", "p5.head"}


def test_galore_8bit_without_bits_is_galore() -> None:
    from levelfield.optimizers import galore

    one, other = parameters(SHAPES), parameters(SHAPES)
    same: dict[str, Any] = {
        "refresh_fraction": 0.25,
        "eps": 1e-6,
        "eps_placement": "before",
        "weight_decay": 0.1,
    }
    optimizer, _ = make("galore_8bit", one, min_elements=10**6, **same)
    hparams = {**galore.SPEC.defaults(), **same}
    plain = galore.build(context(other, total_steps=STEPS), hparams)
    go(optimizer, one, STEPS)
    go(plain, other, STEPS)
    assert same_bits(values(one), values(other))


# --- claims and round trips ---------------------------------------------------------------------

CASES = [
    ("adamw_8bit", {}),
    ("adamw_8bit", {"embed_bits": 8, "min_elements": 4300}),
    ("adamw_8bit_ao", {}),
    ("adamw_8bit_ao", {"block": 64}),
    ("adamw_4bit_ao", {}),
    ("adamw_4bit_ao", {"block": 32}),
    ("galore_8bit", {"rank_fraction": 0.9}),
    ("galore_8bit", {"rank_fraction": 0.3, "embed_bits": 32, "min_elements": 1000}),
]
over_cases = pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.mark.usefixtures("eager")
@over_cases
@over_dtypes
def test_state_bytes_are_as_claimed(name: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    params = parameters(SHAPES, dtype)
    optimizer, hparams = make(name, params, **changes)
    infos = [param.info for param in params]
    go(optimizer, params, 3)
    claim = SPECS[name].state_bytes(infos, hparams, 1.0)
    assert state_bytes([optimizer]) == claim
    assert optimizer.refreshes == (2 if name == "galore_8bit" else 3)  # type: ignore[attr-defined]
    assert all(torch.isfinite(value).all() for value in values(params))
    tied = ParamInfo(name="t", shape=(70, 64), role="head", tied_to="p4.embed")
    assert SPECS[name].state_bytes([*infos, tied], hparams, 1.0) == claim


def test_claims_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(64, 80), role="matrix"),
        ParamInfo(name="b", shape=(70, 61), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(70, 64), role="embed", dtype="bfloat16"),
        ParamInfo(name="g", shape=(8,), role="vector", dtype="bfloat16"),
    ]

    def claimed(spec: OptimizerSpec, **changes: Any) -> int:
        return spec.state_bytes(infos, {**spec.defaults(), **changes}, 1.0)

    # Codes, a scale for each begun block, two maps for all.
    large = 2 * (5120 + 4 * 20) + 2 * (4270 + 4 * 17) + 2 * 256 * 4
    assert claimed(adamw_8bit.SPEC) == large + 2 * 4 * 4480 + 2 * 4 * 8
    assert claimed(adamw_8bit.SPEC, embed_bits=8) == large + 2 * (4480 + 4 * 18) + 2 * 4 * 8
    assert claimed(adamw_8bit.SPEC, min_elements=10**6) == 2 * 4 * (5120 + 4270 + 4480 + 8)
    # Maps of their own; whole moments in the weights' dtype; 4480 is no multiple of 256.
    eight = 2 * (5120 + 4 * 20 + 1024) + 2 * 2 * (4270 + 4480 + 8)
    assert claimed(adamw_8bit_ao.SPEC) == eight
    four = 2 * (2560 + 4 * 40 + 64) + 2 * (2240 + 4 * 35 + 64) + 2 * 2 * (4270 + 8)
    assert claimed(adamw_4bit_ao.SPEC) == four
    # Ranks 32 and 30: moments of 2560 and 2100 elements, projectors of 64 x 32 and 61 x 30.
    low = 2 * 4 * (2560 + 2100) + 4 * 64 * 32 + 2 * 61 * 30
    few = 2 * (4480 + 4 * 18) + 2 * 4 * 8 + 2 * 256 * 4
    assert claimed(galore_8bit.SPEC, rank_fraction=0.5) == low + few


@pytest.mark.usefixtures("eager")
@over_cases
@over_dtypes
def test_round_trip_goes_on_bit_for_bit(
    name: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    params = parameters(SHAPES, dtype)
    optimizer, _ = make(name, params, **changes)
    saved = {}
    for t in range(8):
        saved[t] = (values(params), copy.deepcopy(optimizer.state_dict()))
        go(optimizer, params, 1, start=t)
    bytes_held = state_bytes([optimizer])
    for t in (0, 1, 5):
        others = parameters(SHAPES, dtype)
        resumed, _ = make(name, others, **changes)
        with torch.no_grad():
            for param, value in zip(others, saved[t][0], strict=True):
                param.tensor.copy_(value)
        resumed.load_state_dict(saved[t][1])
        go(resumed, others, 8 - t, start=t)
        assert same_bits(values(params), values(others))
        assert resumed.refreshes == optimizer.refreshes  # type: ignore[attr-defined]
        assert state_bytes([resumed]) == bytes_held


@pytest.mark.usefixtures("eager")
@over_all
def test_nothing_is_kept_in_few_bits_where_all_is_small(name: str) -> None:
    params = parameters([((6, 4), "matrix"), ((11, 4), "embed"), ((4,), "vector")])
    optimizer, _ = make(name, params, refresh_fraction=1.0)
    go(optimizer, params, 3)
    assert optimizer.refreshes == 0  # type: ignore[attr-defined]
    whole = 2 * 4 * (24 + 44 + 4)
    if name == "galore_8bit":
        whole = 2 * 4 * (6 + 44 + 4) + 4 * 4
    assert state_bytes([optimizer]) == whole


def test_other_bits_are_refused() -> None:
    for name in ("adamw_8bit", "galore_8bit"):
        with pytest.raises(ValueError, match="embed_bits is 16: accepted: 8, 32"):
            make(name, parameters(SHAPES), embed_bits=16)


# --- libraries ----------------------------------------------------------------------------------


@over_borrowed
def test_without_its_library_a_method_is_unavailable(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = BORROWED[name].requires[0]
    monkeypatch.setattr(registry, "_importable", lambda module: module != library)
    with pytest.raises(BenchError, match=f"{name} needs {library}, which is not installed"):
        study.load_method(name)
    for command in (["check", name], ["run", "smoke", "-o", name]):
        monkeypatch.setattr("sys.argv", ["levelfield", *command])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code not in (0, None)
        told = capsys.readouterr()
        assert f"{name} needs {library}, which is not installed" in told.out + told.err
        assert "Traceback" not in told.out + told.err


class _Wrapped:
    """A holder of state with a wrapper around two tensors in it."""

    def __init__(self) -> None:
        from torch.testing._internal.two_tensor import TwoTensor

        self.state = {
            "moment": TwoTensor(torch.zeros(3, 5), torch.ones(3, 5)),  # type: ignore[no-untyped-call]
            "step": torch.ones(()),
        }


def test_the_meter_counts_what_a_wrapper_holds() -> None:
    holder = _Wrapped()
    moment = holder.state["moment"]
    inner = [tensor for tensor in state_tensors([holder]) if tensor.ndim]
    assert [tensor is part for tensor, part in zip(inner, (moment.a, moment.b), strict=True)] == [  # type: ignore[attr-defined]
        True,
        True,
    ]
    assert state_bytes([holder]) == 2 * 3 * 5 * 4
    tracker = StorageTracker(inner)
    assert tracker.live_bytes == 2 * 3 * 5 * 4
    with tracker:
        more = moment + 1  # the wrapper's own storage is no memory, those inside are
    assert tracker.live_bytes == 4 * 3 * 5 * 4
    del more


@pytest.mark.parametrize("name", ["adamw_8bit_ao", "adamw_4bit_ao"])
def test_a_watched_step_runs_uncompiled(name: str) -> None:
    """Where every operation is watched nothing can be compiled; the numbers are the same."""
    ends = []
    for watched in (True, False):
        params = parameters(SHAPES)
        optimizer, _ = make(name, params)
        stance = nullcontext() if watched else torch.compiler.set_stance("force_eager")
        with StorageTracker() if watched else nullcontext(), stance:
            go(optimizer, params, 3)
        ends.append(values(params))
    assert same_bits(*ends)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["adamw_8bit_ao", "adamw_4bit_ao"])
def test_the_compiled_step_is_the_written_one(name: str) -> None:
    """To 2e-6 after one step; later a code on the middle of two may fall to the other side."""
    ends = []
    for stance in ("default", "force_eager"):
        params = parameters(SHAPES[:2] + SHAPES[3:4])
        optimizer, _ = make(name, params, lr=0.02)
        with torch.compiler.set_stance(stance):
            go(optimizer, params, 1)
            first = values(params)
            go(optimizer, params, 5, start=1)
        ends.append((first, values(params)))
    for compiled, written in zip(ends[0][0], ends[1][0], strict=True):
        torch.testing.assert_close(compiled, written, rtol=0, atol=2e-6)
    for compiled, written in zip(ends[0][1], ends[1][1], strict=True):
        off = (compiled - written).norm() / math.sqrt(written.numel())
        assert float(off) < 2e-4
