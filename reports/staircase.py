"""Memory over the steps: what a falling share of state really frees, and when.

Methods record [step, bytes] of their state at every selection; a device's loop what its allocator
held. A value holds until the next point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from levelfield.bench import stats
from levelfield.reports import measure
from levelfield.reports.curves import spread_labels
from levelfield.reports.frames import finite_or, frame
from levelfield.reports.measure import Missing
from levelfield.reports.svg import INK, SOFT, canvas, export, look, style
from levelfield.reports.text import binary_unit, clean, significant
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

WIDTH = 560
HEIGHTS = {"state_bytes": 230, "allocated_bytes": 130, "reserved_bytes": 130, "rho": 90}
"""Series -> height of its panel in pixels, from the top."""
LABELS = {"state_bytes": "state", "allocated_bytes": "allocated", "reserved_bytes": "reserved"}
DEVICE = ("allocated_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True)
class Stair:
    """One final's series."""

    points: tuple[tuple[float, float], ...]
    """(step, value), at least one."""
    end: float
    """Its last step."""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.points)

    @property
    def mean(self) -> float | None:
        """Over the steps from the first point to the end."""
        ends = [*(step for step, _ in self.points[1:]), self.end]
        spans = [max(0.0, end - step) for (step, _), end in zip(self.points, ends, strict=True)]
        if not sum(spans):
            return None
        return sum(v * span for v, span in zip(self.values, spans, strict=True)) / sum(spans)


def stairs(method: Method, name: str) -> list[Stair]:
    """The series of that name of every good final that has one, by seed."""
    found = []
    for record in sorted(method.good, key=lambda record: (record.study, record.seed)):
        points = tuple(
            (float(point[0]), float(point[1]))
            for point in record.series.get(name, ())
            if len(point) == 2 and all(map(stats.finite, point))
        )
        if points:
            found.append(Stair(tuple(sorted(points)), max(float(record.steps), points[-1][0])))
    return found


def shown(view: View) -> list[Method]:
    """Methods that tell the bytes of their state over the steps; none if no bytes ever change."""
    methods = [method for method in view.methods if stairs(method, "state_bytes")]
    changes = (len(set(s.values)) > 1 for m in methods for s in stairs(m, "state_bytes"))
    return methods if any(changes) else []


def reference(view: View) -> tuple[Method, float] | None:
    """The reference and its state in bytes, unless it is drawn as a staircase itself."""
    method = view.method(view.reference)
    if method is None or method in shown(view):
        return None
    held = measure.known(measure.state_bytes(method))
    return None if held is None else (method, held)


def on_device(view: View) -> bool:
    """Whether a device's allocator was read."""
    return any(stairs(method, name) for method in shown(view) for name in DEVICE)


def retries(view: View) -> dict[str, int]:
    """Method -> how often the allocator had to give memory back and try again, over its finals."""
    counts = {
        method.name: round(sum(s.values[-1] for s in stairs(method, "alloc_retries")))
        for method in view.methods
    }
    return {name: count for name, count in counts.items() if count}


COLUMNS = (
    "method",
    "finals",
    "first_bytes",
    "largest_bytes",
    "last_bytes",
    "mean_bytes",
    "mean_share_of_reference",
)


def table(view: View) -> DataFrame:
    """State over the steps in numbers: medians over the finals, the largest over all of them."""
    rows = []
    against = reference(view)
    for method in shown(view):
        runs = stairs(method, "state_bytes")
        mean = stats.median([run.mean for run in runs if run.mean is not None])
        share: float | Missing = Missing("the reference's state is not known")
        if against is not None and against[1] > 0:
            share = finite_or(None if mean is None else mean / against[1], "no step was taken")
        rows.append(
            {
                "method": clean(method.name),
                "finals": len(runs),
                "first_bytes": stats.median([run.values[0] for run in runs]),
                "largest_bytes": max(max(run.values) for run in runs),
                "last_bytes": stats.median([run.values[-1] for run in runs]),
                "mean_bytes": finite_or(mean, "no step was taken"),
                "mean_share_of_reference": share,
            }
        )
    return frame(COLUMNS, rows)


def draw(view: View, name: str, title: str, description: str) -> str | None:
    """A panel of state, of what a device held, of rho; one line a final, the first one in full."""
    methods = shown(view)
    if not methods:
        return None
    panels = [key for key in HEIGHTS if any(stairs(method, key) for method in methods)]
    heights = [HEIGHTS[key] for key in panels]
    with style():
        figure = canvas(WIDTH, 60 + sum(heights))
        rows = figure.subplots(
            len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for axes, key in zip(rows[:, 0], panels, strict=True):
            _panel(axes, view, methods, key)
        rows[-1, 0].set_xlabel("step")
        figure.align_ylabels(rows[:, 0])
        return export(figure, name, title, description)


def _panel(axes: Axes, view: View, methods: list[Method], key: str) -> None:
    lines = [(method, run) for method in methods for run in stairs(method, key)]
    end = max(run.end for _, run in lines)
    against = reference(view)
    beside: list[tuple[Method, Stair]] = []
    if against is not None and key == "state_bytes":
        beside = [(against[0], Stair(((0.0, against[1]),), end))]
    elif against is not None and key in DEVICE:
        beside = [(against[0], run) for run in stairs(against[0], key)[:1]]
    unit, exponent = "", 0
    if key in LABELS:
        unit, exponent = binary_unit([v for _, run in (*lines, *beside) for v in run.values])
    scale = 2**exponent
    ends: dict[str, tuple[float, str]] = {}
    for method, run in reversed((*beside, *lines)):
        drawn = look(method, view)
        first = run is next(r for m, r in (*beside, *lines) if m is method)
        x = [*(step for step, _ in run.points), run.end]
        y = [value / scale for value in (*run.values, run.values[-1])]
        axes.plot(
            x,
            y,
            drawstyle="steps-post",
            color=drawn.color,
            linewidth=1.0 if (method, run) in beside else 1.8 if first else 0.9,
            alpha=1.0 if first else 0.4,
            linestyle=(0, drawn.dashes) if drawn.dashes else "-",
        )
        if first:
            ends[method.name] = (y[-1], drawn.color)
    top = max(value / scale for _, run in (*lines, *beside) for value in run.values)
    axes.set(xlim=(0, end), ylim=(0, 1.08 * top or 1.0))
    axes.set_ylabel(f"{LABELS[key]}, {unit}" if key in LABELS else key)
    axes.yaxis.set_major_formatter(lambda value, _: significant(value, 3))
    axes.locator_params(axis="y", nbins=5 if HEIGHTS[key] > 120 else 3)
    _names(axes, ends, 16 / HEIGHTS[key])


def _names(axes: Axes, ends: dict[str, tuple[float, str]], share: float) -> None:
    """Names at the lines' ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    wanted = [value for value, _ in ends.values()]
    places = spread_labels(wanted, share * (high - low), low, high)
    for (name, (value, color)), place in zip(ends.items(), places, strict=True):
        axes.annotate(
            clean(name),
            xy=(1.0, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(1.035, place),
            textcoords=axes.get_yaxis_transform(),
            color=color,
            va="center",
            fontsize=11 if color != INK else 10,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color if color != INK else SOFT,
                        "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip
