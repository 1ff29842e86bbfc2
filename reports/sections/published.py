"""Figures of papers beside what was measured under the same protocol."""

from __future__ import annotations

import math

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports.blocks import Block, Column, Prose, grid
from levelfield.reports.frames import frame
from levelfield.reports.measure import Measured, Missing
from levelfield.reports.text import fixed
from levelfield.reports.view import View

COLUMNS = ("method", "perplexity", "legacy_perplexity", "published", "source")
NO_LOSS = "no final trial has a loss"


def render(view: View) -> Block | None:
    """A row a method; nothing where the protocol quotes no paper and no paper's form."""
    papers = view.setting("published", default=()) or ()
    batch = view.setting("evaluation", "legacy_batch")
    if not papers and not batch:
        return None
    count = report_batches(view, batch)
    rows = []
    for method in view.methods:
        loss = stats.mean(list(method.losses.values()))
        quoted = [item for item in papers if item["method"] == method.name]
        rows.append(
            {
                "method": method.name,
                "perplexity": _exp(loss, NO_LOSS),
                "legacy_perplexity": _exp(
                    None if loss is None or not count else loss * count / (count + 1), NO_LOSS
                ),
                "published": quoted[0]["value"] if quoted else Missing("no paper gives one"),
                "source": "; ".join(item["source"] for item in quoted),
            }
        )
    table = grid(
        "published",
        "Perplexity here, in the papers' form, and in the papers",
        frame(COLUMNS, rows),
        [
            Column("method", "method", align="left"),
            Column("perplexity", "perplexity", lambda v: fixed(v, 2)),
            Column("legacy_perplexity", "by n / (n + 1)", lambda v: fixed(v, 2)),
            Column("published", "published", lambda v: fixed(v, 2)),
            Column("source", "where", align="left"),
        ],
    )
    return Block(parts=(table, Prose(_words(count, batch))))


def report_batches(view: View, batch: int | None) -> int | None:
    """How many batches of `batch` sequences the report slice makes; None if that is not known."""
    data = view.manifest.get("data") or {}
    tokens = (data.get("tokens") or {}).get("report")
    length = view.setting("data", "sequence")
    if not batch or not tokens or not length:
        return None
    packed = view.setting("data", "packing", default=True)
    rows = (tokens - 1) // length if packed else tokens // (length + 1)
    most = view.setting("evaluation", "most") or rows
    return math.ceil(min(int(rows), int(most)) / batch)


def _exp(loss: float | None, reason: str) -> Measured:
    return math.exp(loss) if loss is not None and loss < 700 else Missing(reason)


def _words(count: int | None, batch: int | None) -> str:
    words = (
        "Ours is exp of the mean loss over every token of a fixed slice. A published figure is "
        "never a goal: data, tokens and tuning differ wherever this run's settings do."
    )
    if count:
        words += (
            " The papers of the GaLore family start their count of batches at 1, which divides the "
            f"sum of n batch means by n + 1: with n = {count} batches of {batch} sequences that "
            f"makes the loss {100 / (count + 1):.2g} % too low."
        )
    return words


SECTION = Section(
    name="published",
    title="Beside the papers",
    order=27,
    summary="perplexity here, in the papers' own form, and as published",
    render=render,
)
