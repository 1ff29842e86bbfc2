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


# --- reading a method back --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Response:
    """One method's measured response, anywhere on its grid; beyond it, its border."""

    name: str
    default: float
    initial_loss: float
    rates: Sequence[float]
    selection: Any
    """Cubic splines over (log rate, log multiplier): mean selection and report loss, and the log
    of the seed standard deviation."""
    report: Any
    log_sd: Any
    pool: Sequence[float]
    """Standardised residuals of the well-trained part of the grid: mean 0, variance 1."""
    shared: float
    """Share of the residuals' variance that all points of a seed have in common."""

    def at(self, rate: float, multiplier: float) -> tuple[float, float, float]:
        """Mean selection loss, mean report loss and seed sd there, nats a token."""
        x = min(max(math.log(rate), math.log(self.rates[0])), math.log(self.rates[-1]))
        y = min(max(math.log(multiplier), math.log(0.1)), math.log(10.0))
        means = (float(self.selection(x, y)[0, 0]), float(self.report(x, y)[0, 0]))
        return (*means, math.exp(float(self.log_sd(x, y)[0, 0])))

    def noise(self, seed: str, rate: float, multiplier: float, sd: float) -> float:
        """The seed's deviation at a point: the same whenever the point and the seed are."""
        common = random.Random(seed).choice(self.pool)
        own = random.Random(f"{seed}|{rate}|{multiplier}").choice(self.pool)
        return sd * (math.sqrt(self.shared) * common + math.sqrt(1 - self.shared) * own)


@lru_cache
def load(name: str, file: Path = FILE) -> Response:
    """A method's response from the measured curves."""
    import numpy as np
    from scipy.interpolate import RectBivariateSpline

    data = json.loads(file.read_text(encoding="utf-8"))
    curve, initial = data["curves"][name], data["initial_loss"]
    selection, report = (np.array(curve[key]) for key in ("selection", "report"))
    x, y = np.log(curve["rates"]), np.log(curve["multipliers"])
    spread = report.std(axis=2, ddof=1)
    # A seed sd from four seeds is rough: the noise that is used is its average over the
    # neighbourhood, and never less than a tenth of the grid's median.
    smooth = np.maximum(_averaged(spread**2) ** 0.5, np.median(spread) / 10)
    good = report.mean(axis=2) < 0.95 * initial
    residuals = ((report - report.mean(axis=2, keepdims=True)) / smooth[:, :, None])[good]
    scaled = residuals.ravel() / residuals.std()
    return Response(
        name=name,
        default=curve["default"],
        initial_loss=initial,
        rates=curve["rates"],
        selection=RectBivariateSpline(x, y, selection.mean(axis=2)),
        report=RectBivariateSpline(x, y, report.mean(axis=2)),
        log_sd=RectBivariateSpline(x, y, np.log(smooth), kx=1, ky=1),
        pool=tuple(float(value) for value in scaled),
        shared=max(0.0, min(0.95, _correlation(residuals))),
    )


def _averaged(grid: Any) -> Any:
    """Every point's mean over itself and its direct neighbours."""
    import numpy as np

    padded = np.pad(grid, 1, mode="edge")
    return (
        padded[1:-1, 1:-1] + padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2]
        + padded[1:-1, 2:]
    ) / 5  # fmt: skip


def _correlation(residuals: Any) -> float:
    """Mean correlation between two points of one seed, from [point, seed] residuals.

    Variance of the seeds' means over the mean variance: (1 + (m - 1) rho) / m for m points.
    """
    m = len(residuals)
    share = float(residuals.mean(axis=0).var() / residuals.var(axis=1).mean())
    return (m * share - 1) / (m - 1)
