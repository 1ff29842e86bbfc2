"""What a step costs: time, memory by kind, and the Pareto set of loss and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from levelfield.bench.spec import Section
from levelfield.reports import charts, facts, measure, units
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import (
    binary_unit,
    clean,
    count,
    fixed,
    listed,
    seconds,
    significant,
    unit_note,
)
from levelfield.reports.view import View


def render(view: View) -> Block:
    """Figures first, then the two tables."""
    parts: list[Part] = []
    label, _ = measure.total_measure(view)
    best = [name for name, others in measure.dominated_by(view).items() if not others]
    words = (
        f"Mean report loss with its 95 % t interval against memory ({label}). Filled and bold: the "
        "Pareto set over loss, memory and, where timed, seconds a step. A method is out of it only "
        "if another one is shown to be no worse on any of them and better on one. Triangle: above "
        "the frame."
    )
    if best:
        words += f" Pareto set: {listed(map(clean, best))}."
    parts += drawing(charts.pareto, view, "pareto", "Loss against memory", words)
    words = (
        "Bytes alive at the peak of a step, by kind. A kind's bar is its largest value over the "
        "finals. Scratch space inside a kernel and the device's own context are not in it."
    )
    parts += drawing(charts.memory, view, "memory", "Memory by kind", words)
    parts += [_time(view), _memory(view)]
    if view.contenders:
        parts.append(_pareto(view))
    parts.append(
        Prose(
            "Time comes only from the timing phase: methods alternate, alone on the device; set-up "
            f"and the first steps are left out. The ratio to {clean(view.reference)} is taken "
            "within each repetition, so that drift of the machine cancels, and its median is shown."
        )
    )
    return Block(parts=tuple(parts))


def _time(view: View) -> Part:
    frame = facts.time(view)
    counted = bool(frame["tokens_per_joule"].notna().any())
    energy = [Column("tokens_per_joule", "tokens/J", lambda v: significant(v, 3))]
    return grid(
        "time",
        "Time and energy" if counted else "Time",
        frame,
        [
            Column("method", "method", align="left"),
            Column("step_s", "a step", seconds),
            Column("step_time_ratio", f"× {clean(view.reference)}", lambda v: fixed(v, 3)),
            Column("tokens_per_s", "tokens/s", count),
            *(energy if counted else ()),
            Column("passes_per_step", "passes a step", lambda v: significant(v, 3)),
            Column("repetitions", "repetitions"),
        ],
    )


def _memory(view: View) -> Part:
    frame = facts.memory(view)
    names = [name for name in frame.columns if str(name).endswith("_bytes")]
    values = [float(v) for name in names[:6] for v in frame[name].dropna()]
    unit, exponent = binary_unit(values)

    def show(value: Any) -> str:
        return significant(float(value) / 2**exponent, 3)

    each: Callable[[Any], str] = lambda value: significant(float(value), 3)  # noqa: E731
    return grid(
        "memory",
        f"Memory, {unit} ({unit_note(exponent)}); bytes a parameter where said. The CSV has bytes.",
        frame,
        [
            Column("method", "method", align="left"),
            *(Column(f"{kind}_bytes", kind, show) for kind in measure.KINDS),
            Column("total_bytes", "peak", show),
            Column("total_bytes_per_parameter", "peak, B/param", each),
            Column("measured_state_bytes", "state, measured", show),
            Column("claimed_state_bytes", "state, claimed", show),
            Column("state_bytes_per_parameter", "state, B/param", each),
            Column("reserved_bytes", "reserved", show),
            Column("process_bytes", "process", show),
        ],
        folded=True,
    )


def _pareto(view: View) -> Part:
    return grid(
        "pareto",
        "Pareto set of loss, memory and seconds",
        facts.pareto(view),
        [
            Column("method", "method", align="left"),
            Column("report_loss_mean_nats", "mean report loss", units.written(view)),
            Column("memory_bytes", "memory, bytes", count),
            Column("dominated_by", "dominated by", lambda v: v or "none: in the set", align="left"),
        ],
        folded=True,
    )


SECTION = Section(
    name="cost",
    title="What it costs",
    order=50,
    summary="step time, memory by kind, Pareto set of loss and memory",
    render=render,
)
