"""The page: its numbers, its rules of ranking, and that it is one honest, offline file."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import t as student

from levelfield.bench.spec import Section, TrialRecord
from levelfield.bench.store import Run
from levelfield.reports import curves, facts, ledger, measure, page, staircase, tables, view
from levelfield.reports.blocks import plain_rows, reasons
from levelfield.reports.headline import headline, subline
from levelfield.tests import report_records as fake

VOID = {"meta", "br", "link", "img", "hr", "input"}
HOSTILE = "<script>alert(1)</script>$x^2$ & \"q\" 'a' --> \x00\x1b {{ 7*7 }}"


class Page(HTMLParser):
    """Checks nesting, collects ids, resources and text."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.loads += [str(values[name]) for name in ("src", "xlink:href") if values.get(name)]
        if tag in ("link", "use", "image") and values.get("href"):
            self.loads.append(str(values["href"]))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def read(html: str) -> Page:
    parser = Page()
    parser.feed(html)
    parser.close()
    assert parser.stack == []
    return parser


def pick(run: Run, names: Sequence[str], records: Sequence[TrialRecord]) -> Run:
    """The run with these methods and records only."""
    methods = [m for m in run.manifest["methods"] if m["name"] in names]
    return replace(run, manifest={**run.manifest, "methods": methods}, records=tuple(records))


def finals_only(losses: Mapping[str, Sequence[float | None]], path: Path, **changes: Any) -> Run:
    """A run of made-up final losses."""
    methods = [
        {"name": name, "digest": f"{i:064x}", "origin": f"{name}.py", "spec": {}}
        for i, name in enumerate(losses)
    ]
    records = [
        record
        for i, (name, values) in enumerate(losses.items())
        for record in fake.losses(name, values, f"{i:064x}")
    ]
    return Run(path, fake.manifest(methods=methods, **changes), tuple(records), ())


def row(frame: pd.DataFrame, name: str) -> dict[str, Any]:
    return next(row for row in plain_rows(frame) if row["method"] == name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page.write(fake.run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> view.View:
    return view.build(fake.run(tmp_path_factory.mktemp("view")))


# --- numbers ----------------------------------------------------------------------------------


def test_leaderboard_by_hand(tmp_path: Path) -> None:
    seen = view.build(
        finals_only(
            {"adamw": [2.0, 2.02, 2.04, 2.01, 2.03], "muon": [1.9, 1.92, 1.95, 1.91, 1.93]},
            tmp_path,
        )
    )
    frame = tables.leaderboard(seen)
    muon, adamw = row(frame, "muon"), row(frame, "adamw")
    assert (muon["place"], adamw["place"]) == (1, 2)
    assert muon["report_loss_median_nats"] == pytest.approx(1.92)
    assert muon["report_loss_mean_nats"] == pytest.approx(1.922)
    half = 2.7764451 * math.sqrt(0.00037) / math.sqrt(5)
    assert muon["interval_high_nats"] - 1.922 == pytest.approx(half)
    assert muon["difference_to_baseline_nats"] == pytest.approx(-0.098)
    # Welch over five studies each, variances 0.00037 and 0.00025.
    parts = [0.00037 / 5, 0.00025 / 5]
    df = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
    reach = float(student.ppf(0.975, df)) * math.sqrt(sum(parts))
    assert muon["difference_high_nats"] - -0.098 == pytest.approx(reach, rel=1e-6)
    assert [m.name for m in seen.methods] == ["muon", "adamw"]
    assert headline(seen).startswith("muon leads adamw by 0.098 (0.072 to 0.124) nats a token")


def test_methods_that_cannot_be_told_apart_share_a_place(tmp_path: Path) -> None:
    run = finals_only({"adamw": [2.0, 2.1, 2.2], "lion": [2.01, 2.09, 2.21]}, tmp_path)
    seen = view.build(run)
    assert [method.rank for method in seen.methods] == [1, 1]
    assert headline(seen) == "lion and adamw cannot be told apart."
    assert "lion cannot be told apart from adamw" in subline(seen)


def test_a_failed_seed_counts_as_worse_than_any_number(tmp_path: Path) -> None:
    run = finals_only({"adamw": [2.0, 2.1, 2.2], "sgd": [1.9, None, 2.3]}, tmp_path)
    seen = view.build(run)
    sgd = seen.method("sgd")
    assert sgd is not None
    assert sgd.median == 2.3
    assert [method.name for method in seen.methods] == ["adamw", "sgd"]
    assert row(tables.leaderboard(seen), "sgd")["failures"] == "1 diverged of 3 finals"


def test_one_seed_has_no_interval_and_no_place(tmp_path: Path) -> None:
    seen = view.build(finals_only({"adamw": [2.0, 2.1], "muon": [1.0, None]}, tmp_path))
    muon = row(tables.leaderboard(seen), "muon")
    assert muon["place"] is None
    assert muon["interval_low_nats"] is None
    assert "1 good of 2 final seeds" in reasons(muon)["place"]


def test_two_studies_are_no_place(tmp_path: Path) -> None:
    seen = view.build(finals_only({"adamw": [2.0, 2.1], "muon": [1.0, 1.1]}, tmp_path))
    assert [method.rank for method in seen.methods] == [None, None]
    assert "2 of the 3 tuning studies" in str(seen.methods[0].unranked)
    assert headline(seen).startswith("No method can be ranked")


def test_seeds_of_one_study_never_rank(tmp_path: Path) -> None:
    run = finals_only({"adamw": [2.0, 2.01, 2.02], "muon": [1.0, 1.01, 1.02]}, tmp_path)
    one = replace(run, records=tuple(replace(r, study=0) for r in run.records))
    seen = view.build(one)
    assert [method.rank for method in seen.methods] == [None, None]
    assert seen.methods[0].interval is not None
    assert "at these hyper-parameters" in str(seen.methods[0].unranked)
    assert "At these hyper-parameters" in page.write(one).read_text()


def test_a_censored_method_is_not_claimed_against(tmp_path: Path) -> None:
    losses = {"adamw": [2.0, 2.01, 2.02], "muon": [1.0, 1.01, 1.02]}
    facts_of = {"adamw#0": {"best_trial": 0, "edges": {"lr": "high"}}}
    plain = fake.manifest()["protocol"]
    protocol = {**plain, "tuner": {**plain["tuner"], "reserve": 2}}
    run = finals_only(losses, tmp_path, studies=facts_of, protocol=protocol)
    seen = view.build(run)
    assert [method.rank for method in seen.methods] == [1, 1]
    assert "censored" in tables.pairs(seen)["because"][0]
    free = view.build(replace(run, manifest={**run.manifest, "studies": {}}))
    assert [method.rank for method in free.methods] == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_never_best(tmp_path: Path, value: float) -> None:
    seen = view.build(finals_only({"adamw": [2.0, 2.1], "muon": [value, value]}, tmp_path))
    assert [method.name for method in seen.methods] == ["adamw", "muon"]
    assert seen.methods[1].rank is None
    assert row(tables.leaderboard(seen), "muon")["report_loss_median_nats"] is None
    page.write(finals_only({"adamw": [2.0, 2.1], "muon": [value, value]}, tmp_path))


def test_tuning_gain_and_edges(whole: view.View) -> None:
    frame = facts.tuning(whole)
    muon, lion = row(frame, "muon"), row(frame, "adalomo")
    gain = muon["default_selection_loss_nats"] - muon["best_selection_loss_nats"]
    assert muon["tuning_gain_nats"] == pytest.approx(gain)
    assert muon["at_edge"] == ""
    assert "highest value tried" in lion["at_edge"]


def test_a_best_value_next_to_divergence_is_told_from_an_edge(tmp_path: Path) -> None:
    trials = [
        fake.record("adamw", phase="tune", trial=n, seed=7, selection_loss=loss, status=status,
                    hparams={"lr": lr}, tuned=("lr",))
        for n, (lr, loss, status) in enumerate(
            [(0.1, 3.0, "ok"), (0.3, 2.0, "ok"), (1.0, 1.0, "diverged")]
        )
    ]  # fmt: skip
    run = pick(fake.run(tmp_path, {}), [], trials)
    adamw = view.build(replace(run, manifest={})).methods[0]
    assert measure.edges(adamw) == {"lr": "the highest value that ran well; beyond it: diverged"}
    assert adamw.best is trials[1]


def test_time_comes_from_timing_records_and_is_paired(tmp_path: Path) -> None:
    def timing(name: str, number: int, seconds: float, digest: str) -> TrialRecord:
        return fake.record(
            name, digest, phase="timing", trial=number, wall_s={"windows": [seconds] * 5}
        )

    run = finals_only({"adamw": [2.0, 2.1], "muon": [1.9, 2.0]}, tmp_path)
    clocks = [timing("adamw", n, s, f"{0:064x}") for n, s in enumerate([1.0, 2.0, 4.0])]
    clocks += [timing("muon", n, s, f"{1:064x}") for n, s in enumerate([1.5, 3.0, 6.0])]
    seen = view.build(replace(run, records=run.records + tuple(clocks)))
    muon = row(facts.time(seen), "muon")
    assert (muon["step_s"], muon["step_time_ratio"]) == (3.0, 1.5)
    bare = row(facts.time(view.build(run)), "muon")
    assert bare["step_s"] is None
    assert reasons(bare)["step_s"] == "no timing records"


def test_energy_comes_from_timing_records_or_is_blank(tmp_path: Path) -> None:
    def timing(number: int, **fields: Any) -> TrialRecord:
        step = {"windows": [0.5], "step": 2.0}
        digest = f"{1:064x}"
        return fake.record("muon", digest, phase="timing", trial=number, wall_s=step, **fields)

    run = finals_only({"adamw": [2.0, 2.1], "muon": [1.9, 2.0]}, tmp_path)
    powered = [timing(n, tokens_per_s=500.0, joules=j) for n, j in enumerate([400.0, 200.0, 100.0])]
    seen = view.build(replace(run, records=(*run.records, *powered)))
    muon = row(facts.time(seen), "muon")
    assert muon["tokens_per_joule"] == pytest.approx(5.0)
    assert "tokens/J" in page.write(replace(run, records=(*run.records, *powered))).read_text()
    cpu = [timing(0, tokens_per_s=500.0, missing={"joules": "no NVIDIA device"})]
    seen = view.build(replace(run, records=(*run.records, *cpu)))
    muon, adamw = row(facts.time(seen), "muon"), row(facts.time(seen), "adamw")
    assert (muon["tokens_per_joule"], adamw["tokens_per_joule"]) == (None, None)
    assert reasons(muon)["tokens_per_joule"] == "no NVIDIA device"
    assert reasons(adamw)["tokens_per_joule"] == "no timing records"
    assert "tokens/J" not in page.write(replace(run, records=(*run.records, *cpu))).read_text()


def test_pareto_needs_separate_intervals(tmp_path: Path) -> None:
    sizes = {"adamw": 100, "muon": 100, "lion": 50}

    def dominated(losses: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
        run = finals_only(losses, tmp_path)
        sized = tuple(replace(r, peak_bytes={"total": sizes[r.optimizer]}) for r in run.records)
        return measure.dominated_by(view.build(replace(run, records=sized)))

    # Three studies far apart make wide intervals: nothing dominates anything.
    wide = {"adamw": [1.0, 2.0, 3.0], "muon": [0.9, 1.9, 2.9], "lion": [2.0, 3.0, 4.0]}
    assert dominated(wide) == {"adamw": [], "muon": [], "lion": []}
    tight = {"adamw": [2.0, 2.001, 2.002], "muon": [1.0, 1.001, 1.002], "lion": [2.0, 2.0, 2.1]}
    assert dominated(tight) == {"muon": [], "adamw": ["muon"], "lion": []}


def test_a_mechanism_that_hardly_fired_is_not_ranked(whole: view.View) -> None:
    galore = whole.method("galore")
    assert galore is not None
    assert galore.rank is None
    assert str(galore.unranked).startswith("not exercised: 2 of at least 5")


def test_unequal_tuning_is_not_ranked(tmp_path: Path) -> None:
    run = fake.run(tmp_path, {name: fake.FAKES[name] for name in ("adamw", "muon")})
    short = [r for r in run.records if (r.phase, r.optimizer, r.trial) != ("tune", "muon", 7)]
    muon = view.build(replace(run, records=tuple(short))).method("muon")
    assert muon is not None
    assert muon.unranked == "tuned with 7 trials where another method had 8"


def test_a_method_with_failed_finals_is_not_claimed_better(tmp_path: Path) -> None:
    records = [
        replace(record, study=study, trial=100 * study + number, seed=100 * study + number)
        for study in range(3)
        for number, record in enumerate(
            fake.losses("lion", [1.0 + 0.01 * study, None, None], f"{1:064x}")
        )
    ]
    run = finals_only({"adamw": [2.0, 2.01, 2.02], "lion": []}, tmp_path)
    seen = view.build(replace(run, records=run.records + tuple(records)))
    assert [method.rank for method in seen.contenders] == [1, 1]
    assert "failed finals" in tables.pairs(seen)["because"][0]


def test_floor_of_the_data(tmp_path: Path) -> None:
    run = finals_only({"adamw": [2.0, 2.1, 2.2]}, tmp_path)
    manifest = {**run.manifest, "data": {"digest": "d" * 64, "floor_loss_nats": 1.5}}
    frame = tables.leaderboard(view.build(replace(run, manifest=manifest)))
    assert row(frame, "adamw")["loss_minus_floor_nats"] == pytest.approx(0.6)


def test_every_hyperparameter_is_listed(whole: view.View) -> None:
    frame = facts.hyperparameters(whole)
    adamw = frame[frame["method"] == "adamw"].set_index("name")["kind"].to_dict()
    assert adamw == {
        "lr": "tuned",
        "embed_multiplier": "tuned",
        "weight_decay": "fixed",
        "eps": "fixed",
    }


# --- state over the steps ---------------------------------------------------------------------


def stairs_run(path: Path, **held: Sequence[float]) -> Run:
    """galore's state falls, muon's is told and stays, adamw tells none."""
    run = fake.run(path, {name: fake.FAKES[name] for name in ("adamw", "muon", "galore")})
    records = []
    for record in run.records:
        if record.phase == "final" and record.optimizer == "galore":
            series = fake.shrinking(4 * 100_000, 0.05, record.seed, **held)
            record = replace(record, series=series)
        elif record.phase == "final" and record.optimizer == "muon":
            record = replace(record, series={"state_bytes": [[0, 90_000], [200, 90_000]]})
        records.append(record)
    return replace(run, records=tuple(records))


def test_state_over_the_steps_by_hand() -> None:
    stair = staircase.Stair(((0, 100), (10, 60), (30, 20)), 40)
    assert stair.mean == (10 * 100 + 20 * 60 + 10 * 20) / 40
    assert staircase.Stair(((0, 7),), 4).mean == 7
    assert staircase.Stair(((4, 7),), 4).mean is None


def test_a_state_that_shrinks_is_shown_with_its_reference(tmp_path: Path) -> None:
    run = stairs_run(tmp_path)
    seen = view.build(run)
    assert sorted(method.name for method in staircase.shown(seen)) == ["galore", "muon"]
    reference = staircase.reference(seen)
    assert reference is not None
    assert (reference[0].name, reference[1]) == ("adamw", 8 * fake.PARAMETERS)
    galore, muon = (row(staircase.table(seen), name) for name in ("galore", "muon"))
    assert (galore["first_bytes"], galore["largest_bytes"]) == (100_000, 100_000)
    assert galore["last_bytes"] == 20_000
    runs = staircase.stairs(seen.method("galore") or seen.methods[0], "state_bytes")
    assert len(runs) == galore["finals"] == 5
    assert len({run.points[1][0] for run in runs}) == 3
    means = sorted(run.mean or 0 for run in runs)
    assert galore["mean_bytes"] == means[2]
    assert 20_000 < means[2] < 100_000
    assert galore["mean_share_of_reference"] == means[2] / reference[1]
    assert muon["mean_bytes"] == muon["last_bytes"] == 90_000
    text = read(page.write(run).read_text()).text
    assert "The tracked state only: a CPU has no caching allocator" in text
    assert "Thin: adamw" in text
    svg = (tmp_path / "figures" / "memory_time.svg").read_text()
    words = [element.text for element in ET.fromstring(svg).iter() if element.text]
    assert {"galore", "muon", "adamw", "rho", "state, KiB"} <= set(words)
    assert not any("allocated" in word for word in words if "," in word and "KiB" in word)
    # A line a seed, the first one in full.
    assert svg.count("opacity: 0.4") >= 4


def test_what_a_device_held_has_panels_of_its_own(tmp_path: Path) -> None:
    held = [5_000_000.0, 4_000_000.0, 3_900_000.0, 3_800_000.0, 3_700_000.0, 3_600_000.0]
    run = stairs_run(
        tmp_path,
        allocated_bytes=held,
        reserved_bytes=[8_000_000.0] * 6,
        alloc_retries=[0, 0, 1, 1, 2, 2],
    )
    text = read(page.write(run).read_text()).text
    assert "Allocated and reserved: what torch's allocator held between two steps" in text
    assert "a CPU has no caching allocator to say" not in text
    assert "tried again 10 times for galore." in text
    svg = (tmp_path / "figures" / "memory_time.svg").read_text()
    words = {element.text for element in ET.fromstring(svg).iter() if element.text}
    assert {"allocated, MiB", "reserved, MiB", "state, KiB", "rho"} <= words


def test_states_that_never_change_are_not_drawn_over_the_steps(tmp_path: Path) -> None:
    run = fake.run(tmp_path)
    steady = tuple(replace(r, series={"state_bytes": [[0, 5], [9, 5]]}) for r in run.records)
    for same in (run, replace(run, records=steady)):
        assert staircase.shown(view.build(same)) == []
        assert 'id="memory_time"' not in page.write(same).read_text()


def test_a_reference_with_a_staircase_of_its_own_is_drawn_once(tmp_path: Path) -> None:
    run = stairs_run(tmp_path)
    protocol = {**run.manifest["protocol"], "reference": "galore"}
    seen = view.build(replace(run, manifest={**run.manifest, "protocol": protocol}))
    assert staircase.reference(seen) is None
    why = reasons(row(staircase.table(seen), "muon"))
    assert why["mean_share_of_reference"] == "the reference's state is not known"
    assert staircase.draw(seen, "x", "t", "d")


def test_points_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    run = stairs_run(tmp_path)
    odd = [[0, math.nan], [1, 5.0, 6.0], [], [3, 8.0], [2, 9.0]]
    records = tuple(replace(r, series={"state_bytes": odd}) for r in run.records)
    seen = view.build(replace(run, records=records))
    method = seen.method("galore")
    assert method is not None
    assert staircase.stairs(method, "state_bytes")[0].points == ((2.0, 9.0), (3.0, 8.0))
    assert staircase.draw(seen, "x", "t", "d")


# --- who takes part ---------------------------------------------------------------------------


def test_every_excluded_record_is_listed_with_its_reason(tmp_path: Path) -> None:
    run = fake.run(tmp_path, {name: fake.FAKES[name] for name in ("adamw", "muon")})
    first = run.records[0]
    extra = (
        fake.stale(first),
        replace(first, protocol_digest="x" * 64),
        replace(first, data_digest="y" * 64),
        first,
        fake.record("ghost"),
    )
    changed = replace(run, records=run.records + extra)
    seen = view.build(changed)
    listed = ledger.excluded(seen)
    assert len(listed) == len(extra)
    for words in ("method's source", "the protocol has", "the data has", "superseded", "not in"):
        assert listed["reason"].str.contains(words).sum() == 1
    assert [m.rank for m in seen.methods] == [m.rank for m in view.build(run).methods]
    text = read(page.write(changed).read_text()).text
    assert all(item.reason in text for item in seen.excluded)


def test_every_failure_is_listed_with_its_reason(written: Path, whole: view.View) -> None:
    text = read(written.read_text()).text
    failures = ledger.failures(whole)
    assert len(failures) > 5
    assert all(reason in text for reason in failures["reason"])


def test_a_protocol_that_ranks_nothing(tmp_path: Path) -> None:
    protocol = {**fake.manifest()["protocol"], "ranked": False, "name": "smoke"}
    run = fake.run(tmp_path, {n: fake.FAKES[n] for n in ("adamw", "muon")}, protocol=protocol)
    seen = view.build(run)
    assert all(method.rank is None for method in seen.methods)
    assert seen.pairs == ()
    html = page.write(run).read_text()
    text = read(html).text
    assert "bout a hundred steps measure the start of training, where stateless methods" in text
    assert not re.search(r"<th[^>]*>place</th>", html)
    assert "leads" not in headline(seen)


# --- runs that are empty, broken or old -------------------------------------------------------


@pytest.mark.parametrize("manifest", [{}, fake.manifest(), {"methods": []}, {"protocol": None}])
def test_a_run_without_records(tmp_path: Path, manifest: dict[str, Any]) -> None:
    text = read(page.write(Run(tmp_path, manifest, (), ("torn",))).read_text()).text
    assert "No trial has been recorded yet." in text
    assert "torn" in text


@pytest.mark.parametrize("key", sorted(fake.manifest()))
def test_an_older_manifest_without_a_key(tmp_path: Path, key: str) -> None:
    run = fake.run(tmp_path, {n: fake.FAKES[n] for n in ("adamw", "galore")})
    manifest = {k: v for k, v in run.manifest.items() if k != key}
    view_of = view.build(replace(run, manifest=manifest))
    html = page.render(view_of, page.render_all(view_of, page.sections()))
    assert "adamw" in read(html).text


@pytest.mark.parametrize("status", ["error", "oom", "diverged", "timeout", "unsupported"])
def test_a_study_where_all_failed(tmp_path: Path, status: str) -> None:
    run = fake.run(tmp_path, {"prodigy": replace(fake.FAKES["prodigy"], broken=status)})
    html = page.write(run).read_text()
    assert f"no good tuning trial ({status})" in read(html).text
    assert "nan" not in re.sub(r"<style.*?</style>", "", html, flags=re.S).lower().split()


# --- the file ---------------------------------------------------------------------------------


def test_the_page_is_one_offline_file(written: Path) -> None:
    html = written.read_text()
    parsed = read(html)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert all(load.startswith("#") for load in parsed.loads)
    assert not parsed.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', html))
    assert used <= set(parsed.ids)


def test_hostile_names_are_escaped_everywhere(tmp_path: Path) -> None:
    evil = {"adamw": fake.FAKES["adamw"], HOSTILE: fake.FAKES["muon"],
            "prodigy": replace(fake.FAKES["prodigy"])}  # fmt: skip
    protocol = {**fake.manifest()["protocol"], "name": HOSTILE, "note": HOSTILE}
    run = fake.run(tmp_path, evil, protocol=protocol, warnings=[HOSTILE], command=[HOSTILE])
    records = tuple(replace(r, reason=r.reason and HOSTILE) for r in run.records)
    methods = [{**m, "spec": {**m["spec"], "paper": "javascript:alert(1)", "family": HOSTILE}}
               for m in run.manifest["methods"]]  # fmt: skip
    run = replace(run, records=records, manifest={**run.manifest, "methods": methods})
    html = page.write(run).read_text()
    parsed = read(html)
    assert "script" not in parsed.tags
    assert "javascript:" not in html
    assert "\x00" not in html
    assert "<script>alert(1)</script>$x^2$" in parsed.text
    for svg in (tmp_path / "figures").glob("*.svg"):
        ET.parse(svg)


def test_csvs_equal_the_tables(written: Path, whole: view.View) -> None:
    rendered = page.render_all(whole, page.sections())
    shown = {t.name: t for item in rendered for t in item.block.tables}
    files = {path.stem: path for path in (written.parent / "tables").glob("*.csv")}
    assert set(files) == set(shown)
    for name, path in files.items():
        stored = pd.read_csv(path, dtype=str, keep_default_na=False)
        assert list(stored.columns) == list(shown[name].frame.columns)
        assert len(stored) == len(shown[name].rows)
        for mine, theirs in zip(plain_rows(stored), plain_rows(shown[name].frame), strict=True):
            for key, value in theirs.items():
                if isinstance(value, float):
                    assert float(mine[key]) == value
                else:
                    assert mine[key] == ("" if value is None else str(value))


def test_an_empty_cell_has_a_reason(whole: view.View) -> None:
    for item in page.render_all(whole, page.sections()):
        for table in item.block.tables:
            for record in plain_rows(table.frame):
                empty = {k for k, v in record.items() if v is None} - {"missing"}
                assert empty == set(reasons(record)), (table.name, record)


def test_two_pages_are_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = page.write(fake.run(tmp_path))
    files = [path for path in sorted(again.parent.rglob("*")) if path.is_file()]
    assert len(files) > 15
    for path in files:
        other = written.parent / path.relative_to(again.parent)
        assert path.read_bytes() == other.read_bytes(), path.name


def test_every_figure_says_what_is_seen(written: Path) -> None:
    for path in (written.parent / "figures").glob("*.svg"):
        root = ET.parse(path).getroot()
        names = [child.tag.rsplit("}", 1)[-1] for child in root]
        assert {"title", "desc"} <= set(names)
        assert path.read_text().count("http") == 2  # the two namespaces


def test_sections_are_found_in_order() -> None:
    orders = [section.order for section in page.sections()]
    assert len(orders) >= 9
    assert orders == sorted(orders)


def test_no_section_is_broken_or_fails(written: Path) -> None:
    assert page.left_out() == []
    assert "This section failed" not in written.read_text()


def test_a_section_that_raises_costs_only_itself(whole: view.View) -> None:
    def fails(_: view.View) -> None:
        raise ValueError("<b>no</b>")

    bad = Section(name="bad", title="Bad", order=1, summary="raises", render=fails)
    rendered = page.render_all(whole, [bad, *page.sections()])
    html = page.render(whole, rendered)
    assert "This section failed: ValueError: <b>no</b>" in read(html).text
    assert "table-leaderboard" in html


def test_labels_are_moved_apart_and_keep_their_order() -> None:
    placed = curves.spread_labels([0.5, 0.5, 0.52, 0.9], 0.1, 0.0, 1.0)
    assert placed[3] == 0.9
    gaps = [b - a for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False)]
    assert min(gaps) >= 0.1 - 1e-12
    assert placed[0] < placed[1] < placed[2]
