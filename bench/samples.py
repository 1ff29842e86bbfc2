"""The unit of comparison: a tuning study, worth the mean of its good finals.

Losses are mean nats a token and lower is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Estimate, Missing, finite, mean, t_interval

MIN_STUDIES = 3
"""Studies a method needs for a place."""

AT_THESE = "at these hyper-parameters"
"""What a comparison over fewer studies speaks of: two tuned points, not two methods."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyMean:
    """One study's value: the mean report loss of its good finals, nats a token."""

    study: int
    value: float | None
    good: int
    """Finals with a measured report loss."""
    failed: int
    """Finals without one; a mean over the rest flatters the method, so they are to be shown."""


def study_means(records: Iterable[TrialRecord]) -> tuple[StudyMean, ...]:
    """The value of every study that has a final record, by study number.

    A good final ended `ok` or `undertrained` with a finite report loss. A study without any has
    the value None.
    """
    by_study: dict[int, list[TrialRecord]] = {}
    for record in records:
        if record.phase == "final":
            by_study.setdefault(record.study, []).append(record)
    found = []
    for study in sorted(by_study):
        finals = by_study[study]
        good = [
            record.report_loss
            for record in finals
            if record.status in ("ok", "undertrained")
            and record.report_loss is not None
            and finite(record.report_loss)
        ]
        failed = len(finals) - len(good)
        found.append(StudyMean(study=study, value=mean(good), good=len(good), failed=failed))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One method's studies, ready to be compared."""

    name: str
    values: Mapping[int, float]
    """Study -> value; finite ones only."""
    failed: int = 0
    """Studies without a value: no good trial, or no good final. A method that has some is never
    claimed to be better: the mean of the others flatters it."""
    lost: int = 0
    """Finals without a loss among the studies that have a value: their mean flatters it too."""
    censored: bool = False
    """Its best point still lay at an edge after the reserve: no claim is made against it."""


def sample(name: str, records: Iterable[TrialRecord], studies: int, censored: bool) -> Sample:
    """A method's sample from its final records.

    Args:
        studies: how many the protocol asks for; those without a value count as failed.
        censored: whether a best point is at an edge with the reserve spent.
    """
    means = [mean for mean in study_means(records) if mean.value is not None]
    values = {mean.study: mean.value for mean in means if mean.value is not None}
    return Sample(
        name=name,
        values=values,
        failed=max(0, studies - len(values)),
        lost=sum(mean.failed for mean in means),
        censored=censored,
    )


def study_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate | Missing:
    """The mean over studies with its t interval: mean +- t(R - 1) sd / sqrt(R), nats."""
    if not all(finite(value) for value in values):
        return Missing("a study's value is not finite")
    if len(values) < 2:
        return Missing(f"{len(values)} of the two studies that an interval needs")
    centre, ends = mean(values), t_interval(values, confidence)
    assert centre is not None
    assert ends is not None
    return Estimate(value=centre, low=ends[0], high=ends[1], n=len(values))
