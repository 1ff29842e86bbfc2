"""The smallest runs that still have everything: a LLaMA of ten thousand weights, 16 steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from levelfield.bench import api
from levelfield.bench.execute import Finished, LocalExecutor
from levelfield.bench.registry import OPTIMIZERS, lacking
from levelfield.bench.spec import (
    Budget,
    Data,
    Evaluation,
    Fallback,
    Model,
    OptimizerSpec,
    Phase,
    Protocol,
    Timing,
    TrialRecord,
)
from levelfield.bench.store import Run
from levelfield.bench.train import run_trial
from levelfield.bench.train_request import Progress, TrialRequest

PLUGINS = Path(__file__).parent / "plugins"

PROTOCOL = Protocol(
    name="small",
    summary="the smallest run that still has everything",
    model=Model(hidden=16, layers=1, heads=2, intermediate=24),
    data=Data(sequence=16, batch=4),
    budget=Budget(steps=16, trials=3, seeds=2, trial_timeout_s=60.0),
    fallback=Fallback(lr=1e-2),
    evaluation=Evaluation(every=5, sequences=8),
    timing=Timing(windows=2, steps=4),
)


def available(name: str) -> OptimizerSpec:
    """A registered method; the test is skipped where a library that it needs is missing."""
    spec = OPTIMIZERS.load(name).value
    if lacks := lacking(spec.requires):
        pytest.skip(f"{', '.join(lacks)} not installed")
    if spec.requires:  # what a library warns of is not ours
        warnings.simplefilter("default")
    return spec


def plugin(name: str) -> str:
    """The reference of a method in `plugins`: `file:ATTRIBUTE` without the folder."""
    file, _, attribute = name.partition(":")
    return f"{PLUGINS / file}.py:{attribute}"


def changed(protocol: Protocol = PROTOCOL, **fields: Any) -> Protocol:
    """A protocol with some fields changed; those of its budget are named directly."""
    budget = {key: fields.pop(key) for key in ("steps", "trials", "seeds") if key in fields}
    if "trial_timeout_s" in fields:
        budget["trial_timeout_s"] = fields.pop("trial_timeout_s")
    return replace(protocol, budget=replace(protocol.budget, **budget), **fields)


def request(
    reference: str,
    protocol: Protocol = PROTOCOL,
    *,
    phase: Phase = "tune",
    seed: int = 0,
    **hparams: Any,
) -> TrialRequest:
    """What to train: a method at its defaults, some of them changed."""
    spec = OPTIMIZERS.load(reference).value
    return TrialRequest(
        run_id="none",
        phase=phase,
        protocol=protocol,
        optimizer=spec.name,
        reference=reference,
        hparams={**spec.defaults(), **hparams},
        tuned=tuple(spec.space),
        trial=0,
        seed=seed,
    )


def train(reference: str, protocol: Protocol = PROTOCOL, **asked: Any) -> TrialRecord:
    """One trial in this process; `asked` as for `request`."""
    return run_trial(request(reference, protocol, **asked), lambda progress: None)


def execute(requests: Sequence[TrialRequest], slots: int = 1) -> list[TrialRecord]:
    """Trials in processes of their own; their records in the order of the requests."""
    records, _ = execute_and_watch(requests, slots)
    return records


def execute_and_watch(
    requests: Sequence[TrialRequest], slots: int = 1
) -> tuple[list[TrialRecord], list[Progress]]:
    """The same, and what was told on the way."""
    executor = LocalExecutor(slots, ("cpu",), threads=1)
    waiting, done, told = list(requests), {}, []
    try:
        while len(done) < len(requests):
            while waiting and executor.free:
                executor.start(waiting.pop(0))
            for event in executor.wait(timeout_s=0.5):
                if isinstance(event, Finished):
                    done[event.record.key] = event.record
                else:
                    told.append(event)
    finally:
        executor.close()
    return [done[(r.phase, r.optimizer, r.trial, r.seed)] for r in requests], told


def run(
    out: Path, methods: Sequence[str], protocol: Protocol = PROTOCOL, slots: int = 1, **more: Any
) -> Run:
    """A whole run."""
    return api.run(protocol, methods, out=out, slots=slots, **more)


def by_method(records: Sequence[TrialRecord], phase: Phase) -> Mapping[str, list[TrialRecord]]:
    """Records of a phase in the file's order, by method."""
    found: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.phase == phase:
            found.setdefault(record.optimizer, []).append(record)
    return found
