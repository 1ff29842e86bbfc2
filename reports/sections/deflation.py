"""Deflation by rounds: targets that mend themselves against errors that are frozen.

Drawn from the series of the `deflation` methods: `mismatch_k`, `component_error_k`, `w_error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports.blocks import Block, Column, Prose, Table, drawing, grid
from levelfield.reports.curves import spread_labels
from levelfield.reports.frames import finite_or, frame
from levelfield.reports.measure import Missing
from levelfield.reports.svg import INK, SOFT, canvas, export, look, style
from levelfield.reports.text import clean, significant
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

WIDTH, HEIGHT = 1000, 470
PANELS = 4
"""Most components that are drawn."""
ROWS = (("mismatch", "mismatch of the target"), ("component_error", "error of the component"))
"""Series -> label of its row of panels."""
LEAST = 1e-16
"""What is exactly zero is drawn here."""
POWER = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Band:
    """A series of one method over the rounds: median, least and most over its good finals."""

    rounds: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band(method: Method, name: str) -> Band | None:
    """At the rounds that all good finals of the method have; None if they share none."""
    runs = [
        {float(x): float(y) for x, y in record.series.get(name, ()) if stats.finite(y)}
        for record in method.good
    ]
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    if not shared:
        return None
    columns = [[run[x] for run in runs] for x in shared]
    return Band(
        tuple(shared),
        tuple(stats.median(column) or 0.0 for column in columns),
        tuple(map(min, columns)),
        tuple(map(max, columns)),
    )


def shown(view: View) -> list[Method]:
    """Methods that tell a mismatch."""
    return [m for m in view.methods if any("mismatch_2" in r.series for r in m.good)]


def components(view: View) -> list[int]:
    """Which components to draw: at most `PANELS`, spread from the second to the last."""
    names = {name for m in shown(view) for r in m.good for name in r.series}
    found = sorted(
        int(name.rpartition("_")[2])
        for name in names
        if name.startswith("mismatch_") and name.rpartition("_")[2].isdecimal()
    )
    if len(found) <= PANELS:
        return found
    return [found[round(i * (len(found) - 1) / (PANELS - 1))] for i in range(PANELS)]


def labels(methods: Sequence[Method]) -> dict[str, str]:
    """Names without the words that all of them begin with."""
    words = {method.name: method.name.split("_") for method in methods}
    shared = 0
    while len(words) > 1 and all(len(parts) > shared + 1 for parts in words.values()):
        if len({parts[shared] for parts in words.values()}) > 1:
            break
        shared += 1
    return {name: clean(" ".join(parts[shared:])) for name, parts in words.items()}


def draw(view: View, name: str, title: str, description: str) -> str | None:
    """A column a component, mismatch above and error below; a line a method."""
    methods, numbers = shown(view), components(view)
    if not numbers:
        return None
    with style():
        figure = canvas(WIDTH, HEIGHT)
        axes = figure.subplots(len(ROWS), len(numbers), sharex=True, sharey="row", squeeze=False)
        for row, (series, label) in enumerate(ROWS):
            for column, number in enumerate(numbers):
                _panel(axes[row, column], view, methods, f"{series}_{number}")
            axes[row, 0].set_ylabel(label)
            _names(axes[row, -1], view, methods, f"{series}_{numbers[-1]}")
            axes[row, 0].yaxis.set_major_formatter(_power)
        _frozen(axes[0, 0], view, methods, f"{ROWS[0][0]}_{numbers[0]}")
        for column, number in enumerate(numbers):
            axes[0, column].set_title(f"component {number}", color=INK)
            axes[-1, column].set_xlabel("round")
        figure.align_ylabels(axes[:, 0])
        return export(figure, name, title, description)


def _panel(axes: Axes, view: View, methods: Sequence[Method], series: str) -> None:
    axes.set_yscale("log")
    axes.locator_params(axis="y", numticks=7)
    axes.minorticks_off()
    # Later lines are thinner: where two of them coincide both are seen.
    for place, method in enumerate(sorted(methods, key=lambda method: method.index)):
        found = band(method, series)
        if found is None:
            continue
        color = look(method, view).color
        rounds, low, middle, high = map(
            _thinned, (found.rounds, *map(_drawable, (found.low, found.middle, found.high)))
        )
        axes.fill_between(rounds, low, high, color=color, alpha=0.11, linewidth=0)
        width = max(1.5, 3.0 - 0.8 * place)
        axes.plot(rounds, middle, color=color, linewidth=width, zorder=3 + place)
    axes.margins(x=0)


def _drawable(values: Sequence[float]) -> list[float]:
    return [max(value, LEAST) for value in values]


def _thinned(values: Sequence[float]) -> list[float]:
    """About a hundred of them, the first and the last among them."""
    stride = max(1, len(values) // 100)
    return [*values[:-1:stride], values[-1]]


def _power(value: float, _: object = None) -> str:
    """A tick of a logarithmic axis, without markup."""
    return f"10{f'{log10(value):.0f}'.translate(POWER)}"


def _frozen(axes: Axes, view: View, methods: Sequence[Method], series: str) -> None:
    """The word beside every line that never moves."""
    for method in methods:
        found = band(method, series)
        if found is not None and len(found.middle) > 1 and len(set(found.middle)) == 1:
            place = ((found.rounds[0] + found.rounds[-1]) / 2, _drawable(found.middle)[-1])
            axes.annotate("frozen", place, (0, 4), textcoords="offset points", ha="center",
                          color=look(method, view).color, fontsize=10)  # fmt: skip


def _names(axes: Axes, view: View, methods: Sequence[Method], series: str) -> None:
    """Names at the ends of the last panel's lines, moved apart where they would overlap."""
    ends = [(method, found) for method in methods if (found := band(method, series))]
    low, high = map(log10, axes.get_ylim())
    wanted = [log10(_drawable(found.middle)[-1]) for _, found in ends]
    places = spread_labels(wanted, 0.09 * (high - low), low, high)
    words = labels(methods)
    for (method, found), place in zip(ends, places, strict=True):
        color = look(method, view).color
        axes.annotate(
            words[method.name],
            xy=(found.rounds[-1], _drawable(found.middle)[-1]),
            xytext=(1.09, 10**place),
            textcoords=axes.get_yaxis_transform(),
            color=color,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": SOFT if color == INK else color,
                        "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


def table(view: View) -> DataFrame:
    """Medians over the good finals after the last round; passes are the same for all of them."""
    numbers, rows = components(view), []
    for method in shown(view):
        last = {name: band(method, name) for name in (*(f"mismatch_{k}" for k in numbers),
                                                      "w_error")}  # fmt: skip
        rows.append(
            {
                "method": clean(method.name),
                "finals": len(method.good),
                "passes": finite_or(stats.median([r.passes for r in method.good]), "not counted"),
                **{
                    name: Missing("not recorded") if found is None else found.middle[-1]
                    for name, found in last.items()
                },
            }
        )
    return frame(("method", "finals", "passes", *(f"mismatch_{k}" for k in numbers), "w_error"),
                 rows)  # fmt: skip


def _grid(view: View) -> Table:
    return grid(
        "deflation",
        "After the last round: medians over final seeds",
        table(view),
        [
            Column("method", "method", align="left"),
            Column("finals", "finals"),
            Column("passes", "passes", lambda v: significant(v, 4)),
            *(
                Column(f"mismatch_{k}", f"mismatch {k}", lambda v: significant(v, 2))
                for k in components(view)
            ),
            Column("w_error", "error of W", lambda v: significant(v, 3)),
        ],
    )


def render(view: View) -> Block | None:
    """The figure and a table; nothing where no method deflates."""
    if not components(view):
        return None
    words = (
        "Above, how far the target of a component is from the one that exact deflation would give "
        "it (Frobenius norm): the error that it inherits. Below, how far the component itself is "
        "from the exact one. Medians over final seeds, bands from the best to the worst of them. "
        "Where predecessors are frozen, a line is flat: what they got wrong is never mended."
    )
    note = (
        "A step is a round; a round of all components counts as one pass. Sequential methods have "
        "no target for a component before its turn. A sequential method that takes as many passes "
        "as the parallel one takes its rounds one after another, and so as many times longer on a "
        "device a component."
    )
    return Block(
        parts=(
            *drawing(draw, view, "deflation", "Deflation by rounds", words, wide=True),
            _grid(view),
            Prose(note),
        )
    )


SECTION = Section(
    name="deflation",
    title="Deflation",
    order=25,
    summary="mismatch and component error by round of parallel and sequential deflation",
    render=render,
)
