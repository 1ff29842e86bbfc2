"""What the audit looks at: a run laid out by cell, and what a rule found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from levelfield.bench.digest import from_plain
from levelfield.bench.space import Dim
from levelfield.bench.spec import BenchError, OptimizerSpec, Phase, Protocol, TrialRecord
from levelfield.bench.store import RUNNING, Run
from levelfield.bench.train_request import cell_key

Outcome = Literal["fair", "unfair", "warning", "unknown"]
WHOLE = ("ok", "undertrained")
"""Statuses of a trial that ran to its end and learned something."""


class Finding(NamedTuple):
    """What one rule found."""

    name: str
    outcome: Outcome
    detail: str


def ruled(
    name: str,
    fair: str,
    unfair: Sequence[str] = (),
    warnings: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> Iterator[Finding]:
    """The findings of a rule: one for every kind of outcome, or `fair` if there is nothing."""
    found: tuple[tuple[Outcome, Sequence[str]], ...] = (
        ("unfair", unfair),
        ("unknown", unknown),
        ("warning", warnings),
    )
    for outcome, texts in found:
        if texts:
            yield Finding(name, outcome, _first(texts))
    if not (unfair or warnings or unknown):
        yield Finding(name, "fair", fair)


def _first(texts: Sequence[str], most: int = 3) -> str:
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more} more" if more > 0 else "")


def label(record: TrialRecord) -> str:
    """How a record is called in a sentence."""
    study = f" study {record.study}" if record.phase in ("tune", "final", "transfer") else ""
    return f"{record.phase} {record.optimizer}{study} trial {record.trial} seed {record.seed}"


class Case:
    """A run laid out for the rules.

    Raises:
        UNREADABLE: a manifest that lacks something, or holds nonsense.
    """

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self.run, self.manifest = run, manifest
        self.protocol = from_plain(Protocol, manifest["protocol"])
        self.seed: int = manifest["seed"]
        self.finals: int = manifest["final_seeds"]
        self.horizons: Mapping[str, int] = manifest["horizons"]
        self.sizes: Mapping[str, Any] = manifest.get("sizes") or {}
        self.batches: Sequence[Sequence[str]] = manifest["timing_batches"]
        self.device: str = manifest["device"]
        out = {name for name, item in self.sizes.items() if item["size"] is None}
        self.specs = {
            item["name"]: manifest_spec(item)
            for item in manifest["methods"]
            if item["name"] not in out
        }
        self._digests = {item["name"]: item["digest"] for item in manifest["methods"]}
        for name, kind in (("seed", int), ("final_seeds", int), ("timing_batches", list)):
            if not isinstance(manifest[name], kind):
                raise TypeError(f"{name} = {manifest[name]!r}")
        self.records = [record for record in run.records if self.is_current(record)]
        """Those of today's code of their methods, in the file's order."""
        folder = run.path / RUNNING
        marked = [item.name for item in folder.iterdir()] if folder.is_dir() else []
        done = {cell_key(*record.key) for record in self.records}
        self.interrupted = {*marked, *(item["key"] for item in manifest["interruptions"])}
        """Trials that started and, at least once, left no record."""
        self.under_way = self.interrupted - done
        """Those that have none to this day: the run goes on, or was interrupted."""

    def is_current(self, record: TrialRecord) -> bool:
        """Whether a record was made by the code that the manifest names for its method."""
        digest = self._digests.get(record.optimizer)
        return digest is not None and record.spec_digest == digest

    @property
    def studies(self) -> list[tuple[str, int]]:
        """Every (method, study)."""
        count = self.protocol.budget.studies
        return [(name, study) for study in range(count) for name in self.specs]

    def of(
        self, phase: Phase, method: str | None = None, study: int | None = None
    ) -> list[TrialRecord]:
        """Current records of a phase, in the file's order."""
        return [
            record
            for record in self.records
            if record.phase == phase
            and method in (None, record.optimizer)
            and study in (None, record.study)
        ]

    def best(self, method: str, study: int) -> TrialRecord | None:
        """The study's best tuning trial, by the rule of the tuner."""
        from levelfield.bench.tune import best_record

        return best_record(self.of("tune", method, study))

    def horizon(self, method: str, phase: Phase = "tune") -> int:
        """Steps of one whole trial of a method; a calibration comes before there is a horizon."""
        steps = self.protocol.budget.steps
        return steps if phase == "calibrate" else self.horizons.get(method, steps)

    def size(self, method: str) -> str | None:
        """The size that a method trains under a memory budget; None: the protocol's own model."""
        return (self.sizes.get(method) or {}).get("size")


def manifest_spec(item: Mapping[str, Any]) -> OptimizerSpec:
    """A method as its manifest describes it: everything but its code."""
    spec = item["spec"]
    kept = ("family", "summary", "paper", "scale", "fixed", "passes", "schedule")
    return OptimizerSpec(
        name=item["name"].partition("@")[0],  # a label belongs to the run
        build="nothing:none",
        state_bytes=lambda params, hparams, progress: 0,
        space={name: _dim(dim) for name, dim in spec["space"].items()},
        roles=tuple(spec["roles"]),
        inner=spec.get("inner"),
        **{name: spec[name] for name in kept},
    )


def _dim(data: Mapping[str, Any]) -> Dim:
    low, high = data["bounds"]
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    return Dim(**{**data, "bounds": bounds})


UNREADABLE = (BenchError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What a run that lacks something, or holds nonsense, makes of a `Case` and its rules."""
