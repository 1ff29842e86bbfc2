"""Measured response curves: loss against learning rate and multiplier, with its noise by seed.

`measure` trains four methods on a grid, several seeds a point, and keeps what the simulation of
`aa_rate.py` needs. `Response` reads one method back: the mean loss anywhere by cubic interpolation
in log coordinates, its seed standard deviation, and the pool of standardised residuals that noise
is drawn from.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from levelfield.bench.spec import Budget, Data, Evaluation, Model, Protocol

FILE = Path(__file__).with_name("response_curves.json")
ROOT_TEN = 10**0.5
GRID: Mapping[str, tuple[float, int, int]] = {
    "adamw_split": (1e-3, -1, 5),
    "lion": (1e-4, 0, 6),
    "muon": (2e-2, -2, 4),
    "signsgd": (1e-3, -2, 4),
}
"""method -> default rate, first and last step of the grid in half decades from it."""
MULTIPLIERS = tuple(10 ** (k / 2) for k in range(-2, 3))
SEEDS = 4
PROTOCOL = Protocol(
    name="response",
    summary="a byte-level llama of width 16, one layer, 60 steps",
    model=Model(hidden=16, layers=1, heads=2, intermediate=40),
    data=Data(batch=8, sequence=32),
    budget=Budget(steps=60),
    evaluation=Evaluation(every=60, sequences=64),
)


def measure(methods: Sequence[str] = tuple(GRID), seeds: int = SEEDS) -> dict[str, Any]:
    """Train the grid in this process; losses in nats a token, the initial loss where one failed."""
    curves = {}
    for name in methods:
        default, first, last = GRID[name]
        rates = [default * ROOT_TEN**k for k in range(first, last + 1)]
        rows = [[_point(name, rate, m, seeds) for m in MULTIPLIERS] for rate in rates]
        curves[name] = {
            "default": default,
            "rates": [float(f"{rate:.6g}") for rate in rates],
            "multipliers": [float(f"{m:.6g}") for m in MULTIPLIERS],
            "selection": [[[pair[0] for pair in point] for point in row] for row in rows],
            "report": [[[pair[1] for pair in point] for point in row] for row in rows],
        }
        print(f"{name}: {len(rates) * len(MULTIPLIERS) * seeds} trials", flush=True)
    return {
        "protocol": PROTOCOL.summary,
        "axes": "selection and report loss [rate][multiplier][seed], nats a token",
        "initial_loss": math.log(256),
        "curves": curves,
    }


def _point(name: str, rate: float, multiplier: float, seeds: int) -> list[tuple[float, float]]:
    from levelfield.bench.registry import OPTIMIZERS
    from levelfield.bench.train import run_trial
    from levelfield.bench.train_request import TrialRequest

    spec, pairs = OPTIMIZERS.load(name).value, []
    for seed in range(1, seeds + 1):
        request = TrialRequest(
            run_id="none",
            phase="final",
            protocol=PROTOCOL,
            optimizer=name,
            reference=name,
            hparams={**spec.defaults(), "lr": rate, "embed_multiplier": multiplier},
            tuned=("lr", "embed_multiplier"),
            trial=0,
            seed=seed,
        )
        record = run_trial(request, lambda progress: None)
        if record.status not in ("ok", "undertrained", "diverged"):
            raise RuntimeError(f"{name}: {record.status}: {record.reason}")
        losses = (record.selection_loss, record.report_loss)
        failed = record.status == "diverged" or None in losses
        cap = math.log(256)
        kept = [cap if failed or loss is None else min(loss, cap) for loss in losses]
        pairs.append((round(kept[0], 5), round(kept[1], 5)))
    return pairs
