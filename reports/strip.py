"""The leaderboard's strips: every seed's dot, the median and the t interval on one common scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.reports import units
from levelfield.reports.svg import look
from levelfield.reports.text import fixed, plural
from levelfield.reports.view import Method, View

WIDTH, HEIGHT, PAD, FAILED = 176, 26, 6, 14
"""Pixels; on the right a lane for seeds without a number."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Loss to pixels. Losses above `high` are drawn at it, as arrows."""

    low: float
    high: float

    def x(self, loss: float) -> float:
        share = (loss - self.low) / (self.high - self.low)
        return PAD + min(max(share, 0.0), 1.0) * (WIDTH - 2 * PAD - FAILED)


def scale(view: View) -> Scale | None:
    """A scale for all rows; one method far behind must not squeeze the others into a line."""
    losses = sorted(loss for method in view.methods for loss in method.losses.values())
    if not losses:
        return None
    low, high = losses[0], losses[-1]
    spread = losses[3 * (len(losses) - 1) // 4] - low
    if spread > 0 and high > low + 3 * spread:
        high = max(loss for loss in losses if loss <= low + 3 * spread)
    room = max((high - low) * 0.03, 1e-4)
    return Scale(low - room, high + room)


def strip(method: Method, view: View, on: Scale) -> str:
    """One row's strip as SVG."""
    drawn, middle = look(method, view), HEIGHT / 2
    parts = [f'<line class="lane" x1="{PAD}" x2="{WIDTH - PAD}" y1="{middle}" y2="{middle}"/>']
    reference = view.method(view.reference)
    if reference is not None and reference.median is not None and math.isfinite(reference.median):
        x = on.x(reference.median)
        parts.append(f'<line class="ref" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>')
    interval = method.interval
    if interval and interval[0] <= on.high:
        left, right = on.x(max(interval[0], on.low)), on.x(min(interval[1], on.high))
        parts.append(
            f'<rect class="ci" x="{left:.1f}" width="{max(right - left, 1):.1f}" '
            f'y="{middle - 5}" height="10" rx="2"/>'
        )
        # An end beyond the frame is drawn as an arrow: the bar goes on.
        for beyond, x, side in (
            (interval[0] < on.low, left, -1),
            (interval[1] > on.high, right, 1),
        ):
            if beyond:
                tip = x + 4 * side
                parts.append(
                    f'<path class="ci" d="M{x:.1f} {middle - 5}L{tip:.1f} {middle}'
                    f'L{x:.1f} {middle + 5}z"/>'
                )
    for position, record in enumerate(method.good):
        loss = method.losses[record.seed]
        # A fixed zigzag keeps dots of equal losses apart without any random jitter.
        y = middle + (-2.4, 0, 2.4)[position % 3]
        parts.append(_mark(on, loss, y, record.status))
    failed = len(method.final) - len(method.good)
    for position in range(failed):
        x, y = WIDTH - FAILED + 4, HEIGHT / 2 + (position - (failed - 1) / 2) * 4.5
        parts.append(
            f'<path class="bad" d="M{x - 2.2:.1f} {y - 2.2:.1f}l4.4 4.4m0 -4.4l-4.4 4.4"/>'
        )
    if method.median is not None and method.median <= on.high:
        x = on.x(method.median)
        parts.append(f'<line class="med" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{HEIGHT - 4}"/>')
    return (
        f'<svg class="strip" style="--c:{drawn.variable}" role="img" width="{WIDTH}" '
        f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{_words(method, view)}</title>'
        + "".join(parts)
        + "</svg>"
    )


def axis(on: Scale) -> str:
    """The scale itself, for the column's head."""
    marks = []
    for value in ticks(on.low, on.high):
        x = on.x(value)
        marks.append(
            f'<line class="lane" x1="{x:.1f}" x2="{x:.1f}" y1="15" y2="20"/>'
            f'<text x="{x:.1f}" y="11">{fixed(value, _digits(on))}</text>'
        )
    return (
        f'<svg class="strip axis" aria-hidden="true" width="{WIDTH}" height="20" '
        f'viewBox="0 0 {WIDTH} 20">{"".join(marks)}</svg>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Two to four round numbers inside a range."""
    raw = (high - low) / 3
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _digits(on: Scale) -> int:
    return max(1, min(4, 1 - math.floor(math.log10((on.high - on.low) / 3))))


def _mark(on: Scale, loss: float, y: float, status: str) -> str:
    x = on.x(loss)
    if loss > on.high:
        return f'<path class="dot" d="M{x - 3:.1f} {y - 3:.1f}l5 3l-5 3z"/>'
    if status == "undertrained":
        return f'<rect class="hollow" x="{x - 2.5:.1f}" y="{y - 2.5:.1f}" width="5" height="5"/>'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'


def _words(method: Method, view: View) -> str:
    losses = sorted(method.losses.values())
    failed = len(method.final) - len(losses)
    text = f"{plural(len(losses), 'seed')}: " + ", ".join(map(units.written(view), losses))
    return text + (f"; {failed} without a number" if failed else "")
