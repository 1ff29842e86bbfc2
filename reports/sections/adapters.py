"""Adapters: what is trained, what is deployed, where the ranks went, and what a pass more costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from levelfield.bench import power, stats
from levelfield.bench.spec import Section
from levelfield.reports import units
from levelfield.reports.blocks import Block, Column, Figure, Part, Prose, drawing, grid
from levelfield.reports.frames import frame
from levelfield.reports.measure import Measured, Missing
from levelfield.reports.ranks import RankMap, late_share, of_method
from levelfield.reports.svg import INK, SERIES, SOFT, canvas, export, look, style
from levelfield.reports.text import big, clean, count, fixed, signed
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

COLUMNS = (
    "method",
    "error",
    "trained_parameters",
    "deployed_parameters",
    "head_parameters",
    "total_rank",
    "rank_budget",
    "late_share",
    "passes_a_step",
)
WIDTH, HEIGHT = 560, 330
CELL = 34
"""Pixels of a cell of a rank map."""
NEAR = 4
"""A name is about as wide as this factor on the axis of parameters."""


def render(view: View) -> Block | None:
    """Nothing where no method is an adapter."""
    adapters = [method for method in view.methods if any(r.adapter for r in method.good)]
    if not adapters:
        return None
    parts: list[Part] = [_table(view)]
    parts += drawing(
        scatter, view, "adapter_parameters", "Error against deployed parameters",
        "Every dot is a final seed, the bar the 95 % interval of the mean; the axis of parameters "
        "is logarithmic, the head is left out.",
    )  # fmt: skip
    parts += [Prose(text, "beside") for text in _words(view, adapters)]
    for method in adapters:
        found = of_method(method)
        if found is not None and not found.uniform:
            parts += _map(view, method, found)
    return Block(parts=tuple(parts))


def parameters(method: Method, name: str) -> Measured:
    """Mean over the good finals of a count, such as `deployed_parameters`; of a method without an
    adapter, all that it trains."""
    counts = [r.adapter[name] for r in method.good if r.adapter.get(name) is not None]
    if not counts:
        whole = [r.parameters for r in method.good if r.parameters is not None and not r.adapter]
        return float(whole[0]) if whole else Missing("no final tells it")
    return float(sum(counts) / len(counts))


def adapters(view: View) -> DataFrame:
    """One row a method."""
    rows: list[dict[str, Any]] = []
    for method in view.methods:
        found = of_method(method)
        loss = stats.mean(list(method.losses.values()))
        passes = [r.passes / r.steps for r in method.good if r.steps]
        heads = [r.adapter.get("head_parameters") for r in method.good if r.adapter]
        budgets = [r.adapter["budget"] for r in method.good if "budget" in r.adapter]
        none = Missing("it trains all of the model")
        rows.append(
            {
                "method": clean(method.name),
                "error": Missing("no good final") if loss is None else loss,
                "trained_parameters": parameters(method, "trained_parameters"),
                "deployed_parameters": parameters(method, "deployed_parameters"),
                "head_parameters": heads[0] if heads and heads[0] is not None else none,
                "total_rank": none if found is None else sum(found.ranks.values()),
                "rank_budget": _first(budgets) if heads else none,
                "late_share": none if found is None else _known(late_share(found)),
                "passes_a_step": stats.mean(passes) if passes else Missing("no good final"),
            }
        )
    return frame(COLUMNS, rows)


def _first(values: list[Any]) -> Measured:
    return values[0] if values else Missing("no final tells it")


def _known(value: float | None) -> Measured:
    return value if value is not None else Missing("fewer than three layers")


def _table(view: View) -> Any:
    return grid(
        "adapters",
        "Trained, deployed, and where the ranks went; means over the finals",
        adapters(view),
        [
            Column("method", "method", align="left"),
            Column("error", "report loss", units.written(view)),
            Column("trained_parameters", "trained, most at once", big),
            Column("deployed_parameters", "deployed", big),
            Column("head_parameters", "head, beside both", big),
            Column("total_rank", "ranks in all", lambda v: fixed(v, 1)),
            Column("rank_budget", "of at most", count),
            Column("late_share", "of them in the last third", lambda v: f"{fixed(100 * v, 0)} %"),
            Column("passes_a_step", "passes a step", lambda v: fixed(v, 2)),
        ],
    )


def scatter(view: View, name: str, title: str, description: str) -> str | None:
    """Error against deployed parameters."""
    rows = [
        (method, size, method.losses)
        for method in view.methods
        if not isinstance(size := parameters(method, "deployed_parameters"), Missing)
        and method.losses
    ]
    if len(rows) < 2:
        return None
    with style():
        figure = canvas(WIDTH, HEIGHT)
        axes = figure.add_subplot()
        for method, size, losses in rows:
            color = look(method, view).color
            values = list(losses.values())
            middle = stats.mean(values) or 0.0
            axes.plot([size] * len(values), values, "o", color=color, ms=3.5, alpha=0.45, mew=0)
            ends = stats.t_interval(values)
            if ends is not None:
                axes.plot([size, size], ends, color=color, lw=1.6, solid_capstyle="round")
            axes.plot([size], [middle], "o", color=color, ms=7)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: big(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        _names(axes, view, rows)
        axes.set(xlabel="deployed parameters, head left out", ylabel="report loss, nats a token")
        return export(figure, name, title, description)


def _names(axes: Axes, view: View, rows: list[tuple[Method, float, dict[int, float]]]) -> None:
    """Names right of the dots and of those close by, pushed apart where methods are as good."""
    low, high = axes.get_ylim()
    step, taken = 0.055 * (high - low), -math.inf
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.35)
    ordered = sorted(rows, key=lambda row: stats.mean(list(row[2].values())) or 0.0)
    for method, size, losses in ordered:
        y = stats.mean(list(losses.values())) or 0.0
        taken = max(y, taken + step)
        near = max(other for _, other, _ in rows if other < NEAR * size)
        axes.annotate(clean(method.name), (size, y), (near * 1.18, taken), va="center", fontsize=10,
                      color=look(method, view).color, annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": SOFT, "lw": 0.5})  # fmt: skip


def _map(view: View, method: Method, found: RankMap) -> tuple[Figure, ...]:
    stem = "".join(char if char.isalnum() else "_" for char in method.name)
    name, title = f"ranks_{stem}", f"Ranks of {clean(method.name)}"
    caption = (
        "Mean rank over the finals, by kind of module and layer; the darker, the more. A method of "
        "fixed rank has the same everywhere."
    )
    return drawing(lambda *given: rank_map(found, *given), view, name, title, caption)


def rank_map(found: RankMap, view: View, name: str, title: str, description: str) -> str:
    """A cell a module: kinds down, layers across."""
    most = max(max(found.ranks.values()), 1e-9)
    with style():
        from matplotlib.patches import Rectangle

        width = max(300, 190 + CELL * len(found.layers))
        figure = canvas(width, 70 + CELL * len(found.kinds))
        axes = figure.add_subplot()
        for row, kind in enumerate(found.kinds):
            for column, layer in enumerate(found.layers):
                rank = found.ranks.get((kind, layer))
                if rank is None:
                    continue
                axes.add_patch(
                    Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, facecolor=SERIES[0][0],
                              alpha=0.08 + 0.72 * rank / most, linewidth=0)
                )  # fmt: skip
                axes.text(column, row, fixed(rank, 1).removesuffix(".0"), ha="center", va="center",
                          color=INK, fontsize=9)  # fmt: skip
        axes.set_xlim(-0.5, len(found.layers) - 0.5)
        axes.set_ylim(len(found.kinds) - 0.5, -0.5)
        axes.set_xticks(range(len(found.layers)), [str(layer + 1) for layer in found.layers])
        axes.set_yticks(range(len(found.kinds)), list(found.kinds))
        axes.set_xlabel("layer")
        axes.grid(visible=False)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        return export(figure, name, title, description)


def _words(view: View, chosen: list[Method]) -> list[str]:
    """Fewer parameters at an equal score, only where equality is shown."""
    said = [
        "Trained is the most that is trained at once, reserves and what is pruned later among it; "
        "deployed is what is left to be merged or stored. The head is trained in full by every "
        "method and counted apart."
    ]
    fixed_rank = [m for m in chosen if (found := of_method(m)) is not None and found.uniform]
    margin = float(view.setting("margin_nats", default=0.3))
    for base in sorted(fixed_rank, key=lambda method: method.index)[:1]:
        for method in chosen:
            if method.name != base.name:
                text = reduction(view, method, base, margin)
                if text:
                    said.append(text)
    return said


def reduction(view: View, method: Method, base: Method, margin: float) -> str | None:
    """How much smaller one adapter is than another of fixed rank, if they are as good (TOST)."""
    sizes = [parameters(item, "deployed_parameters") for item in (method, base)]
    one, other = list(method.losses.values()), list(base.losses.values())
    if any(isinstance(size, Missing) for size in sizes) or min(len(one), len(other)) < 2:
        return None
    change = 1 - float(sizes[0]) / float(sizes[1])  # type: ignore[arg-type]
    spread = [(stats.deviation(values) or 0.0) ** 2 / len(values) for values in (one, other)]
    difference = (stats.mean(one) or 0.0) - (stats.mean(other) or 0.0)
    what = (
        f"{clean(method.name)} deploys {fixed(100 * abs(change), 1)} % "
        f"{'fewer' if change > 0 else 'more'} parameters than {clean(base.name)}"
    )
    if not sum(spread):
        return f"{what}; the seeds do not scatter, so that nothing can be tested."
    df = sum(spread) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(spread, (one, other), strict=True)
    )
    found = power.tost(difference, math.sqrt(sum(spread)), df, margin)
    gap = f"the difference is {signed(difference, 2)} nats with margin ± {margin:g}"
    if found.equivalent:
        return f"{what} at an equal score: {gap}, TOST p = {fixed(found.p or 0.0, 3)}, over seeds."
    if found.interval and (found.interval[0] > margin or found.interval[1] < -margin):
        low, high = (signed(end, 2) for end in found.interval)
        return f"{what}, not at an equal score: {gap}, 90 % interval {low} to {high}, over seeds."
    if found.power is not None and found.power < 0.8:
        return (
            f"{what}; whether at an equal score is not testable here: {gap}, and equal methods "
            f"with this spread would be shown to be equal with power {fixed(found.power, 2)}"
            f"{_needed(one, other, margin)}."
        )
    return f"{what}; an equal score is not shown: {gap}, TOST p = {fixed(found.p or 1.0, 3)}."


def _needed(one: list[float], other: list[float], margin: float) -> str:
    """How many seeds would do."""
    sd = math.sqrt(sum((stats.deviation(values) or 0.0) ** 2 for values in (one, other)) / 2)
    count = power.tost_needed(sd, margin)
    return f"; that takes {count:,} seeds each" if isinstance(count, int) else ""


SECTION = Section(
    name="adapters",
    title="Adapters",
    order=26,
    summary="trained and deployed parameters, rank maps, fewer parameters at an equal score",
    render=render,
)
