"""How often and how badly each method left the road."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import facts, units
from levelfield.reports.blocks import Block, Column, Prose, grid
from levelfield.reports.text import fixed, significant
from levelfield.reports.view import View

UNSCORED = (
    "Diverged: a loss that is not finite, a final loss above the initial one, or above the "
    "running minimum + 0.5 nats. Undertrained: final loss above 0.95 × the initial loss."
)
SCORED = (
    "Diverged: a loss that is not finite, or a final training loss above 1.2 × the initial "
    "held-out loss. Undertrained: final training loss above 0.95 × the initial loss. The held-out "
    "loss does not decide here: it may rise while the score does not fall."
)


def render(view: View) -> Block | None:
    """One table."""
    if not view.methods:
        return None
    table = grid(
        "stability",
        "Stability",
        facts.stability(view),
        [
            Column("method", "method", align="left"),
            Column("tuning_divergence_rate", "trials diverged", _percent),
            Column("final_divergence_rate", "finals diverged", _percent),
            Column("undertrained_trials", "trials undertrained"),
            Column("undertrained_finals", "finals undertrained"),
            Column("spikes_max", "spikes, worst seed"),
            Column("grad_norm_max", "largest gradient norm", lambda v: significant(v, 3)),
            Column("loss_range_over_seeds_nats", "range over seeds, nats", units.written(view)),
        ],
    )
    words = (SCORED if units.scored(view) else UNSCORED) + (
        " A spike is a step whose training loss exceeds the trend of its trailing window by 7 "
        "standard deviations. The gradient norm is the global one before clipping."
    )
    if view.tuned:
        words += (
            " The tuner looks for the limit of stability on purpose, so diverged trials are no "
            "flaw by themselves."
        )
    return Block(parts=(table, Prose(words)))


def _percent(value: float) -> str:
    return f"{fixed(100 * float(value), 0)} %"


SECTION = Section(
    name="stability",
    title="Stability",
    order=60,
    summary="divergence, undertrained trials, spikes, gradient norms",
    render=render,
)
