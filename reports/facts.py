"""What stands around the ranking, as pandas frames: tuning, cost, stability, budget, settings.

Same rules as `tables.py`: pure functions of a `View`, units in the names, reasons in `missing`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from levelfield.bench import stats
from levelfield.bench.metrics import tokens_per_joule
from levelfield.bench.registry import ROOT
from levelfield.reports import measure
from levelfield.reports.frames import finite_or, frame, per_parameter
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, exact
from levelfield.reports.view import MEASURED, Method, View, statuses

if TYPE_CHECKING:
    from pandas import DataFrame

SUPPORT_FILE = ROOT / "bench" / "data" / "support.json"

TUNING = (
    "method",
    "trials",
    "good_trials",
    "default_selection_loss_nats",
    "best_selection_loss_nats",
    "tuning_gain_nats",
    "best_trial",
    "scale",
    "default_scale_value",
    "best_scale_value",
    "at_edge",
)


def tuning(view: View) -> DataFrame:
    """What the tuning budget bought each method. All on the selection slice."""
    return frame(TUNING, [_tuned(method) for method in view.methods])


def _tuned(method: Method) -> dict[str, Any]:
    best = method.best
    first = next((record for record in method.first_study if record.trial == 0), None)
    none = Missing("no good tuning trial")
    default = first.selection_loss if first and first.status in MEASURED else None
    return {
        "method": clean(method.name),
        "trials": len(method.tune),
        "good_trials": statuses(method.tune)["ok"],
        "default_selection_loss_nats": finite_or(
            default, f"the paper's defaults: {first.status}" if first else "no trial 0"
        ),
        "best_selection_loss_nats": none if best is None else best.selection_loss,
        "tuning_gain_nats": measure.tuning_gain(method),
        "best_trial": none if best is None else best.trial,
        "scale": clean(method.scale),
        "default_scale_value": _number(first.hparams if first else {}, method.scale),
        "best_scale_value": none if best is None else _number(best.hparams, method.scale),
        "at_edge": none
        if best is None
        else "; ".join(f"{k}: {v}" for k, v in measure.edges(method).items()),
    }


def _number(hparams: Mapping[str, Any], name: str) -> measure.Measured:
    value = hparams.get(name)
    return float(value) if value is not None and stats.finite(value) else Missing("not recorded")


TRIALS = (
    "method",
    "trial",
    "seed",
    "status",
    "selection_loss_nats",
    "scale",
    "scale_value",
    "tuned",
    "is_best",
    "reason",
)


def trials(view: View) -> DataFrame:
    """Every tuning trial of every method."""
    return frame(
        TRIALS,
        [
            {
                "method": clean(method.name),
                "trial": record.trial,
                "seed": record.seed,
                "status": record.status,
                "selection_loss_nats": finite_or(record.selection_loss, record.status),
                "scale": clean(method.scale),
                "scale_value": _number(record.hparams, method.scale),
                "tuned": ", ".join(
                    f"{clean(k)}={exact(record.hparams.get(k))}" for k in record.tuned
                ),
                "is_best": record is method.best,
                "reason": clean(record.reason or ""),
            }
            for method in view.methods
            for record in method.tune
        ],
    )


TIME = (
    "method",
    "repetitions",
    "step_s",
    "step_time_ratio",
    "tokens_per_s",
    "tokens_per_joule",
    "passes_per_step",
)


def time(view: View) -> DataFrame:
    """Medians over the timing repetitions; the ratio is paired by repetition."""
    reference = view.method(view.reference)
    rows = []
    for method in view.methods:
        step_s = measure.step_s(method)
        speeds = [r.tokens_per_s for r in method.timing if r.tokens_per_s is not None]
        efficiency = [v for v in map(tokens_per_joule, method.timing) if v is not None]
        passes = [r.passes / r.steps for r in (*method.good, *method.timing) if r.steps]
        reason = measure.why_missing(method.timing, "tokens_per_s")
        rows.append(
            {
                "method": clean(method.name),
                "repetitions": sum(record.status == "ok" for record in method.timing),
                "step_s": step_s,
                "step_time_ratio": measure.step_ratio(method, reference),
                "tokens_per_s": finite_or(stats.median(speeds), reason)
                if method.timing
                else Missing("no timing records"),
                "tokens_per_joule": finite_or(
                    stats.median(efficiency), measure.why_missing(method.timing, "joules")
                )
                if method.timing
                else Missing("no timing records"),
                "passes_per_step": max(passes) if passes else Missing("no good records"),
            }
        )
    return frame(TIME, rows)


MEMORY = (
    "method",
    "parameters",
    *(f"{kind}_bytes" for kind in measure.KINDS),
    "total_bytes",
    "measured_state_bytes",
    "claimed_state_bytes",
    "state_bytes_per_parameter",
    "total_bytes_per_parameter",
    "reserved_bytes",
    "process_bytes",
)


def memory(view: View) -> DataFrame:
    """Bytes by kind at their largest over the good finals; raw bytes, no prefix."""
    rows = []
    for method in view.methods:
        parameters, state = measure.parameters(method), measure.state_bytes(method)
        total = measure.memory(method, "total")
        claims = [r.claimed_state_bytes for r in method.good if r.claimed_state_bytes is not None]
        rows.append(
            {
                "method": clean(method.name),
                "parameters": parameters,
                **{f"{kind}_bytes": measure.memory(method, kind) for kind in measure.KINDS},
                "total_bytes": total,
                "measured_state_bytes": state,
                "claimed_state_bytes": max(claims) if claims else Missing("not recorded"),
                "state_bytes_per_parameter": per_parameter(state, parameters),
                "total_bytes_per_parameter": per_parameter(total, parameters),
                "reserved_bytes": measure.memory(method, "reserved"),
                "process_bytes": measure.memory(method, "rss"),
            }
        )
    return frame(MEMORY, rows)


PARETO = ("method", "report_loss_mean_nats", "memory_bytes", "memory_is", "dominated_by")


def pareto(view: View) -> DataFrame:
    """Ranked methods by loss and memory; an empty `dominated_by` is in the Pareto set."""
    label, amount = measure.total_measure(view)
    dominated = measure.dominated_by(view)
    rows = []
    for method in view.contenders:
        by = dominated.get(method.name)
        memory_bytes = amount(method)
        rows.append(
            {
                "method": clean(method.name),
                "report_loss_mean_nats": stats.mean(method.units),
                "memory_bytes": memory_bytes,
                "memory_is": label,
                "dominated_by": Missing("its memory is not known")
                if by is None
                else ", ".join(clean(name) for name in by),
            }
        )
    return frame(PARETO, rows)


STABILITY = (
    "method",
    "tuning_divergence_rate",
    "final_divergence_rate",
    "undertrained_trials",
    "undertrained_finals",
    "spikes_max",
    "grad_norm_max",
    "loss_range_over_seeds_nats",
)


def stability(view: View) -> DataFrame:
    """How often and how badly each method left the road."""
    return frame(STABILITY, [_stability(method) for method in view.methods])


def _stability(method: Method) -> dict[str, Any]:
    losses = list(method.losses.values())
    few = Missing("fewer than two good finals")
    return {
        "method": clean(method.name),
        "tuning_divergence_rate": measure.rate(method.tune, "diverged"),
        "final_divergence_rate": measure.rate(method.final, "diverged"),
        "undertrained_trials": statuses(method.tune)["undertrained"],
        "undertrained_finals": statuses(method.final)["undertrained"],
        "spikes_max": measure.over_finals(method, "spikes"),
        "grad_norm_max": measure.over_finals(method, "max_grad_norm"),
        "loss_range_over_seeds_nats": max(losses) - min(losses) if len(losses) > 1 else few,
    }


HYPERPARAMETERS = (
    "method",
    "name",
    "value",
    "kind",
    "default",
    "range_low",
    "range_high",
    "range_scale",
)


def hyperparameters(view: View) -> DataFrame:
    """Every value that the finals used: tuned ones with default and declared range, fixed ones."""
    rows = [row for method in view.methods for row in _values(method)]
    return frame(HYPERPARAMETERS, rows)


def _values(method: Method) -> list[dict[str, Any]]:
    space, fixed = method.spec.get("space") or {}, method.spec.get("fixed") or {}
    used = method.hparams
    rows = []
    for name in dict.fromkeys([*method.tuned, *space, *used, *fixed]):
        dim = space.get(name) or {}
        value = used[name] if name in used else fixed.get(name, dim.get("default"))
        kind = "tuned" if name in method.tuned else "fixed" if name in fixed else "library default"
        plain = Missing("a fixed value has no range")
        rows.append(
            {
                "method": clean(method.name),
                "name": clean(name),
                "value": exact(value),
                "kind": kind if used else f"{kind}, not run",
                "default": exact(dim["default"]) if "default" in dim else plain,
                "range_low": exact(dim["low"]) if "low" in dim else plain,
                "range_high": exact(dim["high"]) if "high" in dim else plain,
                "range_scale": clean(dim["scale"]) if "scale" in dim else plain,
            }
        )
    return rows


SUPPORT = ("method", "accumulation", "foreach", "compile", "sharding")
"""What `scripts/support_table.py` tries with every method of the repository."""


def support(view: View) -> DataFrame:
    """What each method goes with, as measured on the CPU: yes, no (reason), or not measured."""
    known = json.loads(SUPPORT_FILE.read_text(encoding="utf-8"))
    rows = []
    for method in view.methods:
        found = known.get(method.name) or {}
        cells = {word: _support(found.get(word)) for word in SUPPORT[1:]}
        rows.append({"method": clean(method.name), **cells})
    return frame(SUPPORT, rows)


def _support(found: Mapping[str, Any] | None) -> str:
    if found is None or found["holds"] is None:
        reason = found["reason"] if found else "not a method of this repository"
        return clean(f"not measured ({reason})")
    word = "yes" if found["holds"] else "no"
    return clean(f"{word} ({found['reason']})" if found["reason"] else word)
