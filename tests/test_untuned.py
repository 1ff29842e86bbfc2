"""A page of what was not tuned does not speak of tuning, and no page of what it does not have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from levelfield.bench.store import Run
from levelfield.reports import family, page, tables, units
from levelfield.reports import view as views
from levelfield.reports.blocks import Block, Prose
from levelfield.reports.sections import provenance
from levelfield.tests import report_records as fake

NAMES = ("adamw", "lion")
SPEAKS = re.compile(r"\b(tuned|tuning|bracket|basin|edge)\b", re.IGNORECASE)


def run(path: Path, trials: int, **task: str) -> Run:
    """Made-up finals, and as many tuning trials a method."""
    fakes = {name: fake.FAKES[name] for name in NAMES}
    protocol = fake.manifest()["protocol"]
    protocol = {
        **protocol,
        "ranked": False,
        "note": "made up",
        "task": {**protocol["task"], **task},
        "budget": {**protocol["budget"], "trials": trials, "studies": 1},
    }
    whole = fake.run(path, fakes, protocol=protocol)
    kept = [r for r in whole.records if r.phase != "tune" or r.trial < trials]
    return replace(whole, records=tuple(replace(r, study=0) for r in kept))


@dataclass(frozen=True)
class Family:
    path: Path
    data: Mapping[str, Any]
    runs: tuple[tuple[str, Run], ...]


def of(path: Path, trials: int, axis: str = "", **task: str) -> Family:
    path.mkdir(exist_ok=True)
    members = tuple((name, run(path / name, trials, **task)) for name in ("one", "two"))
    protocol = {**members[0][1].manifest["protocol"], "axis": axis}
    return Family(path, {"protocol": protocol, "final_seeds": 5}, members)


def words(html: str) -> str:
    return re.sub(r"<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)


def test_the_page_of_an_untuned_run_does_not_speak_of_tuning(tmp_path: Path) -> None:
    shown = {}
    for trials in (1, 4):
        seen = views.build(run(tmp_path, trials))
        assert seen.tuned == (trials > 1)
        parts = page.render_all(seen, page.sections())
        # What the manifest holds, the audit's rules and the ladder of methods stay as they are.
        plain = ("settings", "fairness", "provenance", "gain")
        head = [part for part in parts if part.section.name not in plain]
        html = page.render(seen, head)
        shown[trials] = {p.section.name for p in parts}, words(html)
    sections, text = shown[1]
    assert not sections & {"tuning", "robustness"}
    around = [text[m.start() - 12 : m.end()] for m in SPEAKS.finditer(text)]
    assert set(around) == {"Nothing was tuned"}
    assert "trials a study" not in text
    assert "Every method had the same tokens, weights and batches." in text
    sections, text = shown[4]
    assert sections >= {"tuning", "robustness"}
    assert "tuning gain" in text
    assert "Every method had the same tuning budget, tokens, weights and batches." in text


def test_the_page_of_an_untuned_family_does_not_speak_of_tuning(tmp_path: Path) -> None:
    html = words(family.write(of(tmp_path / "once", 1)).read_text())
    assert "Nothing was tuned: every method ran at one point" in html
    assert [m.group(0) for m in SPEAKS.finditer(html)] == ["tuned"]
    assert "Along the axis" not in html
    assert "rate interior" not in html
    tuned = words(family.write(of(tmp_path / "more", 4, axis="tokens")).read_text())
    assert "tuning trials each" in tuned
    assert "Every method was tuned again at every member" in tuned
    assert "rate interior" in tuned
    assert "Along the axis" in tuned


@pytest.mark.parametrize(
    ("task", "column"),
    [({}, "loss, nats"), ({"kind": "bilinear"}, "loss"), ({"metric": "f1"}, "error, points")],
)
def test_a_family_tells_losses_in_the_unit_of_its_members(
    task: dict[str, str], column: str, tmp_path: Path
) -> None:
    found = of(tmp_path, 4, axis="tokens", **task)
    html = family.write(found).read_text()
    assert re.search(rf'<th scope="col" class="right">{column}</th>', html)
    assert ("nats" in words(html)) == (column == "loss, nats")
    assert family.summary(found)[0].split()[3] == column.partition(",")[0]


@pytest.mark.parametrize(
    ("task", "has"), [({}, True), ({"kind": "bilinear"}, False), ({"metric": "f1"}, False)]
)
def test_only_a_loss_in_nats_a_token_has_a_perplexity(
    task: dict[str, str], has: bool, tmp_path: Path
) -> None:
    seen = views.build(run(tmp_path, 4, **task))
    shown = [
        column.key
        for table in provenance.render(seen).tables
        if table.name == "finals"
        for column in table.columns
    ]
    assert ("perplexity" in shown) == has
    assert tables.finals(seen)["perplexity"].notna().any() == has


def test_the_losses_of_a_task_are_in_its_own_unit() -> None:
    """Of a scored run those that are losses all the same, as its curves."""

    def turned(kind: str, metric: str, text: str, nats: bool = False) -> str:
        task = {"kind": kind, "metric": metric}
        seen = SimpleNamespace(setting=lambda *keys, default=None: task.get(keys[-1], default))
        block = units.block_in_unit(seen, Block(parts=(Prose(text),), nats=nats))  # type: ignore[arg-type]
        (part,) = block.parts
        assert isinstance(part, Prose)
        return part.text

    axis = "loss, nats a token"
    assert turned("causal_lm", "", axis) == axis
    assert turned("classification", "", axis) == "loss, nats an example"
    assert turned("classification", "f1", axis, nats=True) == "loss, nats an example"
    assert turned("generative_qa", "f1", axis, nats=True) == axis
    assert turned("regression", "pearson", axis, nats=True) == "loss, squared error"
    assert turned("regression", "pearson", "0.3 nats at", nats=True) == "0.3 squared error at"
    for loss, error in (
        ("loss at defaults", "error at defaults"),
        ("best loss", "best error"),
        ("Selection loss", "Selection error"),
        ("Loss is the mean", "Error is the mean"),
        ("all on one loss scale", "all on one error scale"),
        ("a final training loss above", "a final training loss above"),
        ("tokens to adamw's loss", "tokens to adamw's loss"),
    ):
        assert turned("classification", "f1", loss) == error


def test_everything_wide_scrolls_inside_itself(tmp_path: Path) -> None:
    """On a phone the page itself must not move sideways: a table or a figure does."""
    html = page.write(run(tmp_path, 4)).read_text()
    css = html[html.index("<style>") : html.index("</style>")]
    assert re.search(r"\.scroll\{[^}]*overflow-x:auto", css)
    for wide in ("<table ", "<figure "):
        assert wide in html
    for match in re.finditer(r"<table ", html):
        before = html[: match.start()].rstrip()
        assert re.search(r'<div class="scroll"[^>]*>$', before)
    for figure in re.findall(r"<figure .*?</figure>", html, flags=re.DOTALL):
        assert re.search(r'<div class="scroll"[^>]*>\s*<svg', figure)
    assert re.search(r"(?s)h1,h2,h3,p,li,[^{]*\{overflow-wrap:anywhere\}", css)
