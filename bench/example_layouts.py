"""How known sets of labelled examples are laid out: which column is what, and what labels mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from levelfield.bench.spec import BenchError

KINDS = ("classification", "regression", "extractive_qa", "multiple_choice")

Unfolded = Iterator[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns of a table, or of the rows that a JSON document is unfolded to."""

    kinds: tuple[str, ...]
    text: tuple[str, ...] = ("text",)
    """One column or two; the second of a question is its context."""
    label: str = "label"
    """A class, a score, the right option (index, letter, or scores by option), the answers."""
    labels: tuple[str, ...] = ()
    """Words for the classes, in order of their index; empty: whatever labels there are."""
    options: tuple[str, ...] = ()
    """A column an option, or one column that holds them all."""
    group: str = ""
    """Column of what is never split between slices."""
    file_group: str = ""
    """Regular expression: what is cut off a file's name to make that of its group."""
    columns: tuple[str, ...] = ()
    """Names of a table's columns, where its first line has none, or others; `_`: not read."""
    header: bool = True
    """Whether a table's first line is names."""
    scores: tuple[float, float] | None = None
    """Least and greatest score."""
    threshold: float | None = None
    """Scores as classes: negative at most minus this, positive at least this, none between."""
    shuffled: bool = False
    """Options are put in an order of their own: the set's own order may give the answer away."""
    unfold: Callable[[Any], Unfolded] | None = None
    """Rows of a JSON document: (where it stands in it, cells)."""
    hub: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields that differ on the hub."""


def records(document: Any) -> Unfolded:
    """A list of objects."""
    if not isinstance(document, list):
        raise TypeError("not a list of objects")
    for number, item in enumerate(document):
        yield f"[{number}]", item


def _squad(document: Any) -> Unfolded:
    """data > paragraphs > qas, of SQuAD 1.1 and 2.0; a title that all share is no group."""
    alone = len(document["data"]) == 1
    for a, article in enumerate(document["data"]):
        for p, paragraph in enumerate(article["paragraphs"]):
            for q, item in enumerate(paragraph["qas"]):
                yield (
                    f"data[{a}].paragraphs[{p}].qas[{q}]",
                    {
                        "question": item["question"],
                        "context": paragraph["context"],
                        "answers": item.get("answers", []),
                        "title": "" if alone else article.get("title", ""),
                    },
                )


def _bigbench(document: Any) -> Unfolded:
    """{"examples": [{"input", "target_scores": {option: score}}]}."""
    for number, item in enumerate(document["examples"]):
        yield f"examples[{number}]", item


def best(scores: Mapping[str, float]) -> str | None:
    """The one option of the highest score; None if several share it."""
    top = max(scores.values(), default=0)
    found = [option for option, score in scores.items() if score == top]
    return found[0] if len(found) == 1 else None


def _vitaminc(document: Any) -> Unfolded:
    """The input is "PAGE: evidence\\nClaim: claim"."""
    for place, item in _bigbench(document):
        evidence, mark, claim = item["input"].rpartition("\nClaim: ")
        if not mark:
            raise TypeError(f"{place} has no claim")
        cells = {"evidence": evidence, "claim": claim, "label": best(item["target_scores"])}
        yield place, {**cells, "page": evidence.partition(":")[0]}


_STEP = re.compile(r"The most reasonable step of '(.*)' is\s*", re.DOTALL)


def _goal_step(document: Any) -> Unfolded:
    """Which step belongs to a goal, or which goal to a step: all of one goal stay together."""
    for place, item in _bigbench(document):
        asked = _STEP.fullmatch(item["input"])
        yield place, {**item, "goal": asked[1] if asked else best(item["target_scores"])}


_CLASSES = ("classification",)
_PAIR = ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
_MMLU = ("question", "A", "B", "C", "D", "answer")


def _pair(*labels: str, text: tuple[str, ...] = _PAIR, **fields: Any) -> Layout:
    return Layout(kinds=_CLASSES, text=text, labels=labels, **fields)


def _options(unfold: Callable[[Any], Unfolded], **fields: Any) -> Layout:
    """A task of BIG-bench with one right option."""
    return Layout(
        kinds=("multiple_choice",),
        text=("input",),
        options=("target_scores",),
        label="target_scores",
        shuffled=True,
        unfold=unfold,
        **fields,
    )


LAYOUTS: Mapping[str, Layout] = {
    "cola": Layout(
        kinds=_CLASSES,
        text=("sentence",),
        labels=("unacceptable", "acceptable"),
        columns=("_", "label", "_", "sentence"),
        header=False,
    ),
    "sst2": Layout(kinds=_CLASSES, text=("sentence",), labels=("negative", "positive")),
    "rte": _pair(*_ENTAILED),
    "wnli": _pair("not_entailment", "entailment"),
    "qnli": _pair(*_ENTAILED, text=("question", "sentence")),
    "qqp": _pair("not_duplicate", "duplicate", text=("question1", "question2")),
    "mnli": _pair("entailment", "neutral", "contradiction", text=("premise", "hypothesis")),
    "mrpc": _pair("not_equivalent", "equivalent", columns=("label", "_", "_", *_PAIR)),
    "stsb": Layout(
        kinds=("regression",),
        text=_PAIR,
        columns=(*_PAIR, "label"),
        header=False,
        scores=(0.0, 5.0),
    ),
    "squad": Layout(
        kinds=("extractive_qa",),
        text=("question", "context"),
        label="answers",
        group="title",
        unfold=_squad,
    ),
    "mmlu": Layout(
        kinds=("multiple_choice",),
        text=("question",),
        options=_MMLU[1:5],
        label="answer",
        columns=_MMLU,
        header=False,
        file_group=r"_(dev|val|test|train)$",
        hub={"options": ("choices",), "group": "subject", "file_group": ""},
    ),
    # C. J. Hutto, E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
    # Social Media Text", ICWSM 2014: the mean of 20 people's ratings, -4 to 4.
    "vader": Layout(
        kinds=("regression", "classification"),
        label="score",
        labels=("negative", "positive"),
        columns=("_", "score", "text"),
        header=False,
        scores=(-4.0, 4.0),
        threshold=0.5,
    ),
    "vitaminc": _pair(
        *("True", "False", "Neither"), text=("evidence", "claim"), group="page", unfold=_vitaminc
    ),
    "goal_step": _options(_goal_step, group="goal"),
    "bigbench_mc": _options(_bigbench),
}

DEFAULTS: Mapping[str, Layout] = {
    "classification": Layout(kinds=_CLASSES),
    "regression": Layout(kinds=("regression",)),
    "extractive_qa": LAYOUTS["squad"],
    "multiple_choice": Layout(
        kinds=("multiple_choice",), text=("question",), options=("choices",), label="answer"
    ),
}
"""Where a source names no layout."""


def check_kind(kind: str) -> None:
    """Raise for a kind of examples that there is none of.

    Raises:
        BenchError: unknown.
    """
    if kind not in KINDS:
        raise BenchError(f"examples of kind {kind!r}", f"accepted: {', '.join(KINDS)}")
