"""The tuning rule on made-up response curves: which points are tried, whatever runs them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from levelfield.bench import space
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.space import Dim
from levelfield.bench.spec import BenchError, OptimizerSpec, Status, TrialRecord, Tuner
from levelfield.bench.tune import TuningStudy, best_record, next_offset, objective

KINDS = ("bracket", "sobol", "tpe", "random")
FACTOR = 10**0.5
Response = Callable[[Mapping[str, Any]], float]
PINNED = [
    (0.00210517, 5.51912, 0.998544),
    (0.000631609, 0.389299, 0.955152),
    (0.000444861, 2.29002, 0.995627),
]
METHODS = {item.value.name: item.value for item in OPTIMIZERS.load_all()}


def method(fixed: Mapping[str, Any] | None = None, **dims: Dim) -> OptimizerSpec:
    """A method that is never built."""
    return OptimizerSpec(
        name="made-up",
        family="test",
        summary="s",
        paper="p",
        build="nowhere:build",
        space=dims or {"lr": space.log(1e-4, 1e-1, default=1e-3), **MORE},
        fixed=fixed or {},
        state_bytes=lambda params, hparams, progress: 0,
    )


MORE = {"embed_multiplier": space.embed_multiplier(), "beta2": space.beta(0.9, 0.999, default=0.99)}
SPEC = method({"weight_decay": 0.1})


def record(
    number: int = 0,
    loss: float | None = 2.0,
    status: Status = "ok",
    hparams: Mapping[str, Any] | None = None,
) -> TrialRecord:
    return TrialRecord(
        run_id="r",
        phase="tune",
        protocol="p",
        optimizer="made-up",
        trial=number,
        seed=0,
        hparams=hparams or {},
        tuned=("lr",),
        status=status,
        selection_loss=loss,
    )


def bowl(best: float, name: str = "lr", ceiling: float = math.inf) -> Response:
    """Lowest at `best`, the same below and above in the logarithm; diverges from `ceiling`."""
    return lambda hparams: (
        math.inf
        if hparams[name] >= ceiling
        else 2.0 + abs(math.log10(hparams[name] / best)) + 0.01 * abs(math.log10(hparams[name]))
    )


def answer(number: int, hparams: Mapping[str, Any], loss: float) -> TrialRecord:
    if math.isfinite(loss):
        return record(number, loss, hparams=hparams)
    return record(number, None, "diverged", hparams)


@dataclass
class Driven:
    """What a study asked, generation by generation."""

    study: TuningStudy
    points: list[dict[str, Any]]
    generations: list[int]

    def scales(self) -> list[float]:
        return [point[self.study.spec.scale] for point in self.points]

    def factors(self) -> list[int]:
        """Offsets of the bracket's trials, in the order in which they were tried."""
        by_number = {number: k for k, number in self.study.bracket_trials().items()}
        return [by_number[number] for number in sorted(by_number)]


def drive(
    spec: OptimizerSpec = SPEC,
    response: Response = lambda hparams: 2.0,
    *,
    trials: int = 12,
    seed: int = 0,
    order: Callable[[list[Any]], Sequence[Any]] = list,
    **tuner: Any,
) -> Driven:
    study = TuningStudy(spec, Tuner(**tuner), trials, seed)
    driven = Driven(study, [], [])
    while proposals := study.ask():
        assert study.ask() == []  # one generation is open
        assert not study.finished
        driven.generations.append(len(proposals))
        for item in proposals:
            assert item.number == len(driven.points)
            driven.points.append(dict(item.hparams))
        for item in order(proposals):
            loss = response(item.hparams)
            study.tell(item.number, answer(item.number, item.hparams, loss))
    assert study.finished
    assert study.asked == len(study.records) == trials
    assert [item.trial for item in study.records] == list(range(trials))
    return driven


# --- all kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_driven_from_its_defaults(kind: str, name: str) -> None:
    spec = METHODS[name]
    optimum = spec.space[spec.scale].default * 5
    driven = drive(spec, bowl(optimum, spec.scale), kind=kind, trials=10)
    assert driven.points[0] == spec.defaults()
    for point in driven.points:
        assert point.keys() == spec.defaults().keys()
        assert {key: point[key] for key in spec.fixed} == dict(spec.fixed)
        for key, dim in spec.space.items():
            assert dim.bounds[0] <= point[key] <= dim.bounds[1]
            assert isinstance(point[key], float)
    assert len({tuple(point.values()) for point in driven.points}) == 10
    best = driven.study.best()
    assert best is not None
    assert best.selection_loss == min(item.selection_loss for item in driven.study.records)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trials", range(1, 12))
@pytest.mark.parametrize("generation", [1, 3, 4, 100])
def test_exactly_the_budget_is_asked(kind: str, trials: int, generation: int) -> None:
    for reserve in (0, trials // 2, trials - 1):
        tuner = {"kind": kind, "generation": generation, "reserve": reserve}
        driven = drive(response=bowl(1e-2), trials=trials, **tuner)
        assert len(driven.points) == sum(driven.generations) == trials
        assert driven.study.ask() == []
        if kind != "bracket" and reserve == 0:
            assert set(driven.generations[:-1]) <= {generation}


@pytest.mark.parametrize("kind", ["sobol", "tpe", "random"])
def test_a_default_outside_its_range_is_tried_and_the_rest_keeps_to_it(kind: str) -> None:
    spec = method(lr=space.log(1e-3, 1e-2, default=1.0), b=space.linear(0, 1, 0.5, (0, 1)))
    driven = drive(spec, bowl(3e-3), kind=kind)
    assert driven.scales()[0] == 1.0
    assert all(1e-3 <= lr <= 1e-2 for lr in driven.scales()[1:])


@pytest.mark.parametrize("kind", ["sobol", "tpe", "random"])
def test_points_keep_to_the_declared_ranges(kind: str) -> None:
    driven = drive(response=bowl(1.0), kind=kind, trials=24)
    for name, dim in SPEC.space.items():
        values = [point[name] for point in driven.points[1:]]
        assert all(dim.low <= value <= dim.high for value in values)
        assert len(set(values)) == 23


@pytest.mark.parametrize("reserve", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_study_asks_what_an_uninterrupted_one_would(kind: str, reserve: int) -> None:
    response = bowl(1e3, "embed_multiplier")
    whole = drive(response=response, kind=kind, trials=14, reserve=reserve)
    for stop in range(1, len(whole.generations)):
        study = TuningStudy(SPEC, Tuner(kind=kind, reserve=reserve), 14, 0)
        known = whole.study.records
        for _ in range(stop):
            for item in study.ask():
                study.tell(item.number, known[item.number])
        asked = [dict(item.hparams) for item in study.ask()]
        assert asked == whole.points[study.asked - len(asked) : study.asked]
        assert asked


@pytest.mark.parametrize("reserve", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_answers_does_not_matter(kind: str, reserve: int) -> None:
    shuffle = random.Random(0)
    orders: list[Callable[[list[Any]], Sequence[Any]]] = [
        lambda items: items[::-1],
        lambda items: shuffle.sample(items, len(items)),
        lambda items: items[1:] + items[:1],
    ]
    responses: list[Response] = [
        bowl(1e-2, ceiling=2e-2),
        bowl(1e-5),
        bowl(1e3, "embed_multiplier"),
        lambda hparams: 2.0,
    ]
    for response in responses:
        one = drive(response=response, kind=kind, trials=14, reserve=reserve)
        for order in orders:
            other = drive(response=response, kind=kind, trials=14, order=order, reserve=reserve)
            assert other.points == one.points
            assert other.generations == one.generations
            assert other.study.best() == one.study.best()


@pytest.mark.parametrize("kind", KINDS)
def test_points_depend_on_seed_and_method(kind: str) -> None:
    def tail(spec: OptimizerSpec = SPEC, seed: int = 0) -> list[dict[str, Any]]:
        return drive(spec, bowl(1e-3), kind=kind, seed=seed).points[3:]

    assert tail() == tail()
    assert tail() != tail(seed=1)
    assert tail() != tail(replace(SPEC, name="another"))
    studies = [TuningStudy(SPEC, Tuner(), 8, 0, index) for index in range(3)]
    again = TuningStudy(SPEC, Tuner(), 8, 0, name="made-up@again")
    assert len({study.seed for study in (*studies, again)}) == 4


def test_points_are_for_ever() -> None:
    """Pinned: other points would make a resumed run another run."""
    driven = drive(response=bowl(1e-3), trials=6)
    assert driven.scales()[:3] == [1e-3, 3.16228e-3, 3.16228e-4]
    assert [tuple(point[n] for n in SPEC.space) for point in driven.points[3:]] == PINNED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", ["diverged", "oom", "timeout", "killed", "error"])
def test_trials_that_fail_count_and_never_win(kind: str, status: Status) -> None:
    study = TuningStudy(SPEC, Tuner(kind=kind), 9, 0)
    while proposals := study.ask():
        for item in proposals:
            study.tell(item.number, record(item.number, 0.1, status, item.hparams))
    assert study.finished
    assert len(study.records) == 9
    assert study.best() is None


def test_only_what_was_asked_for_can_be_told() -> None:
    study = TuningStudy(SPEC, Tuner(), 4, 0)
    with pytest.raises(BenchError, match="trial 0 of made-up was not asked for"):
        study.tell(0, record(0))
    (item,) = study.ask()
    study.tell(item.number, record(0))
    with pytest.raises(BenchError, match="trial 0 of made-up was not asked for"):
        study.tell(0, record(0))


# --- the bracket -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0, [0, 1, -1]),
        (1, [0, 1, 2]),
        (2, [0, 1, 2, 3]),
        (3, [0, 1, 2, 3, 4]),
        (-1, [0, 1, -1, -2]),
        (-3, [0, 1, -1, -2, -3, -4]),
    ],
)
def test_the_scale_moves_until_its_minimum_is_interior(best: int, tried: list[int]) -> None:
    driven = drive(response=bowl(1e-3 * FACTOR**best), trials=12)
    assert driven.factors() == tried
    count = len(tried)
    assert driven.scales()[:count] == pytest.approx([1e-3 * FACTOR**k for k in tried], rel=1e-5)
    for point in driven.points[:count]:
        assert {**point, "lr": 1e-3} == SPEC.defaults()
    # One at a time, for each needs the one before; the rest at once.
    assert driven.generations == [*[1] * count, 12 - count]
    assert min(tried) < best < max(tried)


def test_the_width_of_a_step_is_the_protocols() -> None:
    driven = drive(response=bowl(4e-3), factor=2.0)
    assert driven.scales()[:4] == [1e-3, 2e-3, 4e-3, 8e-3]


@pytest.mark.parametrize(
    ("ceiling", "tried"),
    [
        (1e-3, [0, -1, -2]),  # the default itself diverges
        (1e-4, [0, -1, -2, -3, -4]),
        (2e-3, [0, 1, -1, -2]),  # one above the default diverges
    ],
)
def test_a_scale_that_diverges_is_left_downwards(ceiling: float, tried: list[int]) -> None:
    best = ceiling / 3 if ceiling < 2e-3 else 1e-3 / FACTOR
    driven = drive(response=bowl(best, ceiling=ceiling), trials=12)
    assert driven.factors() == tried


def test_if_nothing_works_the_scale_goes_down_to_the_end() -> None:
    driven = drive(response=lambda hparams: math.inf, trials=7)
    assert driven.factors() == [0, -1, -2, -3, -4, -5, -6]
    assert driven.study.best() is None


@pytest.mark.parametrize("trials", [1, 2, 3, 4])
def test_a_small_budget_ends_the_bracket_early(trials: int) -> None:
    driven = drive(response=bowl(1.0), trials=trials)
    assert driven.factors() == list(range(trials))
    assert driven.scales() == sorted(driven.scales())


def test_equal_losses_stay_near_the_default() -> None:
    assert drive(response=lambda hparams: 2.0, trials=8).factors() == [0, 1, -1]
    step = {0: 2.0, 1: 1.0, 2: 1.0, 3: 1.5}

    def plateau(hparams: Mapping[str, Any]) -> float:
        return step.get(round(math.log(hparams["lr"] / 1e-3, FACTOR)), 3.0)

    assert drive(response=plateau, trials=8).factors() == [0, 1, 2]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({0: 1.0}, 1),
        ({0: 1.0, 1: 2.0}, -1),
        ({0: 1.0, 1: 1.0}, -1),
        ({0: 1.0, 1: 2.0, -1: 2.0}, None),
        ({0: 1.0, 1: 0.5}, 2),
        ({0: 1.0, 1: 0.5, 2: 0.6}, None),
        ({0: 1.0, 1: 2.0, -1: 0.5}, -2),
        ({0: math.inf}, -1),
        ({0: math.inf, -1: math.inf}, -2),
        ({0: math.inf, -1: 2.0}, -2),
        ({0: math.inf, -1: 2.0, -2: 3.0}, None),
        ({0: 1.0, 1: math.inf}, -1),
    ],
)
def test_the_next_step(tried: dict[int, float], expected: int | None) -> None:
    assert next_offset(tried, range(-9, 10)) == expected
    backwards = dict(reversed(tried.items()))
    assert next_offset(backwards, range(-9, 10)) == expected


def test_the_next_step_keeps_to_what_is_allowed() -> None:
    assert next_offset({0: 1.0}, [-1, 0]) == -1
    assert next_offset({0: 1.0, -1: 2.0}, [-1, 0]) is None
    assert next_offset({0: math.inf}, [0, 1]) is None


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({0: 1.0, 1: 1.5, -1: 0.998, -2: 0.996}, None),  # two flat steps down
        ({0: 1.0, 1: 1.5, -1: 0.998}, -2),  # one is not enough
        ({0: 1.0, 1: 1.5, -1: 0.5, -2: 0.499}, -3),
        ({0: 1.0, 1: 0.998, 2: 0.996}, 3),  # upwards a plateau is crossed
        ({0: math.inf, -1: math.inf, -2: math.inf}, -3),
    ],
)
def test_noise_is_not_followed_towards_zero(tried: dict[int, float], expected: int | None) -> None:
    assert next_offset(tried, range(-9, 10), 0.004) == expected


def test_natural_bounds_end_the_bracket() -> None:
    spec = method(lr=space.log(1e-2, 1.0, default=0.5, upper_bound=1.0), **MORE)
    driven = drive(spec, bowl(10.0))
    assert driven.factors() == [0, -1]
    assert all(0 < lr <= 1.0 for lr in driven.scales())
    rest = driven.scales()[2:]
    assert min(rest) >= 0.5 / FACTOR * (1 - 1e-5)
    assert len(set(rest)) == len(rest)
    at_the_bound = method(lr=space.log(1e-2, 1.0, default=1.0, upper_bound=1.0))
    assert drive(at_the_bound, bowl(10.0)).factors() == [0, -1]


@pytest.mark.parametrize("default", [1 / 3, 10**-2.5, 0.12345678])
def test_a_default_of_many_digits_is_tried_once(default: float) -> None:
    spec = method(
        lr=space.log(1e-3, 1.0, default=default),
        b=space.linear(0, 1, default=default, bounds=(0, 1)),
        c=space.beta(0.001, 0.9, default=default),
    )
    driven = drive(spec, bowl(default * FACTOR))
    assert driven.factors() == [0, 1, 2]
    assert driven.points[0] == {"lr": default, "b": default, "c": default}
    assert {point["b"] for point in driven.points[:3]} == {default}


def test_a_dimension_of_large_numbers_is_driven() -> None:
    spec = method(
        lr=space.log(1e-3, 1.0, default=0.1),
        period=space.linear(100, 50_000, default=200, bounds=(1, math.inf)),
    )
    driven = drive(spec, bowl(0.1))
    assert all(100 <= point["period"] <= 50_000 for point in driven.points)
    assert len({point["period"] for point in driven.points}) == 10


# --- the Sobol points --------------------------------------------------------------------------


@pytest.mark.parametrize("best", [-2, 0, 2])
def test_the_rest_lies_within_a_decade_of_the_minimum(best: int) -> None:
    centre = 1e-3 * FACTOR**best
    driven = drive(response=bowl(centre), trials=24)
    first = len(driven.factors())
    shares = [math.log10(lr / centre) for lr in driven.scales()[first:]]
    assert all(-0.5 - 1e-4 <= share <= 0.5 + 1e-4 for share in shares)
    assert max(shares) - min(shares) > 0.75
    for name in MORE:
        dim = SPEC.space[name]
        values = [dim.where(point[name]) for point in driven.points[first:]]
        assert all(-1e-4 <= value <= 1 + 1e-4 for value in values)
        assert max(values) - min(values) > 0.75


def test_the_width_of_the_range_is_the_protocols() -> None:
    wide, narrow = (drive(response=bowl(1e-3), decades=decades) for decades in (2.0, 0.5))
    for driven, decades in ((wide, 2.0), (narrow, 0.5)):
        shares = [math.log10(lr / 1e-3) / decades for lr in driven.scales()[3:]]
        assert all(-0.501 <= share <= 0.501 for share in shares)
        assert max(shares) - min(shares) > 0.75


@pytest.mark.parametrize(("kind", "first"), [("bracket", 3), ("sobol", 1)])
@pytest.mark.parametrize("seed", range(4))
def test_the_rest_is_one_balanced_sequence(kind: str, first: int, seed: int) -> None:
    """Sixteen points of one scrambled Sobol sequence: one in every sixteenth of every dimension.

    Points re-drawn by a generator of their own each would collide.
    """
    driven = drive(response=bowl(1e-3), trials=first + 16, seed=seed, kind=kind)
    dims = dict(SPEC.space)
    if kind == "bracket":
        dims["lr"] = dims["lr"].around(1e-3, 1.0)
    rest = driven.points[first:]
    for name, dim in dims.items():
        cells = [math.floor(16 * dim.where(point[name])) for point in rest]
        assert sorted(cells) == list(range(16)), name
    places = [[dims[name].where(point[name]) for name in dims] for point in rest]
    nearest = min(
        math.dist(one, other) for n, one in enumerate(places) for other in places[n + 1 :]
    )
    assert nearest > 0.05


def test_a_sobol_sequence_is_the_same_whatever_the_generation() -> None:
    points = [drive(kind="sobol", generation=size).points for size in (1, 3, 4, 100)]
    assert points[0] == points[1] == points[2] == points[3]


# --- beyond an edge ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_reserve_follows_the_best_beyond_an_edge(kind: str) -> None:
    """The multiplier wants to be a thousand: each reserved trial goes a third of a decade on."""
    response = bowl(1e3, "embed_multiplier")
    driven = drive(response=response, kind=kind, trials=43, seed=1, reserve=3)
    *searched, one, two, three = driven.points
    assert driven.generations[-3:] == [1, 1, 1]
    best = max(searched, key=lambda point: point["embed_multiplier"])
    assert best["embed_multiplier"] > 10**0.8  # in the outer tenth
    expected = [10 ** (1 + step / 3) for step in (1, 2, 3)]
    found = [point["embed_multiplier"] for point in (one, two, three)]
    assert found == pytest.approx(expected, rel=1e-4)
    for point in (one, two, three):  # only that dimension moves
        assert {**point, "embed_multiplier": 0} == {**best, "embed_multiplier": 0}
    assert driven.study.beyond_count == 3
    assert driven.study.ranges()["embed_multiplier"].high == found[-1]
    assert driven.study.edges() == {"embed_multiplier": "high"}


def test_without_an_edge_the_reserve_goes_on_with_the_sequence() -> None:
    def centre(hparams: Mapping[str, Any]) -> float:
        return 2.0 + sum(
            abs(SPEC.space[name].where(hparams[name]) - 0.5) for name in MORE
        )  # flat in the rate

    plain = drive(response=centre, trials=16)
    kept = drive(response=centre, trials=16, reserve=4)
    assert plain.study.edges() == {}
    assert kept.study.beyond_count == 0
    assert kept.points == plain.points
    assert kept.generations == [*plain.generations[:-1], plain.generations[-1] - 4, 1, 1, 1, 1]


def test_the_sequence_goes_on_where_a_step_beyond_an_edge_left_it() -> None:
    """A step beyond that does not help is one trial: the next is the sequence's next point."""
    cliff = 10.5

    def response(hparams: Mapping[str, Any]) -> float:
        multiplier = hparams["embed_multiplier"]
        return 5.0 if multiplier > cliff else 4.0 - math.log10(multiplier)

    plain = drive(response=response, trials=20)
    kept = drive(response=response, trials=20, reserve=3)
    assert kept.points[:17] == plain.points[:17]
    assert kept.points[17]["embed_multiplier"] == pytest.approx(10 ** (4 / 3), rel=1e-4)
    # The range is wider now and the best lies inside of it.
    assert kept.study.edges() == {}
    assert kept.points[18:] == plain.points[17:19]


def test_a_step_beyond_an_edge_keeps_to_natural_bounds() -> None:
    spec = method(
        lr=space.log(1e-3, 1e-1, default=1e-2),
        share=space.log(0.01, 0.5, default=0.25, upper_bound=1.0),
    )
    driven = drive(spec, bowl(100.0, "share"), trials=20, reserve=4)
    assert [point["share"] for point in driven.points[16:17]] == [1.0]
    assert max(point["share"] for point in driven.points) == 1.0
    assert driven.study.edges() == {}  # a natural bound is no edge


def test_a_decay_rate_is_followed_without_reaching_one() -> None:
    def response(hparams: Mapping[str, Any]) -> float:
        return 3.0 - 1e-3 * SPEC.space["beta2"].coordinate(hparams["beta2"])

    driven = drive(response=response, trials=30, reserve=12)
    assert max(point["beta2"] for point in driven.points) == 0.999999


def test_the_bracket_comes_before_the_reserve() -> None:
    at_the_edge = replace(space.embed_multiplier(), default=9.9)
    spec = method(lr=space.log(1e-4, 1e-1, default=1e-3), embed_multiplier=at_the_edge)
    driven = drive(spec, bowl(1.0), trials=5, reserve=4)
    assert driven.factors() == [0, 1, 2, 3, 4]
    assert driven.study.beyond_count == 0


def test_nothing_is_beyond_an_edge_if_nothing_works() -> None:
    driven = drive(response=lambda hparams: math.inf, kind="sobol", trials=8, reserve=4)
    assert driven.study.beyond_count == 0
    assert driven.study.edges() == {}
    assert driven.study.beyond_edge() is None


# --- what is best ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "loss", "expected"),
    [
        ("ok", 2.0, 2.0),
        ("undertrained", 5.0, 5.0),
        ("ok", None, math.inf),
        ("ok", math.nan, math.inf),
        ("ok", -math.inf, math.inf),
        ("diverged", 2.0, math.inf),
        ("oom", 2.0, math.inf),
        ("timeout", 2.0, math.inf),
        ("killed", 2.0, math.inf),
        ("error", 2.0, math.inf),
        ("unsupported", 2.0, math.inf),
    ],
)
def test_the_tuner_is_told(status: Status, loss: float | None, expected: float) -> None:
    assert objective(record(0, loss, status)) == expected


def test_the_best_is_the_lowest_that_ended_well() -> None:
    good, better = record(0, 2.0), record(1, 1.5)
    diverged, unread = record(2, 0.1, "diverged"), record(3, math.nan)
    assert best_record([good, diverged, better, unread]) is better
    assert best_record([diverged, unread]) is None
    assert best_record([]) is None


def test_of_equal_ones_the_first_is_best() -> None:
    assert best_record([record(3), record(1), record(2)]) == record(1)


def test_one_that_barely_moved_is_best_only_if_nothing_else_is_there() -> None:
    lazy = record(0, 1.0, "undertrained")
    assert best_record([lazy, record(1, 3.0)]) == record(1, 3.0)
    assert best_record([lazy, record(1, 0.5, "undertrained")]) == record(1, 0.5, "undertrained")
    assert best_record([lazy, record(1, 3.0, "diverged")]) is lazy
