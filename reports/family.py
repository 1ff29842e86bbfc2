"""A family's page: one question at several sizes, horizons or batches, held together.

Each member has its own page; this one draws how loss, difference and speed-up change along the
axis, and links to them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from levelfield.bench import frontier
from levelfield.bench import speedup as law
from levelfield.bench.spec import Section
from levelfield.bench.stats import t_interval, tokens_to_target
from levelfield.bench.store import write_atomic
from levelfield.reports import measure, page, units
from levelfield.reports import view as views
from levelfield.reports.blocks import Block, Cell, Column, Figure, Part, Prose, Table, grid
from levelfield.reports.frames import frame
from levelfield.reports.measure import Missing
from levelfield.reports.svg import INK, SERIES, canvas, export, standalone, style
from levelfield.reports.text import big, clean, fixed, plural, signed

if TYPE_CHECKING:
    from pandas import DataFrame

AXES = {
    "parameters": ("trainable parameters", "parameters"),
    "tokens": ("training tokens", "tokens"),
    "batch": ("sequences a batch", "sequences"),
    "memory": ("memory limit, MiB (2²⁰ bytes)", "MiB"),
}


class FamilyLike(Protocol):
    """What the page needs of a family; `bench.family.Family` is one."""

    @property
    def path(self) -> Path: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def runs(self) -> Sequence[tuple[str, views.RunLike]]: ...


@dataclass(frozen=True, slots=True)
class Point:
    """One method at one member of the family."""

    member: str
    method: str
    x: float
    losses: tuple[float, ...]
    tokens: float
    difference: float | None
    ratio: float | None
    interior: bool
    parameters: float | None = None
    """Of the model it trained: under a memory budget the method's own."""
    faster: tuple[float, ...] = ()
    """Seed by seed: the reference's tokens over the method's to the reference's last loss, within
    the member's own horizon; a lower bound of the speed-up of runs planned for fewer tokens."""

    @property
    def loss(self) -> float | None:
        return math.fsum(self.losses) / len(self.losses) if self.losses else None


def points(family: FamilyLike) -> list[Point]:
    """Every method at every member that has finals, along the family's axis."""
    axis = str(family.data["protocol"].get("axis") or "parameters")
    found = []
    for name, run in family.runs:
        view = views.build(run)
        base = view.method(view.baseline)
        mean = _mean(base) if base else None
        for method in view.methods:
            x = _x(axis, method, view)
            if x is None:
                continue
            own = _mean(method)
            found.append(
                Point(
                    member=name,
                    method=method.name,
                    x=x,
                    losses=tuple(method.units),
                    tokens=measure.horizon_tokens(view, method) or math.nan,
                    difference=None if own is None or mean is None else own - mean,
                    ratio=measure.known(measure.step_ratio(method, view.method(view.reference))),
                    interior=method.scale not in measure.edges(method),
                    parameters=measure.known(measure.parameters(method)),
                    faster=_faster(method, view),
                )
            )
    return found


def _faster(method: views.Method, view: views.View) -> tuple[float, ...]:
    target, horizon = measure.target_loss(view), measure.horizon_tokens(view, method)
    if isinstance(target, Missing) or horizon is None:
        return ()
    reached = [tokens_to_target(record.curve, target) for record in method.good if record.curve]
    if len(reached) < len(method.final) or any(tokens is None for tokens in reached):
        return ()  # a seed that never gets there has no speed-up to average
    return tuple(horizon / tokens for tokens in reached if tokens)


def _mean(method: views.Method) -> float | None:
    losses = list(method.losses.values())
    return math.fsum(losses) / len(losses) if losses else None


def _x(axis: str, method: views.Method, view: views.View) -> float | None:
    if axis == "parameters":
        return measure.known(measure.parameters(method))
    if axis == "batch":
        return float(view.setting("data", "batch"))
    if axis == "memory":
        limit = view.setting("budget", "memory_gib")
        return float(limit) * 1024 if method.final and limit is not None else None
    return measure.horizon_tokens(view, method)


ROWS = (
    "member",
    "method",
    "x",
    "parameters",
    "loss_nats",
    "loss_low_nats",
    "loss_high_nats",
    "difference_nats",
    "step_time_ratio",
    "speedup",
    "speedup_low",
    "speedup_high",
    "interior",
)


def table(family: FamilyLike) -> DataFrame:
    """One row a member and method; nats a token, t intervals at 95 % over final seeds."""
    rows = []
    for point in points(family):
        ends = t_interval(list(point.losses))
        few = Missing("fewer than two good finals")
        slow = Missing("not every seed reaches the reference's loss")
        logs = [math.log(value) for value in point.faster]
        quick = t_interval(logs)
        rows.append(
            {
                "member": clean(point.member),
                "method": clean(point.method),
                "x": point.x,
                "parameters": Missing("not recorded")
                if point.parameters is None
                else point.parameters,
                "loss_nats": few if point.loss is None else point.loss,
                "loss_low_nats": ends[0] if ends else few,
                "loss_high_nats": ends[1] if ends else few,
                "difference_nats": few if point.difference is None else point.difference,
                "step_time_ratio": Missing("not timed") if point.ratio is None else point.ratio,
                "speedup": math.exp(math.fsum(logs) / len(logs)) if logs else slow,
                "speedup_low": math.exp(quick[0]) if quick else slow,
                "speedup_high": math.exp(quick[1]) if quick else slow,
                "interior": "yes" if point.interior else "no",
            }
        )
    return frame(ROWS, rows)


SPEEDUP = ("method", "at_tokens", "speedup", "low", "high", "reason")


def speedups(family: FamilyLike) -> DataFrame:
    """Tokens that the baseline would need for a method's loss, over the tokens it took."""
    found = points(family)
    base = baseline(family)
    horizons = {p.tokens: list(p.losses) for p in found if p.method == base and p.losses}
    rows = []
    for point in found:
        if point.method == base or not point.losses:
            continue
        result = law.speedup(horizons, point.tokens, list(point.losses))
        gone = isinstance(result, Missing)
        none = Missing(result.reason if isinstance(result, Missing) else "no interval")
        rows.append(
            {
                "method": clean(point.method),
                "at_tokens": point.tokens,
                "speedup": none if isinstance(result, Missing) else result.value,
                "low": none if isinstance(result, Missing) or result.low is None else result.low,
                "high": none if isinstance(result, Missing) or result.high is None else result.high,
                "reason": clean(none.reason) if gone else "",
            }
        )
    return frame(SPEEDUP, rows)


PROFILE = ("method", "b_score", "within_1", "within_1_5", "within_2", "within_4", "workloads")


def profile(family: FamilyLike) -> DataFrame:
    """Tokens to the reference's final loss over the fastest method's, as a performance profile.

    Share of the members at which a method needs at most tau times the tokens of the fastest one,
    and the profile's mean height up to tau = 4 (B-score, Dahl et al. 2023). Four workloads are the
    least; the score depends on which methods take part.
    """
    times: dict[str, dict[str, float]] = {}
    for name, run in family.runs:
        view = views.build(run)
        for method in view.methods:
            tokens = measure.known(measure.tokens_to_reference(method, view))
            if method.name == view.reference:
                tokens = measure.horizon_tokens(view)
            times.setdefault(method.name, {})[name] = math.inf if tokens is None else tokens
    scores = frontier.b_scores(times)
    heights = frontier.performance_profile(times, [1.0, 1.5, 2.0, 4.0])
    if isinstance(scores, Missing) or isinstance(heights, Missing):
        return frame(PROFILE, [])
    return frame(
        PROFILE,
        [
            {
                "method": clean(method),
                "b_score": scores[method],
                **dict(zip(PROFILE[2:6], heights[method], strict=True)),
                "workloads": len(times[method]),
            }
            for method in sorted(scores, key=lambda name: -scores[name])
        ],
    )


def write(family: FamilyLike) -> Path:
    """Write `report.html` and its tables and figures under the family's folder."""
    protocol, block = family.data["protocol"], _block(family)
    title = "Along the axis" if protocol.get("axis") else "The members"
    section = Section(name="members", title=title, order=0, summary="", render=write)
    note = Block(parts=(Prose(str(protocol["note"])),))
    limits = Section(name="limits", title="What this can tell", order=1, summary="", render=write)
    html = page.fill(
        title=clean(protocol["name"]),
        summary=clean(protocol["summary"]),
        headline=_headline(family),
        subline=_subline(family),
        facts=_facts(family),
        alerts=[],
        rendered=[page.Rendered(section, block), page.Rendered(limits, note)],
        tuned=_tuned(family),
        run_id=clean(family.data.get("family_id") or family.path.name),
        created=clean(family.data.get("created_utc") or "date not recorded"),
        version=levelfield_version(family),
    )
    for folder in ("tables", "figures"):
        (family.path / folder).mkdir(exist_ok=True)
    for item in block.tables:
        write_atomic(family.path / "tables" / f"{item.name}.csv", page.csv(item))
    for figure in block.figures:
        write_atomic(family.path / "figures" / f"{figure.name}.svg", standalone(figure.svg))
    write_atomic(family.path / "report.html", html)
    return family.path / "report.html"


def levelfield_version(family: FamilyLike) -> str:
    """The version that made the first member."""
    manifests = [run.manifest for _, run in family.runs]
    return clean(manifests[0].get("levelfield_version") if manifests else "unknown")


def _tuned(family: FamilyLike) -> bool:
    """Whether anything was searched: one trial a member is where tuning would start."""
    return bool(family.data["protocol"]["budget"]["trials"] != 1)


def _in_unit(family: FamilyLike, text: str) -> str:
    """A text about losses, in the unit of the members."""
    return units.in_unit(views.build(family.runs[0][1]), text) if family.runs else text


def _facts(family: FamilyLike) -> list[tuple[str, str]]:
    found, budget = points(family), family.data["protocol"]["budget"]
    xs = sorted({point.x for point in found})
    axis = str(family.data["protocol"].get("axis") or "")
    span = f"{big(xs[0])} to {big(xs[-1])}" if xs else "none yet"
    return [
        ("members", str(len(family.runs))),
        ("methods", str(len({point.method for point in found}))),
        *([(AXES.get(axis, (axis, axis))[1], span)] if axis else []),
        *([("tuning trials each", str(budget["trials"]))] if _tuned(family) else []),
        ("final seeds", str(family.data["final_seeds"])),
    ]


def summary(family: FamilyLike) -> list[str]:
    """Lines for a terminal."""
    found = points(family)
    width = max([14, *(len(p.method) for p in found)]) + 2
    loss = _in_unit(family, "loss")
    head = f"{'member':<12}{'method':<{width}}{'at':>10}{loss:>9}{'against':>9}"
    return [head] + [
        f"{p.member:<12}{p.method:<{width}}{big(p.x):>10}"
        + ("" if p.loss is None else f"{p.loss:>9.4f}")
        + ("" if p.difference is None else f"{p.difference:>+9.4f}")
        for p in found
    ]


def _ends(family: FamilyLike, method: str) -> tuple[Point, Point] | None:
    """The first and the last member along the axis with a difference."""
    line = sorted(
        (p for p in points(family) if p.method == method and p.difference is not None),
        key=lambda point: point.x,
    )
    return (line[0], line[-1]) if len(line) > 1 else None


def _headline(family: FamilyLike) -> str:
    """How far the best method is from the baseline at both ends of the axis."""
    if not family.data["protocol"].get("ranked", True):
        return f"{plural(len(family.runs), 'member')} ran; this page ranks nothing."
    base = baseline(family)
    others = {point.method for point in points(family)} - {base}
    ends = {name: found for name in others if (found := _ends(family, name))}
    if not ends:
        return f"{plural(len(family.runs), 'member')} of the family; nothing to compare yet."
    name = min(ends, key=lambda key: ends[key][1].difference or 0.0)
    first, last = ends[name]
    unit = AXES.get(str(family.data["protocol"].get("axis")), ("", ""))[1]
    return _in_unit(
        family,
        f"{clean(name)} against {clean(base)}: {signed(first.difference or 0.0, 3)} nats at "
        f"{big(first.x)} {unit}, {signed(last.difference or 0.0, 3)} at {big(last.x)}.",
    )


def _subline(family: FamilyLike) -> str:
    if not _tuned(family):
        return "Nothing was tuned: every method ran at one point; intervals over its seeds."
    open_ = sorted({p.member for p in points(family) if not p.interior})
    studies = family.data["protocol"]["budget"].get("studies", 1)
    text = (
        "At these hyper-parameters: one tuning study a member, intervals over its seeds."
        if studies < 2
        else f"Intervals over {studies} tuning studies a member."
    )
    return text + (f" A rate is not interior at {', '.join(map(clean, open_))}." if open_ else "")


def baseline(family: FamilyLike) -> str:
    """The method that differences are taken to."""
    protocol = family.data["protocol"]
    claims = str(protocol.get("claims") or "")
    names = {point.method for point in points(family)}
    return claims if claims in names else str(protocol.get("reference") or "")


def _block(family: FamilyLike) -> Block:
    axis = str(family.data["protocol"].get("axis") or "parameters")
    label = AXES.get(axis, (axis, axis))
    parts: list[Part] = []
    for name, title, read, caption in (
        (
            "loss",
            "Loss",
            lambda p: p.loss,
            "Mean report loss of the finals with its 95 % t interval; lower is better.",
        ),
        (
            "difference",
            "Difference to the baseline",
            lambda p: p.difference,
            "Mean report loss minus the baseline's at the same member; below zero is better.",
        ),
        (
            "speedup_inside",
            "Speed-up inside the run",
            lambda p: math.fsum(p.faster) / len(p.faster) if p.faster else None,
            "The reference's tokens over a method's tokens to the reference's last loss; a method "
            "with a seed that never gets there has no point. A lower bound.",
        ),
        ("time", "Step time", lambda p: p.ratio, "Seconds a step over the reference's."),
    ):
        svg = _draw(family, name, title, label[0], read)
        if svg:
            parts.append(Figure(name=name, title=f"{title} against {label[1]}", caption=caption,
                                svg=svg))  # fmt: skip
    if axis == "memory":
        parts += _frontier_parts(family, label[0])
    if _tuned(family):
        parts.append(
            Prose(
                "Every method was tuned again at every member, the bracket until its minimum is "
                "interior; where it is not, the row says so."
            )
        )
    parts.append(_grid(family, label[1]))
    if axis == "tokens":
        parts.append(_speedup_grid(family))
    shape = profile(family)
    if not shape.empty:
        parts.append(_profile_grid(shape))
    block = Block(parts=tuple(parts))
    return units.block_in_unit(views.build(family.runs[0][1]), block) if family.runs else block


def _frontier_parts(family: FamilyLike, label: str) -> list[Part]:
    """The best loss under each memory limit, and who was out."""
    parts: list[Part] = []
    svg = _draw_frontier(family, label)
    if svg:
        parts.append(
            Figure(
                name="frontier",
                title="The best loss under a memory limit",
                caption="Every method at every limit, at the largest model whose simulated peak "
                "fits; the line is the best of them. Labels name the method and its parameters. A "
                "lead is told apart from none only where intervals lie apart: see the table.",
                svg=svg,
            )
        )
    out = [
        f"{clean(method.name)} at {clean(name)}: {method.unranked}"
        for name, run in family.runs
        for method in views.build(run).methods
        if not method.final and method.unranked
    ]
    if out:
        parts.append(Prose("Without a model that fits: " + "; ".join(out) + "."))
    return parts


def _loss(point: Point) -> float:
    return math.inf if point.loss is None else point.loss


def _draw_frontier(family: FamilyLike, label: str) -> str | None:
    found = [point for point in points(family) if point.loss is not None]
    if not found:
        return None
    limits = sorted({point.x for point in found})
    best = [min((p for p in found if p.x <= x), key=_loss) for x in limits]
    with style():
        figure = canvas(560, 360)
        axes = figure.add_subplot()
        names = list(dict.fromkeys(point.method for point in found))
        colors = dict(zip(names, itertools.cycle(light for light, _ in SERIES), strict=False))
        for point in found:
            color = colors[point.method]
            axes.plot([point.x], [_loss(point)], "o", color=color, ms=4, alpha=0.5)
        axes.step(limits, [_loss(point) for point in best], where="post", color=INK, lw=1.8)
        for x, point in zip(limits, best, strict=True):
            axes.plot([x], [_loss(point)], "o", color=colors[point.method], ms=7)
            words = f"{clean(point.method)}, {big(point.parameters or 0)}"
            axes.annotate(words, (x, _loss(point)), (5, -12), textcoords="offset points",
                          color=colors[point.method], fontsize=9)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(limits, [big(x) for x in limits])
        axes.set_xticks([], minor=True)
        axes.margins(x=0.18, y=0.12)
        axes.set(xlabel=label, ylabel="nats a token")
        return export(figure, "frontier", "Best loss under a memory limit", "Loss against memory")


def _grid(family: FamilyLike, unit: str) -> Table:
    return grid(
        "members",
        "Every method at every member",
        table(family),
        [
            Column("member", "member", align="left"),
            Column("method", "method", align="left"),
            Column("x", unit, big),
            *((Column("parameters", "parameters", big),) if unit != "parameters" else ()),
            Column("loss_nats", "loss, nats", lambda v: fixed(v, 4)),
            Column("loss_low_nats", "95 % from", lambda v: fixed(v, 4)),
            Column("loss_high_nats", "to", lambda v: fixed(v, 4)),
            Column("difference_nats", "against the baseline", lambda v: signed(v, 4)),
            Column("step_time_ratio", "step time, ×", lambda v: fixed(v, 2)),
            Column("speedup", "speed-up inside the run", lambda v: fixed(v, 2)),
            Column("speedup_low", "95 % from", lambda v: fixed(v, 2)),
            Column("speedup_high", "to", lambda v: fixed(v, 2)),
            *((Column("interior", "rate interior", align="left"),) if _tuned(family) else ()),
        ],
        decorate={"member": _link},
    )


def _link(row: Mapping[str, Any]) -> Cell:
    return Cell(text=row["member"], href=f"{row['member']}/report.html")


def _profile_grid(shape: DataFrame) -> Table:
    def share(value: float) -> str:
        return f"{100 * value:.0f} %"

    return grid(
        "profile",
        "Performance profile: share of members at which a method needs at most τ × the tokens of "
        "the fastest",
        shape,
        [
            Column("method", "method", align="left"),
            Column("b_score", "B-score", lambda v: fixed(v, 3)),
            Column("within_1", "τ = 1", share),
            Column("within_1_5", "τ = 1.5", share),
            Column("within_2", "τ = 2", share),
            Column("within_4", "τ = 4", share),
            Column("workloads", "members"),
        ],
    )


def _speedup_grid(family: FamilyLike) -> Table:
    return grid(
        "speedup",
        "Speed-up over the tuned baseline: tokens it would need, over tokens taken",
        speedups(family),
        [
            Column("method", "method", align="left"),
            Column("at_tokens", "tokens taken", big),
            Column("speedup", "speed-up", lambda v: fixed(v, 2)),
            Column("low", "95 % from", lambda v: fixed(v, 2)),
            Column("high", "to", lambda v: fixed(v, 2)),
        ],
    )


def _draw(family: FamilyLike, name: str, title: str, label: str, read: Any) -> str | None:
    """Lines over the axis, one a method; None if nothing is there, or no axis: one place."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points(family):
        value = read(point)
        if value is not None:
            lines.setdefault(point.method, []).append((point.x, value))
    if not lines or (not family.data["protocol"].get("axis") and len(_places(lines)) < 2):
        return None
    with style():
        figure = canvas(560, 360)
        axes = figure.add_subplot()
        for number, (method, line) in enumerate(lines.items()):
            color = SERIES[number % len(SERIES)][0]
            xs, ys = zip(*sorted(line), strict=True)
            axes.plot(xs, ys, "-o", color=color, lw=1.8, ms=4)
            lift = 7 if name == "difference" and abs(ys[-1]) < 1e-12 else 0  # off the zero line
            axes.annotate(clean(method), (xs[-1], ys[-1]), (6, lift), color=color,
                          textcoords="offset points", va="center", fontsize=10)  # fmt: skip
        colors = dict(zip(lines, itertools.cycle(light for light, _ in SERIES), strict=False))
        for point in points(family) if name == "loss" else ():
            ends = t_interval(list(point.losses))
            if ends is not None:
                axes.plot([point.x] * 2, ends, color=colors[point.method], lw=1.2, alpha=0.6)
        if name == "difference":
            axes.axhline(0, color=INK, lw=1)
        axes.set_xscale("log")
        marks = _places(lines)
        axes.set_xticks(marks, [big(mark) for mark in marks])
        axes.set_xticks([], minor=True)
        axes.set(
            xlabel=label, ylabel="ratio" if name in ("time", "speedup_inside") else "nats a token"
        )
        return export(figure, name, title, title)


def _places(lines: Mapping[str, Sequence[tuple[float, float]]]) -> list[float]:
    return sorted({x for line in lines.values() for x, _ in line})
