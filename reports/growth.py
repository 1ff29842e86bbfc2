"""Figures of how state grows: AdaFRUGAL's saving up to 7B, and every method's state against h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levelfield.reports.svg import DASHES, INK, PAPER, SERIES, SOFT, canvas, export, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 640, 420


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Bytes against hidden size."""

    label: str
    hidden: Sequence[int]
    bytes: Sequence[float]
    marks: bool = True


def _axes(axes: Axes, hidden: Sequence[int], unit: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown: list[int] = []
    for size in sorted(set(hidden)):
        if not shown or size >= 1.3 * shown[-1]:  # closer ones would touch
            shown.append(size)
    axes.set_xticks(shown, [str(h) for h in shown])
    axes.minorticks_off()
    axes.set_xlabel("hidden size h")
    axes.set_ylabel(unit)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def saving(lines: Sequence[Line], paper_gb: float, at: int, name: str) -> str:
    """What falling state memory saves at its end, with the paper's figure beside the counts.

    Args:
        lines: the first as published sizes, the second at fixed depth.
        paper_gb: the printed figure, GB.
        at: its hidden size.
    """
    with style():
        figure = canvas(WIDTH, HEIGHT)
        axes = figure.add_subplot()
        for index, line in enumerate(lines):
            color = SERIES[index][0]
            gigabytes = [value / 1e9 for value in line.bytes]
            axes.plot(line.hidden, gigabytes, color=color, lw=2, dashes=DASHES[index % 4] or (),
                      marker="o" if line.marks else None, ms=6, label=line.label)  # fmt: skip
        axes.plot([at], [paper_gb], "D", color=INK, mfc=PAPER, ms=8, mew=1.8,
                  label=f"the paper's {paper_gb:g} GB")  # fmt: skip
        hidden = sorted({h for line in lines if line.marks for h in line.hidden})
        _axes(axes, hidden, "bytes saved, GB (10⁹)")
        axes.set_ylim(top=10.0)
        axes.legend(frameon=False, loc="upper left", labelcolor=SOFT)
        return export(
            figure, name, "What falling state memory saves",
            "Optimizer state saved between the start and the end of training against hidden size.",
        )  # fmt: skip


def state(lines: Sequence[Line], name: str) -> str:
    """State bytes of many methods against hidden size, each labelled at its last point."""
    with style():
        figure = canvas(WIDTH + 60, HEIGHT + 120)
        axes = figure.add_subplot()
        ordered = sorted(lines, key=lambda line: line.bytes[-1], reverse=True)
        places = _apart({line.label: line.bytes[-1] / 2**30 for line in ordered})
        for index, line in enumerate(ordered):
            color = SERIES[index % len(SERIES)][0]
            gibibytes = [value / 2**30 for value in line.bytes]
            axes.plot(line.hidden, gibibytes, color=color, lw=1.6, marker="o", ms=4)
            axes.annotate(
                line.label, (line.hidden[-1], gibibytes[-1]), color=color, fontsize=9,
                xytext=(line.hidden[-1] * 1.12, places[line.label]), va="center",
                arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6},
            )  # fmt: skip
        _axes(axes, ordered[0].hidden, "optimizer state, GiB (2³⁰)")
        axes.set_xlim(ordered[0].hidden[0] * 0.9, ordered[0].hidden[-1] * 2.1)
        return export(
            figure, name, "Optimizer state against size",
            "Claimed optimizer state of each method over the published LLaMA sizes, log-log.",
        )  # fmt: skip


def _apart(values: Mapping[str, float], factor: float = 1.16) -> dict[str, float]:
    """Label heights, from the top down, no two closer than `factor`."""
    places: dict[str, float] = {}
    last = float("inf")
    for label, value in sorted(values.items(), key=lambda item: -item[1]):
        last = min(value, last / factor)
        places[label] = last
    return places
