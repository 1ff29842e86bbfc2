"""Plausible, deterministic records for the report's tests: no training behind them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import ENGINE_VERSION, Protocol, TrialRecord
from levelfield.bench.store import Run

PARAMETERS = 139_000
SEEDS = (41, 42, 43, 44, 45)
STEPS = 400


@dataclass(frozen=True, kw_only=True)
class Fake:
    """One made-up method: what its records will say."""

    loss: float
    lr: float
    """Where its loss is lowest."""
    default: float
    step_ms: float = 40.0
    state: float = 8.0
    """Bytes a parameter."""
    family: str = "adaptive"
    noise: float = 0.006
    refreshes: int | None = None
    mechanism: str | None = None
    roles: tuple[str, ...] = ("matrix", "embed", "head", "vector")
    good_seeds: int = 5
    broken: str | None = None
    """Status of every trial, if none works."""
    ceiling: float = 30.0
    """Multiple of `lr` from which it diverges."""


FAKES: Mapping[str, Fake] = {
    "adamw": Fake(loss=1.905, lr=6e-3, default=1e-3),
    "muon": Fake(loss=1.842, lr=4e-2, default=2e-2, step_ms=52, state=4.9, family="orthogonal",
                 roles=("matrix",), ceiling=12),
    "soap": Fake(loss=1.848, lr=8e-3, default=3e-3, step_ms=61, state=16.4, family="second order",
                 refreshes=40, mechanism="eigenbasis refreshes"),
    "lion": Fake(loss=1.913, lr=1e-3, default=1e-4, step_ms=38, state=4.0, family="sign"),
    "signsgd": Fake(loss=1.936, lr=8e-4, default=1e-4, step_ms=36, state=0.0, family="sign"),
    "adafactor": Fake(loss=1.925, lr=1e-2, default=1e-2, step_ms=47, state=0.2,
                      family="factored"),
    "sgd_momentum": Fake(loss=2.31, lr=0.4, default=0.1, step_ms=35, state=4.0, family="sgd",
                         noise=0.02, ceiling=2.5, good_seeds=4),
    "galore": Fake(loss=1.95, lr=1e-2, default=1e-2, step_ms=49, state=2.3, family="low rank",
                   refreshes=2, mechanism="projector refreshes", roles=("matrix",)),
    "adalomo": Fake(loss=1.99, lr=2e-2, default=5e-4, step_ms=44, state=0.2, family="fused",
                    good_seeds=1),
    "prodigy": Fake(loss=9.0, lr=1.0, default=1.0, step_ms=55, state=16.0, family="lr-free",
                    broken="error"),
}  # fmt: skip


def protocol(**changes: Any) -> Protocol:
    """The protocol of the made-up run."""
    plain = {
        "name": "cpu-minutes",
        "summary": "a byte-level llama of 139 thousand parameters on the Python manual",
        "note": "A small proxy: it orders methods at this size and horizon, and no other.",
    }
    return Protocol(**{**plain, **changes})


def manifest(fakes: Mapping[str, Fake] = FAKES, **changes: Any) -> dict[str, Any]:
    """A manifest as `levelfield run` writes it."""
    return {
        "schema": 1,
        "run_id": "20250301T101500Z-cpu-minutes-3fa91c",
        "created_utc": "2025-03-01T10:15:00Z",
        "command": ["levelfield", "run", "cpu-minutes", "-o", "adamw", "-o", "muon"],
        "levelfield_version": "0.1.0",
        "engine_version": ENGINE_VERSION,
        "seed": 0,
        "final_seeds": len(SEEDS),
        "modified": [],
        "horizons": {},
        "studies": {},
        "freeze": None,
        "transfer": None,
        "timing_batches": [list(fakes)],
        "device": "cpu",
        "protocol": asdict(protocol()),
        "protocol_origin": "protocols/cpu-minutes.py",
        "protocol_digest": "p" * 64,
        "methods": [
            {
                "name": name,
                "origin": f"optimizers/{name}.py",
                "reference": name,
                "digest": f"{index:064x}",
                "spec": _spec(name, fake),
            }
            for index, (name, fake) in enumerate(fakes.items())
        ],
        "data": {
            "digest": "d" * 64,
            "source": "builtin:python-manual",
            "licence": "PSF-2.0",
            "documents": 480,
            "bytes": {"train": 4_000_000, "control": 100_000, "selection": 250_000,
                      "report": 250_000},
            "tokens": {"train": 4_000_000, "control": 100_000, "selection": 250_000,
                       "report": 250_000},
        },
        "environment": {"python": "3.11.9", "platform": "Linux", "cpu": "a slow one", "cores": 2,
                        "memory_bytes": 8 * 2**30, "torch": "2.13.0", "transformers": "5.0.0",
                        "numpy": "2.3.0", "optuna": "4.5.0", "device": "cpu"},
        "slots": 2,
        "interruptions": [{"key": "tune-lion-3-7", "utc": "2025-03-01T10:40:00Z"}],
        "warnings": [],
        **changes,
    }  # fmt: skip


def _spec(name: str, fake: Fake) -> dict[str, Any]:
    return {
        "family": fake.family,
        "summary": f"{name}, made up",
        "paper": f"https://example.org/{name}",
        "code": None,
        "licence": None,
        "version": 1,
        "scale": "lr",
        "space": {
            "lr": space.log(fake.default / 30, fake.default * 30, fake.default).to_json(),
            "embed_multiplier": space.embed_multiplier().to_json(),
        },
        "fixed": {"weight_decay": 0.1, "eps": 1e-8},
        "roles": list(fake.roles),
        "passes": 1.0,
        "schedule": "protocol",
        "refreshes": fake.mechanism,
        "implementation": "own",
        "requires": [],
        "cannot": [],
    }


def run(path: Path, fakes: Mapping[str, Fake] = FAKES, **changes: Any) -> Run:
    """A whole run: every method tuned, finished and timed; no file is written."""
    data = manifest(fakes, **changes)
    records = [
        record
        for index, (name, fake) in enumerate(fakes.items())
        for record in study(name, fake, f"{index:064x}")
    ]
    return Run(path, data, tuple(records), ())


def study(name: str, fake: Fake, digest: str = "0" * 64) -> list[TrialRecord]:
    """All records of one method."""
    dice = random.Random(name)
    values = [fake.default * 10 ** (0.5 * step) for step in (0, 1, 2, -1)]
    values += [fake.lr * 10 ** dice.uniform(-0.5, 0.5) for _ in range(4)]
    tune = [_tune(name, fake, digest, number, lr, dice) for number, lr in enumerate(values)]
    good = [record for record in tune if record.status == "ok"]
    if not good:
        return tune
    best = min(good, key=lambda record: record.selection_loss or math.inf)
    final = [_final(name, fake, digest, n, seed, best, dice) for n, seed in enumerate(SEEDS)]
    timing = [_timing(name, fake, digest, n, best, dice) for n in range(3)]
    return [*tune, *final, *timing]


def record(name: str, digest: str = "0" * 64, **fields: Any) -> TrialRecord:
    """A record with everything that does not matter filled in."""
    plain: dict[str, Any] = {
        "run_id": "20250301T101500Z-cpu-minutes-3fa91c",
        "phase": "final",
        "protocol": "cpu-minutes",
        "optimizer": name,
        "trial": 0,
        "seed": SEEDS[0],
        "hparams": {"lr": 1e-3, "embed_multiplier": 1.0, "weight_decay": 0.1, "eps": 1e-8},
        "tuned": ("lr", "embed_multiplier"),
        "status": "ok",
        "initial_loss": 5.545,
        "tokens": STEPS * 1024,
        "steps": STEPS,
        "passes": float(STEPS),
        "parameters": PARAMETERS,
        "spec_digest": digest,
        "protocol_digest": "p" * 64,
        "data_digest": "d" * 64,
    }
    return TrialRecord(**{**plain, **fields})


def losses(name: str, values: Sequence[float | None], digest: str = "0" * 64) -> list[TrialRecord]:
    """Final records with these report losses, one a study; None is a diverged seed."""
    return [
        record(
            name,
            digest,
            trial=number,
            study=number,
            seed=seed,
            report_loss=value,
            status="diverged" if value is None else "ok",
            reason="loss is not finite" if value is None else None,
        )
        for number, (seed, value) in enumerate(zip(SEEDS, values, strict=False))
    ]


def _tune(
    name: str, fake: Fake, digest: str, number: int, lr: float, dice: random.Random
) -> TrialRecord:
    multiplier = 1.0 if number < 4 else 10 ** dice.uniform(-0.5, 0.8)
    away = math.log10(lr / fake.lr)
    loss = fake.loss + 0.02 + 0.35 * away**2 + 0.05 * math.log10(multiplier / 2) ** 2
    status, reason = "ok", None
    if fake.broken is not None:
        status, reason = fake.broken, "RuntimeError: expected a <b>scalar</b> & got a matrix"
    elif lr >= fake.lr * fake.ceiling:
        status, reason = "diverged", "loss is not finite at step 118"
    elif loss > 4.5:
        status, reason = "undertrained", "final loss above 0.95 x the initial loss"
    measured = status in ("ok", "undertrained")
    return record(
        name,
        digest,
        phase="tune",
        trial=number,
        seed=7,
        hparams={"lr": lr, "embed_multiplier": multiplier, "weight_decay": 0.1, "eps": 1e-8},
        status=status,
        reason=reason,
        selection_loss=loss if measured else None,
        wall_s={"setup": 0.2, "warmup": 0.3, "step": fake.step_ms * STEPS / 1000, "eval": 1.1},
    )


def _final(
    name: str, fake: Fake, digest: str, number: int, seed: int, best: TrialRecord,
    dice: random.Random,
) -> TrialRecord:  # fmt: skip
    shared = random.Random(seed).gauss(0, 0.008)
    loss = fake.loss + shared + dice.gauss(0, fake.noise)
    common = {
        "trial": number,
        "study": number,
        "seed": seed,
        "hparams": best.hparams,
        "weights_sha256": f"{seed * 0x9E3779B1:08x}" * 8,
        "batches_sha256": f"{seed * 0x85EBCA6B:08x}" * 8,
        "lr_trace": _schedule(),
    }
    if number >= fake.good_seeds:
        return record(name, digest, **common, status="diverged", steps=140, tokens=140 * 1024,
                      reason="final loss above the running minimum + 0.5")  # fmt: skip
    state = int(fake.state * PARAMETERS)
    weights = 4 * PARAMETERS
    kinds = {"weights": weights, "gradients": weights, "state": state, "activations": 2_900_000,
             "temporary": 410_000 + 40 * number}  # fmt: skip
    return record(
        name,
        digest,
        **common,
        selection_loss=loss + 0.02,
        report_loss=loss,
        curve=_curve(loss + 0.02, fake, dice),
        state_bytes=state,
        claimed_state_bytes=state,
        peak_bytes={**kinds, "total": sum(kinds.values()), "reserved": None, "rss": 91_000_000},
        missing={"peak_bytes.reserved": "a CPU has no caching allocator",
                 **({"max_grad_norm": "fused into backward: no moment to read it"}
                    if fake.family == "fused" else {})},
        spikes=int(dice.random() * 3) if fake.family != "fused" else 0,
        max_grad_norm=None if fake.family == "fused" else 2.0 + 3 * dice.random(),
        refreshes=fake.refreshes,
        wall_s={"setup": 0.2, "warmup": 0.3, "step": fake.step_ms * STEPS / 1000, "eval": 1.1},
    )  # fmt: skip


def _timing(
    name: str, fake: Fake, digest: str, number: int, best: TrialRecord, dice: random.Random
) -> TrialRecord:
    drift = 1 + 0.03 * number
    windows = [fake.step_ms / 1000 * drift * (1 + 0.02 * dice.random()) for _ in range(5)]
    return record(
        name,
        digest,
        phase="timing",
        trial=number,
        seed=SEEDS[0],
        hparams=best.hparams,
        steps=100,
        tokens=100 * 1024,
        passes=100.0,
        wall_s={"setup": 0.2, "warmup": 0.3, "step": sum(windows) * 20, "windows": windows},
        tokens_per_s=1024 / windows[0],
    )


def _schedule() -> list[list[float]]:
    trace = []
    for step in (*range(0, STEPS, 10), STEPS - 1):
        if step < 40:
            trace.append([step, (step + 1) / 40])
        else:
            share = (step - 40) / (STEPS - 40)
            trace.append([step, 0.1 + 0.45 * (1 + math.cos(math.pi * share))])
    return trace


def _curve(last: float, fake: Fake, dice: random.Random) -> list[list[float]]:
    speed = 3.2 if fake.family in ("orthogonal", "second order") else 2.6
    points = []
    for step in range(0, STEPS + 1, 25):
        share = step / STEPS
        loss = last + (5.545 - last) * math.exp(-speed * 3 * share**0.8)
        loss += 0.12 * (1 - share) * (1 if step else 0) + dice.gauss(0, 0.004) * (share < 1)
        points.append([step * 1024, step * fake.step_ms / 1000, loss])
    return points


def shrinking(state: int, end: float, seed: int, **held: Sequence[float]) -> dict[str, Any]:
    """Series of a method whose share of state falls from a quarter to `end`, at selections that
    come at other steps for every seed; `held` is what a device would have recorded there."""
    steps = [0, *range(40 + seed % 3, STEPS, 80)]
    shares = [0.25 + (end - 0.25) * number / (len(steps) - 1) for number in range(len(steps))]
    series: dict[str, Any] = {
        "rho": [[step, share] for step, share in zip(steps, shares, strict=True)],
        "state_bytes": [
            [step, round(state * share)] for step, share in zip(steps, shares, strict=True)
        ],
    }
    for name, values in held.items():
        series[name] = [[step, value] for step, value in zip(steps, values, strict=False)]
    return series


def stale(original: TrialRecord) -> TrialRecord:
    """The same record, made by another version of its method."""
    return replace(original, spec_digest="f" * 64)
