"""The papers' claims, and what this run says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench.spec import Section
from levelfield.reports import claims_table
from levelfield.reports.blocks import Block, Cell, Column, Part, Prose, Table, grid
from levelfield.reports.claims_table import VERDICTS, Judged, Verdict
from levelfield.reports.text import plural, short, significant
from levelfield.reports.view import View

MARKS: Mapping[Verdict, tuple[str, str]] = {
    "reproduced": ("✓", "var(--s2)"),
    "not reproduced": ("✗", "var(--s1)"),
    "not distinguishable": ("≈", "var(--soft)"),
    "not testable here": ("○", "var(--soft)"),
}
"""A sign and a colour; the words say the same."""

NBSP = "\N{NO-BREAK SPACE}"

READING = (
    "Effects are positive as claimed, with the 95 % interval over studies (step times: over timing "
    "repetitions; bytes and parameters are counted). Reproduced: every part is shown in this run, "
    "Holm-adjusted over its {tested}, alpha {alpha}. Not reproduced: one is shown to be the other "
    "way round. Not distinguishable: neither. Not testable here: a claimed effect is smaller than "
    "what this run finds with power .8, or it speaks of another model than this one. A small "
    "model's verdict is no verdict on a large one."
)


def render(view: View) -> Block | None:
    """One table of what this run can speak of, and one line of what it cannot."""
    if not view.methods:
        return None
    if not view.ranked:
        return Block(
            parts=(Prose("This protocol ranks nothing, so it tests no claim of a paper."),)
        )
    judged = claims_table.judge(view)
    told = [item for item in judged if item.verdict != "no data"]
    parts: list[Part] = []
    if told:
        tested = sum(item.p_holm is not None for item in told)
        words = READING.format(
            tested=plural(tested, "tested claim"), alpha=short(view.family.alpha)
        )
        parts += [
            Prose(f"{_first(told)}.", "strong"),
            _table(told),
            Prose(words, "beside"),
        ]
    silent = [item for item in judged if item.verdict == "no data"]
    if told and silent:
        parts.append(_silent(silent))
    elif silent:
        count = plural(len(silent), "claim")
        parts.append(Prose(f"No data: of {count} none has its methods and its task in this run."))
    return Block(parts=tuple(parts))


def _first(told: Sequence[Judged]) -> str:
    return f"Of {plural(len(told), 'claim')} of papers: {claims_table.tally(told)}"


def _table(told: Sequence[Judged]) -> Table:
    by_key = {item.claim.key: item for item in told}

    def claim(row: Mapping[str, Any]) -> Cell:
        return Cell(text=row["claim"], title=by_key[row["key"]].claim.note)

    def paper(row: Mapping[str, Any]) -> Cell:
        source = by_key[row["key"]].claim.paper
        return Cell(text=source.name, href=source.url, sub=f"arXiv:{source.arxiv}")

    def verdict(row: Mapping[str, Any]) -> Cell:
        found = by_key[row["key"]].verdict
        sign, colour = MARKS[found]
        sure = found in ("reproduced", "not reproduced")
        mark = f'<b aria-hidden="true" style="color:{colour}">{sign}</b>{NBSP}'
        return Cell(text=found.replace(" ", NBSP), html=mark, kind="sure" if sure else "unsure")

    def figures(row: Mapping[str, Any]) -> Cell:
        item = by_key[row["key"]]
        p = (
            ""
            if item.p_holm is None
            else f"p{NBSP}={NBSP}{significant(item.p_holm, 2)}{NBSP}(Holm)"
        )
        return Cell(text=item.figures, sub="; ".join(filter(None, (item.claimed, p))))

    def because(row: Mapping[str, Any]) -> Cell:
        return Cell(sub=by_key[row["key"]].power)

    return grid(
        "claims",
        "The papers' claims",
        claims_table.table(sorted(told, key=lambda item: VERDICTS.index(item.verdict))),
        [
            Column("paper", "paper", align="left"),
            Column("claim", "claim", align="left"),
            Column("verdict", "verdict in this run", align="left"),
            Column("figures", "effect, + is as claimed", align="left"),
            Column("because", "what this run can tell", align="left"),
        ],
        decorate={
            "claim": claim, "paper": paper, "verdict": verdict, "figures": figures,
            "because": because,
        },
        muted=lambda row: row["verdict"] == "not testable here",
    )  # fmt: skip


def _silent(silent: Sequence[Judged]) -> Table:
    """The claims that this run has nothing on."""
    return grid(
        "claims_without_data",
        f"No data on {plural(len(silent), 'claim')}",
        claims_table.table(silent),
        [
            Column("paper", "paper", align="left"),
            Column("claim", "claim", align="left"),
            Column("because", "why", align="left"),
        ],
        folded=True,
    )


SECTION = Section(
    name="claims",
    title="What the papers claim",
    order=28,
    summary="headline claims of papers: reproduced, not reproduced, not distinguishable, "
    "not testable here",
    render=render,
)
