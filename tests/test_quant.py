"""The blockwise 8-bit quantiser: its maps, its error, its odd cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from levelfield.optimizers._quant import (
    MAP_BYTES,
    dequantise,
    dynamic_map,
    map_tensor,
    quantise,
    quantised_bytes,
    restore_dtypes,
)

CPU = torch.device("cpu")
LARGEST_ERROR = {True: 0.0071, False: 0.0036}
SMALLEST = {True: 5.5e-7, False: 3.25e-7}
over_signs = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


def textbook(x: np.ndarray[Any, Any], signed: bool, block: int) -> np.ndarray[Any, Any]:
    """Every element's nearest entry, searched through the whole map, block by block."""
    entries = np.array(dynamic_map(signed), dtype=np.float32).astype(np.float64)
    flat, out = x.reshape(-1), np.zeros(x.size)
    for start in range(0, x.size, block):
        part = flat[start : start + block]
        largest = float(np.float32(np.abs(part).max()))
        if largest > 0:
            nearest = np.abs(part[:, None] / largest - entries).argmin(axis=1)
            out[start : start + block] = entries[nearest] * largest
    return out.reshape(x.shape)


def round_trip(x: torch.Tensor, signed: bool, block: int = 256) -> torch.Tensor:
    entries = map_tensor(signed, CPU)
    return dequantise(*quantise(x, entries, block), entries, block, x.dtype)


def sample(shape: tuple[int, ...], signed: bool, seed: int = 0) -> torch.Tensor:
    """Values over ten decades."""
    rng = np.random.default_rng(seed)
    x = 10 ** rng.uniform(-9, 1, shape) * (rng.choice([-1.0, 1.0], shape) if signed else 1.0)
    return torch.as_tensor(x)


@over_signs
def test_a_map_has_256_rising_entries(signed: bool) -> None:
    entries = dynamic_map(signed)
    assert len(entries) == len(set(entries)) == 256
    assert entries == sorted(entries)
    assert entries.count(0.0) == entries.count(1.0) == 1
    assert min(entries) == (pytest.approx(-0.99296875) if signed else 0.0)
    positive = [value for value in entries if value > 0]
    assert min(positive) == pytest.approx(SMALLEST[signed])
    assert len(positive) == (128 if signed else 255)
    # the middles of 64 or 128 steps over [.1, 1], and of the first decade's 1 or 2
    steps = 64 if signed else 128
    np.testing.assert_allclose(
        positive[-steps - 1 : -1], 0.1 + 0.9 * (np.arange(steps) + 0.5) / steps, rtol=1e-12
    )
    first = [5.5e-7] if signed else [3.25e-7, 7.75e-7]
    np.testing.assert_allclose(positive[: len(first)], first, rtol=1e-12)
    if signed:
        assert {-value for value in positive[:-1]} == {value for value in entries if value < 0}


@over_signs
def test_every_entry_comes_back_as_it_is(signed: bool) -> None:
    entries = map_tensor(signed, CPU)
    codes, largest = quantise(entries * 8, entries, 256)
    assert codes.tolist() == list(range(256))
    assert largest.tolist() == [8.0]
    assert torch.equal(round_trip(entries * 8, signed), entries * 8)


@over_signs
@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("shape", [(700,), (3, 100), (2, 5, 77), (1,), (256,), (4, 64)])
def test_the_nearest_entry_is_taken(signed: bool, block: int, shape: tuple[int, ...]) -> None:
    x = sample(shape, signed)
    back = round_trip(x, signed, block)
    np.testing.assert_allclose(back.numpy(), textbook(x.numpy(), signed, block), rtol=1e-12)


@over_signs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_is_within_its_bound(signed: bool, dtype: torch.dtype) -> None:
    x = torch.linspace(-1 if signed else 0, 1, 100_001, dtype=dtype)[1:]
    blocks = torch.cat([x, x.new_ones(-x.numel() % 255)]).view(-1, 255)
    whole = torch.cat([blocks, blocks.new_ones(len(blocks), 1)], dim=1) * 3  # each block's largest
    error = (round_trip(whole, signed) - whole).abs() / 3
    assert float(error.max()) <= LARGEST_ERROR[signed]
    # half of a step of the last decade
    assert float(error.max()) == pytest.approx(0.45 / (64 if signed else 128), rel=1e-3)
    # below a tenth of the largest, a tenth of that, and so on: the map is dynamic
    small = whole.abs() < 0.3
    assert float(error[small].max()) <= 0.21 * LARGEST_ERROR[signed]


@over_signs
def test_a_block_does_not_feel_its_neighbour(signed: bool) -> None:
    x = sample((512,), signed)
    loud = x.clone()
    loud[256:] *= 1e6
    assert torch.equal(round_trip(loud, signed)[:256], round_trip(x, signed)[:256])


def test_zeros_and_non_finite_values() -> None:
    for signed in (True, False):
        x = torch.zeros(300)
        assert torch.equal(round_trip(x, signed), x)
        x[10] = math.nan
        back = round_trip(x, signed)
        assert back[:256].isnan().all()
        assert not back[256:].any()
        empty = torch.zeros(0, 3)
        assert round_trip(empty, signed).shape == (0, 3)
        tiny = torch.full((4,), 1e-42)  # below float32's normal numbers
        assert round_trip(tiny, signed).isfinite().all()


def test_state_owns_no_more_than_its_bytes() -> None:
    entries = map_tensor(True, CPU)
    for shape in ((700,), (3, 100), (256,), (1,), (0,)):
        codes, largest = quantise(torch.randn(shape), entries, 256)
        assert (codes.dtype, largest.dtype) == (torch.uint8, torch.float32)
        assert codes.shape == shape
        held = codes.untyped_storage().nbytes() + largest.untyped_storage().nbytes()
        assert held == quantised_bytes(math.prod(shape), 256)
    assert 2 * entries.untyped_storage().nbytes() == MAP_BYTES


def test_nothing_is_read_on_the_host() -> None:
    with FakeTensorMode():  # raises when a value is asked for
        entries = torch.empty(256)
        codes, largest = quantise(torch.empty(30, 20), entries, 256)
        assert dequantise(codes, largest, entries, 256, torch.float32).shape == (30, 20)


def test_memory_layout_does_not_matter() -> None:
    x = sample((20, 30), True)
    assert torch.equal(round_trip(x.t(), True), round_trip(x.t().contiguous(), True))
    assert torch.equal(round_trip(x[:, ::2], True), round_trip(x[:, ::2].clone(), True))


def test_a_loaded_state_keeps_its_dtypes() -> None:
    def make() -> torch.optim.SGD:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], lr=1.0)

    one, other = make(), make()
    saved = {
        "codes": torch.tensor([1, 200, 255], dtype=torch.uint8),
        "largest": torch.tensor([1.0009765]),
        "step": 3,
    }
    one.state[one.param_groups[0]["params"][0]] = dict(saved)
    kept = one.state_dict()
    other.load_state_dict(kept)
    restore_dtypes(other, kept)
    found = other.state[other.param_groups[0]["params"][0]]
    for name in ("codes", "largest"):
        assert found[name].dtype == saved[name].dtype  # type: ignore[attr-defined]
        assert torch.equal(found[name], saved[name])  # type: ignore[arg-type]
        assert found[name] is not saved[name]
    assert found["step"] == 3
