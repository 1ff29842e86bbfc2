"""What methods go with: every method has its row, and no spec says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.reports import facts

ROOT = Path(__file__).parent.parent
SUPPORT = json.loads(facts.SUPPORT_FILE.read_text(encoding="utf-8"))
WORDS = {"accumulation": "grad_accumulation", "sharding": "sharding"}
"""Facts that a spec can decline, by the word it uses."""


def test_every_method_has_its_facts() -> None:
    assert sorted(SUPPORT) == whole_model(OPTIMIZERS.entries())
    for name, row in SUPPORT.items():
        assert tuple(row) == facts.SUPPORT[1:], name
        for found in row.values():
            assert found["holds"] in (True, False, None)
            assert found["holds"] is True or found["reason"].strip()
            assert "\n" not in found["reason"]


@pytest.mark.parametrize("fact", WORDS)
def test_a_spec_declines_what_fails_and_nothing_else(fact: str) -> None:
    wrong = {}
    for item in OPTIMIZERS.load_all():
        if item.value.name not in SUPPORT:
            continue
        holds = SUPPORT[item.value.name][fact]["holds"]
        if holds is not None and holds == (WORDS[fact] in item.value.cannot):
            wrong[item.value.name] = SUPPORT[item.value.name][fact]
    assert wrong == {}


def test_the_page_has_every_method() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == [
        *SUPPORT
    ]


def test_facts_are_told_in_words() -> None:
    methods: list[Any] = [SimpleNamespace(name=name) for name in (*SUPPORT, "mine")]
    view: Any = SimpleNamespace(methods=methods)
    told = facts.support(view).set_index("method")
    assert told.loc["lomo", "accumulation"].startswith("no (")
    assert told.loc["lomo", "compile"] == "not measured (the method drives its own step)"
    assert told.loc["adamw", "sharding"] == "yes"
    mine = set(told.loc["mine", list(facts.SUPPORT[1:])])
    assert mine == {"not measured (not a method of this repository)"}
