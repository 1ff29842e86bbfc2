"""Figures of merit that one record can tell. Each carries its unit and its direction."""

from __future__ import annotations

import math
from collections.abc import Callable

from levelfield.bench.spec import Metric, TrialRecord
from levelfield.bench.stats import finite, median

LOSS, ERROR = "loss", "error"


def objective_word(metric: str) -> str:
    """What a trial is judged by, where the task names this metric (""): a loss in nats, the
    relative error of a matrix as well, or an error in points, 100 x (1 - score)."""
    return ERROR if metric else LOSS


def step_s(record: TrialRecord) -> float | None:
    """Median over the windows of seconds a step; only the timing phase runs alone on the device."""
    windows = record.wall_s.get("windows") or ()
    if record.phase != "timing" or record.status != "ok":
        return None
    return median([float(window) for window in windows if finite(window)])


def tokens_per_joule(record: TrialRecord) -> float | None:
    """Training tokens a joule over the timed steps; only the timing phase has the device alone,
    and the counter does not tell who used the energy."""
    joules, step_s = _known(record.joules), _known(record.wall_s.get("step"))
    speed = _known(record.tokens_per_s)
    if record.phase != "timing" or record.status != "ok":
        return None
    if joules is None or joules <= 0 or step_s is None or speed is None:
        return None
    return speed * step_s / joules


def perplexity(record: TrialRecord) -> float | None:
    """exp(report_loss); None where that overflows a double or the loss is unknown."""
    loss = _known(record.report_loss)
    return math.exp(loss) if loss is not None and loss < 700 else None


def state_bytes_per_parameter(record: TrialRecord) -> float | None:
    """Optimizer state over trainable parameters; AdamW in fp32 has 8."""
    if record.state_bytes is None or not record.parameters:
        return None
    return record.state_bytes / record.parameters


def peak_bytes(record: TrialRecord) -> float | None:
    """The most memory the trial held at once, as its meter saw it."""
    return _known(record.peak_bytes.get("total"))


def _known(value: float | None) -> float | None:
    return float(value) if value is not None and finite(value) else None


def _field(name: str) -> Callable[[TrialRecord], float | None]:
    def read(record: TrialRecord) -> float | None:
        return _known(getattr(record, name))

    return read


METRICS: tuple[Metric, ...] = (
    Metric(
        name="report_loss",
        unit="nats/token",
        lower_is_better=True,
        summary="mean loss on the whole report slice after the last step; final records only",
        compute=_field("report_loss"),
    ),
    Metric(
        name="selection_loss",
        unit="nats/token",
        lower_is_better=True,
        summary="mean loss on the whole selection slice after the last step; what tuning sees",
        compute=_field("selection_loss"),
    ),
    Metric(
        name="perplexity",
        unit="1",
        lower_is_better=True,
        summary="exp(report_loss)",
        compute=perplexity,
    ),
    Metric(
        name="tokens_per_s",
        unit="tokens/s",
        lower_is_better=False,
        summary="training tokens a second, evaluation and set-up left out",
        compute=_field("tokens_per_s"),
    ),
    Metric(
        name="step_s",
        unit="s",
        lower_is_better=True,
        summary="median over windows of seconds a step; timing records only",
        compute=step_s,
    ),
    Metric(
        name="tokens_per_joule",
        unit="tokens/J",
        lower_is_better=False,
        summary="training tokens a joule of the whole device; timing records only",
        compute=tokens_per_joule,
    ),
    Metric(
        name="state_bytes",
        unit="bytes",
        lower_is_better=True,
        summary="measured bytes of optimizer state, 0-dim step counters left out",
        compute=_field("state_bytes"),
    ),
    Metric(
        name="state_bytes_per_parameter",
        unit="bytes/parameter",
        lower_is_better=True,
        summary="state_bytes over trainable parameters",
        compute=state_bytes_per_parameter,
    ),
    Metric(
        name="peak_bytes",
        unit="bytes",
        lower_is_better=True,
        summary="peak of all memory the trial held at once",
        compute=peak_bytes,
    ),
    Metric(
        name="spikes",
        unit="steps",
        lower_is_better=True,
        summary="steps whose training loss exceeds its trailing trend by 7 standard deviations",
        compute=_field("spikes"),
    ),
    Metric(
        name="max_grad_norm",
        unit="1",
        lower_is_better=True,
        summary="largest global gradient norm before clipping",
        compute=_field("max_grad_norm"),
    ),
)
