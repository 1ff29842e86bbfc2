"""Rules on what was chosen: points by the tuner's rule, the best by the selection loss, frozen."""

from __future__ import annotations

from collections.abc import Iterator

from levelfield.bench.audit_case import Case, Finding, label, ruled
from levelfield.bench.digest import sha256, to_plain
from levelfield.bench.spec import TrialRecord


def tuner(case: Case) -> Iterator[Finding]:
    """The tuner, replayed on the recorded losses, proposes the recorded points again."""
    import optuna
    import scipy

    from levelfield.bench.tune import TuningStudy

    unfair, edges = [], []
    settings = case.protocol
    for name, index in case.studies:
        spec = case.specs[name]
        study = TuningStudy(spec, settings.tuner, settings.budget.trials, case.seed, index, name)
        done = {record.trial: record for record in case.of("tune", name, index)}
        while batch := study.ask():
            wrong = [
                f"{label(done[item.number])}: the tuner proposes {_apart(item.hparams, record)}"
                for item in batch
                if (record := done.get(item.number)) is not None
                and not (_same(record.hparams, item.hparams) and record.tuned == tuple(spec.space))
            ]
            unfair += wrong
            if wrong or any(item.number not in done for item in batch):
                break
            for item in batch:
                study.tell(item.number, done[item.number])
        else:
            edges += [
                f"{name} study {index}: {d} at the {s} edge" for d, s in study.edges().items()
            ]
    then = case.manifest["environment"]
    others = [
        f"{module.__name__} {then.get(module.__name__)} proposed, {module.__version__} replayed"
        for module in (optuna, scipy)
        if then.get(module.__name__) != module.__version__
    ]
    fair = f"the {settings.tuner.kind} rule proposes every recorded point again"
    if unfair and others:
        yield from ruled("tuner", fair, unknown=[*others, *unfair])
    else:
        yield from ruled("tuner", fair, unfair)
    yield from ruled("edges", "every best point is inside its ranges", warnings=edges)


def best(case: Case) -> Iterator[Finding]:
    """Finals run at their study's best trial by selection loss, which the manifest names too."""
    unfair = []
    for name, study in case.studies:
        found = case.best(name, study)
        if found is None or not case.of("final", name, study):
            continue
        told = (case.manifest["studies"].get(f"{name}#{study}") or {}).get("best_trial")
        if told != found.trial:
            unfair.append(
                f"{name} study {study}: trial {found.trial} has the lowest selection loss, the "
                f"manifest names {told}"
            )
        for record in case.of("final", name, study):
            if not _same(record.hparams, found.hparams):
                unfair.append(f"{label(record)} is not at trial {found.trial}, the best")
    moved = (case.manifest.get("transfer") or {}).get("hparams", {})
    for record in case.of("transfer"):
        name = record.optimizer
        point = moved.get(f"{name}#{record.study}", moved.get(f"{name}#0"))
        if not _same(record.hparams, point):
            unfair.append(f"{label(record)} is not at the point of the run that it comes from")
    fair = "every final runs at the lowest selection loss of its study"
    yield from ruled("best", fair, unfair, list(_elsewhere(case)))


def _elsewhere(case: Case) -> Iterator[str]:
    """Timing and sweep trials that are not at, or around, the best point of their method."""
    for name, spec in case.specs.items():
        tuned = [record for _, study in case.studies if (record := case.best(name, study))]
        for record in (*case.of("timing", name), *case.of("sweep", name)):
            due, has = dict(tuned[0].hparams) if tuned else {}, dict(record.hparams)
            if record.phase == "sweep":
                due[spec.scale] = has[spec.scale] = None
            if not _same(due, has):
                yield f"{label(record)} is not at the best point"


def report_slice(case: Case) -> Iterator[Finding]:
    """Nothing but a final reads the report slice: no choice can have looked at it."""
    unfair = [
        f"{label(record)} has a report loss"
        for record in case.records
        if record.phase not in ("final", "transfer") and record.report_loss is not None
    ]
    yield from ruled("report-slice", "read by finals alone", unfair)


def freeze(case: Case) -> Iterator[Finding]:
    """What the finals are judged by hashes to what was frozen, and is what the manifest says."""
    frozen, unfair = case.manifest["freeze"], []
    done = {(record.optimizer, record.study) for record in case.of("final")}
    if frozen is None:
        unfair = ["finals ran and nothing was frozen before them"] if done else []
        yield from ruled("freeze", "no final has run", unfair)
        return
    kept = {key: value for key, value in frozen.items() if key not in ("sha256", "utc", "earlier")}
    if sha256(kept) != frozen["sha256"]:
        unfair.append(f"its content does not hash to {frozen['sha256'][:16]}")
    for name in ("reference", "claims", "targets", "alpha", "margin_nats"):
        now = to_plain(getattr(case.protocol, name))
        if frozen[name] != now:
            unfair.append(f"{name} was frozen as {frozen[name]}, the protocol says {now}")
    for name, study in sorted(done):
        spec, point = case.specs[name], frozen["best"].get(f"{name}#{study}")
        found = case.best(name, study)
        if found is not None and (point is None or not _same(point, found.hparams)):
            unfair.append(f"the best point of {name} study {study} is not the frozen one")
        space = {key: dim.to_json() for key, dim in spec.space.items()}
        if (frozen["spaces"].get(name), frozen["fixed"].get(name)) != (space, to_plain(spec.fixed)):
            unfair.append(f"the ranges of {name} are not the frozen ones")
    yield from ruled("freeze", f"sha256 {frozen['sha256'][:16]}", unfair)


def _same(one: object, other: object) -> bool:
    same: bool = to_plain(one) == to_plain(other)
    return same


def _apart(proposed: object, record: TrialRecord) -> str:
    due, has = to_plain(proposed), to_plain(record.hparams)
    names = sorted(n for n in {*due, *has} if due.get(n) != has.get(n))
    return ", ".join(f"{n}={due.get(n)}, not {has.get(n)}" for n in names) or "other `tuned` names"
