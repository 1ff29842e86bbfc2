"""Scores of tasks with labels: after the last step, at the best epoch, and without looking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports.blocks import Block, Cell, Column, Prose, Table, plain_rows
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
    found = scores(view)
    if found.empty:
        return None
    return Block(parts=(_table(view, found), *(Prose(text, "beside") for text in _reading(view))))


def _table(view: View, found: DataFrame) -> Table:
    """A row a method, a column a score, and a last row for answers without looking."""
    by_cell = {(row["method"], row["score"]): row for row in plain_rows(found)}
    names = list(dict.fromkeys(score for _, score in by_cell))
    rows = [
        (
            Cell(text=clean(method.name), sub=plural(len(method.good), "seed")),
            *(_cell(by_cell[clean(method.name), name]) for name in names),
        )
        for method in view.methods
    ]
    first = clean(view.methods[0].name)
    levels = [by_cell[first, name]["constant"] for name in names]
    rows.append(
        (
            Cell(text="without looking"),
            *(Cell(text="–" if level is None else _four(level)) for level in levels),
        )
    )
    return Table(
        name="scores",
        caption="Scores on the report examples",
        frame=found,
        columns=(
            Column("method", "method", align="left"),
            *(Column(name, name.replace("_", " ")) for name in names),
        ),
        rows=tuple(rows),
        muted=frozenset({len(rows) - 1}),
    )


def _cell(row: Mapping[str, Any]) -> Cell:
    """After the last step, and below it at the best epoch."""
    if row["last_step"] is None:
        return Cell(text="–", kind="none", title="no final trial has it")
    best = "" if row["best_epoch"] is None else f"best {_with_reach(row, 'best_epoch')}"
    return Cell(text=_with_reach(row, "last_step"), sub=best)


def _with_reach(row: Mapping[str, Any], key: str) -> str:
    if row[f"{key}_low"] is None:
        return _four(row[key])
    return f"{_four(row[key])} ± {_four((row[f'{key}_high'] - row[f'{key}_low']) / 2)}"


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


def _four(value: float) -> str:
    return fixed(value, 4)


def _reading(view: View) -> list[str]:
    several = max((len(method.study_values) for method in view.methods), default=0) > 1
    over = "the independent tuning studies" if several else "the final seeds"
    metric = clean(str(view.setting("task", "metric", default="")))
    told = [
        f"Mean after the last step and 95 % t interval over {over}, on examples that chose "
        "nothing; below it the same at the best epoch. The methods are "
        + (
            f"tuned and ranked by {metric} after the last step"
            if metric
            else "tuned and ranked by the loss after the last step"
        )
        + "; the best epoch is the one in which the selection examples score best: most papers "
        "report such a one. Without looking: what the best constant answer scores, or a guess "
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
