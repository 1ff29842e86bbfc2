"""`levelfield verify`: whether records are true, by training some of them again.

A few records are drawn at random and their trials run as they ran then: same code, data, seed,
horizon and executor. On the CPU that made them every field but clocks comes back bit for bit. On
CUDA, whose sums have no fixed order, and on a CPU of another model, the losses may differ by
`TOLERANCE`; hashes, counts and verdicts may not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from levelfield.bench import provenance, study
from levelfield.bench.digest import protocol_digest
from levelfield.bench.fitting import own_protocol
from levelfield.bench.spec import BenchError, Phase, Protocol, TrialRecord
from levelfield.bench.store import Run, comparable
from levelfield.bench.train_request import TrialRequest

TOLERANCE = 0.005
"""Relative difference of losses that counts as equal where bits cannot be."""

PHASES: tuple[Phase, ...] = ("tune", "final", "transfer", "sweep")
"""Those whose numbers repeat; what was timed does not."""
UNREPEATABLE = ("timeout", "killed", "oom")
"""Statuses that come from the machine, not from the trial."""
LIBRARIES = ("torch", "transformers", "numpy")
"""Those whose version decides the bits of a trial."""

LOSSES = ("initial_loss", "selection_loss", "report_loss")
EXACT = (
    *("phase", "protocol", "optimizer", "trial", "study", "seed", "hparams", "tuned", "status"),
    *("tokens", "steps", "passes", "parameters", "state_bytes", "claimed_state_bytes"),
    *("lr_trace", "weights_sha256", "batches_sha256", "refreshes", "schema"),
    *("spec_digest", "protocol_digest", "data_digest"),
)
"""What is equal even where losses are only close."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A record and what became of its trial now."""

    record: TrialRecord
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True)
class Verification:
    """What is trained again, and how it is compared."""

    drawn: tuple[TrialRecord, ...]
    of: int
    """Records that could have been drawn."""
    exact: bool
    how: str
    """The comparison, in words."""
    requests: tuple[TrialRequest, ...]
    devices: tuple[str, ...]
    slots: int


def draw(run: Run, sample: int, seed: int) -> tuple[list[TrialRecord], int]:
    """Records drawn at random, in the file's order, and how many could have been.

    Args:
        sample: how many; all of them if there are no more.
        seed: of the draw. Anyone who knows it beforehand knows what will be drawn.

    Raises:
        BenchError: nothing asked for, or nothing there.
    """
    if sample < 1:
        raise BenchError(f"--sample {sample}", "accepted: 1 or more")
    digest = {item["name"]: item["digest"] for item in run.manifest["methods"]}
    latest = {
        record.key: record
        for record in run.records
        if record.phase in PHASES
        and record.status not in UNREPEATABLE
        and record.spec_digest == digest.get(record.optimizer, "")
    }
    if not latest:
        raise BenchError(
            f"{run.path} holds no record that can be trained again",
            f"accepted: {', '.join(PHASES)} trials that ended by themselves",
        )
    chosen = random.Random(seed).sample(sorted(latest), min(sample, len(latest)))
    return [record for key, record in latest.items() if key in chosen], len(latest)


def prepare(run: Run, *, sample: int = 3, seed: int = 0, slots: int | None = None) -> Verification:
    """Draw records and make sure that their trials can be what they were.

    Raises:
        BenchError: other code, data, library or device than the run's: which.
    """
    from levelfield.bench import api

    drawn, count = draw(run, sample, seed)
    manifest = run.manifest
    protocol = study.manifest_protocol(manifest)
    _check_libraries(run)
    methods = _methods(run, {record.optimizer for record in drawn})
    _check_protocol_and_data(run, protocol)
    processes = protocol.engine.processes
    devices, slots = api.places(manifest["device"], slots, protocol.threads, processes)
    exact, how = _comparison(run)
    requests = tuple(_request(run, protocol, methods[r.optimizer], r) for r in drawn)
    return Verification(tuple(drawn), count, exact, how, requests, devices, slots)


def verify(plan: Verification, told: Callable[[Verified], None]) -> list[Verified]:
    """Train every drawn record again; `told` hears of each as it ends."""
    found = []
    for request, again in _train(plan):
        record = plan.drawn[plan.requests.index(request)]
        found.append(Verified(record, tuple(compare(record, again, plan.exact))))
        told(found[-1])
    return found


def compare(record: TrialRecord, again: TrialRecord, exact: bool) -> Iterator[str]:
    """Differences between a record and its trial of now, in words."""
    if record.status != again.status:
        yield f"status {record.status}, now {again.status} ({again.reason or 'it ended well'})"
        return
    then, now = comparable(record), comparable(again)
    for name in then if exact else EXACT:
        if then[name] != now[name]:
            yield f"{name} {_short(then[name])}, now {_short(now[name])}"
    if exact:
        return
    for name in LOSSES:
        if not _close(then[name], now[name]):
            yield f"{name} {then[name]}, now {now[name]}"
    if [tokens for tokens, _ in then["curve"]] != [tokens for tokens, _ in now["curve"]]:
        yield "curve has other points"
    elif any(not _close(a, b) for (_, a), (_, b) in zip(then["curve"], now["curve"], strict=True)):
        yield f"curve is off by more than {TOLERANCE:.1%}"


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * abs(one)


def _short(value: Any, most: int = 60) -> str:
    text = str(value)
    return text if len(text) <= most else text[:most] + "..."


def _train(plan: Verification) -> Iterator[tuple[TrialRequest, TrialRecord]]:
    from levelfield.bench.execute import Finished, LocalExecutor

    protocol = plan.requests[0].protocol
    executor = LocalExecutor(plan.slots, plan.devices, protocol.threads)
    waiting, by_key = deque(plan.requests), {request.key: request for request in plan.requests}
    try:
        while waiting or executor.free < executor.slots:
            while waiting and executor.free:
                executor.start(waiting.popleft())
            for event in executor.wait(timeout_s=0.5):
                if isinstance(event, Finished):
                    yield by_key[event.request.key], event.record
    finally:
        executor.close()


def _request(
    run: Run, protocol: Protocol, method: study.Method, record: TrialRecord
) -> TrialRequest:
    return TrialRequest(
        run_id=record.run_id,
        phase=record.phase,
        protocol=own_protocol(protocol, run.manifest, record.optimizer),
        optimizer=record.optimizer,
        reference=method.reference,
        hparams=dict(record.hparams),
        tuned=record.tuned,
        trial=record.trial,
        seed=record.seed,
        study=record.study,
        spec_digest=record.spec_digest,
        protocol_digest=record.protocol_digest,
        data_digest=record.data_digest,
    )


# --- what makes it impossible -----------------------------------------------------------------


def _check_libraries(run: Run) -> None:
    then = run.manifest["environment"]
    for name in LIBRARIES:
        now = provenance.version(name)
        if then.get(name) != now:
            raise BenchError(
                f"{name} {then.get(name)} made this run and {now} is installed",
                f"install {name}=={then.get(name)}: other versions round otherwise",
            )


def _methods(run: Run, names: set[str]) -> dict[str, study.Method]:
    items = {item["name"]: item for item in run.manifest["methods"] if item["name"] in names}
    methods = {name: study.load_method(item["reference"]) for name, item in items.items()}
    changed = [name for name, method in methods.items() if method.digest != items[name]["digest"]]
    if changed:
        raise BenchError(
            f"the code of {', '.join(changed)} is not what this run was made with",
            "check out the version that made it, or install the library that it borrowed from",
        )
    return methods


def _check_protocol_and_data(run: Run, protocol: Protocol) -> None:
    from levelfield.bench import tasks

    if run.manifest["protocol_digest"] != protocol_digest(protocol):
        raise BenchError(
            "the training loop or the protocol is not what this run was made with",
            f"check out levelfield {run.manifest['levelfield_version']}",
        )
    now, then = tasks.open_task(protocol, "cpu").facts["digest"], run.manifest["data"]["digest"]
    if now != then:
        raise BenchError(
            f"the data of this run has digest {then[:16]}, here it is {now[:16]}",
            f"bring back {protocol.data.source} as it was",
        )


def _comparison(run: Run) -> tuple[bool, str]:
    within = f"losses within {TOLERANCE:.1%}, hashes and counts exactly"
    if run.manifest["device"] != "cpu":
        return False, f"{within}: a CUDA device adds in no fixed order"
    now, then = provenance.environment("cpu"), run.manifest["environment"]
    if now["cpu"] != then.get("cpu"):
        return False, f"{within}: made on {then.get('cpu')}, this is {now['cpu']}"
    return True, "bit for bit, every field but clocks"
