"""Drawing comparisons: differences, Pareto set, memory by kind, schedules.

Same shape as `figures.py`: a `View` in, SVG text out, None if there is nothing to draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.reports import measure, merits
from levelfield.reports.curves import interval_rows, traces
from levelfield.reports.svg import INK, KINDS, PAPER, SOFT, canvas, export, look, style
from levelfield.reports.text import binary_unit, clean, listed, significant
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 560, 360


def differences(view: View, name: str, title: str, description: str) -> str | None:
    """Difference to the baseline with its t interval, one row a method."""

    def read(method: Method) -> tuple[float, float, float] | None:
        pair = view.pair(method.name, view.baseline)
        if pair is None or pair.difference is None or pair.interval is None:
            return None
        return pair.difference, *pair.interval

    rows = interval_rows(view, read)
    if not rows:
        return None
    with style():
        figure = canvas(WIDTH, 74 + 24 * len(rows))
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=1)
        extents = sorted(max(abs(low), abs(high)) for _, _, low, high in rows)
        reach = min(extents[-1], 4 * extents[len(extents) // 2])
        for number, (method, middle, low, high) in enumerate(rows):
            drawn = look(method, view)
            sure = view.winner(method.name, view.baseline) is not None
            if abs(middle) > reach:
                _far(axes, number, middle, reach, drawn.color)
                continue
            axes.plot([low, high], [number] * 2, color=drawn.color, lw=2.2, solid_capstyle="round")
            face = drawn.color if sure else PAPER
            axes.plot([middle], [number], "o", color=drawn.color, mfc=face, ms=7, mew=1.6)
        axes.set_yticks(range(len(rows)), [clean(row[0].name) for row in rows])
        for text, row in zip(axes.get_yticklabels(), rows, strict=True):
            text.set_color(look(row[0], view).color)
            text.set_fontsize(11)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"nats a token against {clean(view.baseline)}; left is better")
        axes.xaxis.set_major_formatter(lambda value, _: significant(value, 3))
        return export(figure, name, title, description)


def _far(axes: Axes, row: int, value: float, reach: float, color: str) -> None:
    """An arrow with its number, for a row that would squeeze all others."""
    side = 1 if value > 0 else -1
    axes.plot([side * reach], [row], ">" if side > 0 else "<", color=color, ms=7)
    axes.annotate(significant(value, 3), (side * reach, row), (-9 * side, 0), color=SOFT,
                  textcoords="offset points", va="center", ha="right" if side > 0 else "left",
                  fontsize=10)  # fmt: skip


def sweep(view: View, name: str, title: str, description: str) -> str | None:
    """Loss against the rate over the method's own best rate, one line a method."""
    rows = [(method, merits.sweep(method)) for method in view.methods]
    rows = [(method, points) for method, points in rows if len(points) > 1]
    if not rows:
        return None
    with style():
        figure = canvas(WIDTH, HEIGHT)
        axes = figure.add_subplot()
        best = sorted(min(points.values()) for _, points in rows)
        ceiling = best[len(best) // 2] + 4 * max(best[-1] - best[0], 0.1)
        ends = []
        for method, points in rows:
            drawn, centre = look(method, view), method.hparams.get(method.scale)
            if not isinstance(centre, int | float):
                continue
            x = [rate / centre for rate in points]
            y = [min(loss, ceiling) for loss in points.values()]
            axes.plot(x, y, "-o", color=drawn.color, lw=1.6, ms=3.5)
            ends.append((y[-1], x[-1], method, drawn.color))
        axes.set_xscale("log")
        axes.set_ylim(best[0] - 0.05 * (ceiling - best[0]), ceiling)
        _labels(axes, ends, ceiling - best[0])
        axes.set(xlabel="rate, relative to the best one", ylabel="selection loss, nats a token")
        return export(figure, name, title, description)


def _labels(axes: Axes, ends: list[tuple[float, float, Method, str]], span: float) -> None:
    """Names at the right ends of lines, pushed apart so that none covers another."""
    floor = -float("inf")
    for y, x, method, color in sorted(ends, key=lambda end: (end[0], end[2].index)):
        floor = max(y, floor + 0.055 * span)
        axes.annotate(clean(method.name), (x, y), (x * 1.25, floor), color=color, fontsize=10,
                      va="center", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6})  # fmt: skip


def pareto(view: View, name: str, title: str, description: str) -> str | None:
    """Loss against memory, with intervals; the Pareto set is filled."""
    label, amount = measure.total_measure(view)
    dominated = measure.dominated_by(view)
    rows = [(method, measure.known(amount(method)), method.interval) for method in view.contenders]
    drawn_rows = [(m, b, i) for m, b, i in rows if b is not None and i is not None]
    if len(drawn_rows) < 2:
        return None
    unit, exponent = binary_unit([amount for _, amount, _ in drawn_rows])
    with style():
        figure = canvas(WIDTH, HEIGHT)
        axes = figure.add_subplot()
        means = sorted((i[0] + i[1]) / 2 for _, _, i in drawn_rows)
        low = min(i[0] for _, _, i in drawn_rows)
        typical = means[len(means) // 2]
        high = min(max(i[1] for _, _, i in drawn_rows), typical + 3 * (typical - low) + 1e-3)
        room = 0.08 * (high - low)
        axes.set_ylim(low - room, high + room)
        widest = max(amount for _, amount, _ in drawn_rows) / 2**exponent
        narrowest = min(amount for _, amount, _ in drawn_rows) / 2**exponent
        span = max(widest - narrowest, 0.02 * widest)
        axes.set_xlim(narrowest - 0.1 * span, widest + 0.22 * span)
        for method, memory_bytes, interval in drawn_rows:
            drawn, x = look(method, view), memory_bytes / 2**exponent
            middle = min((interval[0] + interval[1]) / 2, high + 0.5 * room)
            inside = not dominated.get(method.name)
            above = (interval[0] + interval[1]) / 2 > high + 0.5 * room
            axes.plot([x, x], interval, color=drawn.color, lw=1.4, alpha=0.55)
            face = drawn.color if inside else PAPER
            axes.plot([x], [middle], "^" if above else "o", color=drawn.color, mfc=face, ms=8,
                      mew=1.5)  # fmt: skip
            axes.annotate(
                clean(method.name),
                (x, middle),
                (8, 0),
                textcoords="offset points",
                va="center",
                color=drawn.color,
                fontweight="bold" if inside else "normal",
            )
        axes.set(xlabel=f"memory, {unit} ({label})", ylabel="report loss, nats a token")
        return export(figure, name, title, description)


def memory(view: View, name: str, title: str, description: str) -> str | None:
    """Bytes at the peak, stacked by kind, smallest total first."""
    rows: list[tuple[Method, list[float]]] = []
    for method in view.methods:
        known = [measure.known(measure.memory(method, kind)) for kind in measure.KINDS]
        if any(part is not None for part in known):
            rows.append((method, [part or 0.0 for part in known]))
    if not rows:
        return None
    rows.sort(key=lambda row: sum(row[1]))
    unit, exponent = binary_unit([sum(parts) for _, parts in rows])
    with style():
        from matplotlib.patches import Patch

        figure = canvas(WIDTH, 84 + 24 * len(rows))
        axes = figure.add_subplot()
        for number, (_, parts) in enumerate(rows):
            left = 0.0
            for part, color in zip(parts, KINDS, strict=True):
                axes.barh(number, part / 2**exponent, left=left, color=color[0], height=0.66,
                          linewidth=0)  # fmt: skip
                left += part / 2**exponent
            axes.text(left, number, f"  {significant(left, 3)}", va="center", color=SOFT,
                      fontsize=10)  # fmt: skip
        axes.set_yticks(range(len(rows)), [clean(method.name) for method, _ in rows])
        for text in axes.get_yticklabels():
            text.set_color(INK)
            text.set_fontsize(11)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{unit} at the step's peak")
        handles = [Patch(facecolor=color) for color, _ in KINDS]
        figure.legend(handles, measure.KINDS, loc="outside upper left", ncols=len(measure.KINDS),
                      frameon=False, fontsize=10, handlelength=0.9, columnspacing=1.2,
                      handletextpad=0.4)  # fmt: skip
        return export(figure, name, title, description)


def schedule(view: View, name: str, title: str, description: str) -> str | None:
    """The learning-rate factor that was really used, one line a group of methods."""
    groups = traces(view)
    if not groups:
        return None
    with style():
        figure = canvas(WIDTH, 220)
        axes = figure.add_subplot()
        for number, (names, trace) in enumerate(groups):
            first = view.method(names[0])
            color = INK if number == 0 or first is None else look(first, view).color
            label = listed(map(clean, names)) if len(groups) > 1 else "all methods"
            axes.plot([s for s, _ in trace], [f for _, f in trace], color=color, lw=1.8,
                      label=label[:70])  # fmt: skip
        axes.set(xlabel="step", ylabel="factor on the rate", ylim=(0, None))
        if len(groups) > 1:
            figure.legend(loc="outside upper left", frameon=False, fontsize=10)
        return export(figure, name, title, description)
