"""`levelfield audit`: whether a comparison was fair, derived again from its records alone.

Counts, seeds, hashes, schedules, the tuner's points, the order in the file: everything that a run
promises to be equal is worked out anew and compared with what was written. Nothing is trained, so
that this finds accidents; a forger who invents losses is found by `levelfield verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from levelfield.bench import audit_choice, audit_plan, audit_record, audit_trial
from levelfield.bench.audit_case import UNREADABLE, Case, Finding, Outcome
from levelfield.bench.spec import BenchError
from levelfield.bench.store import Run, load_run

__all__ = ["RULES", "Finding", "Outcome", "audit", "audited", "counts", "is_fair"]

Rule = Callable[[Case], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    *(audit_record.schema, audit_record.chain, audit_record.digests),
    *(audit_plan.cells, audit_plan.budget, audit_plan.finals, audit_plan.sweep, audit_plan.seeds),
    *(audit_choice.tuner, audit_choice.best, audit_choice.report_slice, audit_choice.freeze),
    *(audit_trial.weights, audit_trial.batches, audit_trial.horizon, audit_trial.schedule),
    *(audit_trial.device, audit_trial.timing, audit_record.measured, audit_record.status),
    audit_plan.evidence,
)
ORDER: tuple[Outcome, ...] = ("unfair", "unknown", "warning", "fair")


def audited(path: Path) -> tuple[list[tuple[Path, Run]], list[Path]]:
    """The run under a folder, or the members of a family, each with its folder; and the folders of
    the members that have no records: without any, nothing was fair or unfair.

    Raises:
        BenchError: there is no run, or no record in any.
    """
    from levelfield.bench import family

    members = family.load_family(path).runs if family.is_family(path) else [("", load_run(path))]
    runs = [(path / name, run) for name, run in members]
    found = [(folder, run) for folder, run in runs if run.records]
    if not found:
        raise BenchError(
            f"nothing to audit: {path} has no records",
            f"`levelfield run --resume {path}` trains what is missing",
        )
    return found, [folder for folder, run in runs if not run.records]


def audit(run: Run, *, replay: bool = True) -> tuple[Finding, ...]:
    """What every rule finds about a run, unfair first.

    Args:
        run: as read from disk; it may be under way, interrupted, extended or resumed.
        replay: whether the tuner is asked for its points again, which loads Optuna.
    """
    try:
        case = Case(run)
        rules = [rule for rule in RULES if replay or rule is not audit_choice.tuner]
        found = [finding for rule in rules for finding in rule(case)]
    except UNREADABLE as error:
        what = f"something is missing or makes no sense: {type(error).__name__}: {error}"
        return (Finding("readable", "unfair", what),)
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.outcome)))


def is_fair(findings: Iterable[Finding]) -> bool:
    """Whether nothing unfair was found; warnings and what nobody can tell do not count."""
    return all(finding.outcome != "unfair" for finding in findings)


def counts(findings: Iterable[Finding]) -> dict[Outcome, int]:
    """How many findings of each outcome."""
    found = list(findings)
    return {outcome: sum(item.outcome == outcome for item in found) for outcome in ORDER}
