"""What a run's final weights were worth on other tasks: runs that were started `--from` this one.

They are found beside it, in the same parent folder, by their manifest alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.bench import stats
from levelfield.bench.spec import BenchError, Section
from levelfield.bench.store import load_run, read_manifest
from levelfield.reports.blocks import Block, Column, Prose, grid
from levelfield.reports.frames import frame
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, fixed, listed
from levelfield.reports.view import View

COLUMNS = ("protocol", "trained_by", "method", "seed", "loss", "metric", "score", "runs")
FEWEST = 3
"""Methods from which an order can survive."""


@dataclass(frozen=True, slots=True)
class Score:
    """A downstream score of one set of weights."""

    protocol: str
    trained_by: str
    """The method that the downstream run trained by; with none of its own steps, no matter."""
    method: str
    """Whose weights."""
    seed: int
    metric: str
    value: float


def render(view: View) -> Block | None:
    """Nothing where no run was started from this one's weights."""
    found = list(scores(view))
    if not found:
        return None
    losses = {(m.name, seed): loss for m in view.methods for seed, loss in m.losses.items()}
    rows: list[dict[str, Any]] = []
    for key, group in itertools.groupby(sorted(found, key=_key), key=_key):
        values = [item.value for item in group]
        protocol, trained_by, method, seed, metric = key
        rows.append(
            {
                "protocol": clean(protocol),
                "trained_by": clean(trained_by),
                "method": clean(method),
                "seed": seed,
                "loss": losses.get((method, seed), Missing("no final of this run has that seed")),
                "metric": metric,
                "score": stats.mean(values) or 0.0,
                "runs": len(values),
            }
        )
    table = grid(
        "downstream",
        "Scores on other tasks, from the final weights of this run",
        frame(COLUMNS, rows),
        [
            Column("protocol", "task", align="left"),
            Column("method", "weights of", align="left"),
            Column("seed", "seed", str),
            Column("loss", "report loss here", lambda v: fixed(v, 4)),
            Column("trained_by", "fine-tuned by", align="left"),
            Column("metric", "score", align="left"),
            Column("score", "value", lambda v: fixed(v, 4)),
            Column("runs", "finals", str),
        ],
    )
    return Block(parts=(table, *(Prose(text) for text in verdicts(rows))), nats=True)


def _key(item: Score) -> tuple[str, str, str, int, str]:
    return item.protocol, item.trained_by, item.method, item.seed, item.metric


def scores(view: View) -> Iterator[Score]:
    """Report scores of the finals of every run beside this one that started from its weights."""
    own = Path(view.path).resolve()
    for path in sorted(own.parent.glob("*/manifest.json")):
        if path.parent == own:
            continue
        try:
            source = str(((read_manifest(path.parent).get("protocol") or {}).get("model") or {})
                         .get("source") or "")  # fmt: skip
            run, _, rest = source.partition(":")
            method, _, seed = rest.rpartition(":")
            if not method or not seed.isdecimal() or Path(run).resolve() != own:
                continue
            found = load_run(path.parent)
        except (BenchError, OSError):
            continue  # another run's trouble is told on its own page
        task = found.manifest["protocol"]["task"]
        for record in found.records:
            value = (record.scores.get("report") or {}).get(task["metric"])
            if record.phase == "final" and value is not None:
                name = found.manifest["protocol"]["name"]
                yield Score(name, record.optimizer, method, int(seed), task["metric"], value)


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Whether the order of methods by loss is that by score: Kendall's tau, a task each."""
    told = []
    for (protocol, by), group in itertools.groupby(
        rows, key=lambda row: (row["protocol"], row["trained_by"])
    ):
        by_method: dict[str, tuple[list[float], list[float]]] = {}
        for row in group:
            if not isinstance(row["loss"], Missing):
                losses, values = by_method.setdefault(row["method"], ([], []))
                losses.append(row["loss"])
                values.append(row["score"])
        means = {m: (stats.mean(a) or 0.0, stats.mean(b) or 0.0) for m, (a, b) in by_method.items()}
        told.append(f"{protocol} (by {by}): {_survives(means)}")
    return told


def _survives(means: dict[str, tuple[float, float]]) -> str:
    if len(means) < FEWEST:
        return (
            f"the weights of {listed(sorted(means)) or 'no method'} alone were tried; an order "
            f"needs those of {FEWEST} methods."
        )
    from scipy.stats import kendalltau

    found = kendalltau(
        [-loss for loss, _ in means.values()], [score for _, score in means.values()]
    )
    tau, p = float(found.statistic), float(found.pvalue)
    numbers = f"Kendall's tau {fixed(tau, 2)} over {len(means)} methods, p = {fixed(p, 2)}"
    if tau != tau:
        return "all score alike: there is no order to survive."
    if p <= 0.05:
        return f"the order {'survives' if tau > 0 else 'turns round'} ({numbers})."
    return f"whether the order of methods survives cannot be told ({numbers})."


SECTION = Section(
    name="downstream",
    title="On other tasks",
    order=29,
    summary="downstream scores of the final weights beside the loss; does the order survive",
    render=render,
)
