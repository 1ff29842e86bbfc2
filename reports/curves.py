"""The data behind the figures, apart from any drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from levelfield.bench import stats
from levelfield.bench.spec import TrialRecord
from levelfield.reports import measure
from levelfield.reports.view import Method, View


@dataclass(frozen=True, slots=True)
class Band:
    """A method's loss over something: median, lowest and highest over its good finals."""

    method: Method
    x: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def over_tokens(view: View) -> list[Band]:
    """Selection loss against tokens, at the evaluations that all good finals of a method share."""
    return [band for band in map(_band, view.methods) if band is not None]


def over_seconds(view: View) -> list[Band]:
    """The same against seconds of training alone on the device: steps x the timed step.

    The clocks of the finals themselves ran beside other trials and are not used.
    """
    per_step = (view.setting("data", "batch") or 0) * (view.setting("data", "sequence") or 0)
    bands = []
    for band in over_tokens(view):
        step_s = measure.known(measure.step_s(band.method))
        if step_s is not None and per_step:
            x = tuple(tokens / per_step * step_s for tokens in band.x)
            bands.append(Band(band.method, x, band.middle, band.low, band.high))
    return bands


def _band(method: Method) -> Band | None:
    curves = [
        {float(point[0]): float(point[-1]) for point in record.curve if stats.finite(point[-1])}
        for record in method.good
        if record.curve
    ]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    if len(shared) < 2:
        return None
    columns = [[curve[tokens] for curve in curves] for tokens in shared]
    return Band(
        method,
        tuple(shared),
        tuple(stats.median(column) or 0.0 for column in columns),
        tuple(min(column) for column in columns),
        tuple(max(column) for column in columns),
    )


def window(bands: Sequence[Band]) -> tuple[float, float]:
    """Loss range worth looking at: from the best end up to where the middle method was early on."""
    ends = sorted(band.middle[-1] for band in bands)
    early = sorted(_after(band, 0.16) for band in bands)
    low, middle = ends[0], ends[len(ends) // 2]
    high = max(early[len(early) // 2], middle + (middle - low) * 2)
    room = max(0.05 * (high - low), 1e-3)
    return low - room, high + room


def _after(band: Band, share: float) -> float:
    start = band.x[-1] * share
    return next(loss for x, loss in zip(band.x, band.middle, strict=True) if x >= start)


@dataclass(frozen=True, slots=True)
class Panel:
    """A method's tuning trials over its scale dimension: (value, loss or None, record)."""

    method: Method
    points: tuple[tuple[float, float | None, TrialRecord], ...]
    log: bool


def panels(view: View) -> list[Panel]:
    """One panel a method that was tuned."""
    found = []
    for method in view.methods:
        points = []
        for record in method.tune:
            value = record.hparams.get(method.scale)
            if value is None or not stats.finite(value):
                continue
            loss = record.selection_loss if record.status in ("ok", "undertrained") else None
            known = loss if loss is not None and stats.finite(loss) else None
            points.append((float(value), known, record))
        if points:
            positive = all(value > 0 for value, _, _ in points)
            found.append(Panel(method, tuple(points), positive))
    return found


def alone(panel: Panel) -> list[tuple[float, float]]:
    """(value, loss) of the trials that share trial 0's other tuned values, by value."""

    def others(record: TrialRecord) -> list[object]:
        return [record.hparams.get(n) for n in record.tuned if n != panel.method.scale]

    first = next((record for _, _, record in panel.points if record.trial == 0), None)
    if first is None:
        return []
    return sorted(
        (value, loss)
        for value, loss, record in panel.points
        if loss is not None and others(record) == others(first)
    )


def panel_window(shown: Iterable[Panel]) -> tuple[float, float] | None:
    """Common loss range of the panels: one hopeless trial must not flatten the others."""
    best, losses = [], []
    for panel in shown:
        good = [loss for _, loss, _ in panel.points if loss is not None]
        losses += good
        best += [min(good)] if good else []
    if not losses:
        return None
    low = min(losses)
    typical = stats.median(losses) or low
    high = max(max(best), typical + (typical - low))
    high = min(high, max(losses))
    room = max(0.08 * (high - low), 1e-3)
    return low - room, high + room


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart and inside [low, high] if they fit.

    Args:
        wanted: any order; the result keeps it.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    groups: list[list[float]] = []  # [centre, count]; a group's members stand `gap` apart
    for index in order:
        centre, many = wanted[index], 1.0
        while True:
            half = (many - 1) / 2 * gap
            centre = max(min(centre, high - half), low + half)
            if not groups or groups[-1][0] + (groups[-1][1] - 1) / 2 * gap + gap <= centre - half:
                break
            before, number = groups.pop()
            centre = (before * number + centre * many) / (number + many)
            many += number
        groups.append([centre, many])
    result = [0.0] * len(wanted)
    position = iter(order)
    for centre, many in groups:
        for step in range(int(many)):
            result[next(position)] = centre - (many - 1) / 2 * gap + step * gap
    return result


def traces(view: View) -> list[tuple[tuple[str, ...], tuple[tuple[float, float], ...]]]:
    """Schedules as drawn: methods with the same learning-rate factors together."""
    groups: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for method in view.methods:
        record = next((r for r in (*method.final, *method.tune) if r.lr_trace), None)
        if record is None:
            continue
        trace = tuple((float(step), round(float(factor), 6)) for step, factor in record.lr_trace)
        groups.setdefault(trace, []).append(method.name)
    return [(tuple(names), trace) for trace, names in groups.items()]


def interval_rows(
    view: View, read: Callable[[Method], tuple[float, float, float] | None]
) -> list[tuple[Method, float, float, float]]:
    """Methods with (middle, low, high), as `read` gives them; finite ones only."""
    rows = []
    for method in view.methods:
        values = read(method)
        if values is not None and all(map(math.isfinite, values)):
            rows.append((method, *values))
    return rows
