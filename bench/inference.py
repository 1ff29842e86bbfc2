"""Comparing methods: the tuning study is the unit.

A method has R independent tuning studies; each gives a best point that is trained on S final
seeds, and its value is the mean of its good finals. Everything here compares these values, never
single seeds: seeds at one tuned point do not see the luck of the tuning that found it, and a test
over them rejects equal methods in 13 to 71 % of cases (measured: docs/aa.md). Losses are mean
nats a token and lower is better.

Student's and Welch's t as in any textbook (B. L. Welch, "The generalization of Student's problem
when several different population variances are involved", Biometrika 34 (1947) 28-35); Holm's
correction from `bench.stats`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from levelfield.bench.samples import AT_THESE, MIN_STUDIES, Sample
from levelfield.bench.stats import Missing, deviation, holm, mean

MEASURED = (
    "With four methods this rule makes a false verdict in 0.6 to 5.5 % of simulated runs of equal "
    "ones at three studies each (750 runs a setting and more)"
)
"""The measured false-positive rate of the whole rule; table in docs/aa.md."""

Test = Literal["pooled", "welch", "paired"]
TESTS: tuple[Test, ...] = ("pooled", "welch", "paired")
TEST: Test = "welch"
"""Chosen on simulated studies (docs/aa.md): with Holm and the margin it makes a false verdict in
0.6 to 5.5 % of runs of four equal methods, whether their spreads are alike or not. One pooled
variance finds up to ten points more at three studies a method, but goes to 8.5 % where spreads
differ, as methods' do; pairing over studies leaves too few degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two methods over their studies. Unknown is None, and `reason` says why."""

    a: str
    b: str
    test: Test
    n_a: int
    n_b: int
    difference: float | None = None
    """Mean(a) - mean(b), nats a token; negative: `a` is better."""
    interval: tuple[float, float] | None = None
    """t interval of the difference, not adjusted for the number of comparisons."""
    se: float | None = None
    df: float | None = None
    p: float | None = None
    """Two-sided p value of no difference."""
    p_holm: float | None = None
    """Adjusted over the family that the comparison was made in."""
    reason: str | None = None

    def turned(self) -> Comparison:
        """The same comparison read as b - a."""
        ends = self.interval and (-self.interval[1], -self.interval[0])
        difference = None if self.difference is None else -self.difference
        return replace(
            self, a=self.b, b=self.a, n_a=self.n_b, n_b=self.n_a, difference=difference,
            interval=ends,
        )  # fmt: skip


def compare(a: Sample, b: Sample, *, test: Test = TEST, confidence: float = 0.95) -> Comparison:
    """Difference of two methods' means over studies, its interval and its p value.

    pooled: se^2 = s^2 (1/Ra + 1/Rb), s^2 the pooled variance with Ra + Rb - 2 degrees of freedom.
    welch: se^2 = sa^2/Ra + sb^2/Rb with the Welch-Satterthwaite degrees of freedom.
    paired: over the studies that both have, se = sd of the differences / sqrt(n), n - 1.
    No spread at all leaves nothing to test a difference against: p is None (1 if they are equal).
    """
    left, right = dict(a.values), dict(b.values)
    if test == "paired":
        shared = sorted(left.keys() & right.keys())
        left, right = {r: left[r] for r in shared}, {r: right[r] for r in shared}
    draft = Comparison(a=a.name, b=b.name, test=test, n_a=len(left), n_b=len(right))
    x, y = list(left.values()), list(right.values())
    if not x or not y:
        return replace(draft, reason="no study with a value on one side")
    centres = mean(x), mean(y)
    if centres[0] is None or centres[1] is None:
        return replace(draft, reason="a study's value is not finite")
    difference = centres[0] - centres[1]
    draft = replace(draft, difference=difference)
    if min(len(x), len(y)) < 2:
        return replace(draft, reason=f"fewer than two studies on one side: {AT_THESE} only")
    se, df = _standard_error(x, y, test)
    if se <= 1e-15 * max(1.0, abs(difference)):
        if difference == 0:
            return replace(draft, interval=(0.0, 0.0), se=0.0, df=df, p=1.0)
        return replace(draft, se=0.0, df=df, reason="no spread between studies to test against")
    from scipy.stats import t

    reach = float(t.ppf((1 + confidence) / 2, df)) * se
    return replace(
        draft,
        interval=(difference - reach, difference + reach),
        se=se,
        df=df,
        p=float(2 * t.sf(abs(difference) / se, df)),
    )


def _standard_error(x: Sequence[float], y: Sequence[float], test: Test) -> tuple[float, float]:
    """Standard error of mean(x) - mean(y) and its degrees of freedom; two values or more each."""
    if test == "paired":
        spread = deviation([u - v for u, v in zip(x, y, strict=True)]) or 0.0
        return spread / math.sqrt(len(x)), len(x) - 1
    m, n = len(x), len(y)
    var_x, var_y = (deviation(x) or 0.0) ** 2, (deviation(y) or 0.0) ** 2
    if test == "pooled":
        pooled = ((m - 1) * var_x + (n - 1) * var_y) / (m + n - 2)
        return math.sqrt(pooled * (1 / m + 1 / n)), m + n - 2
    square = var_x / m + var_y / n
    if square == 0:
        return 0.0, m + n - 2
    df = square**2 / ((var_x / m) ** 2 / (m - 1) + (var_y / n) ** 2 / (n - 1))
    return math.sqrt(square), df


def aa_margin(samples: Sequence[Sample], alpha: float = 0.05) -> float | Missing:
    """The difference that two equal methods stay below in 1 - alpha of runs like this, nats.

    The half-width of the interval of the difference of two equal methods with R studies of S
    seeds each: t(1 - alpha/2, df) s sqrt(2 / R), where s is the between-study sd pooled over all
    methods (each around its own mean), df = sum of (R_m - 1) and R the fewest studies of any.
    S enters through s: a study's value is a mean over its seeds.
    """
    spreads = [(deviation(list(s.values.values())), len(s.values)) for s in samples]
    usable = [(sd, n) for sd, n in spreads if sd is not None]
    if not usable:
        return Missing("no method has two studies, so nothing tells how far equal ones lie apart")
    from scipy.stats import t

    df = sum(n - 1 for _, n in usable)
    s = math.sqrt(math.fsum((n - 1) * sd**2 for sd, n in usable) / df)
    fewest = min(n for _, n in usable)
    return float(t.ppf(1 - alpha / 2, df)) * s * math.sqrt(2 / fewest)


def adjusted(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons with Holm's correction over all of them that could be tested."""
    tested = [index for index, item in enumerate(comparisons) if item.p is not None]
    corrected = dict(zip(tested, holm([comparisons[i].p or 0.0 for i in tested]), strict=True))
    return tuple(replace(c, p_holm=corrected.get(i)) for i, c in enumerate(comparisons))


# --- a whole run ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """All that may be said of the methods of a run."""

    alpha: float
    test: Test
    margin: float | Missing
    """`aa_margin` of the rankable methods: differences of this size and below are ties."""
    pairs: tuple[Comparison, ...]
    """Every pair of rankable methods, Holm over all of them: what ranks rest on."""
    claims: tuple[Comparison, ...]
    """Every rankable method against the reference (method - reference), Holm over these alone."""
    samples: Mapping[str, Sample]
    unranked: Mapping[str, str]
    """Method -> why it has no place."""
    ranks: Mapping[str, int] = field(default_factory=dict)

    def verdict(self, item: Comparison) -> tuple[str | None, str]:
        """The method that the comparison shows to be better, or None; and why, in words."""
        if item.p_holm is None or item.difference is None:
            return None, item.reason or "not tested"
        better, worse = (item.a, item.b) if item.difference < 0 else (item.b, item.a)
        if not isinstance(self.margin, Missing) and abs(item.difference) <= self.margin:
            return None, "tie: no further apart than two runs of one method"
        if item.p_holm > self.alpha:
            return None, f"not significant: Holm-adjusted p = {item.p_holm:.3g}"
        if self.samples[worse].censored:
            return None, f"{worse} is censored: its best point lies at the edge of what was tried"
        if self.samples[better].failed:
            return None, f"{better} has failed studies, which its mean leaves out"
        if self.samples[better].lost:
            return None, f"{better} has failed finals, which its mean leaves out"
        return better, f"Holm-adjusted p = {item.p_holm:.3g}"


def family(
    samples: Sequence[Sample],
    *,
    alpha: float = 0.05,
    reference: str | None = None,
    test: Test = TEST,
) -> Family:
    """Compare all methods that have enough studies; the others get the reason why not.

    Two families, corrected apart: all pairs for the ranks, method against reference for claims.
    A place is 1 + the number of methods that are shown to be better (`Family.verdict`); methods
    that cannot be told apart share one.
    """
    able = [s for s in samples if len(s.values) >= MIN_STUDIES]
    unranked = {
        s.name: f"{AT_THESE}: {len(s.values)} of the {MIN_STUDIES} tuning studies that a place "
        f"needs" + (f", {s.failed} failed" if s.failed else "")
        for s in samples
        if len(s.values) < MIN_STUDIES
    }
    pairs = [compare(a, b, test=test) for i, a in enumerate(able) for b in able[i + 1 :]]
    against = next((s for s in able if s.name == reference), None)
    claims = [compare(s, against, test=test) for s in able if against and s is not against]
    found = Family(
        alpha=alpha,
        test=test,
        margin=aa_margin(able, alpha),
        pairs=adjusted(pairs),
        claims=adjusted(claims),
        samples={s.name: s for s in samples},
        unranked=unranked,
    )
    places = {s.name: 1 for s in able}
    for pair in found.pairs:
        winner, _ = found.verdict(pair)
        if winner is not None:
            places[pair.b if winner == pair.a else pair.a] += 1
    return replace(found, ranks=places)
