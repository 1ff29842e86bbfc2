"""Whether the field was level: checks read off the records, and what each method spent."""

from __future__ import annotations

from levelfield.bench.spec import STATUS_MEANING, Section
from levelfield.reports import ledger
from levelfield.reports.blocks import Block, Column, Part, Prose, grid
from levelfield.reports.text import big, clean, count, plural, seconds, short
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Checks, budget, failures, what is out."""
    if not view.methods:
        return None
    parts: list[Part] = [
        grid(
            "checks",
            "Was the field level?",
            ledger.checks(view),
            [
                Column("check", "check", align="left"),
                Column("result", "holds", align="left"),
                Column("detail", "read from the records", align="left"),
            ],
            muted=lambda row: row["result"] == "not recorded",
        ),
        Prose(_counting(view)),
        _budget(view),
    ]
    parts += [_unranked(view), _failures(view), _excluded(view)]
    return Block(parts=tuple(parts))


def _counting(view: View) -> str:
    allowed = short(view.setting("budget", "trials"))
    return (
        f"Every method may spend {allowed} tuning trials, all of the same number of tokens. All "
        "count: complete, diverged, out of memory, timed out, raised. Only a trial whose "
        "run was interrupted from outside runs again, free and from its start"
        f" ({plural(len(view.manifest.get('interruptions') or ()), 'interruption')} here). Extra "
        "forward/backward passes inside a step are counted and shown."
    )


def _budget(view: View) -> Part:
    return grid(
        "budget",
        "What each method spent",
        ledger.budget(view),
        [
            Column("method", "method", align="left"),
            Column("tuning_trials", "tuning trials"),
            Column("ok", "ok"),
            Column("diverged", "diverged"),
            Column("undertrained", "undertrained"),
            Column("broken", "broken"),
            Column("finals", "finals"),
            Column("timings", "timings"),
            Column("tokens", "tokens", big),
            Column("passes", "passes", count),
            Column("wall_s", "time", seconds),
            Column("retries", "retries"),
        ],
        folded=True,
    )


def _unranked(view: View) -> Part:
    frame = ledger.unranked(view)
    if frame.empty:
        return Prose("Every method has a place.")
    columns = [
        Column("method", "method", align="left"),
        Column("reason", "reason", align="left"),
    ]
    return grid("unranked", "Methods without a place", frame, columns)


def _failures(view: View) -> Part:
    frame = ledger.failures(view)
    if frame.empty:
        return Prose("No trial failed.")
    caption = f"All failures ({len(frame)}), each with its reason"
    return grid("failures", caption, frame, _lines(), folded=True)


def _excluded(view: View) -> Part:
    frame = ledger.excluded(view)
    if frame.empty:
        return Prose("No record was excluded.")
    caption = f"Excluded records ({len(frame)}): shown, not ranked"
    return grid("excluded", caption, frame, _lines())


def _lines() -> list[Column]:
    return [
        Column("method", "method", align="left"),
        Column("phase", "phase", align="left"),
        Column("number", "number"),
        Column("seed", "seed"),
        Column("status", "status", align="left", help=clean("; ".join(
            f"{status}: {meaning}" for status, meaning in STATUS_MEANING.items()))),
        Column("reason", "reason", align="left"),
    ]  # fmt: skip


SECTION = Section(
    name="fairness",
    title="Was it fair?",
    order=80,
    summary="checks of weights, batches and budgets; failures and exclusions with reasons",
    render=render,
)
