"""The leaderboard in a terminal: the page's answer in a dozen lines."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from levelfield.reports import tables, units
from levelfield.reports import view as views
from levelfield.reports.headline import headline


def summary(run: views.RunLike) -> list[str]:
    """Lines for a terminal: the leaderboard's main columns, then the headline."""
    view = views.build(run)
    frame = tables.leaderboard(view)
    rows = frame.to_dict("records")
    width = max([20, *(len(str(row["method"])) + 2 for row in rows)])
    loss = units.in_unit(view, "loss")
    head = f"{'place':>5}  {'method':<{width}}{loss:>9}{'± 95 %':>9}{'step':>8}{'state KiB':>11}"
    lines = [head]
    for row in rows:
        lines.append(
            f"{_cell(row.get('place'), '.0f'):>5}  {row['method']!s:<{width}}"
            f"{_loss(view, row.get('report_loss_mean_nats')):>9}{_loss(view, _half(row)):>9}"
            f"{_cell(row.get('step_time_ratio'), '.2f', 'x'):>8}"
            f"{_cell(_kib(row.get('state_bytes')), '.1f'):>11}"
        )
    return [*lines, units.in_unit(view, headline(view))]


def _loss(view: views.View, value: object) -> str:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return units.written(view)(float(value)) if known else "-"  # type: ignore[arg-type]


def _half(row: Mapping[Hashable, Any]) -> float | None:
    low, high = row["interval_low_nats"], row["interval_high_nats"]
    return (high - low) / 2 if isinstance(low, float) and isinstance(high, float) else None


def _kib(value: object) -> float | None:
    return value / 1024 if isinstance(value, (int, float)) else None


def _cell(value: object, form: str, unit: str = "") -> str:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return f"{value:{form}}{unit}"
    return "-"
