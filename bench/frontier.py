"""Many numbers a method: performance profile, Pareto set, ladder of gains.

Source of profile and score: MLCommons AlgoPerf, rules v0.6; E. D. Dolan, J. J. More, "Benchmarking
optimization software with performance profiles", Mathematical Programming 91 (2002) 201-213.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from levelfield.bench.inference import TEST, Comparison, Test, adjusted, compare
from levelfield.bench.samples import Sample
from levelfield.bench.stats import Missing, finite

R_MAX = 4.0
"""Ratios to the fastest above this count as a miss."""
WORKLOADS = 4
"""Fewest workloads that a profile summarises."""

Times = Mapping[str, Mapping[str, float | None]]
"""Method -> workload -> cost until the target (tokens, steps or seconds); None: never reached."""


def ratios(times: Times, baseline: str | None = None) -> dict[str, dict[str, float]] | Missing:
    """Cost over the lowest of all methods (or over the baseline's) on each workload; misses inf.

    A workload counts for all methods; one that nobody reached (or the baseline did not) is inf for
    all. The denominator depends on who takes part: print the costs themselves beside it.
    """
    if not times or (baseline is not None and baseline not in times):
        return Missing(f"no costs of {baseline}" if times else "no methods")
    workloads = sorted({name for row in times.values() for name in row})
    if len(workloads) < WORKLOADS:
        return Missing(f"{len(workloads)} of the {WORKLOADS} workloads that a profile needs")

    def cost(method: str, workload: str) -> float:
        value = times[method].get(workload)
        return value if value is not None and finite(value) and value > 0 else math.inf

    found: dict[str, dict[str, float]] = {}
    least = {w: min(cost(m, w) for m in ([baseline] if baseline else times)) for w in workloads}
    for method in times:
        row = {w: (cost(method, w), least[w]) for w in workloads}
        found[method] = {
            w: mine / low if math.isfinite(mine) and math.isfinite(low) else math.inf
            for w, (mine, low) in row.items()
        }
    return found


def performance_profile(
    times: Times, taus: Sequence[float], baseline: str | None = None
) -> dict[str, list[float]] | Missing:
    """rho(tau) of every method: the share of workloads with a cost ratio of at most tau."""
    found = ratios(times, baseline)
    if isinstance(found, Missing):
        return found
    return {
        method: [sum(r <= tau for r in row.values()) / len(row) for tau in taus]
        for method, row in found.items()
    }


def b_scores(times: Times, r_max: float = R_MAX) -> dict[str, float] | Missing:
    """B = 1 / (r_max - 1) times the integral of rho from 1 to r_max; 1 is fastest everywhere.

    In closed form the mean over workloads of (r_max - r) / (r_max - 1), 0 where r exceeds r_max.
    """
    if not r_max > 1:
        return Missing(f"r_max = {r_max}: above 1 is needed")
    found = ratios(times)
    if isinstance(found, Missing):
        return found
    return {
        method: math.fsum(max(0.0, r_max - r) for r in row.values()) / (r_max - 1) / len(row)
        for method, row in found.items()
    }


# --- Pareto -----------------------------------------------------------------------------------

Ends = tuple[float, float]
"""An interval; both ends equal for what is known exactly, such as bytes."""


def dominates(a: Mapping[str, Ends], b: Mapping[str, Ends]) -> bool:
    """Whether `a` is shown to be no worse on every axis and better on one; lower is better.

    On every axis a's interval lies below b's, or both are the same exact number; on at least one
    it lies below. Intervals that overlap show nothing, so nothing is dominated through them. An
    axis that only one of the two has, or that is not finite, shows nothing either.
    """
    if a.keys() != b.keys():
        return False
    below = False
    for axis, mine in a.items():
        if not all(finite(end) for end in (*mine, *b[axis])):
            return False
        if mine[1] < b[axis][0]:
            below = True
        elif not mine[0] == mine[1] == b[axis][0] == b[axis][1]:
            return False
    return below


def dominated_by(rows: Mapping[str, Mapping[str, Ends]]) -> dict[str, list[str]]:
    """Method -> the methods that dominate it; the Pareto set is every one with an empty list.

    Args:
        rows: method -> axis (`loss` in nats, `seconds`, `bytes`, ...) -> interval.
    """
    return {
        name: [other for other in rows if other != name and dominates(rows[other], rows[name])]
        for name in rows
    }


# --- ladder -----------------------------------------------------------------------------------


def gain_ladder(rungs: Sequence[Sample], *, test: Test = TEST) -> tuple[Comparison, ...]:
    """What each rung adds: every rung minus the one before, Holm over the steps; nats.

    A negative difference is a gain. Rungs are one method with one more ingredient each (such as
    plain AdamW, its own embedding rate, another update): the steps sum to the whole gain.
    """
    steps = [compare(upper, lower, test=test) for lower, upper in itertools.pairwise(rungs)]
    return adjusted(steps)
