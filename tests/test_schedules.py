"""Learning-rate factors, exactly: first step, peak, floor, last step; and what has no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.schedules import check_schedule, lr_factor
from levelfield.bench.spec import BenchError, Budget, Protocol, Schedule

SHAPES = ("cosine", "linear", "wsd", "constant")
FALLING = ("cosine", "linear", "wsd")


def factors(total: int, **schedule: Any) -> list[float]:
    return [lr_factor(Schedule(**schedule), step, total) for step in range(total)]


def protocol(steps: int, **schedule: Any) -> Protocol:
    return Protocol(
        name="p", summary="s", budget=Budget(steps=steps), schedule=Schedule(**schedule)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_warm_up_rises_evenly_to_one(shape: str) -> None:
    found = factors(100, shape=shape, warmup=0.1)
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[0] == 0.1
    assert found[9] == found[10] == 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_without_warm_up_the_first_step_is_the_peak(shape: str, total: int) -> None:
    assert factors(total, shape=shape, warmup=0.0)[0] == 1.0


@pytest.mark.parametrize("shape", FALLING)
@pytest.mark.parametrize("floor", [0.0, 0.1, 0.3, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("total", [10, 11, 80, 400])
def test_the_last_step_has_exactly_the_floor(shape: str, floor: float, total: int) -> None:
    found = factors(total, shape=shape, floor=floor)
    assert found[-1] == floor
    assert max(found) == 1.0
    assert min(found[round(0.1 * total) :]) == floor


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_a_single_step_after_warm_up_has_the_floor(shape: str) -> None:
    assert factors(2, shape=shape, warmup=0.5) == [1.0, 0.1]
    assert factors(4, shape=shape, warmup=0.75) == [1 / 3, 2 / 3, 1.0, 0.1]


def test_a_single_step_of_decay_has_the_floor() -> None:
    found = factors(10, shape="wsd", warmup=0.2, decay=0.1)
    assert found == [0.5, *[1.0] * 8, 0.1]


def test_constant_stays_at_one() -> None:
    assert factors(20, shape="constant", warmup=0.0, floor=0.1) == [1.0] * 20
    assert factors(20, shape="constant", warmup=0.1) == [0.5, *[1.0] * 19]


def test_wsd_decays_at_the_end_alone() -> None:
    found = factors(100, shape="wsd", warmup=0.1, decay=0.2, floor=0.0)
    assert found[9:81] == [1.0] * 72
    assert found[80:] == pytest.approx([1 - step / 19 for step in range(20)])
    assert factors(10, shape="wsd", warmup=0.0, decay=0.0) == [1.0] * 10


def test_linear_and_cosine_are_what_they_are_called() -> None:
    linear = factors(101, shape="linear", warmup=0.0, floor=0.0)
    assert linear == pytest.approx([1 - step / 100 for step in range(101)])
    cosine = factors(101, shape="cosine", warmup=0.0, floor=0.0)
    assert cosine[50] == pytest.approx(0.5)
    assert cosine[25] == pytest.approx((1 + 2**-0.5) / 2)
    with_floor = factors(101, shape="cosine", warmup=0.0, floor=0.2)
    assert with_floor == pytest.approx([0.2 + 0.8 * factor for factor in cosine])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("total", [10, 33, 400])
def test_factors_rise_once_and_never_again(shape: str, warmup: float, total: int) -> None:
    found = factors(total, shape=shape, warmup=warmup)
    assert all(0.0 < factor <= 1.0 for factor in found)
    peak = found.index(1.0)
    assert found[: peak + 1] == sorted(set(found[: peak + 1]))
    assert found[peak:] == sorted(found[peak:], reverse=True)


@pytest.mark.parametrize(
    ("steps", "schedule", "message"),
    [
        (5, {}, r"no room for warm-up: 10% of 5 steps is less than one \(budget.steps of at lea"),
        (1, {}, "no room for warm-up"),
        (49, {"warmup": 0.01}, "no room for warm-up"),
        (10, {"warmup": 1.0}, "no room after warm-up: 10 of 10 steps warm up and 0 decay"),
        (10, {"warmup": 0.96}, "no room after warm-up"),
        (
            10,
            {"shape": "wsd", "warmup": 0.5, "decay": 0.5},
            "no room after warm-up: 5 of 10 steps warm up and 5 decay",
        ),
        (10, {"warmup": -0.1}, r"schedule.warmup=-0.1 \(accepted: a share between 0 and 1\)"),
        (10, {"warmup": 1.5}, "schedule.warmup=1.5"),
        (10, {"floor": -0.1}, "schedule.floor=-0.1"),
        (10, {"floor": 1.1}, "schedule.floor=1.1"),
        (10, {"shape": "wsd", "decay": -0.5}, "schedule.decay=-0.5"),
        (10, {"shape": "wsd", "decay": 1.5}, "schedule.decay=1.5"),
    ],
)
def test_a_schedule_without_room_is_refused(
    steps: int, schedule: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        check_schedule(protocol(steps, **schedule))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "schedule"),
    [
        (10, {}),
        (2, {"warmup": 0.5}),
        (1, {"warmup": 0.0}),
        (10, {"shape": "wsd", "warmup": 0.5, "decay": 0.4}),
        (10, {"warmup": 0.5, "decay": 0.9}),  # only `wsd` decays
        (10, {"floor": 0.0}),
        (10, {"floor": 1.0}),
    ],
)
def test_a_schedule_with_room_is_accepted(steps: int, schedule: dict[str, Any]) -> None:
    check_schedule(protocol(steps, **schedule))


def test_the_number_of_steps_that_a_refusal_names_is_enough() -> None:
    for warmup in (0.01, 0.03, 0.07, 0.1, 0.3):
        with pytest.raises(BenchError) as caught:
            check_schedule(protocol(1, warmup=warmup))
        steps = int(str(caught.value.hint).removeprefix("budget.steps of at least ").split(",")[0])
        check_schedule(protocol(steps, warmup=warmup))


@pytest.mark.parametrize("name", sorted(PROTOCOLS.entries()))
def test_every_protocol_has_room(name: str) -> None:
    found = PROTOCOLS.load(name).value
    check_schedule(found)
    total = found.budget.steps
    if total == 0:
        return  # it reads a model as it comes: no rate is ever set
    assert lr_factor(found.schedule, found.warmup_steps, total) == 1.0
    check_schedule(replace(found, schedule=replace(found.schedule, warmup=0.0)))
