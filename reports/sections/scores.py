"""Scores of tasks with labels: after the last step, at the best epoch, and without looking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports.blocks import Block, Cell, Column, Prose, grid
from levelfield.reports.eligible import dig
from levelfield.reports.frames import frame
from levelfield.reports.measure import Measured, Missing
from levelfield.reports.text import clean, fixed, plural
from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "score",
    "method",
    "last_step",
    "last_step_low",
    "last_step_high",
    "best_epoch",
    "best_epoch_low",
    "best_epoch_high",
    "constant",
    "seeds",
    "studies",
)
LOSS = "cross_entropy"
"""Stands among the scores of a record, and is none."""


def render(view: View) -> Block | None:
    """One table, and how to read it; nothing for a task without scores."""
    table = scores(view)
    if table.empty:
        return None
    columns = [
        Column("score", "score", align="left"),
        Column("method", "method", align="left"),
        Column("last_step", "after the last step", _four),
        Column("best_epoch", "at the best epoch", _four),
        Column("constant", "without looking", _four),
        Column("seeds", "seeds"),
    ]
    drawn = grid(
        "scores",
        "Scores on the report examples",
        table,
        columns,
        decorate={
            "last_step": lambda row: _interval(row, "last_step"),
            "best_epoch": lambda row: _interval(row, "best_epoch"),
        },
    )
    return Block(parts=(drawn, *(Prose(text, "beside") for text in _reading(view))))


def scores(view: View) -> DataFrame:
    """One row a score and method, the score that methods are tuned by first; means over the final
    seeds, 95 % t intervals over studies, or over seeds where there is one study."""
    return frame(
        COLUMNS,
        [_row(name, method, view) for name in _names(view) for method in view.methods],
    )


def _names(view: View) -> list[str]:
    """Scores in order: the metric, then the others as records have them."""
    found: dict[str, None] = {}
    metric = view.setting("task", "metric", default="")
    if metric:
        found[str(metric)] = None
    for method in view.methods:
        for record in method.good:
            found |= dict.fromkeys(record.scores.get("report", {}))
    found.pop(LOSS, None)
    return [name for name in found if any(_values(m, "report", name) for m in view.methods)]


def _row(name: str, method: Method, view: View) -> dict[str, Any]:
    level = dig(view.manifest, "data", "constant_scores", name)
    good = {record.study for record in method.good}
    return {
        "score": clean(name),
        "method": clean(method.name),
        **_mean("last_step", method, "report", name),
        **_mean("best_epoch", method, "best_report", name),
        "constant": Missing("not known for this score") if level is None else level,
        "seeds": len(method.good),
        "studies": len(good),
    }


def _mean(key: str, method: Method, when: str, name: str) -> dict[str, Measured]:
    """The mean and the ends of its interval."""
    units = list(_values(method, when, name).values())
    centre = stats.mean(units)
    if centre is None:
        none = Missing("no final trial has it")
        return dict.fromkeys((key, f"{key}_low", f"{key}_high"), none)
    ends = stats.t_interval(units)
    few = Missing("one final seed")
    return {
        key: centre,
        f"{key}_low": ends[0] if ends else few,
        f"{key}_high": ends[1] if ends else few,
    }


def _values(method: Method, when: str, name: str) -> dict[int, float]:
    """By study where there are several, else by seed."""
    by_study: dict[int, dict[int, float]] = {}
    for record in method.good:
        value = record.scores.get(when, {}).get(name)
        if stats.finite(value):
            by_study.setdefault(record.study, {})[record.seed] = float(value or 0.0)
    if len(by_study) < 2:
        return next(iter(by_study.values()), {})
    return {study: _plain_mean(seeds.values()) for study, seeds in by_study.items()}


def _plain_mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held)


def _interval(row: Mapping[str, Any], key: str) -> Cell | None:
    if row[key] is None or row[f"{key}_low"] is None:
        return None
    half = (row[f"{key}_high"] - row[f"{key}_low"]) / 2
    return Cell(text=_four(row[key]), sub=f"± {_four(half)}")


def _four(value: float) -> str:
    return fixed(value, 4)


def _reading(view: View) -> list[str]:
    several = max((len(method.study_values) for method in view.methods), default=0) > 1
    over = "the independent tuning studies" if several else "the final seeds"
    metric = clean(str(view.setting("task", "metric", default="")))
    told = [
        f"Mean and 95 % t interval over {over}, of examples that chose nothing. The methods are "
        + (
            f"tuned and ranked by {metric} after the last step"
            if metric
            else "tuned and ranked by the loss after the last step"
        )
        + "; its best epoch is the one in which the selection examples score best, which is what "
        "most papers report. Without looking: what the best constant answer scores, or a guess "
        "among options."
    ]
    if metric and (before := _before(view)):
        told.append(
            f"Before any step {metric} is {_four(_plain_mean(before))} on the selection examples "
            f"(mean of {plural(len(before), 'seed')}): the model as it comes, with a head that is "
            "new where the task needs one."
        )
    return told


def _before(view: View) -> Sequence[float]:
    """The metric at step 0, by seed: the same for methods that start from the same weights."""
    found: dict[int, float] = {}
    for method in view.methods:
        for record in method.good:
            if record.score_curve and record.score_curve[0][0] == 0:
                found.setdefault(record.seed, float(record.score_curve[0][1]))
    return list(found.values())


SECTION = Section(
    name="scores",
    title="Scores",
    order=15,
    summary="accuracy, correlations, F1 on the report examples: last step, best epoch, chance",
    render=render,
)
