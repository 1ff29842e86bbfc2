"""Comparisons of methods over studies: against scipy, by hand, and on simulated studies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from scipy import stats as scipy_stats

from levelfield.bench import inference, samples, stats
from levelfield.bench.inference import Test, compare, family
from levelfield.bench.robustness import binomial
from levelfield.bench.samples import Sample
from levelfield.bench.spec import OptimizerSpec, TrialRecord, Tuner
from levelfield.bench.stats import Estimate, Missing
from levelfield.bench.tune import TuningStudy
from levelfield.benchmarks import aa_rate, simulated_study
from levelfield.tests.report_records import record

NAN, INF = math.nan, math.inf
A, B = [1.90, 2.10, 2.05], [2.30, 2.35, 2.20, 2.41]


def sample(name: str, values: Sequence[float], **more: object) -> Sample:
    return Sample(name=name, values=dict(enumerate(values)), **more)  # type: ignore[arg-type]


# --- the unit ---------------------------------------------------------------------------------


def final(study: int, loss: float | None, status: str = "ok") -> TrialRecord:
    return record("a", study=study, report_loss=loss, status=status)


def test_a_study_is_worth_the_mean_of_its_good_finals() -> None:
    finals = [
        *(final(0, 1.0), final(0, 2.0), final(0, None, "diverged"), final(0, NAN)),
        *(final(1, 3.0), final(1, 9.0, "diverged"), final(1, 4.0, "undertrained")),
        final(2, None, "oom"),
        record("a", phase="tune", study=0, report_loss=0.1),
    ]
    found = samples.study_means(finals)
    assert [(m.study, m.value, m.good, m.failed) for m in found] == [
        (0, 1.5, 2, 2),
        (1, 3.5, 2, 1),
        (2, None, 0, 1),
    ]
    mine = samples.sample("a", finals, studies=4, censored=True)
    assert (dict(mine.values), mine.failed, mine.censored) == ({0: 1.5, 1: 3.5}, 2, True)
    assert samples.study_means([]) == ()


def test_interval_of_a_mean_over_studies() -> None:
    found = samples.study_interval(A)
    expected = scipy_stats.t.interval(0.95, 2, loc=sum(A) / 3, scale=scipy_stats.sem(A))
    assert isinstance(found, Estimate)
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.value, found.n) == (pytest.approx(sum(A) / 3), 3)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, NAN], [1.0, INF, 2.0]])
def test_no_interval_says_why(values: list[float]) -> None:
    found = samples.study_interval(values)
    assert isinstance(found, Missing)
    assert found.reason


# --- two methods ------------------------------------------------------------------------------


@pytest.mark.parametrize(("test", "equal"), [("pooled", True), ("welch", False)])
def test_unpaired_tests_are_scipys(test: Test, equal: bool) -> None:
    found = compare(sample("a", A), sample("b", B), test=test)
    expected = scipy_stats.ttest_ind(A, B, equal_var=equal)
    interval = expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue)
    assert found.df == pytest.approx(expected.df)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.difference == pytest.approx(sum(A) / 3 - sum(B) / 4)
    assert (found.n_a, found.n_b) == (3, 4)


def test_the_paired_test_uses_shared_studies_only() -> None:
    found = compare(sample("a", A), sample("b", B), test="paired")
    expected = scipy_stats.ttest_rel(A, B[:3])
    assert (found.p, found.n_a) == (pytest.approx(expected.pvalue), 3)
    apart = Sample(name="b", values={7: 1.0, 8: 2.0})
    assert compare(sample("a", A), apart, test="paired").p is None


def test_a_comparison_turned_reads_the_other_way() -> None:
    there, back = compare(sample("a", A), sample("b", B)), compare(sample("b", B), sample("a", A))
    assert there.turned() == back


@pytest.mark.parametrize("test", inference.TESTS)
@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        ([1.0], [2.0], None),  # one study each
        ([], [2.0, 2.1], None),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 1.0),  # no spread, no difference
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], None),  # no spread to test against
        ([1.0, NAN, 1.1], [2.0, 2.1, 2.2], None),
        ([1.0, -INF, 1.1], [2.0, 2.1, 2.2], None),
    ],
)
def test_where_nothing_can_be_tested_there_is_a_reason(
    test: Test, a: list[float], b: list[float], p: float | None
) -> None:
    found = compare(sample("a", a), sample("b", b), test=test)
    assert found.p == p
    assert (found.reason is None) == (p is not None)


# --- a family ---------------------------------------------------------------------------------

FAR: Mapping[str, list[float]] = {
    "good": [1.00, 1.01, 0.99],
    "same": [1.00, 1.01, 0.991],
    "bad": [2.00, 2.02, 1.98],
    "worse": [3.00, 3.01, 2.99],
}


def test_ranks_count_the_methods_that_are_better() -> None:
    found = family([sample(n, v) for n, v in FAR.items()], reference="bad")
    assert found.ranks == {"good": 1, "same": 1, "bad": 3, "worse": 4}
    raw = [c.p or 0.0 for c in found.pairs]
    assert [c.p_holm for c in found.pairs] == pytest.approx(stats.holm(raw))
    assert [c.a for c in found.claims] == ["good", "same", "worse"]
    assert [c.p_holm for c in found.claims] == pytest.approx(
        stats.holm([c.p or 0.0 for c in found.claims])
    )
    assert [found.verdict(c)[0] for c in found.claims] == ["good", "same", "bad"]


def test_the_aa_margin_by_hand() -> None:
    groups = [sample("a", A), sample("b", B)]
    pooled = (2 * scipy_stats.tvar(A) + 3 * scipy_stats.tvar(B)) / 5
    expected = scipy_stats.t.ppf(0.975, 5) * math.sqrt(pooled * 2 / 3)
    assert inference.aa_margin(groups) == pytest.approx(expected)
    assert isinstance(inference.aa_margin([sample("a", [1.0]), sample("b", [2.0])]), Missing)


def test_a_significant_difference_within_the_margin_is_a_tie() -> None:
    wide = sample("wide", [5.0, 9.0, 7.0])
    near = [sample("a", [1.0, 1.001, 0.999]), sample("b", [1.1, 1.101, 1.099]), wide]
    found = family(near)
    (pair,) = (c for c in found.pairs if {c.a, c.b} == {"a", "b"})
    assert pair.p_holm is not None
    assert pair.p_holm < 0.001
    winner, why = found.verdict(pair)
    assert (winner, why[:3]) == (None, "tie")
    assert (found.ranks["a"], found.ranks["b"]) == (1, 1)


def test_fewer_than_three_studies_rank_nothing() -> None:
    found = family([sample("a", A), sample("b", [1.0, 1.1]), sample("c", [], failed=3)])
    assert found.ranks == {"a": 1}
    assert found.unranked["b"].startswith("at these hyper-parameters: 2 of the 3")
    assert "3 failed" in found.unranked["c"]
    assert (found.pairs, found.claims) == ((), ())
    assert family([]).ranks == {}


def test_no_claim_against_a_censored_method_nor_by_one_that_failed() -> None:
    good, bad = FAR["good"], FAR["bad"]
    edge = family([sample("good", good), sample("bad", bad, censored=True)], reference="bad")
    assert edge.ranks == {"good": 1, "bad": 1}
    assert "censored" in edge.verdict(edge.claims[0])[1]
    failed = family([sample("good", good, failed=1), sample("bad", bad)], reference="bad")
    assert failed.ranks == {"good": 1, "bad": 1}
    assert "failed" in failed.verdict(failed.claims[0])[1]
    fine = family([sample("good", good, censored=True), sample("bad", bad, failed=1)])
    assert fine.ranks == {"good": 1, "bad": 2}


# --- simulated studies ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "trials"), [("adamw_split", 8), ("lion", 6), ("muon", 16)])
@pytest.mark.parametrize("rate_only", [False, True])
def test_the_fast_rule_proposes_what_the_tuner_does(
    name: str, trials: int, rate_only: bool
) -> None:
    searched = simulated_study.dims(name, rate_only)
    spec = OptimizerSpec(
        name=name, family="", summary="", paper="", build="x:y", space=searched,
        state_bytes=lambda infos, hparams, progress: 0,
    )  # fmt: skip
    response = simulated_study.load(name)

    def loss(point: Mapping[str, float]) -> float:
        return response.at(point["lr"], point.get("embed_multiplier", 1.0))[0]

    for seed in range(5):
        study = TuningStudy(spec, Tuner(), trials, seed)
        real = []
        while proposals := study.ask():
            for item in proposals:
                told = loss(item.hparams)
                real.append((dict(item.hparams), told))
                study.tell(item.number, record(name, phase="tune", selection_loss=told))
        fast = simulated_study.propose(searched, trials, study.seed, loss)
        assert [(dict(point), told) for point, told in fast] == real


@pytest.fixture(scope="module")
def arms() -> tuple[aa_rate.Pool, aa_rate.Pool]:
    """Twelve hundred pairs of whole simulated studies, eight trials each."""
    return aa_rate.two_arms("adamw_split", trials=8, count=1200)


def test_the_pipeline_twice_holds_its_level(arms: tuple[aa_rate.Pool, aa_rate.Pool]) -> None:
    """A/A on 400 comparisons of 3 + 3 studies: no more than alpha, and not nothing."""
    for test, rejected in aa_rate.rejections(*arms, studies=3, seeds=3, count=400).items():
        found = binomial(sum(rejected), 400, confidence=0.99)
        assert isinstance(found, Estimate)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 0.05, test
        assert found.value > 0, test


def test_same_point_and_disjoint_seeds_hold_the_level() -> None:
    for row in aa_rate.aa_same_point("adamw_split", 300):
        for test in aa_rate.TESTS[:2]:
            found = binomial(round(row[test]["rate"] * 300), 300, confidence=0.99)
            assert isinstance(found, Estimate)
            assert (found.low or 0.0) <= 0.05 <= (found.high or 0.0), row


def test_seeds_of_single_studies_do_not(arms: tuple[aa_rate.Pool, aa_rate.Pool]) -> None:
    """Why the study is the unit: equal pipelines are called different in half of the cases."""
    few, many = (sum(aa_rate.over_seeds(*arms, seeds=s, count=400)) / 400 for s in (2, 5))
    assert 0.15 < few < many < 0.85


def test_a_large_planted_effect_is_found(arms: tuple[aa_rate.Pool, aa_rate.Pool]) -> None:
    rows = aa_rate.power_table(*arms, comparisons=200, seeds=3)
    found = {(row["R"], row["effect / sd"]): row[inference.TEST]["rate"] for row in rows}
    assert found[3, 1.0] < found[3, 2.0] < found[3, 4.0]
    assert found[5, 4.0] > 0.9
    assert found[5, 2.0] == pytest.approx(rows[5]["predicted"], abs=0.15)
