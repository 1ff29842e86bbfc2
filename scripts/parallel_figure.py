"""Draw docs/component_parallel.svg from what benchmarks/component_parallel.py printed.

python benchmarks/component_parallel.py --processes 2 4 | python scripts/parallel_figure.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.reports.curves import spread_labels
from levelfield.reports.svg import INK, SERIES, SOFT, canvas, export, standalone, style
from levelfield.reports.text import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGET = Path(__file__).parent.parent / "docs" / "component_parallel.svg"
LINES = (
    ("ideal", "", "the most there is", INK, (2, 2)),
    ("speedup", "cpu_speedup", "passes shared out", SERIES[0][0], ()),
    ("data", "cpu_data", "batch shared out", SERIES[1][0], ()),
)
"""Measured by the clock, by CPU time, what it is, its look."""
DESCRIPTION = (
    "Times as fast as one process with one thread, against the number of components, for each "
    "number of processes: passes shared out, batch shared out, and the ideal."
)


def drawn(axes: Axes, cases: list[dict[str, Any]], cores: int) -> None:
    """One number of processes. More processes than cores are told by CPU time alone."""
    processes = cases[0]["processes"]
    by_cpu = processes > cores
    x = [case["components"] for case in cases]
    ends = []
    for clock, cpu, words, color, dashes in LINES:
        y = [case[cpu if by_cpu and cpu else clock] for case in cases]
        marker = "o" if cpu else ""
        axes.plot(x, y, color=color, dashes=dashes or (None, None), lw=1.8, marker=marker, ms=5)
        ends.append((y[-1], words, color))
    places = spread_labels([end[0] for end in ends], 0.065 * processes, 0.0, processes + 0.25)
    for place, (_, words, color) in zip(places, ends, strict=True):
        axes.annotate(words, (x[-1], place), (6, 0), color=color, fontsize=10, va="center",
                      textcoords="offset points", annotation_clip=False)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [str(n) for n in x])
    axes.minorticks_off()
    axes.set_ylim(0, processes + 0.25)
    axes.set_yticks(range(processes + 1))
    how = f"by CPU time: there are {cores} cores" if by_cpu else "by the clock"
    axes.set_title(f"{processes} processes, {how}", color=SOFT, loc="left")
    axes.set_xlabel("components of a module (K), a pass each")


def main() -> None:
    found = json.loads(sys.stdin.read().strip().splitlines()[-1])
    plain = [case for case in found["cases"] if not case["reserve"]]
    counts = sorted({case["processes"] for case in plain})
    with style():
        figure = canvas(430 * len(counts), 300)
        grid = figure.subplots(1, len(counts), squeeze=False)[0]
        for axes, count in zip(grid, counts, strict=True):
            mine = [case for case in plain if case["processes"] == count]
            drawn(axes, sorted(mine, key=lambda case: case["components"]), found["cores"])
        grid[0].set_ylabel("times as fast as one process")
        svg = export(figure, "parallel", "What more processes bring", DESCRIPTION)
    TARGET.write_text(standalone(svg), encoding="utf-8")
    columns = ("processes", "K", "reserve", "ms", "passes shared out", "by CPU time", "ideal",
               "batch shared out", "by CPU time", "one process, as many threads")  # fmt: skip
    rows = [
        (str(c["processes"]), str(c["components"]), "yes" if c["reserve"] else "no",
         f"{c['one_ms']:.0f}", f"{c['speedup']:.2f}", f"{c['cpu_speedup']:.2f}",
         f"{c['ideal']:.2f}", f"{c['data']:.2f}", f"{c['cpu_data']:.2f}", f"{c['threads']:.2f}")
        for c in found["cases"]
    ]  # fmt: skip
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
