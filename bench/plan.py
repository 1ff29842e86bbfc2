"""What a run would cost, before it is started: trials, tokens, operations, memory, hours."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelfield.bench import horizons
from levelfield.bench.fitting import GIB, check_sizes
from levelfield.bench.schedules import check_schedule
from levelfield.bench.spec import WEIGHTS, BenchError, OptimizerSpec, ParamInfo, Protocol
from levelfield.bench.study import Method, check_budget, final_seed, tune_seed

TRIED_STEPS = 6
"""Steps behind a time: the first ones warm up and are left out."""
MOST_TIMED_FLOPS = 1e13
"""Operations of a step up to which a CPU is asked to take some: a minute or so each."""
PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0}
"""Dense bfloat16 operations a second of NVIDIA's data sheets, for device hours nobody measured."""
UTILISATION = 0.4
"""Share of that which training is taken to reach."""
MOST_BUILT = 1_000_000_000
"""Parameters of a model up to which it is built to see what an adapter trains of it."""
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
    state_bytes: int | None
    """Optimizer state of a trial, by the method's claim; None for an adapter of a model that is too
    large to be built here."""
    peak_bytes: int | None = None
    """Simulated peak of a trial on one device; None: not asked for, or not known."""
    peak_reason: str = ""
    fits: tuple[tuple[str, bool | None], ...] = ()
    """Device sizes asked for, and whether a trial fits."""

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
    gpus: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole plan as data; nothing is trained beyond a few steps to time one.

    Args:
        protocol, methods, seed, final_seeds, slots, device: as for a run.
        tflops: sustained teraFLOP/s of a slot; then nothing is timed and no model is built.
        gpus: sizes of devices, such as `24GiB`: does a trial fit?

    Raises:
        BenchError: a protocol that cannot work.
    """
    check_schedule(protocol)
    check_budget(protocol, final_seeds)
    check_sizes(protocol)
    if tflops is not None and not 0 < tflops < math.inf:
        raise BenchError(f"--tflops {tflops:g}", "accepted: a number above 0")
    infos = _infos(protocol)
    parameters = sum(info.numel for info in infos)
    rows = [_estimate(protocol, method, final_seeds, infos, device, tflops) for method in methods]
    if gpus or any(row.step_s is None for row in rows):
        rows = list(_with_memory(protocol, methods, rows, device, gpus))
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
                "assumed_device_h": {name: row.flops / rate / 3600 for name, rate in RATES.items()},
                "state_bytes": row.state_bytes,
                "peak_bytes": row.peak_bytes,
                "peak_reason": row.peak_reason or None,
                "fits": dict(row.fits),
            }
            for row in rows
        ],
        "trials": sum(row.trials for row in rows),
        "tokens": sum(row.tokens for row in rows),
        "flops": sum(row.flops for row in rows),
        "wall_s": None if total_s is None else total_s / slots,
    }


RATES = {name: 1e12 * peak * UTILISATION for name, peak in PEAK_TFLOPS.items()}


def _with_memory(
    protocol: Protocol,
    methods: Sequence[Method],
    rows: Sequence[Estimate],
    device: str,
    gpus: Sequence[str],
) -> Iterator[Estimate]:
    """The same with the simulated peak of a trial on one device."""
    from levelfield.bench import memory, simulate

    sizes = [(text, memory.capacity(text)) for text in gpus]
    if protocol.task.kind != "causal_lm" or protocol.model.source:
        for row in rows:
            yield replace(row, peak_reason="only language models of a family are simulated")
        return
    here = device == "cpu" and all(row.step_s for row in rows)
    simulator = simulate.of_protocol(protocol, "cpu" if here else "cuda")
    for method, row in zip(methods, rows, strict=True):
        reasons: dict[str, str] = {}
        seen = memory.simulate(method.spec, simulator, reasons)
        peak = None if seen is None else seen.total
        yield replace(
            row,
            peak_bytes=peak,
            peak_reason="; ".join(reasons.values()),
            fits=tuple(
                (text, None if peak is None else peak + memory.margin(peak) <= size)
                for text, size in sizes
            ),
        )


def count_parameters(protocol: Protocol) -> int:
    """Trainable parameters of the model, from the shapes alone: no memory is taken, and no data is
    read where the protocol says how many rows the embedding has."""
    return sum(info.numel for info in _infos(protocol))


def _infos(protocol: Protocol, spec: OptimizerSpec | None = None) -> tuple[ParamInfo, ...]:
    """What is trained, in the dtype that it is trained in: all of the model, or what an adapter
    leaves and adds."""
    import torch

    from levelfield.bench import models, tasks
    from levelfield.bench.build import adapted_shape

    if spec is not None:
        model = adapted_shape(spec, protocol)
    else:
        bare = replace(protocol, model=replace(protocol.model, pretrained=False))
        with torch.device("meta"):
            model = tasks.open_task(bare, "cpu").build_model(0)
    dtype = WEIGHTS[protocol.precision]
    return tuple(replace(param.info, dtype=dtype) for param in models.parameters(model))


def _estimate(
    protocol: Protocol,
    method: Method,
    final_seeds: int,
    infos: tuple[ParamInfo, ...],
    device: str,
    tflops: float | None,
) -> Estimate:
    from levelfield.bench.build import claimed_state_bytes
    from levelfield.bench.train_request import UNTIMED_STEPS

    parameters = sum(info.numel for info in infos)
    budget, timing = protocol.budget, protocol.timing
    trials = budget.studies * (budget.trials + final_seeds) + budget.sweep * budget.sweep_seeds
    horizon = budget.steps
    if budget.unit in ("tokens", "passes"):
        horizon = horizons.steps(protocol, method.spec, [])
    trained = trials * horizon
    steps = trained + timing.windows * (timing.steps + UNTIMED_STEPS)
    mine = _trained_infos(protocol, method.spec, infos)
    learned = None if mine is None else sum(info.numel for info in mine)
    flops_a_step, words = _operations(protocol, method.spec, parameters, learned)
    step_s: float | None
    if tflops is not None:
        step_s = flops_a_step / (tflops * 1e12)
        source = f"{words} at {tflops:g} T/s"
    else:
        step_s, source = _timed(protocol, method, parameters, flops_a_step, device)
    return Estimate(
        method=method.name,
        trials=trials + timing.windows,
        steps=steps,
        tokens=steps * protocol.tokens_per_step,
        flops=flops_a_step * steps,
        step_s=step_s,
        source=source,
        state_bytes=None
        if mine is None
        else claimed_state_bytes(method.spec, protocol, mine, method.spec.defaults(), 1.0),
    )


def _trained_infos(
    protocol: Protocol, spec: OptimizerSpec, infos: tuple[ParamInfo, ...]
) -> tuple[ParamInfo, ...] | None:
    """What the method trains: of an adapter its own weights; None if the model that they go into is
    too large to build."""
    if spec.adapter is None:
        return infos
    too_large = sum(info.numel for info in infos) > MOST_BUILT
    return None if too_large else _infos(protocol, spec)


def _operations(
    protocol: Protocol, spec: OptimizerSpec, parameters: int, learned: int | None
) -> tuple[float, str]:
    """Of a step, with words for them.

    6 a parameter and token (Kaplan et al. 2020): 2 forward, 2 for the gradients of the layers'
    inputs, 2 for those of the weights. The last 2 are made for what is trained alone. An adapter of
    unknown size is small beside the model and counts as nothing.
    """
    if learned == parameters:
        share, words = 6.0 * parameters, "6 x parameters x tokens"
    else:
        share = 4.0 * parameters + 2.0 * (learned or 0)
        words = "(4 x parameters + 2 x trained) x tokens"
    return share * protocol.tokens_per_step * spec.passes, words


def _timed(
    protocol: Protocol, method: Method, parameters: int, flops: float, device: str
) -> tuple[float | None, str]:
    """Median seconds of a few real steps; None if the model does not fit in half the memory."""
    import statistics

    from levelfield.bench.provenance import memory_bytes
    from levelfield.bench.train import Trial
    from levelfield.bench.train_request import TrialRequest

    memory = memory_bytes()
    if memory is not None and parameters * 16 > memory / 2:
        return None, "the model does not fit here: give --tflops"
    if device == "cpu" and flops > MOST_TIMED_FLOPS:
        return None, "a step is too long for this CPU: give --tflops"
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
        f"{'method':<16}{'trials':>7}{'tokens':>18}{'FLOPs':>11}{'ms a step':>11}{'slot time':>13}"
        f"{'state GiB':>11}",
    ]
    for row in found["methods"]:
        step = f"{1e3 * row['step_s']:.1f}" if row["step_s"] is not None else "-"
        spent = duration(row["device_s"]) if row["device_s"] is not None else "-"
        state = "-" if row["state_bytes"] is None else f"{row['state_bytes'] / GIB:.3f}"
        shown.append(
            f"{row['method']:<16}{row['trials']:>7}{row['tokens']:>18,}{row['flops']:>11.2e}"
            f"{step:>11}{spent:>13}{state:>11}  {row['source']}"
        )
    shown += _memory_lines(found)
    about = "how long it takes here is not known"
    if found["wall_s"] is not None:
        about = f"about {duration(found['wall_s'])} on {found['slots']} slot(s)"
    if found["memory_gib"] is not None:
        shown.append(
            f"counted with the protocol's own model; in {found['memory_gib']:g} GiB each method "
            "trains the largest size that fits"
        )
    shown += [
        "",
        f"in all {found['trials']} trials, {found['tokens']:,} tokens, {found['flops']:.2e} FLOPs; "
        f"{about}",
        "evaluation and report come on top; nothing was run",
    ]
    return shown


def _memory_lines(found: dict[str, Any]) -> list[str]:
    """What a trial takes on one device, and the hours that its operations would take."""
    rows = [row for row in found["methods"] if row["peak_bytes"] or row["peak_reason"]]
    if not rows:
        return []
    sizes = list(rows[0]["fits"])
    heads = "".join(f"{'on ' + name + ' h':>13}" for name in RATES)
    shown = ["", f"{'method':<16}{'peak GiB':>10}{heads}" + "".join(f"{s:>10}" for s in sizes)]
    words = {True: "fits", False: "no", None: "?"}
    for row in rows:
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / GIB:.2f}"
        hours = "".join(f"{row['assumed_device_h'][name]:>13,.1f}" for name in RATES)
        fits = "".join(f"{words[row['fits'][size]]:>10}" for size in sizes)
        shown.append(
            f"{row['method']:<16}{peak:>10}{hours}{fits}  {row['peak_reason'] or ''}".rstrip()
        )
    shown.append(
        f"peak: simulated, one device, a micro-batch a pass. Hours: the whole plan at "
        f"{UTILISATION:.0%} of the data sheet's bfloat16 rate, an assumption; --tflops takes yours"
    )
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
