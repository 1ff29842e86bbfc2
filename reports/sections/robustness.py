"""How hard each method is to tune: the rate sweep, the basin, what trials were worth."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import charts, merits
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import fixed
from levelfield.reports.view import View

READING = (
    "The sweep moves the scale alone around the first study's best point, fresh seeds, and is "
    "charged like every other trial. Sensitivity is the mean distance from the lowest loss over "
    "its rates; the basin is the range of rates within 0.01 nats of the best. What a number of "
    "trials was worth is told over exchangeable ones only: the quasi-random part of the first "
    "study, without the default, the bracket and the reserve."
)


def render(view: View) -> Block | None:
    """The sweep's curves and a table."""
    if not view.tuned or not any(method.tune for method in view.methods):
        return None
    parts: list[Part] = []
    if any(method.sweep for method in view.methods):
        caption = (
            "Mean selection loss of the sweep against the rate relative to the method's own best; "
            "flat is forgiving."
        )
        parts += drawing(charts.sweep, view, "sweep", "Loss around the best rate", caption)
    parts.append(Prose(READING, "beside" if parts else ""))
    parts.append(
        grid(
            "tunability",
            "How hard to tune",
            merits.tunability(view),
            [
                Column("method", "method", align="left"),
                Column("lr_sensitivity_nats", "rate sensitivity, nats", lambda v: fixed(v, 3)),
                Column("basin", "basin within 0.01 nats", align="left"),
                Column("expected_best_of_1_nats", "one trial", lambda v: fixed(v, 3)),
                Column("expected_best_of_half_nats", "half of them", lambda v: fixed(v, 3)),
                Column("expected_best_of_half_low", "95 % from", lambda v: fixed(v, 3)),
                Column("expected_best_of_half_high", "to", lambda v: fixed(v, 3)),
                Column("tuning_gain_nats", "gain of all", lambda v: fixed(v, 3)),
                Column("exchangeable_trials", "exchangeable trials"),
                Column("diverged_share", "diverged", lambda v: f"{100 * v:.0f} %"),
                Column("diverged_high", "at most (95 %)", lambda v: f"{100 * v:.0f} %"),
                Column("censored", "still at an edge", align="left"),
            ],
        )
    )
    parts.append(
        grid(
            "complexity",
            "What it takes to implement: facts of the record, and measured ones",
            merits.complexity(view),
            [
                Column("method", "method", align="left"),
                Column("tuned", "tuned"),
                Column("fixed", "fixed"),
                Column("state_tensors", "state tensors"),
                Column("state_bytes_per_parameter", "state, B/param", lambda v: fixed(v, 2)),
                Column("passes_a_step", "passes a step", lambda v: fixed(v, 2)),
                Column("host_reads_a_step", "host reads a step"),
                Column("takes", "takes", align="left"),
                Column("cannot", "cannot", align="left"),
                Column("needs", "needs", align="left"),
                Column("implementation", "implementation", align="left"),
            ],
            folded=True,
        )
    )
    return Block(parts=tuple(parts))


SECTION = Section(
    name="robustness",
    title="How hard to tune",
    order=45,
    summary="rate sweep, basin width, expected best of k trials, divergence rate, censored methods",
    render=render,
)
