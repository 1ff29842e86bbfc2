"""How sure the order is: differences over studies, power, and every pair tested."""

from __future__ import annotations

from levelfield.bench.inference import MEASURED
from levelfield.bench.spec import Section
from levelfield.reports import charts, tables, units
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import clean, fixed, short
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Differences to the reference, the smallest difference in reach, all pairs."""
    if not view.pairs:
        return None
    parts: list[Part] = []
    caption = (
        f"Difference in mean report loss to {clean(view.baseline)} over tuning studies, with its "
        "95 % t interval. Filled: significant after Holm's correction over these claims; hollow: "
        "not. Places need more: there the correction is over all pairs."
    )
    parts += drawing(
        charts.differences, view, "differences", f"Differences to {clean(view.baseline)}", caption
    )
    margin = view.family.margin
    if isinstance(margin, float):
        parts.append(
            Prose(
                kind="beside",
                text=f"A/A margin: {fixed(margin, 4)} nats. Two runs of one and the same method "
                "lie this far apart in one comparison of twenty, by the spread between studies "
                "pooled over all methods; smaller differences are ties. Claims are made against "
                f"{clean(view.baseline)}: a rate of its own for embedding and head is the largest "
                "confound between methods. Student's t takes studies as roughly normal, which a "
                f"handful cannot prove. {MEASURED}; over the seeds of single studies equal methods "
                "are called different in up to 71 % (docs/aa.md).",
            )
        )
    parts += _power(view)
    parts.append(_all_pairs(view))
    return Block(parts=tuple(parts))


def _power(view: View) -> list[Part]:
    """Power first, then what equivalence says: TOST with the margin declared beforehand."""
    frame = tables.equivalence(view)
    if frame.empty:
        return []
    margin = short(view.setting("margin_nats", default=0.01))
    return [
        grid(
            "equivalence",
            f"Against {clean(view.baseline)}: power, and equivalence within ± {margin} nats "
            "(declared before the finals)",
            frame,
            [
                Column("method", "method", align="left"),
                Column("difference_nats", "difference, nats", units.gap(view)),
                Column("studies_needed", "studies to show it at power 0.8", short),
                Column("tost_power", "power of TOST if equal", lambda v: fixed(v, 2)),
                Column("tost_p", "p, TOST", _p),
                Column("verdict", "verdict", align="left"),
            ],
        )
    ]


def _all_pairs(view: View) -> Part:
    return grid(
        "pairs",
        "Every pair of ranked methods (difference = first − second; negative: the first is better)",
        tables.pairs(view),
        [
            Column("method", "first", align="left"),
            Column("other", "second", align="left"),
            Column("studies", "studies"),
            Column("difference_nats", "difference, nats", units.gap(view)),
            Column("interval_low_nats", "95 % from", units.gap(view)),
            Column("interval_high_nats", "to", units.gap(view)),
            Column("p", "p", _p),
            Column("p_holm", "p, Holm", _p),
            Column("better", "better", align="left"),
            Column("because", "because", align="left"),
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
    summary="differences over tuning studies, A/A margin, power, every pair tested",
    render=render,
)
