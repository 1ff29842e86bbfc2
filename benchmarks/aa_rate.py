"""How often equal methods are called different, and unequal ones told apart.

Whole pipelines are simulated on measured response curves: propose by the tuner's rule, read the
loss at the point plus its seed's noise, take the best, train it on S fresh seeds; R such studies
make a method. Then the tests of `bench.inference` compare two of them.

    python benchmarks/aa_rate.py             the tables; their numbers as JSON in the last line
    python benchmarks/aa_rate.py --measure   train the response curves again first (minutes)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levelfield.bench import power
from levelfield.bench.inference import TESTS, Comparison, compare, family
from levelfield.bench.robustness import binomial
from levelfield.bench.samples import Sample
from levelfield.bench.stats import Missing, deviation, mean, paired_t
from levelfield.benchmarks import responses
from levelfield.benchmarks.simulated_study import pool, value

ALPHA = 0.05
TRIALS, SEEDS, STUDIES = (6, 8, 16), (2, 3, 5), (1, 3, 5)
METHODS = tuple(responses.GRID)
Pool = Sequence[Sequence[float]]


def sample(name: str, studies: Pool, seeds: int, shift: float = 0.0) -> Sample:
    """A method whose studies have these finals; study numbers pair two methods."""
    return Sample(name=name, values={r: value(s, seeds) + shift for r, s in enumerate(studies)})


def rate(rejected: Sequence[bool]) -> dict[str, float]:
    """Share of rejections with its exact 95 % binomial interval."""
    found = binomial(sum(rejected), len(rejected))
    assert not isinstance(found, Missing)
    low, high = found.low or 0.0, found.high or 0.0
    return {"rate": found.value, "low": low, "high": high, "n": len(rejected)}


def rejections(
    a: Pool, b: Pool, studies: int, seeds: int, count: int, shift: float = 0.0
) -> dict[str, list[bool]]:
    """Test -> whether it rejects, for each of `count` disjoint groups of `studies` studies."""
    found: dict[str, list[bool]] = {test: [] for test in TESTS}
    for start in range(0, min(count * studies, len(a) - studies + 1), studies):
        left = sample("a", a[start : start + studies], seeds)
        right = sample("b", b[start : start + studies], seeds, shift)
        for test in TESTS:
            found[test].append(rejects(compare(left, right, test=test)))
    return found


def rejects(comparison: Comparison) -> bool:
    """Whether the comparison alone is significant at 5 %."""
    return comparison.p is not None and comparison.p <= ALPHA


def over_seeds(a: Pool, b: Pool, seeds: int, count: int) -> list[bool]:
    """Whether a paired t test over the seeds of single studies rejects."""
    pairs = zip(a[:count], b[:count], strict=True)
    found = [paired_t([x - y for x, y in zip(u, v, strict=True)][:seeds]) for u, v in pairs]
    return [p is not None and p <= ALPHA for p in found]


def two_arms(name: str, trials: int, count: int, rate_only: bool = False) -> tuple[Pool, Pool]:
    """One method's pipeline twice: own sampler seeds, shared tuning and final seeds."""
    most = max(SEEDS)
    return (
        pool(name, trials, count, most, "a", rate_only),
        pool(name, trials, count, most, "b", rate_only),
    )


# --- the tables -------------------------------------------------------------------------------


def aa_pipeline(name: str, comparisons: int, rate_only: bool) -> list[dict[str, Any]]:
    """Control (b): the whole pipeline twice, over all of N, S and R."""
    rows = []
    for trials in TRIALS:
        a, b = two_arms(name, trials, comparisons * max(STUDIES), rate_only)
        for seeds in SEEDS:
            for studies in STUDIES:
                row: dict[str, Any] = {"N": trials, "S": seeds, "R": studies}
                if studies == 1:
                    row["paired over seeds"] = rate(over_seeds(a, b, seeds, comparisons))
                else:
                    found = rejections(a, b, studies, seeds, comparisons)
                    row |= {test: rate(found[test]) for test in TESTS}
                rows.append(row)
    return rows


def aa_same_point(name: str, comparisons: int) -> list[dict[str, Any]]:
    """Control (a): the same hyper-parameters, disjoint seeds, unpaired."""
    response, rows = responses.load(name), []
    point = response.default * responses.ROOT_TEN**2, 10**0.5
    _, centre, sd = response.at(*point)

    def arm(label: str, count: int) -> Pool:
        return [
            [centre + response.noise(f"{label} {r} {s}", *point, sd) for s in range(max(SEEDS))]
            for r in range(count)
        ]

    a, b = arm("a", comparisons * max(STUDIES)), arm("b", comparisons * max(STUDIES))
    for seeds in SEEDS:
        for studies in STUDIES[1:]:
            found = rejections(a, b, studies, seeds, comparisons)
            row: dict[str, Any] = {test: rate(found[test]) for test in TESTS[:2]}
            rows.append({"S": seeds, "R": studies, **row})
    return rows


def unequal_spreads(
    pools: Mapping[str, Pool], comparisons: int, seeds: int
) -> list[dict[str, Any]]:
    """Two methods moved to the same mean: equal in truth, their spreads and shapes are not."""
    rows = []
    names = list(pools)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            left, right = ([value(s, seeds) for s in pools[name]] for name in (one, two))
            ratio = (deviation(left) or 0.0) / (deviation(right) or 1.0)
            shift = (mean(left) or 0.0) - (mean(right) or 0.0)
            for studies in STUDIES[1:]:
                found = rejections(pools[one], pools[two], studies, seeds, comparisons, shift)
                row: dict[str, Any] = {test: rate(found[test]) for test in TESTS}
                rows.append({"methods": f"{one}, {two}", "sd ratio": ratio, "R": studies, **row})
    return rows


def power_table(a: Pool, b: Pool, comparisons: int, seeds: int) -> list[dict[str, Any]]:
    """Planted effects, in between-study sds, found; beside the power that is predicted."""
    sd = deviation([value(s, seeds) for s in (*a, *b)]) or 0.0
    rows = []
    for studies in STUDIES[1:]:
        for effect in (1.0, 2.0, 3.0, 4.0):
            found = rejections(a, b, studies, seeds, comparisons, effect * sd)
            row: dict[str, Any] = {test: rate(found[test]) for test in TESTS}
            row["predicted"] = power.achieved_power(effect, 1.0, studies)
            rows.append({"R": studies, "effect / sd": effect, "sd nats": sd, **row})
    return rows


def families(pools: Mapping[str, Pool], comparisons: int, seeds: int) -> list[dict[str, Any]]:
    """The whole rule on four equal methods, claims against the first: runs with a false verdict.

    Four times one method; then the four methods moved to one mean, each with its own spread.
    """
    length = min(map(len, pools.values())) // len(METHODS)
    groups = {
        f"4 x {name}": [(studies[k * length : (k + 1) * length], 0.0) for k in range(4)]
        for name, studies in pools.items()
    }
    centres = {n: mean([value(s, seeds) for s in studies]) or 0.0 for n, studies in pools.items()}
    groups["one of each"] = [(studies[:length], -centres[n]) for n, studies in pools.items()]
    rows = []
    for label, arms in groups.items():
        for studies in STUDIES[1:]:
            row: dict[str, Any] = {"methods": label, "R": studies}
            for test in TESTS[:2]:
                ranked, claimed = [], []
                for start in range(0, min(comparisons, length // studies) * studies, studies):
                    samples = [
                        sample(f"m{k}", arm[start : start + studies], seeds, shift)
                        for k, (arm, shift) in enumerate(arms)
                    ]
                    found = family(samples, alpha=ALPHA, reference="m0", test=test)
                    ranked.append(any(place > 1 for place in found.ranks.values()))
                    claimed.append(any(found.verdict(claim)[0] for claim in found.claims))
                row |= {f"ranks, {test}": rate(ranked), f"claims, {test}": rate(claimed)}
            rows.append(row)
    return rows


def cell(entry: object) -> str:
    """A table's cell: rates in per cent with their interval."""
    if isinstance(entry, dict):
        return f"{entry['rate']:.1%} [{entry['low']:.1%}, {entry['high']:.1%}]"
    return f"{entry:.3g}" if isinstance(entry, float) else str(entry)


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A markdown table; a row lacking a column has a dash there."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(cell(row[c]) if c in row else '–' for c in columns)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A/A rate and power of comparisons")
    parser.add_argument("--measure", action="store_true", help="train the response curves first")
    parser.add_argument("--comparisons", type=int, default=2000, help="simulated, a setting")
    asked = parser.parse_args()
    if asked.measure:
        data = json.dumps(responses.measure(), separators=(",", ":"))
        responses.FILE.write_text(data + "\n", encoding="utf-8")
    n, seeds = asked.comparisons, 3
    count = n * max(STUDIES)
    both, alone = two_arms("adamw_split", 8, count), two_arms("adamw_split", 16, count, True)
    pools = {name: pool(name, 8, count, seeds, pairs=name) for name in METHODS}
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "A/A, the whole pipeline twice: rate and multiplier tuned": lambda: aa_pipeline(
            "adamw_split", n, rate_only=False
        ),
        "A/A, the whole pipeline twice: the rate alone tuned": lambda: aa_pipeline(
            "adamw_split", n, rate_only=True
        ),
        "A/A, same hyper-parameters, disjoint seeds": lambda: aa_same_point("adamw_split", n),
        "Equal means, unequal spreads (N = 8, S = 3)": lambda: unequal_spreads(pools, n, seeds),
        "Power: rate and multiplier tuned (N = 8, S = 3)": lambda: power_table(*both, n, seeds),
        "Power: the rate alone tuned (N = 16, S = 3)": lambda: power_table(*alone, n, seeds),
        "The whole rule, any false verdict (N = 8, S = 3)": lambda: families(pools, n, seeds),
    }
    results = {}
    for title, make in tables.items():
        results[title] = make()
        show(title, results[title])
    print(json.dumps({"comparisons": n, "alpha": ALPHA, "tables": results}))


if __name__ == "__main__":
    main()
