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
    budget = {key: view.setting("budget", key) for key in ("trials", "studies", "unit", "amount")}
    trials, studies = short(budget["trials"]), short(budget["studies"] or 1)
    unit = budget["unit"] or "steps"
    each = (
        "the same number of tokens" if unit == "steps" else f"{budget['amount']:g} {unit} a trial"
    )
    spends = (
        f"may spend {trials} trials in each of {studies} tuning studies"
        if view.tuned
        else "is tried once, where tuning would start"
    )
    return (
        f"Every method {spends}, all of {each}. All count: complete, diverged, out of memory, "
        "timed out, raised. Only a trial whose run was interrupted from outside runs again, free "
        "and from its start"
        f" ({plural(len(view.manifest.get('interruptions') or ()), 'interruption')} here). Finals, "
        "sweep and timing cost every method the same number of trials; extra forward/backward "
        "passes inside a step are counted and shown." + _frozen(view)
    )


def _frozen(view: View) -> str:
    freeze = view.manifest.get("freeze") or {}
    if not freeze.get("sha256"):
        return ""
    marks = [*(freeze.get("earlier") or []), freeze]
    shown = "; ".join(f"{clean(m['utc'])}, sha256 {clean(m['sha256'])[:16]}" for m in marks)
    again = ", again each time that the run was added to" if len(marks) > 1 else ""
    return (
        " Spaces, best points, targets and margins were frozen before the finals that they judge"
        f"{again}: {shown}."
    )


def _budget(view: View) -> Part:
    return grid(
        "budget",
        "What each method spent",
        ledger.budget(view),
        [
            Column("method", "method", align="left"),
            Column("tuning_trials", "tuning trials" if view.tuned else "first trials"),
            Column("ok", "ok"),
            Column("diverged", "diverged"),
            Column("undertrained", "undertrained"),
            Column("broken", "broken"),
            Column("finals", "finals"),
            Column("sweeps", "sweep"),
            Column("transfers", "transfer"),
            Column("timings", "timings"),
            Column("tokens", "tokens", big),
            Column("passes", "passes", count),
            Column("device_s", "device time", seconds),
            Column("joules", "joules", short),
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
