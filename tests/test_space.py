"""Dimensions: a coordinate in which the scale is uniform, ranges that keep to natural bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from levelfield.bench import space
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.space import Dim

LOG = space.log(1e-4, 1e-1, default=1e-3)
LINEAR = space.linear(0.0, 4.0, default=1.0, bounds=(-1.0, 10.0))
BETA = space.beta(0.9, 0.999, default=0.99)
BIG = space.linear(100, 5000, default=200, bounds=(1, math.inf))
DIMS = {"log": LOG, "linear": LINEAR, "log1m": BETA, "big": BIG}
SPACES = [
    (spec.value.name, name, dim)
    for spec in OPTIMIZERS.load_all()
    for name, dim in spec.value.space.items()
]


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
def test_value_is_the_inverse_of_coordinate(dim: Dim) -> None:
    for step in range(41):
        value = dim.at(step / 40)
        assert dim.value(dim.coordinate(value)) == value
        assert dim.where(value) == pytest.approx(step / 40, abs=1e-3)
    assert dim.at(0) == dim.low
    assert dim.at(1) == dim.high


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
def test_coordinates_grow_with_values(dim: Dim) -> None:
    values = [dim.at(step / 40) for step in range(41)]
    assert values == sorted(set(values))
    coordinates = [dim.coordinate(value) for value in values]
    assert coordinates == sorted(set(coordinates))


def test_the_scale_is_uniform_in_its_coordinate() -> None:
    assert LOG.at(1 / 3) == 1e-3
    assert LOG.at(2 / 3) == 1e-2
    assert LINEAR.at(0.25) == 1.0
    assert BETA.at(0.5) == 0.99  # halfway between 1 - 0.1 and 1 - 0.001


def test_values_have_six_digits() -> None:
    assert LOG.at(0.1234567) == float(f"{LOG.at(0.1234567):.6g}")
    assert BETA.at(0.1234567) == float(f"{BETA.at(0.1234567):.6g}")


@pytest.mark.parametrize("default", [1 / 3, 0.1234567891])
def test_a_default_of_many_digits_comes_back_as_it_is(default: float) -> None:
    for dim in (
        space.log(1e-3, 1, default=default),
        space.linear(0, 1, default=default, bounds=(0, 1)),
        space.beta(0.1, 0.9, default=default),
    ):
        assert dim.value(dim.coordinate(default)) == default


def test_a_decay_rate_never_reaches_one() -> None:
    assert BETA.value(50.0) == 0.999999
    assert BETA.value(BETA.coordinate(0.999999)) == 0.999999
    assert BETA.coordinate(BETA.value(50.0)) < math.inf


def test_values_keep_to_the_bounds() -> None:
    dim = space.log(0.1, 1.0, default=0.5, upper_bound=1.0)
    assert dim.value(dim.coordinate(3.0)) == 1.0
    assert LINEAR.value(-5.0) == -1.0
    assert LINEAR.value(50.0) == 10.0


@pytest.mark.parametrize("decades", [0.5, 1.0, 2.0])
def test_a_moved_range_has_the_width_asked_for(decades: float) -> None:
    for centre in (1e-7, 3e-3, 0.5, 100.0):
        moved = LOG.around(centre, decades)
        assert math.log10(moved.high / moved.low) == pytest.approx(decades)
        assert math.sqrt(moved.high * moved.low) == pytest.approx(centre)
        assert (moved.default, moved.scale, moved.bounds) == (LOG.default, "log", LOG.bounds)


def test_a_moved_range_ends_at_a_natural_bound() -> None:
    dim = space.log(0.01, 0.5, default=0.5, upper_bound=1.0)
    moved = dim.around(1.0, 1.0)
    assert moved.high == 1.0
    assert moved.low == pytest.approx(10**-0.5)


@pytest.mark.parametrize("dim", [LINEAR, BETA])
def test_only_a_log_dimension_has_decades(dim: Dim) -> None:
    with pytest.raises(ValueError, match="only a log dimension has decades"):
        dim.around(0.5, 1.0)


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
def test_the_outer_tenth_of_a_range_is_an_edge(dim: Dim) -> None:
    expected = {-0.01: "low", 0.0: "low", 0.09: "low", 0.11: None, 0.5: None}
    expected |= {0.89: None, 0.91: "high", 1.0: "high", 1.01: "high"}
    if dim is BIG:
        del expected[-0.01]  # rounds into another share of a range this wide
    assert {share: dim.edge(dim.at(share)) for share in expected} == expected


def test_a_natural_bound_is_no_edge() -> None:
    closed = space.linear(0, 1, default=0.5, bounds=(0, 1))
    assert [closed.edge(value) for value in (0.0, 0.05, 0.5, 0.95, 1.0)] == [None] * 5
    half = space.linear(0, 1, default=0.5, bounds=(0, 2))
    assert [half.edge(value) for value in (0.0, 1.0)] == [None, "high"]
    other = space.linear(0, 1, default=0.5, bounds=(-1, 1))
    assert [other.edge(value) for value in (0.0, 1.0)] == ["low", None]
    assert space.log(0.1, 1, default=0.5, upper_bound=1.0).edge(1.0) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": 1.0, "high": 1.0}, "is empty"),
        ({"low": 2.0, "high": 1.0}, "is empty"),
        ({"low": math.nan}, "is empty"),
        ({"high": math.nan}, "is empty"),
        ({"scale": "log", "low": 0.0}, "needs low > 0"),
        ({"scale": "log", "low": -1.0}, "needs low > 0"),
        ({"scale": "log", "default": 0.0}, "needs default > 0"),
        ({"scale": "log", "default": -1.0}, "needs default > 0"),
        ({"scale": "log1m", "high": 1.0}, "needs high < 1"),
        ({"scale": "log1m", "high": 0.9, "default": 1.0}, "needs default < 1"),
        ({"bounds": (0.6, 1.0)}, "default 0.5 outside its bounds"),
        ({"bounds": (0.0, 0.4)}, "default 0.5 outside its bounds"),
        ({"bounds": (0.2, 1.0)}, r"range \[0.1, 1.0\] outside its bounds"),
        ({"bounds": (0.0, 0.9)}, r"range \[0.1, 1.0\] outside its bounds"),
        ({"default": math.nan}, "default nan outside its bounds"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dim(**{"low": 0.1, "high": 1.0, "default": 0.5, **change})


def test_a_default_may_lie_outside_its_range() -> None:
    dim = space.log(1e-2, 1e-1, default=1e-4)
    assert dim.where(dim.default) == pytest.approx(-2.0)


def test_the_multiplier_is_the_same_two_decades_for_all() -> None:
    dim = space.embed_multiplier()
    assert (dim.low, dim.high, dim.default, dim.scale) == (0.1, 10.0, 1.0, "log")
    for method, name, other in SPACES:
        if name == "embed_multiplier":
            assert other == dim, method


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
def test_the_distribution_is_that_of_the_coordinate(dim: Dim) -> None:
    found: Any = dim.distribution()
    assert (found.low, found.high) == (dim.coordinate(dim.low), dim.coordinate(dim.high))
    assert (found.log, found.step) == (False, None)
    wide = dim.distribution(wide=True)
    for share in (-1.0, 0.0, 1.0, 2.0):
        assert wide._contains(found.low + share * (found.high - found.low))


def test_plain_data_tells_everything() -> None:
    assert LOG.to_json() == {
        "low": 1e-4,
        "high": 1e-1,
        "default": 1e-3,
        "scale": "log",
        "bounds": [0.0, None],
    }
    assert LINEAR.to_json()["bounds"] == [-1.0, 10.0]


@pytest.mark.parametrize(
    ("method", "name", "dim"), SPACES, ids=[f"{method}-{name}" for method, name, _ in SPACES]
)
def test_every_dimension_of_every_method_can_be_searched(method: str, name: str, dim: Dim) -> None:
    assert dim.value(dim.coordinate(dim.default)) == dim.default
    assert dim.at(0) == pytest.approx(dim.low, rel=1e-5)
    assert dim.at(1) == pytest.approx(dim.high, rel=1e-5)
    assert OPTIMIZERS.load(method).value.defaults()[name] == dim.default
