"""How the loss falls: against tokens, against seconds, and when it reaches the reference's."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import figures, measure, tables
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import big, clean, count, fixed, listed, seconds
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Two figures and the table of tokens to the reference's loss."""
    parts: list[Part] = []
    above = figures.outside(view)
    cut = f" {listed(above)} ends above the frame." if above else ""
    words = (
        "Loss on the selection slice during the finals: median over seeds, band from the lowest "
        "to the highest seed. The first evaluations lie above the frame." + cut
    )
    tokens = drawing(figures.loss_tokens, view, "loss_tokens", "Loss against tokens", words)
    if not tokens:
        return None
    parts += tokens
    words = (
        "The same curves against seconds: steps × the median step of the timing phase, where each "
        "method ran alone on the device. Evaluation and set-up are left out."
    )
    parts += drawing(figures.loss_seconds, view, "loss_seconds", "Loss against seconds", words) or [
        Prose("Loss against seconds needs timing records, and there are none.")
    ]
    if any(measure.known(loss) is not None for loss in measure.target_losses(view).values()):
        parts += [Prose(_target_words(view)), _target_table(view)]
    return Block(parts=tuple(parts), nats=True)


def _target_words(view: View) -> str:
    losses = [
        f"{fixed(loss, 4)} nats at {100 * share:g} %"
        for share, loss in measure.target_losses(view).items()
        if not isinstance(loss, measure.Missing)
    ]
    return (
        f"Targets are the median losses of {clean(view.reference)} at shares of its horizon: "
        f"{listed(losses)}. One counts as reached with two evaluations in a row at or below; the "
        "crossing is interpolated linearly in log tokens, and a seed that never gets there counts. "
        "The schedule was made for the whole horizon, so a run planned for fewer tokens could do "
        "better than this: a lower bound of what is saved."
    )


def _target_table(view: View) -> Part:
    reference = clean(view.reference)
    return grid(
        "tokens_to_targets",
        f"Tokens, steps and seconds to {reference}'s losses (median over seeds)",
        tables.tokens_to_targets(view),
        [
            Column("share_of_reference_horizon", "target at", lambda v: f"{100 * v:g} %"),
            Column("target_loss_nats", "nats", lambda v: fixed(v, 4)),
            Column("method", "method", align="left"),
            Column("tokens", "tokens", big),
            Column("steps", "steps", count),
            Column("seconds", "seconds, alone on the device", seconds),
            Column("share_of_horizon", "share of the horizon", lambda v: f"{fixed(100 * v, 0)} %"),
            Column("seeds_reached", "seeds there"),
            Column("finals", "of"),
        ],
        folded=True,
    )


SECTION = Section(
    name="curves",
    title="Learning curves",
    order=30,
    summary="loss against tokens and against seconds, tokens to the reference's loss",
    render=render,
)
