"""What the tuning budget bought, and whether the best values lie inside what was tried."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import facts, figures, units
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import short, shortened
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Every trial as a dot, and the gain over the paper's defaults."""
    if not view.tuned or not any(method.tune for method in view.methods):
        return None
    parts: list[Part] = []
    words = (
        "Every tuning trial of every study, one panel a method: loss on the selection slice "
        "against the bracketed dimension, all on one loss scale and the same number of decades. "
        "Hollow: the paper's defaults. Ringed: the best of the first study. Triangle: above the "
        "frame. Cross: no usable loss. The other tuned dimensions move too, so dots need not lie "
        "on one curve."
    )
    title = "Loss against the learning rate (or what plays its part)"
    parts += drawing(figures.loss_scale, view, "loss_scale", title, words, wide=True)
    parts.append(
        Prose(
            "Tuning gain = selection loss at the paper's defaults (trial 0) minus that of the best "
            "trial. A best value at an edge means that its true optimum may lie beyond: the method "
            "may be better than shown."
        )
    )
    parts += [_gains(view), _trials(view)]
    return Block(parts=tuple(parts))


def _gains(view: View) -> Part:
    return grid(
        "tuning",
        "Tuning gain",
        facts.tuning(view),
        [
            Column("method", "method", align="left"),
            Column("good_trials", "good trials"),
            Column("trials", "of"),
            Column("default_selection_loss_nats", "loss at defaults", units.written(view)),
            Column("best_selection_loss_nats", "best loss", units.written(view)),
            Column("tuning_gain_nats", "gain, nats", units.written(view)),
            Column("scale", "scale", align="left"),
            Column("default_scale_value", "default", short),
            Column("best_scale_value", "best", short),
            Column("at_edge", "edge", lambda v: v or "inside", align="left"),
        ],
    )


def _values(text: str) -> str:
    pairs = (item.partition("=") for item in text.split(", "))
    return ", ".join(f"{name}{sign}{shortened(value)}" for name, sign, value in pairs)


def _trials(view: View) -> Part:
    return grid(
        "trials",
        "Every tuning trial",
        facts.trials(view),
        [
            Column("method", "method", align="left"),
            Column("trial", "trial"),
            Column("tuned", "tuned values", _values, align="left"),
            Column("status", "status", align="left"),
            Column("selection_loss_nats", "selection loss", units.written(view)),
            Column("is_best", "best", lambda v: "best" if v else "", align="left"),
            Column("reason", "reason", lambda v: v, align="left"),
        ],
        muted=lambda row: row["status"] != "ok",
        folded=True,
    )


SECTION = Section(
    name="tuning",
    title="Tuning",
    order=40,
    summary="loss against learning rate for every trial, tuning gain, edges",
    render=render,
)
