"""What a run would cost, before it is started: trials, tokens, operations, minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.bench import horizons
from levelfield.bench.fitting import check_sizes
from levelfield.bench.schedules import check_schedule
from levelfield.bench.spec import BenchError, Protocol
from levelfield.bench.study import Method, check_budget, final_seed, tune_seed

TRIED_STEPS = 6
"""Steps behind a time: the first ones warm up and are left out."""
START_S = 0.3
"""Start and end of a trial's process, as measured with a warm fork server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The plan of one method."""

    method: str
    trials: int
    steps: int
    tokens: int
    flops: float
    step_s: float | None
    source: str
    """How `step_s` was found."""

    @property
    def device_s(self) -> float | None:
        """Seconds of one slot, or None if no step could be timed."""
        if self.step_s is None:
            return None
        return self.steps * self.step_s + self.trials * START_S


def plan(
    protocol: Protocol,
    methods: Sequence[Method],
    *,
    seed: int,
    final_seeds: int,
    slots: int,
    device: str,
    tflops: float | None = None,
) -> dict[str, Any]:
    """The whole plan as data; nothing is trained beyond a few steps to time one.

    Args:
        protocol, methods, seed, final_seeds, slots, device: as for a run.
        tflops: sustained teraFLOP/s of a slot; then nothing is timed and no model is built.

    Raises:
        BenchError: a protocol that cannot work.
    """
    check_schedule(protocol)
    check_budget(protocol, final_seeds)
    check_sizes(protocol)
    if tflops is not None and not 0 < tflops < math.inf:
        raise BenchError(f"--tflops {tflops:g}", "accepted: a number above 0")
    parameters = count_parameters(protocol)
    rows = [
        _estimate(protocol, method, final_seeds, parameters, device, tflops) for method in methods
    ]
    spent = [row.device_s for row in rows]
    total_s = None if None in spent else sum(s for s in spent if s is not None)
    return {
        "protocol": protocol.name,
        "parameters": parameters,
        "memory_gib": protocol.budget.memory_gib,
        "tokens_a_trial": protocol.tokens_per_step * protocol.budget.steps,
        "seeds": {
            "tune": [tune_seed(seed, study) for study in range(protocol.budget.studies)],
            "final": [
                final_seed(seed, study, index)
                for study in range(protocol.budget.studies)
                for index in range(final_seeds)
            ],
        },
        "slots": slots,
        "methods": [
            {
                "method": row.method,
                "trials": row.trials,
                "steps": row.steps,
                "tokens": row.tokens,
                "flops": row.flops,
                "step_s": row.step_s,
                "source": row.source,
                "device_s": row.device_s,
            }
            for row in rows
        ],
        "trials": sum(row.trials for row in rows),
        "tokens": sum(row.tokens for row in rows),
        "flops": sum(row.flops for row in rows),
        "wall_s": None if total_s is None else total_s / slots,
    }


def count_parameters(protocol: Protocol) -> int:
    """Trainable parameters of the model, from the shapes alone: no memory is taken, and no data is
    read where the protocol says how many rows the embedding has."""
    import torch

    from levelfield.bench import models, tasks

    task = tasks.open_task(protocol, "cpu")
    with torch.device("meta"):
        if protocol.task.kind == "causal_lm":
            length = protocol.data.sequence
            model = models.build_model(protocol.model, task.vocabulary, length, 0)
        else:
            model = task.build_model(0)
    return sum(param.info.numel for param in models.parameters(model))


def _estimate(
    protocol: Protocol,
    method: Method,
    final_seeds: int,
    parameters: int,
    device: str,
    tflops: float | None,
) -> Estimate:
    from levelfield.bench.train_request import UNTIMED_STEPS

    budget, timing = protocol.budget, protocol.timing
    trials = budget.studies * (budget.trials + final_seeds) + budget.sweep * budget.sweep_seeds
    horizon = budget.steps
    if budget.unit in ("tokens", "passes"):
        horizon = horizons.steps(protocol, method.spec, [])
    trained = trials * horizon
    steps = trained + timing.windows * (timing.steps + UNTIMED_STEPS)
    # 6 operations a parameter and token: 2 forward, 4 backward (Kaplan et al. 2020), a pass.
    flops_a_step = 6.0 * parameters * protocol.tokens_per_step * method.spec.passes
    step_s: float | None
    if tflops is not None:
        step_s = flops_a_step / (tflops * 1e12)
        source = f"6 x parameters x tokens at {tflops:g} T/s"
    else:
        step_s, source = _timed(protocol, method, parameters, device)
    return Estimate(
        method=method.name,
        trials=trials + timing.windows,
        steps=steps,
        tokens=steps * protocol.tokens_per_step,
        flops=flops_a_step * steps,
        step_s=step_s,
        source=source,
    )


def _timed(
    protocol: Protocol, method: Method, parameters: int, device: str
) -> tuple[float | None, str]:
    """Median seconds of a few real steps; None if the model does not fit in half the memory."""
    import statistics

    from levelfield.bench.provenance import memory_bytes
    from levelfield.bench.train import Trial
    from levelfield.bench.train_request import TrialRequest

    memory = memory_bytes()
    if memory is not None and parameters * 16 > memory / 2:
        return None, "the model does not fit here: give --tflops"
    request = TrialRequest(
        run_id="plan",
        phase="timing",
        protocol=protocol,
        optimizer=method.name,
        reference=method.reference,
        hparams=method.spec.defaults(),
        tuned=(),
        trial=0,
        seed=0,
        device="cuda:0" if device == "cuda" else device,
    )
    trial = Trial(request, lambda progress: None)
    trial.load()
    trial.setup()
    times = []
    for _ in range(min(TRIED_STEPS, protocol.budget.steps)):
        start = time.perf_counter()
        trial.one_step()
        trial.meter.now_s()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:] or times), f"median of {len(times[2:] or times)} steps"


def lines(found: dict[str, Any]) -> list[str]:
    """The plan for people."""
    from levelfield.bench.progress import duration

    shown = [
        f"{found['protocol']}: {found['parameters']:,} parameters, "
        f"{found['tokens_a_trial']:,} tokens a trial",
        f"seeds: tuning {_spread(found['seeds']['tune'])}, "
        f"finals {_spread(found['seeds']['final'])}",
        "",
        f"{'method':<16}{'trials':>7}{'tokens':>14}{'FLOPs':>11}{'ms a step':>11}{'slot time':>13}",
    ]
    for row in found["methods"]:
        step = f"{1e3 * row['step_s']:.1f}" if row["step_s"] is not None else "-"
        spent = duration(row["device_s"]) if row["device_s"] is not None else "-"
        shown.append(
            f"{row['method']:<16}{row['trials']:>7}{row['tokens']:>14,}{row['flops']:>11.2e}"
            f"{step:>11}{spent:>13}  {row['source']}"
        )
    wall = "unknown" if found["wall_s"] is None else duration(found["wall_s"])
    if found["memory_gib"] is not None:
        shown.append(
            f"counted with the protocol's own model; in {found['memory_gib']:g} GiB each method "
            "trains the largest size that fits"
        )
    shown += [
        "",
        f"in all {found['trials']} trials, {found['tokens']:,} tokens, {found['flops']:.2e} FLOPs; "
        f"about {wall} on {found['slots']} slot(s)",
        "evaluation and report come on top; nothing was run",
    ]
    return shown


def family(name: str, plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The plans of a family's members, and their sum."""
    spent = [found["wall_s"] for found in plans]
    return {
        "family": name,
        "members": list(plans),
        "trials": sum(found["trials"] for found in plans),
        "tokens": sum(found["tokens"] for found in plans),
        "flops": sum(found["flops"] for found in plans),
        "wall_s": None if None in spent else sum(spent),
    }


def family_lines(whole: dict[str, Any]) -> list[str]:
    """A family's plan for people: every member, then the sum."""
    from levelfield.bench.progress import duration

    shown = [line for found in whole["members"] for line in (*lines(found)[:-FOOT], "")]
    wall = "unknown" if whole["wall_s"] is None else duration(whole["wall_s"])
    return [
        *shown,
        f"{whole['family']}: {len(whole['members'])} members, {whole['trials']} trials, "
        f"{whole['tokens']:,} tokens, {whole['flops']:.2e} FLOPs; about {wall}",
        "evaluation and report come on top; nothing was run",
    ]


FOOT = 3
"""Last lines of a plan that sum it up: the blank one, the sum, and what is not in it."""


def _spread(seeds: Sequence[int]) -> str:
    shown = ", ".join(map(str, seeds[:6]))
    return shown if len(seeds) <= 6 else f"{shown} ... {seeds[-1]} ({len(seeds)} in all)"
