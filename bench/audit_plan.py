"""Rules on what was run: the same trials, seeds and choices for every method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from levelfield.bench.audit_case import WHOLE, Case, Finding, label, ruled
from levelfield.bench.spec import Phase, TrialRecord
from levelfield.bench.study import SEED_STRIDE, SWEEP_OFFSET, final_seed, tune_seed

Told = tuple[str, str]
"""A method and what is to be said of it."""
UNFINISHED = "`--resume` finishes them"


def cells(case: Case) -> Iterator[Finding]:
    """One record a cell, of a method that the manifest names."""
    count = Counter(record.key for record in case.records)
    finals = Counter((r.optimizer, r.study, r.seed) for r in case.of("final"))
    unknown = {r.optimizer for r in case.run.records} - set(case.specs)
    unfair = [f"{name} is not in the manifest" for name in sorted(unknown)]
    unfair += [f"{'-'.join(map(str, key))} is there {n} times" for key, n in count.items() if n > 1]
    if not unfair:
        unfair = [
            f"{name} study {study} has {n} finals of seed {seed}"
            for (name, study, seed), n in finals.items()
            if n > 1
        ]
    yield from ruled("cells", f"{len(case.records)} cells, each with one record", unfair)


def budget(case: Case) -> Iterator[Finding]:
    """The same number of tuning trials for every method and study; failed ones count."""
    asked, unfair, left = case.protocol.budget.trials, [], []
    for name, study in case.studies:
        have = {record.trial for record in case.of("tune", name, study)}
        extra, missing = have - set(range(asked)), set(range(asked)) - have
        what = f"{name} study {study} has {len(have)} of {asked} tuning trials"
        if extra:
            unfair.append(f"{what}, number {_numbers(extra)} was never due")
        elif missing and (case.of("final", name, study) or (have and not case.under_way)):
            unfair.append(f"{what}, number {_numbers(missing)} is missing")
        elif missing:
            left.append(what)
    outside = {r.study for r in case.of("tune")} - set(range(case.protocol.budget.studies))
    unfair += [f"there is no study {study}" for study in sorted(outside)]
    each = "one trial, which tunes nothing," if asked == 1 else f"{asked} tuning trials"
    fair = f"{each} for each of {len(case.studies)} studies"
    yield from ruled("budget", fair, unfair, [f"{text}: {UNFINISHED}" for text in left])


def finals(case: Case) -> Iterator[Finding]:
    """As many final seeds for every method, the same ones where they are paired."""
    points = (case.manifest.get("transfer") or {}).get("hparams", {})
    unfair, left = [], []
    for study in range(case.protocol.budget.studies):
        tuned = [name for name in case.specs if case.best(name, study) is not None]
        moved = [name for name in case.specs if {f"{name}#{study}", f"{name}#0"} & set(points)]
        for phase, names in ((_FINALS[0], tuned), (_FINALS[1], moved)):
            have = {n: {r.seed for r in case.of(phase, n, study)} for n in case.specs}
            for name in set(have) - set(names):
                if have[name]:
                    unfair.append(f"{name} study {study} has {phase} trials and no point for them")
            told = _short(case, {name: have[name] for name in names})
            unfair += [f"{name} study {study}: {text} ({phase})" for name, text in told[0]]
            left += [f"{name} study {study}: {text} ({phase})" for name, text in told[1]]
    fair = f"{case.finals} finals for every study with a good trial"
    yield from ruled("finals", fair, unfair, [f"{text}: {UNFINISHED}" for text in left])


_FINALS: tuple[Phase, Phase] = ("final", "transfer")


def _short(case: Case, seeds: Mapping[str, set[int]]) -> tuple[list[Told], list[Told]]:
    """Of one study's finals by method: those that are unequal, and those that are not finished."""
    anyone: set[int] = set().union(*seeds.values())
    most = max(map(len, seeds.values()), default=0)
    unfair, left = [], []
    for name, own in seeds.items():
        text = f"{len(own)} of {case.finals} finals, others have {most}"
        short = bool(anyone - own) if case.protocol.paired else len(own) < most
        if len(own) > case.finals or (short and own and not case.under_way):
            unfair.append((name, text))
        elif len(own) < case.finals:
            left.append((name, text))
    return unfair, left


def sweep(case: Case) -> Iterator[Finding]:
    """The same rates and seeds in the sweep of every method."""
    asked = case.protocol.budget.sweep * case.protocol.budget.sweep_seeds
    unfair, left = [], []
    for name in case.specs:
        have = {record.trial for record in case.of("sweep", name)}
        text = f"{name} has {len(have)} of {asked} trials of the sweep"
        if have - set(range(asked)) or (0 < len(have) < asked and not case.under_way):
            unfair.append(text)
        elif len(have) < asked and case.best(name, 0) is not None:
            left.append(f"{text}: {UNFINISHED}")
    yield from ruled("sweep", f"{asked} trials a method", unfair, left)


def seeds(case: Case) -> Iterator[Finding]:
    """Every seed is the one that the run's seed gives its cell; no two phases share one."""
    unfair = [
        f"{label(record)}: due was {due}"
        for record in case.records
        if (due := _due(case, record)) is not None
    ]
    used = {phase: {r.seed for r in case.of(phase)} for phase in _OWN_SEEDS}
    for (one, mine), (other, theirs) in combinations(used.items(), 2):
        shared = mine & theirs
        if shared:
            unfair.append(f"{one} and {other} trials share seed {_numbers(shared)}")
    if not case.protocol.paired:
        times = Counter(
            r.seed for r in {record.key: record for record in case.of("final")}.values()
        )
        unfair += [f"{n} finals share seed {seed}" for seed, n in times.items() if n > 1]
    pairing = "paired across methods" if case.protocol.paired else "shared by no two methods"
    yield from ruled("seeds", f"derived from seed {case.seed}; finals fresh and {pairing}", unfair)


_OWN_SEEDS: tuple[Phase, ...] = ("tune", "final", "sweep")


def _due(case: Case, record: TrialRecord) -> str | None:
    """The seed that a record ought to have, in words; None if it has it."""
    if record.phase in _FINALS:
        due = {final_seed(case.seed, record.study, index) for index in range(case.finals)}
        free = record.phase == "final" and not case.protocol.paired
        return None if free or record.seed in due else f"one of {_numbers(due)}"
    if record.phase == "sweep":
        repeat = record.trial % case.protocol.budget.sweep_seeds
        seed = case.seed * SEED_STRIDE + SWEEP_OFFSET + repeat
    else:
        seed = tune_seed(case.seed, record.study if record.phase == "tune" else 0)
    return None if record.seed == seed else str(seed)


def evidence(case: Case) -> Iterator[Finding]:
    """Enough studies and seeds for what is claimed."""
    warnings, count = [], case.protocol.budget.studies
    if count < 3:
        studies = "1 tuning study" if count == 1 else f"{count} tuning studies"
        if case.protocol.budget.trials == 1:
            studies = "nothing is tuned, 1 trial"
        warnings.append(f"{studies} a method: nothing is ranked beyond these hyper-parameters")
    for name in case.specs:
        good = sum(record.status in WHOLE for record in case.of("final", name))
        if good < 3:
            warnings.append(f"{name} has {good} good final{'s' * (good != 1)}")
    yield from ruled("evidence", f"{count} studies, 3 or more finals a method", warnings=warnings)


def _numbers(values: set[int] | Sequence[int]) -> str:
    return ", ".join(map(str, sorted(values)))
