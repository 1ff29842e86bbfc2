"""The papers' claims: every verdict of every shared test, on effects that are planted."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as reference

from levelfield.bench import power
from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import deviation, holm
from levelfield.bench.store import Run
from levelfield.reports import claim_counts, claim_families, claim_tests, claims_table, view
from levelfield.reports.blocks import plain_rows
from levelfield.reports.claim_layers import gathered
from levelfield.reports.claim_parts import Absent, Evidence, Part, Power
from levelfield.reports.claim_weigh import counted, evidence, settled
from levelfield.reports.claims import CLAIMS, LLAMA_1B, Claim, Paper, Size
from levelfield.reports.claims_table import Judged, judge
from levelfield.reports.sections.claims import SECTION
from levelfield.tests import report_records as fake

PAPER = Paper("a paper", "0000.00000")
HORIZON = fake.STEPS * 1024
NEEDS_ADAPTER = pytest.mark.skipif(
    "adapter" not in {field.name for field in fields(TrialRecord)},
    reason="records hold nothing of adapters yet",
)


def claim(test: Any, **changes: Any) -> Claim:
    """A made-up claim of `new` against `old`."""
    plain: dict[str, Any] = {
        "key": "a-claim", "paper": PAPER, "text": "new is better than old", "test": test,
        "methods": ("new",), "against": "old", "quantity": "report loss",
    }  # fmt: skip
    return Claim(**{**plain, **changes})


def seen(
    losses: Mapping[str, Sequence[float | None]],
    path: Path,
    *,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    more: Sequence[TrialRecord] = (),
    families: Mapping[str, str] | None = None,
    **protocol: Any,
) -> view.View:
    """A run of one final a study; `each` holds fields of a method's finals."""
    methods = [
        {"name": name, "digest": f"{index:064x}", "origin": f"{name}.py",
         "spec": {"family": (families or {}).get(name, "adaptive")}}
        for index, name in enumerate(losses)
    ]  # fmt: skip
    digests = {str(method["name"]): str(method["digest"]) for method in methods}
    records = [
        replace(record, **(each or {}).get(name, {}))
        for name, values in losses.items()
        for record in fake.losses(name, values, digests[name])
    ]
    records += [replace(record, spec_digest=digests[record.optimizer]) for record in more]
    manifest = fake.manifest(methods=methods)
    settings = {**manifest["protocol"], "claims": "old", "reference": "old", **protocol}
    return view.build(Run(path, {**manifest, "protocol": settings}, tuple(records), ()))


def verdict(asked: Claim, found: view.View) -> Judged:
    return judge(found, [asked])[0]


OLD = (2.000, 2.004, 1.996, 2.002, 1.998)
NEW_BETTER = (1.900, 1.905, 1.895, 1.903, 1.898)
NEW_WORSE = tuple(4.0 - value for value in NEW_BETTER)
NEW_SAME = (2.001, 2.003, 1.997, 2.001, 1.999)
WIDE = (1.7, 2.4, 2.0, 1.9, 2.1)


def test_a_method_of_another_size_answers_to_its_name_and_an_ablation_does_not(
    tmp_path: Path,
) -> None:
    asked = claim(claim_tests.better)
    sized = {"new(rank=2,alpha=16.0)": NEW_BETTER, "old": OLD}
    item = verdict(asked, seen(sized, tmp_path))
    assert item.verdict == "reproduced"
    assert item.power.endswith("new(rank=2,alpha=16.0) for new")
    for other in ("new(residual=false)", "new(rank=2,residual=false)", "newer(rank=2)"):
        assert verdict(asked, seen({other: NEW_BETTER, "old": OLD}, tmp_path)).verdict == "no data"
    both = {"new(rank=2)": NEW_BETTER, "new(rank=4)": NEW_BETTER, "old": OLD}
    assert verdict(asked, seen(both, tmp_path)).verdict == "no data"
    plain = verdict(
        asked, seen({"new(rank=2)": NEW_BETTER, "new": NEW_WORSE, "old": OLD}, tmp_path)
    )
    assert plain.verdict == "not reproduced"


# --- the registry -----------------------------------------------------------------------------


def test_keys_are_unique_and_every_claim_has_a_source() -> None:
    keys = [item.key for item in CLAIMS]
    assert len(keys) == len(set(keys))
    for item in CLAIMS:
        assert item.paper.name
        assert len(item.paper.arxiv) == 10
        assert item.paper.url == f"https://arxiv.org/abs/{item.paper.arxiv}"
        assert item.text
        assert item.quantity
        assert bool(item.methods) != bool(item.families)
        assert item.size is None or item.size > 0
    assert {item.paper.name for item in CLAIMS} == {
        "AdaFRUGAL", "FOAM", "AdaPaD", "Navigating LLM Valley",
    }  # fmt: skip


def test_sizes_are_those_that_the_papers_print() -> None:
    size = {item.key: item.size for item in CLAIMS}
    assert size["adafrugal-time"] == 0.15
    assert math.exp(size["adafrugal-galore"] or 0) == pytest.approx(20.01 / 18.58)
    assert math.exp(size["adafrugal-combined"] or 0) == pytest.approx(18.83 / 18.60)
    assert 1 - (size["adafrugal-state"] or 0) == pytest.approx(0.37 / 0.52)
    assert size["adapad-adalora"] == pytest.approx(89.34 - 89.03)
    assert size["adapad-increlora"] == pytest.approx(89.34 - 88.99)
    assert size["adapad-parameters"] == 0.307
    assert size["adafrugal-glue-lora"] == pytest.approx(86.8 - 86.1)


def test_a_run_without_any_of_their_methods_has_no_data(tmp_path: Path) -> None:
    found = seen({"old": OLD, "new": NEW_BETTER}, tmp_path)
    told = [item for item in judge(found) if item.verdict != "no data"]
    assert told == []
    assert all(item.power for item in judge(found))


# --- loss -------------------------------------------------------------------------------------


def test_a_planted_gain_is_reproduced_with_the_figures_of_scipy(tmp_path: Path) -> None:
    found = seen({"old": OLD, "new": NEW_BETTER}, tmp_path)
    item = verdict(claim(claim_tests.better, size=0.1), found)
    assert item.verdict == "reproduced"
    assert item.part is not None
    test = reference.ttest_ind(OLD, NEW_BETTER, equal_var=False)
    low, high = test.confidence_interval()
    assert item.part.effect == pytest.approx(sum(OLD) / 5 - sum(NEW_BETTER) / 5)
    assert item.part.interval == pytest.approx((low, high))
    assert item.p_holm == pytest.approx(test.pvalue)
    assert item.figures == "loss +0.100 nats [+0.095 … +0.105]"
    assert item.claimed == "claimed +0.100 nats: in the interval"
    assert verdict(claim(claim_tests.better, size=0.3), found).claimed.endswith(
        "above the interval"
    )


def test_a_reversed_effect_and_a_claim_of_the_other_direction_are_not_reproduced(
    tmp_path: Path,
) -> None:
    worse = seen({"old": OLD, "new": NEW_WORSE}, tmp_path)
    better = seen({"old": OLD, "new": NEW_BETTER}, tmp_path)
    lower, higher = claim(claim_tests.better), claim(claim_tests.better, direction="higher")
    assert verdict(lower, worse).verdict == "not reproduced"
    assert verdict(higher, worse).verdict == "reproduced"
    assert verdict(lower, better).verdict == "reproduced"
    assert verdict(higher, better).verdict == "not reproduced"


def test_a_tie_is_told_apart_from_a_run_that_could_not_see(tmp_path: Path) -> None:
    close = seen({"old": OLD, "new": NEW_SAME}, tmp_path)
    wide = seen({"old": WIDE, "new": tuple(v + 0.01 for v in WIDE)}, tmp_path)
    for size, at_close, at_wide in (
        (0.1, "not distinguishable", "not testable here"),
        (None, "not distinguishable", "not distinguishable"),
        (1e-4, "not testable here", "not testable here"),
    ):
        asked = claim(claim_tests.better, size=size)
        assert verdict(asked, close).verdict == at_close
        assert verdict(asked, wide).verdict == at_wide
    least = verdict(claim(claim_tests.better), close).least
    assert least is not None
    assert 0.003 < least < 0.01
    assert "finds +0.00" in verdict(claim(claim_tests.better), close).power


def test_what_is_shown_needs_no_power(tmp_path: Path) -> None:
    """A claimed size that the run could not find does not hide an effect that it found."""
    found = seen({"old": OLD, "new": NEW_WORSE}, tmp_path)
    assert verdict(claim(claim_tests.better, size=1e-5), found).verdict == "not reproduced"


def test_the_smallest_effect_found_is_found_with_power_point_eight(tmp_path: Path) -> None:
    import numpy as np

    found = seen({"old": OLD, "new": NEW_SAME}, tmp_path)
    item = verdict(claim(claim_tests.better), found)
    assert item.least is not None
    spread = math.sqrt((np.var(OLD, ddof=1) + np.var(NEW_SAME, ddof=1)) / 2)
    dice = np.random.default_rng(1)
    sides = dice.normal(0, spread, (2, 4000, 5))
    p = reference.ttest_ind(sides[0] + item.least, sides[1], axis=1, equal_var=False).pvalue
    assert np.mean(p <= 0.05) == pytest.approx(0.8, abs=0.03)


def test_no_claim_without_three_studies_a_ranking_or_good_finals(tmp_path: Path) -> None:
    asked = claim(claim_tests.better)
    two = verdict(asked, seen({"old": OLD[:2], "new": NEW_BETTER[:2]}, tmp_path))
    assert two.verdict == "not testable here"
    assert "2 of the 3 tuning studies" in two.power
    unranked = verdict(asked, seen({"old": OLD, "new": NEW_BETTER}, tmp_path, ranked=False))
    assert (unranked.verdict, unranked.power) == (
        "not testable here",
        "this protocol ranks nothing",
    )
    failed = (*NEW_BETTER[:4], None)
    budget = {**fake.manifest()["protocol"]["budget"], "studies": 5}
    lost = verdict(asked, seen({"old": OLD, "new": failed}, tmp_path, budget=budget))
    assert lost.verdict == "not distinguishable"
    assert "failed studies" in lost.power


def test_no_data_names_what_is_not_there(tmp_path: Path) -> None:
    found = seen({"old": OLD, "lion": NEW_BETTER}, tmp_path)
    item = verdict(claim(claim_tests.better), found)
    assert (item.verdict, item.power) == ("no data", "no new")
    asked = claim(claim_tests.better, tasks=("classification",))
    item = verdict(asked, seen({"old": OLD, "new": NEW_BETTER}, tmp_path))
    assert (item.verdict, item.power) == ("no data", "its task is causal_lm")


def test_scores_are_points_of_error(tmp_path: Path) -> None:
    task = {"kind": "classification", "metric": "accuracy"}
    found = seen({"old": OLD, "new": NEW_BETTER}, tmp_path, task=task)
    item = verdict(claim(claim_tests.better, tasks=("classification",)), found)
    assert item.figures.startswith("score +0.10 points")


def test_holm_is_over_the_claims_that_the_run_tests(tmp_path: Path) -> None:
    """Three claims tested, one without data and two that are exact: the family is three."""
    near = (1.990, 1.994, 1.988, 1.997, 1.991)
    found = seen({"old": OLD, "new": near, "third": NEW_BETTER}, tmp_path)
    asked = [
        claim(claim_tests.better, key="a"),
        claim(claim_tests.better, key="b", methods=("third",)),
        claim(claim_tests.better, key="c", methods=("third",), against="new"),
        claim(claim_tests.better, key="d", methods=("absent",)),
        claim(lambda claim, view: evidence(counted("c", 1.0, claim_counts.GB)), key="e"),
        claim(lambda claim, view: evidence(settled("open", None, "")), key="f"),
    ]
    judged = judge(found, asked)
    alone = [judge(found, [item])[0].p_holm for item in asked[:3]]
    assert all(p is not None for p in alone)
    assert [item.p_holm for item in judged[:3]] == pytest.approx(holm([p or 0.0 for p in alone]))
    assert judged[3].p_holm is None
    assert judged[4].p_holm is None
    assert judged[4].verdict == "reproduced"
    assert (judged[5].verdict, judged[5].p_holm) == ("not distinguishable", None)


def test_more_claims_ask_for_larger_effects(tmp_path: Path) -> None:
    found = seen({"old": OLD, "new": NEW_SAME}, tmp_path)
    one = judge(found, [claim(claim_tests.better)])[0].least
    four = judge(found, [claim(claim_tests.better, key=str(i)) for i in range(4)])[0].least
    assert one is not None
    assert four is not None
    assert four > 1.3 * one


# --- loss and bytes ---------------------------------------------------------------------------


def test_better_at_no_more_state_needs_both(tmp_path: Path) -> None:
    asked = claim(claim_counts.better_at_no_more_state)
    for mine, told in ((800, "reproduced"), (1000, "reproduced"), (1001, "not reproduced")):
        each = {"new": {"state_bytes": mine}, "old": {"state_bytes": 1000}}
        item = verdict(asked, seen({"old": OLD, "new": NEW_BETTER}, tmp_path, each=each))
        assert item.verdict == told
    assert "state saved −0.1 %" in item.figures
    each = {"new": {"state_bytes": 800}, "old": {"state_bytes": 1000}}
    worse = seen({"old": OLD, "new": NEW_WORSE}, tmp_path, each=each)
    assert verdict(asked, worse).verdict == "not reproduced"
    tie = seen({"old": OLD, "new": NEW_SAME}, tmp_path, each=each)
    assert verdict(asked, tie).verdict == "not distinguishable"
    assert verdict(asked, seen({"old": OLD, "new": NEW_BETTER}, tmp_path)).verdict == (
        "not testable here"
    )


# --- seconds ----------------------------------------------------------------------------------


def timed(name: str, steps_s: Sequence[float]) -> list[TrialRecord]:
    """Timing records, a repetition each."""
    return [
        fake.record(name, phase="timing", trial=number, wall_s={"windows": [seconds] * 5})
        for number, seconds in enumerate(steps_s)
    ]


OLD_S = (0.100, 0.104, 0.098, 0.101, 0.103)


def faster(share: float, jitter: float = 0.002) -> list[float]:
    signs = (1, -1, 0.5, -0.5, 0.2)
    return [s * (1 - share) * (1 + jitter * sign) for s, sign in zip(OLD_S, signs, strict=True)]


@pytest.mark.parametrize(
    ("share", "jitter", "told"),
    [
        (0.15, 0.002, "reproduced"),
        (0.05, 0.002, "reproduced"),
        (-0.06, 0.002, "not reproduced"),
        (0.0, 0.002, "not distinguishable"),
        (0.0, 0.5, "not testable here"),
    ],
)
def test_less_time(share: float, jitter: float, told: str, tmp_path: Path) -> None:
    mine = faster(share, jitter)
    found = seen(
        {"old": OLD, "new": NEW_SAME}, tmp_path, more=[*timed("old", OLD_S), *timed("new", mine)]
    )
    item = verdict(claim(claim_tests.less_time, size=0.15), found)
    assert item.verdict == told
    assert item.part is not None
    test = reference.ttest_rel([math.log(s) for s in OLD_S], [math.log(s) for s in mine])
    assert item.p_holm == pytest.approx(test.pvalue)
    low, high = test.confidence_interval()
    assert item.part.interval == pytest.approx((low, high))
    assert item.part.unit is not None
    saved = 100 * (1 - math.exp(sum(map(math.log, mine)) / 5 - sum(map(math.log, OLD_S)) / 5))
    assert item.part.unit.scale(item.part.effect) == pytest.approx(saved)
    assert "claimed +15.0 %" in item.claimed
    gaps = [math.log(a / b) for a, b in zip(OLD_S, mine, strict=True)]
    spread = deviation(gaps)
    assert spread is not None
    assert item.least == pytest.approx(power.detectable(spread, 5, design="paired"))


def test_one_repetition_times_nothing(tmp_path: Path) -> None:
    more = [*timed("old", OLD_S), *timed("new", [0.09])]
    item = verdict(
        claim(claim_tests.less_time), seen({"old": OLD, "new": NEW_SAME}, tmp_path, more=more)
    )
    assert item.verdict == "not testable here"
    assert "fewer than two timing repetitions" in item.power


# --- steps to a loss --------------------------------------------------------------------------


def curve(rate: float, end: float = 2.0) -> list[list[float]]:
    """Loss that falls to `end` once the tokens times `rate` reach the horizon, and stays."""
    points = []
    for step in range(0, fake.STEPS + 1, 10):
        share = min(1.0, rate * step / fake.STEPS)
        points.append([step * 1024, 0.0, 5.0 - (5.0 - end) * share])
    return points


def with_curves(found: view.View, curves: Mapping[str, Sequence[list[list[float]]]]) -> view.View:
    """The same run with a curve for every study of a method."""
    records = [
        replace(r, curve=curves[r.optimizer][r.study])
        if r.phase == "final" and r.optimizer in curves
        else r
        for r in found.records
    ]
    return view.build(Run(found.path, found.manifest, tuple(records), ()))


FAST, SLOW = (2.0, 2.1, 1.95, 2.05, 2.0), (1.0, 1.02, 0.99, 1.01, 1.0)


def test_fewer_steps_in_either_direction(tmp_path: Path) -> None:
    base = seen({"old": OLD, "new": NEW_SAME}, tmp_path)
    fast, slow = [curve(r) for r in FAST], [curve(r) for r in SLOW]
    asked = claim(claim_tests.fewer_steps)
    quick = verdict(asked, with_curves(base, {"new": fast, "old": slow}))
    assert quick.verdict == "reproduced"
    assert quick.part is not None
    assert quick.part.unit is not None
    # Twice the rate: half of the steps, to within the grid of evaluations.
    assert quick.part.unit.scale(quick.part.effect) == pytest.approx(50, abs=3)
    late = verdict(asked, with_curves(base, {"new": slow, "old": fast}))
    assert late.verdict == "not reproduced"
    assert late.part is not None
    assert late.part.effect == pytest.approx(-quick.part.effect)
    mixed = [curve(r) for r in (2.0, 1.0, 0.9, 1.1, 1.0)]
    assert verdict(asked, with_curves(base, {"new": mixed, "old": slow})).verdict == (
        "not distinguishable"
    )


def test_sooner_is_steps_times_step_time(tmp_path: Path) -> None:
    curves = {"new": [curve(r) for r in FAST], "old": [curve(r) for r in SLOW]}
    asked = claim(claim_tests.sooner)
    for factor, told in ((1.0, "reproduced"), (4.0, "not reproduced")):
        mine = [factor * s for s in faster(0.0)]
        base = seen(
            {"old": OLD, "new": NEW_SAME},
            tmp_path,
            more=[*timed("old", OLD_S), *timed("new", mine)],
        )
        found = with_curves(base, curves)
        item = verdict(asked, found)
        assert item.verdict == told
        steps = verdict(claim(claim_tests.fewer_steps), found)
        pace = verdict(claim(claim_tests.less_time), found)
        assert item.part is not None
        assert steps.part is not None
        assert pace.part is not None
        assert item.part.effect == pytest.approx(steps.part.effect + pace.part.effect)
        assert item.part.interval is not None
        assert item.part.interval[0] <= item.part.effect <= item.part.interval[1]


# --- equivalence and transfer -----------------------------------------------------------------


def moved(name: str, values: Sequence[float]) -> list[TrialRecord]:
    """Finals at another run's best points, on the seeds of the finals."""
    return [
        replace(record, phase="transfer")
        for record in fake.losses(name, values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shift", "scatter", "told"),
    [
        (0.0, 0.001, "reproduced"),
        (-0.2, 0.001, "reproduced"),
        (0.1, 0.001, "not reproduced"),
        (0.0099, 0.001, "not distinguishable"),
        (0.0, 0.1, "not testable here"),
    ],
)
def test_transfer_without_retuning(shift: float, scatter: float, told: str, tmp_path: Path) -> None:
    signs = (1, -1, 0.5, -0.5, 0.2)
    values = [v + shift + scatter * s for v, s in zip(OLD, signs, strict=True)]
    found = seen({"old": OLD, "new": OLD}, tmp_path, more=moved("new", values))
    item = verdict(claim(claim_tests.transfers, against=""), found)
    assert item.verdict == told
    gaps = [own - value for own, value in zip(OLD, values, strict=True)]
    test = reference.ttest_1samp(gaps, -0.01, alternative="greater")
    assert item.p_holm == pytest.approx(min(test.pvalue, 1 - test.pvalue))


def test_points_of_the_same_protocol_tell_nothing_of_another_language(tmp_path: Path) -> None:
    found = seen({"old": OLD, "new": OLD}, tmp_path, more=moved("new", OLD))
    asked = claim(claim_tests.transfers, against="")
    for source, told in (("cpu-minutes", "not testable here"), ("en_cpu", "reproduced")):
        manifest = {**found.manifest, "transfer": {"protocol": source, "hparams": {}}}
        values = [v + 0.0001 * n for n, v in enumerate(OLD)]
        records = [
            replace(r, report_loss=values[r.study]) if r.phase == "transfer" else r
            for r in found.records
        ]
        again = view.build(Run(found.path, manifest, tuple(records), ()))
        assert verdict(asked, again).verdict == told


def test_no_transfer_is_no_data(tmp_path: Path) -> None:
    item = verdict(
        claim(claim_tests.transfers, against=""), seen({"old": OLD, "new": OLD}, tmp_path)
    )
    assert item.verdict == "no data"


def falling(first: int, last: int) -> dict[str, Any]:
    return {"series": {"state_bytes": [[0, first], [200, (first + last) // 2], [390, last]]}}


def test_falling_state(tmp_path: Path) -> None:
    asked = claim(claim_counts.state_falls, against="", size=1 - 0.37 / 0.52,
                  at=Size(name="a model"))  # fmt: skip
    for last, told in ((370, "reproduced"), (520, "not reproduced"), (600, "not reproduced")):
        found = seen({"old": OLD, "new": OLD}, tmp_path, each={"new": falling(520, last)})
        assert verdict(asked, found).verdict == told
    found = seen({"old": OLD, "new": OLD}, tmp_path, each={"new": falling(520, 370)})
    item = verdict(asked, found)
    assert item.figures == "state saved at the end +28.8 %"
    assert item.claimed == "claimed +28.8 %"
    assert verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path)).verdict == "not testable here"
    # The least fall over the finals counts.
    (first, *others) = found.records[5:]
    assert first.optimizer == "new"
    one = replace(first, **falling(520, 500))
    again = Run(found.path, found.manifest, (*found.records[:5], one, *others), ())
    assert verdict(asked, view.build(again)).figures == "state saved at the end +3.8 %"


def test_combined_needs_a_loss_that_is_no_worse_and_falling_state(tmp_path: Path) -> None:
    asked = claim(claim_counts.no_worse_while_state_falls, size=0.012)
    cases = (
        (NEW_SAME, 370, "reproduced"),
        (NEW_BETTER, 370, "reproduced"),
        (NEW_WORSE, 370, "not reproduced"),
        (NEW_SAME, 520, "not reproduced"),
        (WIDE, 370, "not testable here"),
    )
    for losses, last, told in cases:
        found = seen({"old": OLD, "new": losses}, tmp_path, each={"new": falling(520, last)})
        assert verdict(asked, found).verdict == told
    budget = {**fake.manifest()["protocol"]["budget"], "studies": 5}
    lost = seen({"old": OLD, "new": (*NEW_SAME[:4], None)}, tmp_path, budget=budget,
                each={"new": falling(520, 370)})  # fmt: skip
    assert verdict(asked, lost).verdict == "not distinguishable"
    assert "failed finals" in verdict(asked, lost).power


# --- bytes of another model -------------------------------------------------------------------


def test_figures_of_a_size_are_tested_at_that_size_only(tmp_path: Path) -> None:
    asked = claim(claim_counts.saves_at_size, size=0.9, least=0.895, at=LLAMA_1B)
    model = {**fake.manifest()["protocol"]["model"], "hidden": 2048, "layers": 24}
    for mine, told in ((98, "reproduced"), (105, "reproduced"), (320, "not reproduced")):
        each = {"new": {"state_bytes": mine}, "old": {"state_bytes": 1000}}
        here = seen({"old": OLD, "new": OLD}, tmp_path, each=each, model=model)
        assert verdict(asked, here).verdict == told
        elsewhere = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=each))
        assert elsewhere.verdict == "not testable here"
        assert "levelfield memory --published" in elsewhere.power
        assert f"shows +{100 - mine / 10:.1f} %" in elsewhere.power


def test_weights_are_added_where_the_paper_adds_them(tmp_path: Path) -> None:
    asked = claim(claim_counts.saves_at_size, size=0.5, least=0.45, at=LLAMA_1B,
                  counts=("weights", "state"))  # fmt: skip
    model = {**fake.manifest()["protocol"]["model"], "hidden": 2048, "layers": 24}
    peaks = {"peak_bytes": {"weights": 100}}
    each = {"new": {"state_bytes": 50, **peaks}, "old": {"state_bytes": 200, **peaks}}
    item = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=each, model=model))
    assert item.verdict == "reproduced"
    assert item.figures == "weights + state saved +50.0 %"


def test_freed_bytes_at_their_size(tmp_path: Path) -> None:
    asked = claim(claim_counts.frees_at_size, against="", size=5.7e9, least=5.65e9,
                  at=Size(name="7B", hidden=4096, layers=32))  # fmt: skip
    model = {**fake.manifest()["protocol"]["model"], "hidden": 4096, "layers": 32}
    big = {"new": falling(12_000_000_000, 6_000_000_000)}
    item = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=big, model=model))
    assert (item.verdict, item.figures) == ("reproduced", "freed +6.00 GB")
    less = {"new": falling(12_000_000_000, 7_000_000_000)}
    item = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=less, model=model))
    assert item.verdict == "not reproduced"
    found = seen({"old": OLD, "new": OLD}, tmp_path, each=big, model=model)
    one = replace(found.records[5], **less["new"])
    records = (*found.records[:5], one, *found.records[6:])
    again = view.build(Run(found.path, found.manifest, records, ()))
    assert verdict(asked, again).figures == "freed +5.00 GB"
    item = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=big))
    assert item.verdict == "not testable here"


@pytest.mark.parametrize(("each", "told"), [(8, "reproduced"), (4, "not reproduced")])
def test_states_of_eight_billion_parameters(each: int, told: str, tmp_path: Path) -> None:
    asked = next(item for item in CLAIMS if item.key == "adafrugal-64gb")
    fields_of = {"adamw_split": {"state_bytes": each * fake.PARAMETERS}}
    found = seen({"adamw_split": OLD, "adafrugal_rho": OLD}, tmp_path, each=fields_of)
    item = verdict(asked, found)
    assert item.verdict == told
    assert item.figures == f"state +{8 * each}.00 GB"


@pytest.mark.parametrize(("most", "told"), [(0.97, "reproduced"), (1.2, "not reproduced")])
def test_a_series_that_is_bounded(most: float, told: str, tmp_path: Path) -> None:
    asked = claim(claim_counts.bounded_series, against="", quantity="delta", size=1.0)
    each = {"new": {"series": {"delta": [[0, 0.5], [10, most], [20, 0.3]]}}}
    item = verdict(asked, seen({"old": OLD, "new": OLD}, tmp_path, each=each))
    assert (item.verdict, item.figures) == (told, f"largest delta {most:.3f}")


# --- families ---------------------------------------------------------------------------------


def test_fewer_longer_steps(tmp_path: Path) -> None:
    asked = claim(claim_families.fewer_longer_steps, methods=(), against="",
                  families=("curvature",))  # fmt: skip
    curves = {"new": [curve(r) for r in FAST], "old": [curve(r) for r in SLOW]}
    for share, told in ((-0.6, "reproduced"), (0.3, "not reproduced")):
        more = [*timed("old", OLD_S), *timed("new", faster(share))]
        base = seen({"old": OLD, "new": NEW_SAME}, tmp_path, more=more,
                    families={"new": "curvature"})  # fmt: skip
        assert verdict(asked, with_curves(base, curves)).verdict == told
    none = verdict(asked, seen({"old": OLD, "new": NEW_SAME}, tmp_path))
    assert (none.verdict, none.power) == ("no data", "no ranked curvature method")


def swept(name: str, width: float) -> list[TrialRecord]:
    """A sweep of a parabola whose basin is `width` decades, and the tuning that gives its cap."""
    bend = 0.01 / (width / 2) ** 2
    rates = [10 ** (offset / 8) for offset in range(-8, 9)]
    tune = fake.record(name, phase="tune", seed=7, selection_loss=2.0)
    return [tune] + [
        fake.record(name, phase="sweep", trial=n, seed=9, hparams={"lr": rate},
                    selection_loss=2.0 + bend * math.log10(rate) ** 2)
        for n, rate in enumerate(rates)
    ]  # fmt: skip


def test_narrower_basin(tmp_path: Path) -> None:
    asked = claim(claim_families.narrower_basin, methods=(), against="",
                  families=("sign", "adaptive"))  # fmt: skip
    names = ("s1", "s2", "s3", "a1", "a2", "old")
    families = dict.fromkeys(names[:3], "sign")
    for narrow, wide, told in ((0.3, 0.9, "reproduced"), (0.9, 0.3, "not reproduced")):
        more = [
            record
            for place, name in enumerate(names)
            for record in swept(name, (narrow if place < 3 else wide) + 0.02 * (place % 3))
        ]
        found = seen(dict.fromkeys(names, OLD), tmp_path, more=more, families=families)
        assert verdict(asked, found).verdict == told
    # Sweeps that end inside of the basin tell no width.
    wider = [r for place, n in enumerate(names) for r in swept(n, 0.3 if place < 3 else 3.0)]
    found = seen(dict.fromkeys(names, OLD), tmp_path, more=wider, families=families)
    assert "a basin that ends in its sweep" in verdict(asked, found).power
    unswept = verdict(asked, seen(dict.fromkeys(names, OLD), tmp_path, families=families))
    assert unswept.verdict == "no data"


def rough(name: str, shares: Sequence[int]) -> list[TrialRecord]:
    """Ten tuning trials a study, so many of which diverged."""
    return [
        fake.record(name, phase="tune", trial=100 * study + n, study=study, seed=7,
                    status="diverged" if n < bad else "ok", selection_loss=2.0)
        for study, bad in enumerate(shares)
        for n in range(10)
    ]  # fmt: skip


def test_steadier(tmp_path: Path) -> None:
    asked = claim(claim_families.steadier, methods=(), against="", families=("matrix",))
    many, few = (5, 6, 5, 4, 5), (1, 0, 1, 2, 1)
    for mine, theirs, told in (
        (few, many, "reproduced"), (many, few, "not reproduced"),
        (many, (5, 5, 4, 6, 5), "not distinguishable"), ((0,) * 5, (0,) * 5, "not testable here"),
    ):  # fmt: skip
        more = [*rough("new", mine), *rough("old", theirs)]
        found = seen({"old": OLD, "new": OLD}, tmp_path, more=more, families={"new": "matrix"})
        assert verdict(asked, found).verdict == told


def test_no_single_winner(tmp_path: Path) -> None:
    asked = claim(claim_families.no_single_winner, methods=(), against="", families=("all",))
    third = tuple(v + 0.3 for v in OLD)
    losses = {"old": OLD, "new": NEW_BETTER, "third": third}

    def told(new: int, new_s: float, losses: Mapping[str, Sequence[float | None]] = losses) -> str:
        each = {
            "new": {"state_bytes": new},
            "old": {"state_bytes": 50},
            "third": {"state_bytes": 90},
        }
        more = [
            *timed("old", OLD_S), *timed("third", OLD_S), *timed("new", [new_s * s for s in OLD_S]),
        ]  # fmt: skip
        return verdict(asked, seen(losses, tmp_path, each=each, more=more)).verdict

    assert told(10, 0.5) == "not reproduced"
    assert told(100, 0.5) == "reproduced"
    assert told(10, 3.0) == "reproduced"
    assert told(10, 0.5, {**losses, "new": NEW_SAME}) == "not distinguishable"


# --- adapters ---------------------------------------------------------------------------------


@NEEDS_ADAPTER
@pytest.mark.parametrize(
    ("losses", "mine", "told"),
    [
        (NEW_SAME, 693, "reproduced"),
        (NEW_SAME, 950, "not reproduced"),
        (NEW_SAME, 1200, "not reproduced"),
        (NEW_WORSE, 693, "not reproduced"),
        (NEW_BETTER, 693, "not reproduced"),
        (WIDE, 693, "not testable here"),
    ],
)
def test_fewer_parameters_at_an_equal_score(
    losses: Sequence[float], mine: int, told: str, tmp_path: Path
) -> None:
    asked = claim(claim_counts.fewer_parameters_at_equal_score, size=0.307, least=0.159)
    each = {
        "new": {"adapter": {"deployed_parameters": mine}},
        "old": {"adapter": {"deployed_parameters": 1000}},
    }
    found = seen({"old": OLD, "new": losses}, tmp_path, each=each)
    item = verdict(asked, found)
    assert item.verdict == told
    low = reference.ttest_ind([v + 0.01 for v in OLD], losses, equal_var=False,
                              alternative="greater").pvalue  # fmt: skip
    high = reference.ttest_ind([v - 0.01 for v in OLD], losses, equal_var=False,
                               alternative="less").pvalue  # fmt: skip
    finding = claims_table.look(asked, found)
    assert isinstance(finding, Evidence)
    assert finding.parts[0].p_for == pytest.approx(max(low, high), abs=1e-12)


def ranks(last: int, forward: int) -> dict[str, Any]:
    return {
        f"encoder.layer.{layer}.{module}": 1 + (last if layer > 1 else 0)
        + (forward if "attention" not in module else 0)
        for layer in range(4)
        for module in ("attention.self.query_proj", "attention.output.dense",
                       "intermediate.dense", "output.dense")
    }  # fmt: skip


def test_where_ranks_lie() -> None:
    assert gathered(ranks(2, 1)) == pytest.approx((2.0, 1.0))
    names = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj",
             "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj")  # fmt: skip
    assert gathered(dict(zip(names, (1, 2, 3, 4), strict=True))) == pytest.approx((2.0, 1.0))
    assert gathered({"model.layers.0.mlp.up_proj": 1}) is None
    assert gathered({"weight": 1}) is None


@NEEDS_ADAPTER
@pytest.mark.parametrize(
    ("last", "forward", "told"),
    [
        (2, 1, "reproduced"), (-2, 1, "not reproduced"), (2, -1, "not reproduced"),
        (0, 1, "not distinguishable"),
    ],
)  # fmt: skip
def test_ranks_gather(last: int, forward: int, told: str, tmp_path: Path) -> None:
    asked = claim(claim_counts.ranks_gather, against="", direction="higher")
    found = seen({"old": OLD, "new": OLD}, tmp_path)
    jitter = (0.01, -0.01, 0.02, -0.02, 0.0)
    records = []
    for record in found.records:
        more = jitter[record.study]
        at = {name: rank + (more if ".3." in name and "intermediate" in name else 0)
              for name, rank in ranks(last, forward).items()}  # fmt: skip
        records.append(replace(record, adapter={"ranks": at}))  # type: ignore[call-arg,unused-ignore]
    again = view.build(Run(found.path, found.manifest, tuple(records), ()))
    assert verdict(asked, again).verdict == told


# --- parts and the page -----------------------------------------------------------------------


def part(p_for: float, p_against: float) -> Part:
    return Part(words="w", effect=0.0, interval=None, unit=None, size=None, p_for=p_for,
                p_against=p_against, power=lambda alpha: Power(None, ""))  # fmt: skip


def test_all_parts_hold_or_one_is_the_other_way_round() -> None:
    both = Evidence(parts=(part(0.01, 1.0), part(0.2, 1.0)))
    assert (both.p_for, both.p_against, both.p) == (0.2, 1.0, 0.2)
    one = Evidence(parts=(part(0.01, 1.0), part(1.0, 0.02)))
    assert (one.p_for, one.p_against, one.p) == (1.0, 0.04, 0.04)


def test_the_section_shows_what_touches_the_run_and_names_the_rest(tmp_path: Path) -> None:
    names = ("adamw_split", "foam", "foam(residual=false)", "frugal")
    losses = dict(zip(names, (OLD, NEW_BETTER, NEW_WORSE, NEW_SAME), strict=True))
    found = seen(losses, tmp_path, claims="adamw_split", reference="adamw_split")
    block = SECTION.render(found)
    table, silent = block.tables
    rows = plain_rows(table.frame)
    told = {row["key"]: row["verdict"] for row in rows}
    assert "no data" not in told.values()
    assert told["foam-residual"] == "reproduced"
    assert len(table.rows) == len(told)
    words = " ".join(p.text for p in block.parts if hasattr(p, "text"))
    rest = {row["key"]: row for row in plain_rows(silent.frame)}
    assert set(told) | set(rest) == {item.key for item in CLAIMS}
    assert rest["adafrugal-time"]["because"] == "no adafrugal_t"
    assert silent.folded
    assert "1 reproduced" in words
    verdicts = [row[2].text.replace("\N{NO-BREAK SPACE}", " ") for row in table.rows]
    assert verdicts[0] == "reproduced"
    assert verdicts == sorted(verdicts, key=claims_table.VERDICTS.index)
    assert "color:var(--s2)" in table.rows[0][2].html
    residual = next(row for row in rows if row["key"] == "foam-residual")
    assert residual["effect"] == pytest.approx(0.2004, abs=1e-3)
    assert residual["unit"] == "nats"


def test_a_protocol_that_ranks_nothing_tests_no_claim(tmp_path: Path) -> None:
    block = SECTION.render(seen({"old": OLD, "foam": NEW_BETTER}, tmp_path, ranked=False))
    assert block.tables == ()
    assert "tests no claim of a paper" in block.parts[0].text


def test_absent_findings_have_reasons(tmp_path: Path) -> None:
    found = seen({"old": OLD}, tmp_path)
    for item in CLAIMS:
        finding = claims_table.look(item, found)
        assert isinstance(finding, Absent)
        assert finding.reason


def test_what_no_run_times_is_not_testable(tmp_path: Path) -> None:
    found = seen({"adapad": OLD, "old": OLD}, tmp_path)
    told = {item.claim.key: item for item in judge(found)}
    for key in ("adapad-devices", "adapad-synchronisation"):
        assert told[key].verdict == "not testable here"
        assert told[key].power == "runs time one device"


# --- the page of all claims -------------------------------------------------------------------


def written(path: Path, *runs: Path) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "scripts" / "claims.py"
    command = [sys.executable, str(script), *map(str, runs), "--out", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_page_counts_published_sizes_by_the_planner(tmp_path: Path) -> None:
    told = written(tmp_path / "claims.md")
    assert told.returncode == 0, told.stderr
    lines = (tmp_path / "claims.md").read_text().splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line[:2] == "| "}
    assert len(rows) == len(CLAIMS) + 2
    # FOAM-Mini holds 0.98 GiB of AdamW's 9.98 at 1.3B; level 2: 3.23. At 7B 21.0 GB of 40.4.
    for words, told_of, figure in (
        ("with one fold a row", "| reproduced", 100 * (1 - 0.98 / 9.98)),
        ("at level 2", "| not reproduced", 100 * (1 - 3.23 / 9.98)),
        ("half of the memory", "| reproduced", 100 * (1 - 21.00 / 40.43)),
        ("0.52 to 0.37", "| reproduced", 100 * (1 - (0.366 + 0.01 / 0.25 * 0.1583) / 0.525)),
        ("5.7 GB at 7B", "| reproduced", 2 * 2 * 0.24 * 6_476_005_376 / 1e9),
    ):
        (line,) = [row for start, row in rows.items() if words in start]
        assert told_of in line
        found = re.search(r"\+([0-9.]+) (?:%|GB)", line)
        assert found is not None
        assert float(found[1]) == pytest.approx(figure, abs=0.12)
    (line,) = [row for start, row in rows.items() if "Needs its residual" in start]
    assert "| no data" in line
    assert "ablations.md#loss" in line


def test_the_page_takes_no_run_of_another_engine(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    manifest = {**fake.manifest(), "engine_version": 0}
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "records.jsonl").write_text("")
    told = written(tmp_path / "claims.md", run)
    assert told.returncode == 1
    assert "engine version 0" in told.stderr
    assert "Traceback" not in told.stderr
