"""Where a method's gain comes from, rung by rung; and what is lost without tuning again."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import merits, units
from levelfield.reports.blocks import Block, Column, Part, Prose, grid
from levelfield.reports.text import clean, fixed
from levelfield.reports.view import View

READING = (
    "From AdamW with one rate, to a rate of its own for embedding and head, to a tuned second-"
    "moment decay, to the method's update rule, to its compression: each rung against the one "
    "below, over tuning studies, Holm over the rungs of a ladder. The rungs below a method are "
    "adamw_lr (adamw, which tunes its decay rate too, where that did not run), adamw_split_lr and "
    "adamw_split; those that did not run are skipped and their gains fall to the next rung."
)


def render(view: View) -> Block | None:
    """The ladders, and the transfer table of a run that used another's points."""
    parts: list[Part] = []
    ladders = merits.gains(view)
    if not ladders.empty:
        parts += [
            Prose(READING),
            grid(
                "gains",
                "Gain of each rung (positive: better than the rung below)",
                ladders,
                [
                    Column("method", "method", align="left"),
                    Column("from", "from", align="left"),
                    Column("rung", "to", align="left"),
                    Column("step", "what is added", align="left"),
                    Column("gain_nats", "gain, nats", units.gap(view)),
                    Column("gain_low_nats", "95 % from", units.gap(view)),
                    Column("gain_high_nats", "to", units.gap(view)),
                    Column("p_holm", "p, Holm", lambda v: fixed(v, 4)),
                ],
            ),
        ]
    moved = merits.transfer(view)
    if not moved.empty:
        source = (view.manifest.get("transfer") or {}).get("protocol", "another run")
        parts.append(
            grid(
                "transfer",
                f"Tuned on {clean(source)}, trained here without tuning again",
                moved,
                [
                    Column("method", "method", align="left"),
                    Column("tuned_here_nats", "tuned here", units.written(view)),
                    Column("untuned_nats", "not tuned again", units.written(view)),
                    Column("transfer_loss_nats", "transfer loss, nats", units.gap(view)),
                    Column("seeds", "seeds"),
                ],
            )
        )
    return Block(parts=tuple(parts)) if parts else None


SECTION = Section(
    name="gain",
    title="Where the gain comes from",
    order=25,
    summary="the ladder from AdamW to a method in nats a rung; transfer loss",
    render=render,
)
