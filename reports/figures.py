"""Drawing how losses fall and how they were tuned; the data are computed in `curves.py`.

Every function: a `View` in, SVG text out, None if there is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from levelfield.reports.curves import (
    Band,
    Panel,
    alone,
    over_seconds,
    over_tokens,
    panel_window,
    panels,
    spread_labels,
    window,
)
from levelfield.reports.svg import PAPER, SOFT, canvas, export, look, style
from levelfield.reports.text import big, clean, short, significant
from levelfield.reports.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, LABEL = 560, 360, 14
"""Pixels; `LABEL` is the height of a line of text."""


def loss_tokens(view: View, name: str, title: str, description: str) -> str | None:
    """Selection loss against training tokens."""
    return _curves(view, over_tokens(view), "training tokens", big, name, title, description)


def loss_seconds(view: View, name: str, title: str, description: str) -> str | None:
    """Selection loss against seconds of undisturbed training."""
    bands = over_seconds(view)
    label = "seconds of training, from the timing phase"
    return _curves(view, bands, label, significant, name, title, description)


def _curves(
    view: View, bands: Sequence[Band], label: str, show: Any, name: str, title: str, words: str
) -> str | None:
    if not bands:
        return None
    with style():
        # Every curve is named at its end: many of them need a taller figure.
        height = max(HEIGHT, 70 + LABEL * len(bands))
        figure = canvas(WIDTH, height)
        axes = figure.add_subplot()
        low, high = window(bands)
        end = max(band.x[-1] for band in bands)
        for band in reversed(bands):
            drawn = look(band.method, view)
            axes.fill_between(
                band.x, band.low, band.high, color=drawn.color, alpha=0.13, linewidth=0
            )
            axes.plot(
                band.x,
                band.middle,
                color=drawn.color,
                linewidth=1.8,
                linestyle=(0, drawn.dashes) if drawn.dashes else "-",
            )
        axes.set(xlim=(0, end), ylim=(low, high), xlabel=label, ylabel="loss, nats a token")
        axes.xaxis.set_major_formatter(lambda value, _: show(value))
        shown = [band for band in bands if low <= band.middle[-1] <= high]
        _label_ends(axes, view, shown, LABEL / (height - 60))
        return export(figure, name, title, words)


def _label_ends(axes: Axes, view: View, bands: Sequence[Band], share: float) -> None:
    """Names at the lines' ends, moved apart where they would overlap.

    Args:
        share: height of a name over the height of the axes.
    """
    low, high = axes.get_ylim()
    gap = (high - low) * share
    places = spread_labels([band.middle[-1] for band in bands], gap, low, high)
    for band, place in zip(bands, places, strict=True):
        drawn = look(band.method, view)
        axes.annotate(
            clean(band.method.name),
            xy=(band.x[-1], band.middle[-1]),
            xytext=(1.035, place),
            textcoords=axes.get_yaxis_transform(),
            color=drawn.color,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": drawn.color, "linewidth": 0.7, "alpha": 0.6,
                        "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


def outside(view: View) -> list[str]:
    """Methods whose curve ends above the frame of `loss_tokens`."""
    bands = over_tokens(view)
    if not bands:
        return []
    _, high = window(bands)
    return [clean(band.method.name) for band in bands if band.middle[-1] > high]


def loss_scale(view: View, name: str, title: str, description: str) -> str | None:
    """Every tuning trial: selection loss against the scale dimension, a panel a method."""
    shown = panels(view)
    limits = panel_window(shown)
    if not shown or limits is None:
        return None
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    with style():
        figure = canvas(20 + 305 * columns, 30 + 170 * rows)
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        decades = max(_decades(panel) for panel in shown)
        for number, axes in enumerate(grid.flat):
            if number < len(shown):
                _panel(axes, shown[number], view, limits, decades)
            else:
                axes.set_axis_off()
        figure.supylabel("selection loss, nats a token", fontsize=10, color=SOFT)
        return export(figure, name, title, description)


def _decades(panel: Panel) -> float:
    values = [value for value, _, _ in panel.points]
    return math.log10(max(values) / min(values)) if panel.log else 0.0


def _panel(
    axes: Axes, panel: Panel, view: View, limits: tuple[float, float], decades: float
) -> None:
    drawn, best = look(panel.method, view), panel.method.best
    low, high = limits
    values = [value for value, _, _ in panel.points]
    if panel.log:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_xscale("log")
        centre = (max(values) * min(values)) ** 0.5
        reach = 10 ** (decades / 2 + 0.25)
        axes.set_xlim(centre / reach, centre * reach)
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_major_formatter(lambda value, _: significant(value, 2))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low, high)
    # Only trials that differ from the paper's defaults in nothing but the scale lie on one curve.
    ends = alone(panel)
    axes.plot([v for v, _ in ends], [y for _, y in ends], color=drawn.color, lw=0.9, alpha=0.35)
    top = high - 0.05 * (high - low)
    for value, loss, record in panel.points:
        if loss is None:
            axes.plot([value], [top], "x", color=SOFT, ms=6, mew=1.4)
        elif loss > high:
            axes.plot([value], [top], "^", color=drawn.color, ms=4.5)
        else:
            face = PAPER if record.trial == 0 else drawn.color
            axes.plot([value], [loss], "o", color=drawn.color, mfc=face, ms=5, mew=1.3)
        if record is best and loss is not None:
            axes.plot([value], [min(loss, top)], "o", mfc="none", mec=drawn.color, ms=11, mew=1.3)
    scale = clean(panel.method.scale)
    found = f"{scale} {short(float(best.hparams[panel.method.scale]))}" if best else "none good"
    axes.set_title(clean(panel.method.name), loc="left", color=drawn.color, fontweight="bold")
    axes.set_title(found, loc="right", color=SOFT, fontsize=10)
