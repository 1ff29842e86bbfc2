"""A tuning study on a measured response: the proposals of `bench.tune`, without training.

`propose` repeats the rule of `TuningStudy` with the `bracket` tuner and no reserve; a test holds
the two equal. It is some ten times faster, which a table of many thousand studies needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from levelfield.bench import space
from levelfield.bench.digest import derive_seed
from levelfield.bench.space import Dim
from levelfield.bench.spec import Tuner
from levelfield.bench.tune import next_offset
from levelfield.benchmarks.responses import Response, load

TUNER = Tuner()
Point = Mapping[str, float]


@lru_cache
def dims(name: str, rate_only: bool = False) -> Mapping[str, Dim]:
    """The tuned dimensions of a measured method: rate and multiplier, or the rate alone."""
    rates, default = load(name).rates, load(name).default
    rate = space.log(rates[0], rates[-1], default=default)
    return {"lr": rate} if rate_only else {"lr": rate, "embed_multiplier": space.embed_multiplier()}


def propose(
    searched: Mapping[str, Dim],
    trials: int,
    seed: int,
    loss: Callable[[Point], float],
    tuner: Tuner = TUNER,
) -> list[tuple[Point, float]]:
    """Points and losses of one study, in order, by the `bracket` rule without a reserve.

    Args:
        searched: dimensions; the scale is `lr`.
        seed: the study's own, as `TuningStudy.seed`.
        loss: of a point; infinity if it failed.
    """
    scale, done = searched["lr"], list[tuple[Point, float]]()
    tried: dict[int, float] = {}

    def value(offset: int) -> float:
        return (
            scale.default if offset == 0 else float(f"{scale.default * tuner.factor**offset:.6g}")
        )

    offset: int | None = 0
    while offset is not None and len(done) < trials:
        point = {name: dim.default for name, dim in searched.items()} | {"lr": value(offset)}
        tried[offset] = loss(point)
        done.append((point, tried[offset]))
        reach = range(min(tried) - 1, max(tried) + 2)
        low, high = scale.bounds
        allowed = [k for k in reach if low <= value(k) <= high]
        offset = next_offset(tried, allowed, tuner.resolution)
    left = trials - len(done)
    if left < 1:
        return done
    from scipy.stats import qmc

    centre = value(min(tried, key=lambda k: (tried[k], abs(k))))
    around = {**searched, "lr": scale.around(centre, tuner.decades)}
    engine = qmc.Sobol(len(around), scramble=True, rng=derive_seed(seed, "sobol") % 2**32)
    for row in engine.random_base2(max(0, (left - 1).bit_length()))[:left]:
        point = {n: d.at(float(u)) for (n, d), u in zip(around.items(), row, strict=True)}
        done.append((point, loss(point)))
    return done


GOOD_MULTIPLIER = 10**0.5
"""Where it is held when the rate alone is tuned: near the best of all measured methods."""


def finals(
    response: Response, trials: int, seeds: int, arm: str, pair: str, rate_only: bool = False
) -> list[float]:
    """One whole study: tune, take the best point, train it on fresh seeds; their report losses.

    Args:
        arm: names the sampler's seed: two arms propose different points.
        pair: names the tuning seed and the final seeds: two arms of a pair share them all.
        rate_only: hold the multiplier, tune the rate.
    """

    def multiplier(point: Point) -> float:
        return point.get("embed_multiplier", GOOD_MULTIPLIER)

    def loss(point: Point) -> float:
        selection, _, sd = response.at(point["lr"], multiplier(point))
        return selection + response.noise(f"{pair}|tune", point["lr"], multiplier(point), sd)

    seed = derive_seed("tune", pair, arm)
    best, _ = min(
        propose(dims(response.name, rate_only), trials, seed, loss), key=lambda item: item[1]
    )
    rate, factor = best["lr"], multiplier(best)
    _, report, sd = response.at(rate, factor)
    return [report + response.noise(f"{pair}|{i}", rate, factor, sd) for i in range(seeds)]


def pool(
    name: str,
    trials: int,
    count: int,
    seeds: int,
    arm: str = "a",
    rate_only: bool = False,
    pairs: str = "pair",
) -> list[list[float]]:
    """Final losses [study][seed] of `count` independent studies; study i is of pair i."""
    response = load(name)
    return [
        finals(response, trials, seeds, f"{arm}|{i}", f"{pairs} {i}", rate_only)
        for i in range(count)
    ]


def value(losses: Sequence[float], seeds: int) -> float:
    """A study's value from its first `seeds` finals."""
    return math.fsum(losses[:seeds]) / seeds
