"""State over the steps, for methods whose state gets smaller or larger on the way."""

from __future__ import annotations

from typing import Any

from levelfield.bench.spec import Section
from levelfield.reports import staircase
from levelfield.reports.blocks import Block, Column, Part, Prose, drawing, grid
from levelfield.reports.text import (
    binary_unit,
    clean,
    fixed,
    listed,
    plural,
    significant,
    unit_note,
)
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """The staircase and its table; nothing where no state ever changes its size."""
    if not staircase.shown(view):
        return None
    words = (
        "Bytes of optimizer state, as the method counts them at every selection, hold until the "
        "next one. A line a final seed, the first one in full. A run needs the largest of them: "
        "what gets free later leaves its peak where it was."
    )
    if (against := staircase.reference(view)) is not None:
        words += f" Thin: {clean(against[0].name)}, its state as measured."
    if staircase.on_device(view):
        words += (
            " Allocated and reserved: what torch's allocator held between two steps, read at every "
            "evaluation and after every refresh. What is freed stays reserved until it is given "
            "back."
        )
    else:
        words += (
            " The tracked state only: a CPU has no caching allocator to say what is allocated or "
            "reserved."
        )
    if any(staircase.stairs(method, "rho") for method in staircase.shown(view)):
        words += " Lowest panel: rho, the share of state-full columns or blocks."
    parts: list[Part] = [
        *drawing(staircase.draw, view, "memory_time", "State over the steps", words),
        _table(view),
    ]
    if counts := staircase.retries(view):
        times = [f"{plural(n, 'time')} for {clean(name)}" for name, n in counts.items()]
        parts.append(
            Prose(
                "The device was full: the allocator gave back what it had cached and tried again "
                f"{listed(times)}."
            )
        )
    return Block(parts=tuple(parts))


def _table(view: View) -> Part:
    frame = staircase.table(view)
    values = [float(v) for name in ("first_bytes", "largest_bytes") for v in frame[name].dropna()]
    unit, exponent = binary_unit(values)

    def show(value: Any) -> str:
        return significant(float(value) / 2**exponent, 3)

    return grid(
        "memory_time",
        f"State over the steps, {unit} ({unit_note(exponent)}). The CSV has bytes.",
        frame,
        [
            Column("method", "method", align="left"),
            Column("first_bytes", "first", show),
            Column("largest_bytes", "largest", show),
            Column("last_bytes", "last", show),
            Column("mean_bytes", "mean over the steps", show),
            Column(
                "mean_share_of_reference",
                f"mean, of {clean(view.reference)}",
                lambda v: f"{fixed(100 * v, 1)} %",
            ),
            Column("finals", "finals"),
        ],
        folded=True,
    )


SECTION = Section(
    name="memory_time",
    title="Memory over time",
    order=55,
    summary="optimizer state over the steps, where it changes",
    render=render,
)
