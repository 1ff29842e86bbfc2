"""The phases of a run: calibrate, tune, final, transfer, sweep, timing.

The program is deterministic and its results are remembered: a resumed run goes through the same
steps, takes every cell that already has a record from it, and trains exactly the missing ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from levelfield.bench import fitting, horizons
from levelfield.bench.digest import sha256, to_plain
from levelfield.bench.fitting import own_protocol
from levelfield.bench.spec import BROKEN, BenchError, Phase, TrialRecord
from levelfield.bench.spec import Protocol as ProtocolRecord
from levelfield.bench.store import RunWriter
from levelfield.bench.study import (
    SEED_STRIDE,
    SWEEP_OFFSET,
    Method,
    final_number,
    final_seed,
    tune_seed,
    unpaired_seed,
)
from levelfield.bench.train_request import Progress, TrialRequest, cell_key, checkpoint_path

if TYPE_CHECKING:
    from levelfield.bench.execute import LocalExecutor
    from levelfield.bench.tune import TuningStudy


Best = dict[tuple[str, int], TrialRecord]
"""The best tuning trial by method and study; those without a good one are absent."""


class Watcher(Protocol):
    """Told what happens, for whoever shows it."""

    def phase(self, name: Phase, cells: int, done: int) -> None: ...

    def started(self, request: TrialRequest) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord, fresh: bool) -> None: ...

    def note(self, text: str) -> None: ...


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
        self.horizons: dict[str, int] = dict(manifest.get("horizons") or {})
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
        done = {cell_key(*key) for key in self._known}
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
        """All phases."""
        self._fit()
        self._calibrate()
        best = self._tune()
        self._freeze(best)
        self._finals(best)
        self._transfer()
        self._sweep(best)
        self._timing(best)

    def _request(
        self,
        method: Method,
        phase: Phase,
        trial: int,
        seed: int,
        hparams: Mapping[str, Any],
        study: int = 0,
    ) -> TrialRequest:
        return TrialRequest(
            run_id=self.run_id,
            phase=phase,
            protocol=own_protocol(self.protocol, self.writer.manifest, method.name),
            optimizer=method.name,
            reference=method.reference,
            hparams=dict(hparams),
            tuned=tuple(method.spec.space),
            trial=trial,
            seed=seed,
            study=study,
            retries=self._retries.get(cell_key(phase, method.name, trial, seed), 0),
            spec_digest=method.digest,
            protocol_digest=self._digests[0],
            data_digest=self._digests[1],
            folder=str(self.writer.path.resolve()),
        )

    def _fit(self) -> None:
        """Under a memory budget, the size that each method trains; one that fits nowhere is out.

        Raises:
            BenchError: no method fits.
        """
        if fitting.limit_bytes(self.protocol) is None:
            return
        sizes = dict(self.writer.manifest.get("sizes") or {})
        fitter = fitting.Fitter(self.protocol, self.writer.manifest["device"].partition(":")[0])
        for method in self.methods:
            if method.name not in sizes:
                sizes[method.name] = fitter.choose(method.spec)
        self.writer.update_manifest(sizes=sizes)
        out = {name: item["reason"] for name, item in sizes.items() if item["size"] is None}
        for name, reason in out.items():
            self.watcher.note(f"{name} is out: {reason}")
        if len(out) == len(sizes):
            raise fitting.NothingFits(
                f"no method fits into {self.protocol.budget.memory_gib:g} GiB",
                "; ".join(f"{name}: {reason}" for name, reason in list(out.items())[:2]),
            )
        self.methods = tuple(method for method in self.methods if method.name not in out)

    # Each phase is a queue of requests; `_drain` runs them and hands every record to `done`.

    def _calibrate(self) -> None:
        """Turn a budget that is not in steps into steps, once a method; the manifest keeps them."""
        missing = [method for method in self.methods if method.name not in self.horizons]
        if self.protocol.budget.unit == "steps" or not missing:
            return
        costs: dict[str, list[TrialRecord]] = {method.name: [] for method in missing}
        if horizons.needs_clock(self.protocol.budget):
            queue = deque(
                self._request(method, "calibrate", window, tune_seed(self.seed, 0), hparams)
                for window in range(self.protocol.timing.windows)
                for method in missing
                for hparams in [method.spec.defaults()]
            )
            self.watcher.phase("calibrate", len(queue), 0)
            self._drain(queue, lambda record: costs[record.optimizer].append(record), slots=1)
        for method in missing:
            self.horizons[method.name] = horizons.steps(
                self.protocol, method.spec, costs[method.name]
            )
        self.writer.update_manifest(horizons=self.horizons)

    def _tune(self) -> Best:
        from levelfield.bench.tune import TuningStudy

        budget = self.protocol.budget
        studies = {
            (m.name, index): TuningStudy(
                m.spec, self.protocol.tuner, budget.trials, self.seed, index, m.name
            )
            for index in range(budget.studies)
            for m in self.methods
        }
        by_name = {method.name: method for method in self.methods}
        self.watcher.phase("tune", budget.trials * len(studies), 0)
        queue: deque[TrialRequest] = deque()

        def ask(name: str, index: int) -> None:
            seed = tune_seed(self.seed, index)
            queue.extend(
                self._request(by_name[name], "tune", item.number, seed, item.hparams, index)
                for item in studies[name, index].ask()
            )

        def done(record: TrialRecord) -> None:
            studies[record.optimizer, record.study].tell(record.trial, record)
            ask(record.optimizer, record.study)

        for name, index in studies:
            ask(name, index)
        self._drain(queue, done, self.executor.slots)
        self.writer.update_manifest(studies=_study_facts(studies))
        best = {key: study.best() for key, study in studies.items()}
        return {key: record for key, record in best.items() if record is not None}

    def _freeze(self, best: Best) -> None:
        """Write down, hashed, what the finals are judged by before the first of them runs."""
        frozen = {
            "spaces": {m.name: {n: d.to_json() for n, d in m.spec.space.items()}
                       for m in self.methods},
            "fixed": {m.name: to_plain(m.spec.fixed) for m in self.methods},
            "best": {f"{name}#{index}": to_plain(r.hparams) for (name, index), r in best.items()},
            "reference": self.protocol.reference,
            "claims": self.protocol.claims,
            "targets": list(self.protocol.targets),
            "alpha": self.protocol.alpha,
            "margin_nats": self.protocol.margin_nats,
        }  # fmt: skip
        digest = sha256(frozen)
        old = self.writer.manifest.get("freeze")
        if old is None or old["sha256"] != digest:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            # A run that was added to keeps what its earlier finals were judged by.
            earlier = [] if old is None else [*(old.get("earlier") or []), _freeze_mark(old)]
            self.writer.update_manifest(
                freeze={**frozen, "sha256": digest, "utc": now, "earlier": earlier}
            )
        self.watcher.note(f"frozen before the finals: sha256 {digest[:16]}")

    def _finals(self, best: Best) -> None:
        """Fresh seeds at the best points, seed-major, so that drift hits all methods alike."""
        queue: deque[TrialRequest] = deque()
        for study in range(self.protocol.budget.studies):
            for index in range(self.final_seeds):
                for place, method in enumerate(self.methods):
                    found = best.get((method.name, study))
                    if found is None:
                        continue
                    seed = final_seed(self.seed, study, index)
                    if not self.protocol.paired:
                        seed = unpaired_seed(self.seed, place, study, index)
                    trial = final_number(study, index)
                    queue.append(self._request(method, "final", trial, seed, found.hparams, study))
        self.watcher.phase("final", len(queue), 0)
        self._drain(queue, lambda record: None, self.executor.slots)

    def _transfer(self) -> None:
        """Finals at another run's best points, on the seeds of the finals."""
        points = (self.writer.manifest.get("transfer") or {}).get("hparams", {})
        queue: deque[TrialRequest] = deque()
        for study in range(self.protocol.budget.studies):
            for index in range(self.final_seeds):
                for method in self.methods:
                    hparams = points.get(f"{method.name}#{study}", points.get(f"{method.name}#0"))
                    if hparams is not None:
                        seed = final_seed(self.seed, study, index)
                        trial = final_number(study, index)
                        queue.append(self._request(method, "transfer", trial, seed, hparams, study))
        if queue:
            self.watcher.phase("transfer", len(queue), 0)
            self._drain(queue, lambda record: None, self.executor.slots)

    def _sweep(self, best: Best) -> None:
        """Rates around the first study's best point, everything else as it is there."""
        budget, queue = self.protocol.budget, deque[TrialRequest]()
        for place in range(budget.sweep):
            offset = place - (budget.sweep - 1) / 2
            for repeat in range(budget.sweep_seeds):
                for method in self.methods:
                    found = best.get((method.name, 0))
                    if found is None:
                        continue
                    scale = method.spec.scale
                    value = found.hparams[scale] * self.protocol.tuner.factor**offset
                    dim = method.spec.space[scale]
                    hparams = {**found.hparams, scale: dim.value(dim.coordinate(value))}
                    seed = self.seed * SEED_STRIDE + SWEEP_OFFSET + repeat
                    trial = place * budget.sweep_seeds + repeat
                    queue.append(self._request(method, "sweep", trial, seed, hparams))
        if queue:
            self.watcher.phase("sweep", len(queue), 0)
            self._drain(queue, lambda record: None, self.executor.slots)

    def _timing(self, best: Best) -> None:
        """Methods alternate, one trial at a time; a later batch holds the reference again."""
        if self.protocol.budget.steps == 0:
            return  # there is no step to time
        windows, seed = self.protocol.timing.windows, tune_seed(self.seed, 0)
        queue: deque[TrialRequest] = deque()
        first = {name: record for (name, study), record in reversed(best.items())}
        for number, names in enumerate(self.timing_batches):
            for window in range(windows):
                for method in self.methods:
                    if method.name in names and method.name in first:
                        hparams = first[method.name].hparams
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
                    if (kept := checkpoint_path(event.request)) is not None:
                        kept.unlink(missing_ok=True)
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
        if request.phase in ("timing", "sweep"):
            return record  # made at what was best when it was made
        raise BenchError(
            f"the record of {request.key} has other hyper-parameters than this run asks for",
            "the records or the manifest were changed by hand, or a library that proposes points",
        )


def _freeze_mark(freeze: Mapping[str, Any]) -> dict[str, Any]:
    return {"sha256": freeze["sha256"], "utc": freeze["utc"]}


def _study_facts(studies: Mapping[tuple[str, int], TuningStudy]) -> dict[str, Any]:
    """What the manifest keeps of the studies: best trial, ranges in use, edges that are left."""
    facts: dict[str, Any] = {}
    for (name, index), study in studies.items():
        best = study.best()
        facts[f"{name}#{index}"] = {
            "best_trial": None if best is None else best.trial,
            "ranges": {n: [dim.low, dim.high] for n, dim in study.ranges().items()},
            "edges": study.edges(),
            "beyond_edge_trials": study.beyond_count,
        }
    return facts


def exit_code(records: Iterable[TrialRecord], manifest: Mapping[str, Any]) -> int:
    """1 if a method has no good final or a trial broke, else 0: divergence is a result, and so is
    a method that no size of a memory budget fits."""
    sizes = manifest.get("sizes") or {}
    out = {name for name, item in sizes.items() if item["size"] is None}
    methods = {item["name"] for item in manifest["methods"]} - out
    latest = {record.key: record for record in records}.values()
    good = {
        r.optimizer for r in latest if r.phase == "final" and r.status in ("ok", "undertrained")
    }
    broken = any(record.status in BROKEN for record in latest)
    return 1 if broken or methods - good else 0
