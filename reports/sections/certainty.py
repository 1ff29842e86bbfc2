"""How sure the order is: paired differences, and every pair tested."""

from __future__ import annotations

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports import charts, tables
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import clean, fixed, short, signed
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Differences to the reference, the smallest difference in reach, all pairs."""
    if not view.pairs:
        return None
    parts: list[Part] = []
    caption = (
        f"Mean difference in report loss to {clean(view.reference)} over shared seeds, with its "
        "95 % t interval. Filled: significant after Holm's correction over all pairs; hollow: not."
    )
    parts += drawing(
        charts.differences, view, "differences", "Differences to the reference", caption
    )
    reach = _reach(view)
    if reach is not None:
        parts.append(
            Prose(
                kind="beside",
                text=f"The typical paired interval reaches ± {fixed(reach, 4)} nats: a smaller "
                "difference is beyond these seeds. Pairing helps because all methods share the "
                "weights and batches of a seed. Student's t takes the differences as roughly "
                "normal, which a handful of seeds cannot prove.",
            )
        )
    parts.append(_all_pairs(view))
    return Block(parts=tuple(parts))


def _reach(view: View) -> float | None:
    halves = [(pair.interval[1] - pair.interval[0]) / 2 for pair in view.pairs if pair.interval]
    return stats.median(halves)


def _all_pairs(view: View) -> Part:
    return grid(
        "pairs",
        "Every pair of ranked methods (difference = first − second; negative: the first is better)",
        tables.pairs(view),
        [
            Column("method", "first", align="left"),
            Column("other", "second", align="left"),
            Column("shared_seeds", "seeds"),
            Column("difference_nats", "difference, nats", lambda v: signed(v, 4)),
            Column("interval_low_nats", "95 % from", lambda v: signed(v, 4)),
            Column("interval_high_nats", "to", lambda v: signed(v, 4)),
            Column("p", "p", _p),
            Column("p_holm", "p, Holm", _p),
            Column("better", "better", align="left"),
        ],
        muted=lambda row: row["better"] == "not distinguishable",
        folded=True,
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else short(round(float(value), 4))


SECTION = Section(
    name="certainty",
    title="How sure the order is",
    order=20,
    summary="paired differences to the reference and a test of every pair",
    render=render,
)
