"""A run from start to end: phases tune, final, timing; resume; adding a method or seeds.

The program is deterministic and its results are remembered: a resumed run goes through the same
steps, takes every cell that already has a record from it, and trains exactly the missing ones.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from levelfield.bench import provenance
from levelfield.bench.digest import (
    did_you_mean,
    from_plain,
    protocol_digest,
    sha256,
    source_digest,
    to_plain,
)
from levelfield.bench.registry import OPTIMIZERS, Loaded
from levelfield.bench.schedules import check_schedule
from levelfield.bench.spec import (
    BROKEN,
    ENGINE_VERSION,
    SCHEMA,
    BenchError,
    OptimizerSpec,
    Phase,
    TrialRecord,
)
from levelfield.bench.spec import Protocol as ProtocolRecord
from levelfield.bench.store import RunWriter, load_run

if TYPE_CHECKING:
    from levelfield.bench.execute import LocalExecutor
    from levelfield.bench.train_request import Progress, TrialRequest
    from levelfield.bench.tune import TuningStudy

SEED_STRIDE = 1000
"""Seeds of run seed s: tuning uses 1000 s, the finals 1000 s + 1, + 2, ...: disjoint."""


class Watcher(Protocol):
    """Told what happens, for whoever shows it."""

    def phase(self, name: Phase, cells: int, done: int) -> None: ...

    def started(self, request: TrialRequest) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord, fresh: bool) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a run: its record, where it came from, its digest."""

    spec: OptimizerSpec
    origin: str
    reference: str
    digest: str

    @property
    def name(self) -> str:
        return self.spec.name


def load_method(reference: str) -> Method:
    """Load a method and make sure that it can run here.

    Raises:
        BenchError: unknown, broken, or lacking a library.
    """
    loaded: Loaded[OptimizerSpec] = OPTIMIZERS.load(reference)
    spec = loaded.value
    missing = [name for name in spec.requires if not _importable(name)]
    if missing:
        raise BenchError(
            f"{spec.name} needs {', '.join(missing)}, which is not installed",
            "install the extra that carries it",
        )
    library = spec.implementation.split()[0]
    borrowed = [] if library == "own" else [library]
    return Method(
        spec, loaded.entry.origin, loaded.entry.reference, source_digest(loaded.path, borrowed)
    )


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def load_methods(references: Sequence[str]) -> tuple[Method, ...]:
    """Load several; a name twice is an error that names both origins."""
    found: dict[str, Method] = {}
    for reference in references:
        method = load_method(reference)
        other = found.setdefault(method.name, method)
        if other is not method:
            raise BenchError(
                f"two methods are named {method.name!r}: {other.origin} and {method.origin}",
                "name each method once",
            )
    return tuple(found.values())


def _spec_data(method: Method) -> dict[str, Any]:
    spec = method.spec
    fields = (
        "family summary paper code licence version scale fixed roles passes schedule refreshes "
        "implementation requires cannot"
    ).split()
    return {
        "name": method.name,
        "origin": method.origin,
        "reference": method.reference,
        "digest": method.digest,
        "spec": {
            **{name: to_plain(getattr(spec, name)) for name in fields},
            "space": {name: dim.to_json() for name, dim in spec.space.items()},
        },
    }


# --- creating and reopening -------------------------------------------------------------------


def new_run(
    protocol: ProtocolRecord,
    methods: Sequence[Method],
    *,
    out: Path,
    seed: int,
    final_seeds: int,
    slots: int,
    device: str,
    modified: Sequence[str] = (),
    origin: str = "",
) -> RunWriter:
    """Make the folder of a new run, after every check that needs no training.

    Raises:
        BenchError: a protocol that cannot work, or a folder that cannot be made.
    """
    check_schedule(protocol)
    check_budget(protocol, final_seeds)
    corpus_facts = _corpus_facts(protocol)
    created = datetime.now(UTC)
    tag = sha256([protocol.name, created.isoformat(), os.getpid()])[:6]
    run_id = f"{created:%Y%m%dT%H%M%SZ}-{protocol.name}-{tag}"
    manifest = {
        "schema": SCHEMA,
        "run_id": run_id,
        "created_utc": created.isoformat(timespec="seconds"),
        "command": provenance.command(),
        "levelfield_version": provenance.levelfield_version(),
        "engine_version": ENGINE_VERSION,
        "seed": seed,
        "final_seeds": final_seeds,
        "modified": list(modified),
        "protocol": protocol,
        "protocol_origin": origin,
        "protocol_digest": protocol_digest(protocol),
        "methods": [_spec_data(method) for method in methods],
        "timing_batches": [[method.name for method in methods]],
        "data": corpus_facts,
        "environment": provenance.environment(device),
        "device": device,
        "slots": slots,
        "interruptions": [],
        "warnings": [],
    }
    return RunWriter.create(out / run_id, manifest)


def _corpus_facts(protocol: ProtocolRecord) -> dict[str, Any]:
    from levelfield.bench import sources

    corpus = sources.load(protocol.data)
    for name in sources.SLICES:  # too little text is found now, not in the first trial
        corpus.sequences(name, protocol.data.sequence, 1)
    return dict(corpus.facts)


def check_budget(protocol: ProtocolRecord, final_seeds: int) -> None:
    """Refuse budgets that mean nothing.

    Raises:
        BenchError: a count below one, or more finals than seeds.
    """
    counts = {
        "budget.steps": protocol.budget.steps,
        "budget.trials": protocol.budget.trials,
        "the number of final seeds": final_seeds,
        "data.batch": protocol.data.batch,
        "data.sequence": protocol.data.sequence,
        "evaluation.every": protocol.evaluation.every,
        "evaluation.sequences": protocol.evaluation.sequences,
        "timing.windows": protocol.timing.windows,
        "timing.steps": protocol.timing.steps,
        "tuner.generation": protocol.tuner.generation,
        "threads": protocol.threads,
        "model.hidden": protocol.model.hidden,
        "model.layers": protocol.model.layers,
        "model.heads": protocol.model.heads,
    }
    for name, count in counts.items():
        if count < 1:
            raise BenchError(f"{name} = {count}", "accepted: 1 or more")
    if protocol.budget.trial_timeout_s <= 0:
        raise BenchError(f"budget.trial_timeout_s = {protocol.budget.trial_timeout_s}", "> 0")
    if final_seeds >= SEED_STRIDE:
        raise BenchError(f"{final_seeds} final seeds", f"accepted: fewer than {SEED_STRIDE}")


def reopen(folder: Path) -> tuple[RunWriter, dict[str, Any]]:
    """An existing run for writing, and its manifest."""
    run = load_run(folder)
    return RunWriter(folder), dict(run.manifest)


def manifest_protocol(manifest: Mapping[str, Any]) -> ProtocolRecord:
    """The protocol that a manifest holds."""
    return from_plain(ProtocolRecord, manifest["protocol"])


def current_methods(manifest: Mapping[str, Any], rerun_stale: bool) -> tuple[Method, ...]:
    """The manifest's methods as they are today.

    Raises:
        BenchError: a method's code changed since, unless `rerun_stale`.
    """
    methods = load_methods([item["reference"] for item in manifest["methods"]])
    then = {item["name"]: item["digest"] for item in manifest["methods"]}
    stale = [method.name for method in methods if then.get(method.name) != method.digest]
    if stale and not rerun_stale:
        raise BenchError(
            f"the code of {', '.join(stale)} changed since this run began",
            "--rerun-stale trains them again and keeps the old lines",
        )
    return methods


def check_fresh(manifest: Mapping[str, Any], protocol: ProtocolRecord) -> None:
    """Refuse to continue a run whose engine, protocol or data are not what they were."""
    if manifest["protocol_digest"] != protocol_digest(protocol):
        raise BenchError(
            "this run was made by another version of the training loop or of the protocol",
            "start a new run",
        )
    if manifest["data"]["digest"] != _corpus_facts(protocol)["digest"]:
        raise BenchError("the data is not what it was when this run began", "start a new run")


def with_methods(
    writer: RunWriter, manifest: dict[str, Any], added: Sequence[Method], final_seeds: int | None
) -> None:
    """Write new methods and a new number of finals into a run's manifest.

    Raises:
        BenchError: a method that is there already, or fewer finals than there are.
    """
    known = [item["name"] for item in manifest["methods"]]
    twice = [method.name for method in added if method.name in known]
    if twice:
        raise BenchError(f"{', '.join(twice)} is already in this run", "--seeds adds finals to it")
    if final_seeds is not None and final_seeds < manifest["final_seeds"]:
        raise BenchError(
            f"--seeds {final_seeds}, and this run has {manifest['final_seeds']}",
            "give the number of final seeds in all",
        )
    batches = list(manifest["timing_batches"])
    if added:
        batches.append([method.name for method in added])
    writer.update_manifest(
        methods=[*manifest["methods"], *(_spec_data(method) for method in added)],
        final_seeds=final_seeds or manifest["final_seeds"],
        timing_batches=batches,
    )


def refresh_methods(writer: RunWriter, methods: Sequence[Method]) -> None:
    """Write today's digests of the methods into the manifest: older records become stale."""
    writer.update_manifest(methods=[_spec_data(method) for method in methods])


# --- running ----------------------------------------------------------------------------------


class Campaign:
    """Trains every cell of a run that has no record yet.

    Args:
        writer: the run, locked.
        protocol, methods: what is run.
        executor: where trials run.
        watcher: told what happens.
    """

    def __init__(
        self,
        writer: RunWriter,
        protocol: ProtocolRecord,
        methods: Sequence[Method],
        executor: LocalExecutor,
        watcher: Watcher,
    ) -> None:
        self.writer, self.protocol, self.methods = writer, protocol, tuple(methods)
        self.executor, self.watcher = executor, watcher
        manifest = writer.manifest
        self.run_id: str = manifest["run_id"]
        self.seed: int = manifest["seed"]
        self.final_seeds: int = manifest["final_seeds"]
        self.timing_batches: list[list[str]] = manifest["timing_batches"]
        self._digests = (manifest["protocol_digest"], manifest["data"]["digest"])
        self._known = self._remembered(writer.records)
        self._retries = self._count_interruptions(manifest)

    def _remembered(self, records: Iterable[TrialRecord]) -> dict[tuple[Any, ...], TrialRecord]:
        """Records that still stand for their cell: all digests are today's."""
        digest = {method.name: method.digest for method in self.methods}
        return {
            record.key: record
            for record in records
            if (record.protocol_digest, record.data_digest) == self._digests
            and record.spec_digest == digest.get(record.optimizer)
        }

    def _count_interruptions(self, manifest: Mapping[str, Any]) -> dict[str, int]:
        """How often each cell was started and left no record; written into the manifest."""
        found = list(manifest["interruptions"])
        done = {_cell_key(*record.key) for record in self.writer.records}
        for key in self.writer.interrupted():
            if key not in done:
                found.append({"key": key, "utc": datetime.now(UTC).isoformat(timespec="seconds")})
            self.writer.unmark(key)
        if len(found) != len(manifest["interruptions"]):
            self.writer.update_manifest(interruptions=found)
        counts: dict[str, int] = {}
        for item in found:
            counts[item["key"]] = counts.get(item["key"], 0) + 1
        return counts

    def run(self) -> None:
        """All three phases."""
        best = self._tune()
        self._finals(best)
        self._timing(best)

    def _request(
        self, method: Method, phase: Phase, trial: int, seed: int, hparams: Mapping[str, Any]
    ) -> TrialRequest:
        from levelfield.bench.train_request import TrialRequest

        return TrialRequest(
            run_id=self.run_id,
            phase=phase,
            protocol=self.protocol,
            optimizer=method.name,
            reference=method.reference,
            hparams=dict(hparams),
            tuned=tuple(method.spec.space),
            trial=trial,
            seed=seed,
            retries=self._retries.get(_cell_key(phase, method.name, trial, seed), 0),
            spec_digest=method.digest,
            protocol_digest=self._digests[0],
            data_digest=self._digests[1],
        )

    # Each phase is a queue of requests; `_drain` runs them and hands every record to `done`.

    def _tune(self) -> dict[str, TrialRecord]:
        from levelfield.bench.tune import TuningStudy

        trials, seed = self.protocol.budget.trials, self.seed * SEED_STRIDE
        studies = {
            m.name: TuningStudy(m.spec, self.protocol.tuner, trials, self.seed)
            for m in self.methods
        }
        by_name = {method.name: method for method in self.methods}
        self.watcher.phase("tune", trials * len(studies), 0)
        queue: deque[TrialRequest] = deque()

        def ask(study: TuningStudy) -> None:
            method = by_name[study.spec.name]
            queue.extend(
                self._request(method, "tune", item.number, seed, item.hparams)
                for item in study.ask()
            )

        def done(record: TrialRecord) -> None:
            study = studies[record.optimizer]
            study.tell(record.trial, record)
            ask(study)

        for study in studies.values():
            ask(study)
        self._drain(queue, done, self.executor.slots)
        best = {name: study.best() for name, study in studies.items()}
        return {name: record for name, record in best.items() if record is not None}

    def _finals(self, best: Mapping[str, TrialRecord]) -> None:
        """Fresh seeds at the best point, seed-major, so that drift hits all methods alike."""
        queue = deque(
            self._request(
                method, "final", index, self.seed * SEED_STRIDE + 1 + index, best[method.name].hparams
            )
            for index in range(self.final_seeds)
            for method in self.methods
            if method.name in best
        )
        self.watcher.phase("final", len(queue), 0)
        self._drain(queue, lambda record: None, self.executor.slots)

    def _timing(self, best: Mapping[str, TrialRecord]) -> None:
        """Methods alternate, one trial at a time. A later batch times the reference with it."""
        windows, seed = self.protocol.timing.windows, self.seed * SEED_STRIDE
        queue: deque[TrialRequest] = deque()
        for number, names in enumerate(self.timing_batches):
            for window in range(windows):
                for method in self.methods:
                    timed = method.name in names or method.name == self.protocol.reference
                    if timed and method.name in best:
                        hparams = best[method.name].hparams
                        trial = number * windows + window
                        queue.append(self._request(method, "timing", trial, seed, hparams))
        self.watcher.phase("timing", len(queue), 0)
        self._drain(queue, lambda record: None, slots=1)

    def _drain(self, queue: deque[TrialRequest], done: Any, slots: int) -> None:
        """Run requests until the queue is empty and nothing runs; `done` may add to the queue."""
        from levelfield.bench.execute import Finished

        while True:
            while queue and (known := self._recall(queue[0])) is not None:
                queue.popleft()
                self.watcher.finished(known, fresh=False)
                done(known)
            busy = self.executor.slots - self.executor.free
            if queue and busy < slots:
                request = queue.popleft()
                self.writer.mark(request.key)
                self.watcher.started(request)
                self.executor.start(request)
                continue
            if not busy:
                return
            for event in self.executor.wait(timeout_s=0.5):
                if isinstance(event, Finished):
                    record = self.writer.append(event.record)
                    self.writer.unmark(event.request.key)
                    self._known[record.key] = record
                    self.watcher.finished(record, fresh=True)
                    done(record)
                else:
                    self.watcher.progress(event)

    def _recall(self, request: TrialRequest) -> TrialRecord | None:
        """The record that stands for a request, if there is one."""
        key = (request.phase, request.optimizer, request.trial, request.seed)
        record = self._known.get(key)
        if record is None or to_plain(record.hparams) == to_plain(request.hparams):
            return record
        if request.phase == "timing":
            return record  # timed at what was best when it was timed
        raise BenchError(
            f"the record of {request.key} was made at other hyper-parameters than this run asks for",
            "the records or the manifest were changed by hand, or a library that proposes points",
        )


def _cell_key(phase: str, optimizer: str, trial: int, seed: int) -> str:
    return f"{phase}-{optimizer}-{trial}-{seed}"


def exit_code(records: Iterable[TrialRecord], methods: Iterable[str]) -> int:
    """1 if a method has no good final or a trial broke, else 0: divergence is a result."""
    latest = {record.key: record for record in records}.values()
    good = {r.optimizer for r in latest if r.phase == "final" and r.status in ("ok", "undertrained")}
    broken = any(record.status in BROKEN for record in latest)
    return 1 if broken or set(methods) - good else 0


def apply_settings(protocol: ProtocolRecord, settings: Sequence[str]) -> ProtocolRecord:
    """Change protocol fields by `dotted.name=value`.

    Raises:
        BenchError: no `=`, an unknown field (did-you-mean), a value of another type.
    """
    data = to_plain(protocol)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BenchError(f"--set {setting!r} has no '='", "accepted: --set budget.trials=12")
        if name in ("name", "summary", "note"):
            raise BenchError(f"--set {name}: a protocol's texts are fixed", "write a protocol file")
        *parents, last = name.split(".")
        place = data
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            known = [key for key in _dotted(data) if key not in ("name", "summary", "note")]
            raise BenchError(f"unknown protocol field {name!r}", did_you_mean(name, known))
        if isinstance(place[last], dict):
            inside = ", ".join(f"{name}.{key}" for key in place[last])
            raise BenchError(f"{name} is a group of fields", f"accepted: {inside}")
        place[last] = _parse(text, place[last])
    return from_plain(ProtocolRecord, data)


def _dotted(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in data.items():
        names += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return names


def _parse(text: str, old: Any) -> Any:
    """A value as typed on the command line: JSON where it is JSON, else text."""
    import json

    if isinstance(old, list):
        return [part for part in text.split(",") if part]
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "none") else text)
    except json.JSONDecodeError:
        return None if text.lower() == "none" else text


def shrink(protocol: ProtocolRecord, **budget: Any) -> ProtocolRecord:
    """The same protocol with another budget (for tests and examples)."""
    return replace(protocol, budget=replace(protocol.budget, **budget))
