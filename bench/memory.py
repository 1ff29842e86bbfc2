"""The memory planner: what a method needs on a model, before anything is bought or started.

Three routes, side by side and never mixed:

formula    what the specs claim, summed over roles: exact for weights, gradients and state. It knows
           no activations and no temporaries, so its total is the least that is needed.
simulated  the real method takes real steps on the real architecture with fake tensors.
measured   a short run on the device there is, as the allocator saw it.

GiB are 2^30 bytes, GB are 10^9.
"""

from __future__ import annotations

import math
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from levelfield.bench.errors import named
from levelfield.bench.spec import BenchError, OptimizerSpec, ParamInfo, Precision

if TYPE_CHECKING:
    from torch import nn

    from levelfield.bench.simulate import Seen, Workload

GIB, GB = 2**30, 10**9
MARGIN_BYTES = GIB
"""What no count sees: a CUDA context with its loaded kernels is about half a GiB, workspaces of
cuBLAS and of attention and the driver's own share are the rest."""
MARGIN_SHARE = 0.05
"""Of the peak, for fragmentation and for rounding blocks up."""
OUTSIDE = (
    "outside the count: the CUDA context, workspaces inside kernels, fragmentation; "
    f"'fits' keeps {MARGIN_BYTES / GIB:g} GiB + {MARGIN_SHARE:.0%} of the peak free for them"
)
Route = Literal["formula", "simulated", "measured"]
ROUTES: tuple[Route, ...] = ("formula", "simulated", "measured")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp32+bf16")
POINTS = 20
"""Points of a run at which a claim is asked for."""
SMALL_FLOPS = 2e11
"""Operations of a measured method up to which it is run without being asked for: seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """The specs' claims, in bytes."""

    weights: int
    """With the model's buffers."""
    gradients: int
    """All of them, or the largest for a method that uses each as soon as it is there."""
    state_start: int
    state: int
    """The most over the run: what has to fit."""
    state_end: int

    @property
    def total(self) -> int:
        """The least that is needed: no activations, no temporaries."""
        return self.weights + self.gradients + self.state


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """Steps with fake tensors, in bytes. None: not known, the row says why."""

    weights: int
    gradients: int
    state: int
    activations: int
    """The most of a pass: what autograd keeps, logits and the gradients on the way."""
    temporary: int | None
    """The most inside the update, beside weights, gradients and state."""
    pass_peak: int
    update_peak: int | None
    kinds: Mapping[str, int]
    """Bytes by kind at the highest known peak."""
    host_reads: int
    """Scalars that the host reads in a step; each waits for the device."""
    horizon: int
    """Steps of the run that was begun."""
    wall_s: float

    @property
    def total(self) -> int | None:
        return None if self.update_peak is None else max(self.pass_peak, self.update_peak)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The allocator's peaks in a short run, in bytes."""

    device: str
    pass_peak: int
    update_peak: int
    state: int
    wall_s: float

    @property
    def total(self) -> int:
        return max(self.pass_peak, self.update_peak)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Whether a method fits a device."""

    capacity: str
    """As given."""
    capacity_bytes: int
    peak: int | None
    least: bool
    """Whether the peak is at least that: a part of it is not known."""
    route: Route
    """Where the peak is from."""
    fits: bool | None
    """None: the peak is not known, and what is known would fit."""

    @property
    def margin(self) -> int:
        return margin(self.peak or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One method."""

    method: str
    formula: Formula
    simulated: Simulated | None = None
    measured: Measured | None = None
    fits: tuple[Fit, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a route, or a part of it, is None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that was found."""

    model: str
    parameters: int
    batch: int
    sequence: int
    accumulation: int
    precision: Precision
    checkpointing: bool
    target: str
    rows: tuple[Row, ...]
    wall_s: float
    process_peak_bytes: int
    """Resident memory of the planning process itself, at its highest."""


def margin(peak: int) -> int:
    """What is kept free beside a peak."""
    return MARGIN_BYTES + math.ceil(MARGIN_SHARE * peak)


def capacity(text: str) -> int:
    """Bytes of a device as a user writes them: `24GiB`, `80GB`.

    Raises:
        BenchError: no unit, an unknown unit, nothing at all.
    """
    accepted = "accepted: 24GiB (24 x 2^30 bytes) or 24GB (24 x 10^9 bytes), above 0"
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise BenchError(f"--gpu {text!r} is no size", accepted)
    unit = {"gib": GIB, "gb": GB}.get(match[2].lower())
    if unit is None:
        why = f"has the unit {match[2]!r}" if match[2] else "has no unit"
        raise BenchError(f"--gpu {text!r} {why}", accepted)
    size = float(match[1]) * unit
    if not 1 <= size < 2**60:
        raise BenchError(f"--gpu {text!r} is no device's memory", accepted)
    return int(size)


def plan(
    model: str,
    methods: Sequence[str],
    *,
    batch: int = 1,
    sequence: int = 256,
    accumulation: int = 1,
    precision: str = "bf16",
    checkpointing: bool = False,
    target: str = "cuda",
    routes: Sequence[str] | None = None,
    gpus: Sequence[str] = (),
    told: Callable[[str], None] | None = None,
) -> Plan:
    """Plan every method.

    Args:
        model: as `architecture.resolve` takes it.
        methods: references of methods.
        batch: sequences of one pass.
        sequence: tokens a sequence.
        accumulation: passes a step.
        precision: `fp32`, `bf16` or `fp32+bf16`.
        checkpointing: compute activations again in backward.
        target: `cuda` or `cpu`: what is planned for.
        routes: of `ROUTES`, beside the formula; None: simulated, and measured if that is quick.
        gpus: sizes of devices, as `capacity` takes them.
        told: told what is going on.

    Raises:
        BenchError: anything that cannot be planned, in one line.
    """
    start = time.perf_counter()
    for name, value in (("--batch", batch), ("--seq", sequence), ("--accumulation", accumulation)):
        if not 1 <= value < 2**31:
            raise BenchError(f"{name} {value}", "accepted: a number from 1")
    if precision not in PRECISIONS:
        raise BenchError(f"--precision {precision!r}", f"accepted: {', '.join(PRECISIONS)}")
    if target not in ("cuda", "cpu"):
        raise BenchError(f"--device {target!r}", "accepted: cuda, cpu")
    for route in routes or ():
        if route not in ROUTES:
            raise BenchError(f"--route {route!r}", f"accepted: {', '.join(ROUTES)}, all")
    if not methods:
        raise BenchError("no methods given", "name some with -o")
    sizes = [(text, capacity(text)) for text in gpus]

    from levelfield.bench import architecture, models, reference

    wanted = architecture.resolve(model)
    specs = [reference.load_spec(name).value for name in methods]
    adapters = [spec.name for spec in specs if spec.adapter is not None]
    if adapters:
        raise BenchError(
            f"{', '.join(adapters)}: what an adapter trains depends on its model and task",
            "accepted: `levelfield plan PROTOCOL -o NAME` tells its state; methods that train all",
        )
    broken = {spec.name: why for spec in specs if (why := _broken(spec))}

    from levelfield.bench.simulate import Simulator, Workload, build_meta

    load = Workload(
        architecture=wanted,
        batch=batch,
        sequence=sequence,
        accumulation=accumulation,
        precision=precision,
        checkpointing=checkpointing,
        target=target,  # type: ignore[arg-type]
    )
    built = build_meta(load)
    infos = tuple(param.info for param in models.parameters(built))
    held = model_bytes(built)
    formulas = [formula(spec, load, infos, held) for spec in specs]
    simulator = Simulator(load, built)
    rows = []
    for spec, claims in zip(specs, formulas, strict=True):
        reasons: dict[str, str] = {}
        simulated, measured = None, None
        if spec.name in broken:
            reasons["simulated"] = broken[spec.name]
        elif routes is None or "simulated" in routes or "measured" in routes:
            if told is not None:
                told(f"simulating {spec.name}")
            simulated = simulate(spec, simulator, reasons)
        if spec.name in broken or (routes is not None and "measured" not in routes):
            pass
        elif why := _unmeasurable(spec, load, infos, simulated, asked=routes is not None):
            reasons["measured"] = why
        else:
            if told is not None:
                told(f"measuring {spec.name}")
            measured = measure(spec, load, reasons)
        if routes is not None and "simulated" not in routes:
            simulated = None
            told_of = {"measured", "simulated"} if spec.name in broken else {"measured"}
            reasons = {name: why for name, why in reasons.items() if name in told_of}
        fits = tuple(_fit(text, size, claims, simulated) for text, size in sizes)
        rows.append(
            Row(
                method=spec.name,
                formula=claims,
                simulated=simulated,
                measured=measured,
                fits=fits,
                reasons=reasons,
            )
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Plan(
        model=wanted.name,
        parameters=sum(info.numel for info in infos),
        batch=batch,
        sequence=sequence,
        accumulation=accumulation,
        precision=load.precision,
        checkpointing=checkpointing,
        target=target,
        rows=tuple(rows),
        wall_s=time.perf_counter() - start,
        process_peak_bytes=peak if sys.platform == "darwin" else peak * 1024,
    )


def _broken(spec: OptimizerSpec) -> str | None:
    """Why a method cannot take a step at all, whatever its claim says."""
    from levelfield.bench.build import try_out
    from levelfield.bench.registry import lacking

    if lacking(spec.requires):
        return None  # only its claim can be told
    try:
        try_out(spec)
    except BenchError as error:
        return str(error)
    return None


def model_bytes(model: nn.Module) -> int:
    """Bytes of weights and buffers, each storage once, frozen ones too."""
    held = {
        id(tensor): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(held.values())


def formula(
    spec: OptimizerSpec, load: Workload, infos: tuple[ParamInfo, ...], held: int
) -> Formula:
    """The claims of a method and of the fallback over the roles that it does not take.

    Args:
        held: bytes of weights and buffers.
    """
    from levelfield.bench.build import claimed_state_bytes

    hparams, protocol = spec.defaults(), load.protocol()
    state = [
        claimed_state_bytes(spec, protocol, infos, hparams, point / POINTS)
        for point in range(POINTS + 1)
    ]
    # What cannot gather gradients over several passes uses each as soon as it is there.
    single = "grad_accumulation" in spec.cannot
    sizes = [info.nbytes for info in infos]
    return Formula(
        weights=held,
        gradients=max(sizes, default=0) if single else sum(sizes),
        state_start=state[0],
        state=max(state),
        state_end=state[-1],
    )


def simulate(spec: OptimizerSpec, simulator: Any, reasons: dict[str, str]) -> Simulated | None:
    """Fake steps of a method; None with its reason if they cannot be taken."""
    if why := _unsupported(spec, simulator.load):
        reasons["simulated"] = why
        return None
    try:
        seen: Seen = simulator.run(spec, spec.defaults())
    except BenchError as error:
        reasons["simulated"] = str(error)
        return None
    except Exception as error:  # an operation without a fake form, a library that is not there
        reasons["simulated"] = named(error)
        return None
    inside, update = seen.stretches["pass"], seen.stretches["update"]
    hidden = None
    if seen.compiled:
        hidden = "its step needs torch.compile, and what compiled code takes is not seen"
    elif seen.libraries and simulator.load.target == "cpu":
        hidden = f"what {', '.join(seen.libraries)} takes inside its CPU operations is not seen"
    if hidden is not None:
        reasons["simulated.temporary"] = hidden
    highest = inside if hidden or inside.total >= update.total else update
    return Simulated(
        weights=inside.most["weights"],
        gradients=max(inside.most["gradients"], update.most["gradients"]),
        state=max(seen.state_bytes),
        activations=inside.most["activations"],
        temporary=None if hidden else update.most["temporary"],
        pass_peak=inside.total,
        update_peak=None if hidden else update.total,
        kinds=dict(highest.by_kind),
        host_reads=seen.host_reads,
        horizon=seen.horizon,
        wall_s=seen.wall_s,
    )


def measure(spec: OptimizerSpec, load: Workload, reasons: dict[str, str]) -> Measured | None:
    """A short run on the device there is."""
    from dataclasses import replace

    from levelfield.bench import allocator

    device = _device(load)
    try:
        here = replace(load, target=device.type)
        seen, peaks = allocator.measure(spec, spec.defaults(), here, device)
    except BenchError as error:
        reasons["measured"] = str(error)
        return None
    except Exception as error:
        reasons["measured"] = named(error)
        return None
    return Measured(
        device=device.type,
        pass_peak=peaks["pass"],
        update_peak=peaks["update"],
        state=max(seen.state_bytes),
        wall_s=seen.wall_s,
    )


def _device(load: Workload) -> Any:
    import torch

    return torch.device("cuda" if load.target == "cuda" and torch.cuda.is_available() else "cpu")


def _unsupported(spec: OptimizerSpec, load: Workload) -> str | None:
    if load.accumulation > 1 and "grad_accumulation" in spec.cannot:
        return f"{spec.name} cannot accumulate gradients: it declares so"
    if load.precision == "bf16" and "bf16" in spec.cannot:
        return f"{spec.name} cannot train bf16 weights: it declares so"
    return None


def _unmeasurable(
    spec: OptimizerSpec,
    load: Workload,
    infos: tuple[ParamInfo, ...],
    simulated: Simulated | None,
    *,
    asked: bool,
) -> str | None:
    """Why a method is not run for real, or None if it is."""
    from levelfield.bench.provenance import memory_bytes
    from levelfield.bench.simulate import STEPS

    if why := _unsupported(spec, load):
        return why
    tokens = load.batch * load.sequence * load.accumulation
    flops = 6.0 * sum(info.numel for info in infos) * tokens * STEPS * spec.passes
    if not asked and flops > SMALL_FLOPS:
        return "takes longer than a few seconds: ask for it with --route measured"
    if _device(load).type == "cuda":
        import torch

        free: int | None = torch.cuda.mem_get_info()[0]
        where = "on the device here"
    else:
        total = memory_bytes()
        free, where = None if total is None else total // 2, "in half of the memory here"
    need = sum(info.nbytes for info in infos) * 4
    if simulated is not None:
        need = max(simulated.pass_peak, simulated.update_peak or 0)
    if free is not None and need > free:
        return f"{need / GIB:.1f} GiB do not fit {where} ({free / GIB:.1f} GiB)"
    return None


def _fit(text: str, size: int, claims: Formula, simulated: Simulated | None) -> Fit:
    """By the simulated peak; by the formula's least if there is none."""
    if simulated is not None and simulated.total is not None:
        peak = simulated.total
        return Fit(
            capacity=text,
            capacity_bytes=size,
            peak=peak,
            least=False,
            route="simulated",
            fits=peak + margin(peak) <= size,
        )
    least = claims.total if simulated is None else max(claims.total, simulated.pass_peak)
    return Fit(
        capacity=text,
        capacity_bytes=size,
        peak=least,
        least=True,
        route="formula" if simulated is None or least == claims.total else "simulated",
        fits=False if least + margin(least) > size else None,
    )
