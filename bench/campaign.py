"""The three phases of a run: tune, final, timing.

The program is deterministic and its results are remembered: a resumed run goes through the same
steps, takes every cell that already has a record from it, and trains exactly the missing ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from levelfield.bench.digest import to_plain
from levelfield.bench.spec import BROKEN, BenchError, Phase, TrialRecord
from levelfield.bench.spec import Protocol as ProtocolRecord
from levelfield.bench.store import RunWriter
from levelfield.bench.study import SEED_STRIDE, Method
from levelfield.bench.train_request import Progress, TrialRequest, cell_key

if TYPE_CHECKING:
    from levelfield.bench.execute import LocalExecutor
    from levelfield.bench.tune import TuningStudy


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
        """All three phases."""
        best = self._tune()
        self._finals(best)
        self._timing(best)

    def _request(
        self, method: Method, phase: Phase, trial: int, seed: int, hparams: Mapping[str, Any]
    ) -> TrialRequest:
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
            retries=self._retries.get(cell_key(phase, method.name, trial, seed), 0),
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
                method,
                "final",
                index,
                self.seed * SEED_STRIDE + 1 + index,
                best[method.name].hparams,
            )
            for index in range(self.final_seeds)
            for method in self.methods
            if method.name in best
        )
        self.watcher.phase("final", len(queue), 0)
        self._drain(queue, lambda record: None, self.executor.slots)

    def _timing(self, best: Mapping[str, TrialRecord]) -> None:
        """Methods alternate, one trial at a time; a later batch holds the reference again."""
        windows, seed = self.protocol.timing.windows, self.seed * SEED_STRIDE
        queue: deque[TrialRequest] = deque()
        for number, names in enumerate(self.timing_batches):
            for window in range(windows):
                for method in self.methods:
                    if method.name in names and method.name in best:
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
            f"the record of {request.key} has other hyper-parameters than this run asks for",
            "the records or the manifest were changed by hand, or a library that proposes points",
        )


def exit_code(records: Iterable[TrialRecord], methods: Iterable[str]) -> int:
    """1 if a method has no good final or a trial broke, else 0: divergence is a result."""
    latest = {record.key: record for record in records}.values()
    good = {
        r.optimizer for r in latest if r.phase == "final" and r.status in ("ok", "undertrained")
    }
    broken = any(record.status in BROKEN for record in latest)
    return 1 if broken or set(methods) - good else 0
