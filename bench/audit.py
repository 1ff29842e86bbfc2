"""`levelfield audit`: whether a comparison was fair, derived again from its records alone.

Counts, seeds, hashes, schedules, the tuner's points, the order in the file: everything that a run
promises to be equal is worked out anew and compared with what was written. Nothing is trained, so
that this finds accidents; a forger who invents losses is found by `levelfield verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from levelfield.bench import audit_choice, audit_plan, audit_record, audit_trial
from levelfield.bench.audit_case import UNREADABLE, Case, Finding, Outcome
from levelfield.bench.store import Run

__all__ = ["RULES", "Finding", "Outcome", "audit", "counts", "is_fair"]

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
