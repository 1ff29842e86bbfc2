"""What a trial is asked to do, and what it tells on the way: plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.bench.spec import Phase, Protocol, Status, TrialRecord

UNTIMED_STEPS = 5
"""First steps of a trial: warm-up of caches and allocators, and accounting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest:
    """All that a trial's process needs to know; plain data."""

    run_id: str
    phase: Phase
    protocol: Protocol
    optimizer: str
    reference: str
    """What the registry loads the method by."""
    hparams: Mapping[str, Any]
    tuned: tuple[str, ...]
    trial: int
    seed: int
    study: int = 0
    device: str = "cpu"
    retries: int = 0
    spec_digest: str | None = None
    protocol_digest: str | None = None
    data_digest: str | None = None
    folder: str | None = None
    """The run's, for checkpoints and final weights."""

    @property
    def key(self) -> str:
        """Name of the trial within its run."""
        return cell_key(self.phase, self.optimizer, self.trial, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a running trial is."""

    key: str
    step: int
    steps: int
    loss: float
    tokens_per_s: float


def failed_record(request: TrialRequest, status: Status, reason: str) -> TrialRecord:
    """The record of a trial that could not tell its own end."""
    return TrialRecord(
        **identity(request),
        status=status,
        reason=reason,
        missing={"selection_loss": reason, "state_bytes": reason, "peak_bytes": reason},
    )


def identity(request: TrialRequest) -> dict[str, Any]:
    """The fields of a record that are known before the trial runs."""
    return {
        "run_id": request.run_id,
        "phase": request.phase,
        "protocol": request.protocol.name,
        "optimizer": request.optimizer,
        "trial": request.trial,
        "study": request.study,
        "seed": request.seed,
        "hparams": dict(request.hparams),
        "tuned": request.tuned,
        "retries": request.retries,
        "device": request.device,
        "spec_digest": request.spec_digest,
        "protocol_digest": request.protocol_digest,
        "data_digest": request.data_digest,
    }


def cell_key(phase: str, optimizer: str, trial: int, seed: int) -> str:
    """Name of a trial within its run."""
    return f"{phase}-{optimizer}-{trial}-{seed}"


def checkpoint_path(request: TrialRequest) -> Path | None:
    """Where a trial's checkpoint lies; None if it keeps none."""
    timed = request.phase in ("timing", "calibrate")
    if request.folder is None or timed or request.protocol.engine.checkpoint_tokens is None:
        return None
    return Path(request.folder) / "checkpoints" / f"{request.key}.pt"


def checkpoint_steps(request: TrialRequest) -> int | None:
    """Steps between two checkpoints; None if there are none."""
    tokens = request.protocol.engine.checkpoint_tokens
    if checkpoint_path(request) is None or tokens is None:
        return None
    return max(1, tokens // request.protocol.tokens_per_step)
