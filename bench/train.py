"""One training run: the only training loop of levelfield.

Everything that must be equal for all methods is made here from the trial's seed alone: initial
weights, batches, evaluation slices, schedule, clipping. The method only gets a `BuildContext` and,
step by step, a `StepBatch`.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levelfield.bench import accounting, checkpoint, final_weights, models, stats, tasks
from levelfield.bench.build import adapt, build_stepper, claimed_state_bytes, trained_by
from levelfield.bench.digest import derive_seed
from levelfield.bench.errors import first_line, located
from levelfield.bench.group import Alone, Group
from levelfield.bench.meter import build_meter, state_bytes, state_tensors
from levelfield.bench.rates import check_rates
from levelfield.bench.reference import load_spec
from levelfield.bench.schedules import check_schedule, lr_factor
from levelfield.bench.spec import (
    WEIGHTS,
    BenchError,
    OptimizerSpec,
    Protocol,
    Status,
    TrialRecord,
)
from levelfield.bench.stepper import StepBatch
from levelfield.bench.study import method_digest
from levelfield.bench.train_request import (
    UNTIMED_STEPS,
    Progress,
    TrialRequest,
    checkpoint_path,
    checkpoint_steps,
    identity,
)
from levelfield.bench.verdict import verdict

ACCOUNTED_STEPS = 2
"""Steps under the storage tracker: the first allocates the state, the second has it."""
MAX_POINTS = 400
"""Most points of a per-step series in a record."""


class Diverged(Exception):
    """A loss that is not finite, in training or in an evaluation."""


def run_trial(
    request: TrialRequest, report: Callable[[Progress], None], group: Group | None = None
) -> TrialRecord:
    """Train once. Whatever happens inside, a record comes back.

    Args:
        request: what to train.
        report: told of progress, at most about five times a second.
        group: the processes that share the trial; None: this one alone.
    """
    trial = Trial(request, report, group)
    try:
        status, reason = trial.run()
    except Diverged as error:
        status, reason = "diverged", str(error)
    except Exception as error:
        status, reason = _failure(error)
    try:
        trial.collect()
    except Exception as error:
        status, reason = _failure(error)
    return trial.record(status, reason)


def why_unsupported(request: TrialRequest) -> str | None:
    """Why a method cannot do what its protocol asks; None if it can, or does not load."""
    try:
        return _unsupported(load_spec(request.reference).value, request.protocol)
    except BenchError:
        return None


def _failure(error: Exception) -> tuple[Status, str]:
    line = first_line(error)
    if isinstance(error, BenchError):
        return "error", str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in line:
        return "oom", f"{type(error).__name__}: {line}"
    return "error", located(error)


class Trial:
    """The state of one training run; `record` reads whatever is there when it ends."""

    def __init__(
        self,
        request: TrialRequest,
        report: Callable[[Progress], None],
        group: Group | None = None,
    ) -> None:
        self.request, self.protocol = request, request.protocol
        self.group: Group = group or Alone()
        self._report = report
        self._reported = (0, time.monotonic())
        self.device = torch.device(request.device)
        self.wall_s: dict[str, Any] = {"setup": None, "warmup": 0.0, "step": 0.0, "eval": 0.0}
        self.curve: list[list[float]] = []
        self.score_curve: list[list[float]] = []
        self.scores: dict[str, dict[str, float]] = {}
        self.best: dict[str, dict[str, float]] = {}
        """The scores where the selection score was best."""
        self.adapter: dict[str, Any] = {}
        self.final_sha256: str | None = None
        self.step = 0
        self.timed_steps = 0
        self.passes = 0.0
        self.selection_loss: float | None = None
        self.report_loss: float | None = None
        self.facts: dict[str, Any] = {}
        self.peaks: dict[str, int | None] = {}
        self.missing: dict[str, str] = {}
        self.held_bytes: int | None = None
        self.refreshes: int | None = None
        self.state_tensors: int | None = None
        self.series: dict[str, Any] = {}
        self.held: dict[str, list[list[int]]] = {}
        """What the allocator of a device held over the steps: name -> [step, value]."""
        self._fired: list[Any] = []
        self._sampled_at = 0

    def run(self) -> tuple[Status, str | None]:
        check_schedule(self.protocol)
        start = time.perf_counter()
        self.load()
        if unsupported := _unsupported(self.spec, self.protocol):
            return "unsupported", unsupported
        self.setup()
        self.wall_s["setup"] = time.perf_counter() - start
        if self.request.phase in ("timing", "calibrate"):
            self._timing()
            return "ok", None
        self._train()
        self._finish()
        return self._verdict()

    def load(self) -> None:
        """Bring the method in."""
        loaded = load_spec(self.request.reference)
        if self.request.spec_digest not in (None, method_digest(loaded)):
            raise BenchError(
                "the method's code changed while the run was under way",
                "--resume with --rerun-stale trains it again",
            )
        self.spec = loaded.value

    def setup(self) -> None:
        """Everything that is there before the first step."""
        request, protocol = self.request, self.protocol
        torch.set_num_threads(protocol.threads)
        # A method draws from its own generator; what it draws elsewhere repeats all the same.
        torch.manual_seed(derive_seed("torch", request.seed))
        random.seed(derive_seed("python", request.seed))
        np.random.seed(derive_seed("numpy", request.seed) % 2**32)
        self.task = tasks.open_task(protocol, self.device.type)
        if request.data_digest not in (None, self.task.facts["digest"]):
            raise BenchError("the data changed while the run was under way", "start a new run")
        self.engine = protocol.engine
        dtype: torch.dtype = getattr(torch, WEIGHTS[protocol.precision])
        model = self.task.build_model(derive_seed("weights", request.seed)).to(dtype)
        # Of the model as every method gets it; an adapter freezes that, and adds to it.
        start = models.weights_sha256(models.parameters(model))
        model = adapt(self.spec, protocol, model, request.hparams, request.seed)
        if self.engine.activation_checkpointing:
            models.checkpointing_(model, protocol.model.source or protocol.model.family)
        self.model = self.group.shard(model.to(self.device, dtype).train())
        self.params = models.parameters(self.model)
        infos = tuple(param.info for param in self.params)
        self.facts = {
            "parameters": sum(info.numel for info in infos),
            "weights_sha256": start,
            "claimed_state_bytes": claimed_state_bytes(
                self.spec, protocol, infos, request.hparams, 1.0
            ),
        }
        self.called = self.group.wrap(self.model)
        if self.engine.compile:
            self.called = torch.compile(self.called)  # type: ignore[assignment]
        self.order = self.task.batches(derive_seed("batches", request.seed))
        self.stepper = build_stepper(
            self.spec, protocol, self.model, self.params, request.hparams, request.seed
        )
        self.group.divide(self.stepper)
        steps = protocol.budget.steps
        self.losses = torch.full((steps,), math.nan, device=self.device)
        self.norms = torch.full((steps,), math.nan, device=self.device)
        self.meter = build_meter(self.device)
        self.missing |= self.group.missing

    def lr_scale(self, step: int) -> float:
        """The factor of a step; a method with its own schedule gets 1 throughout."""
        total = self.protocol.budget.steps
        if self.spec.schedule == "own":
            return 1.0
        factor = lr_factor(self.protocol.schedule, step, total)
        return factor if self.spec.schedule == "protocol" or step < self._warmup else 1.0

    @property
    def _warmup(self) -> int:
        return self.protocol.warmup_steps

    def one_step(self, on_phase: Callable[[str], None] | None = None) -> None:
        """Draw a batch, step, keep loss and norm on the device."""
        step = self.step
        parts = self.group.own(
            self.task.split(self.order.next(), self.engine.accumulation * self.group.cuts)
        )
        on_device = [self.task.to_device(part, self.device) for part, _ in parts]
        # Dropout, and whatever a method draws from the global generator, depend on seed and step
        # alone: nothing that one step draws can shift the next.
        self._reseed(derive_seed_fast(self.request.seed, step))
        batch = StepBatch(
            [partial(self.task.loss, self.called, part) for part in on_device],
            self.protocol.tokens_per_step,
            on_phase,
            [partial(self.task.sampled_loss, self.called, part) for part in on_device],
            [weight for _, weight in parts],
        )
        result = self.stepper.step(batch, self.lr_scale(step))
        self.passes += batch.passes
        self.losses[step] = self.group.mean(result.loss)
        if result.grad_norm is not None:
            self.norms[step] = self.group.whole(result.grad_norm)
        self.step = step + 1

    def _reseed(self, seed: int) -> None:
        """Seed the global generator; `torch.manual_seed` does the same a hundred times slower."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def _train(self) -> None:
        steps, every = self.protocol.budget.steps, self.protocol.evaluation.every
        self.meter.watch()
        keep_every, path = checkpoint_steps(self.request), checkpoint_path(self.request)
        if not self._go_on():
            self._evaluate()
        self._reported = (self.step, time.monotonic())
        while self.step < steps:
            if self.step < ACCOUNTED_STEPS and self.engine.compile:
                self._first_calls()
                continue
            if self.step < ACCOUNTED_STEPS and self.group.tracked:
                with accounting.account(self.params, self.model, self.stepper, self.peaks) as phase:
                    self.one_step(phase)
                self.check_loss()
                self.sample_held()
                continue
            untimed, first = self.step < UNTIMED_STEPS, self.step
            stop = self._next_stop(every, keep_every)
            if not untimed:
                self.meter.resume()
            start = self.meter.now_s()
            while self.step < stop:
                self.one_step()
                if self.held:
                    self._sample_refresh()
                if self.step % 10 == 0:
                    self.check_loss()
            spent = self.meter.now_s() - start
            self.meter.pause()
            self.wall_s["warmup" if untimed else "step"] += spent
            self.timed_steps += 0 if untimed else stop - first
            if self.step % every == 0 and self.step < steps:
                self._evaluate()
            if keep_every and self.step % keep_every == 0 and path is not None:
                self.check_loss()
                checkpoint.save(self, path)
        if steps:
            self.check_loss()

    def _go_on(self) -> bool:
        """From the checkpoint of this trial, if it left one."""
        state = checkpoint.load(self.request, self.device)
        if state is None:
            return False
        checkpoint.restore(self, state)
        check_rates(self.stepper, self.spec, self.lr_scale(self.step - 1), self.step - 1)
        self.missing["joules"] = "the trial was interrupted: its energy was not counted throughout"
        return True

    def _first_calls(self) -> None:
        """The first steps of a compiled model, which compile it: their seconds are told apart, and
        its tensors are not tracked."""
        start = self.meter.now_s()
        self.one_step()
        self.check_loss()
        spent = self.meter.now_s() - start
        self.wall_s["compile"] = self.wall_s.get("compile", 0.0) + spent
        for name in ("peak_bytes.total", "host_reads"):
            self.missing[name] = "a compiled model's tensors are not tracked"

    def sample_held(self) -> None:
        """Note what the device's allocator holds between two steps; a CPU has none."""
        self._sampled_at = self.step
        for name, value in self.meter.held().items():
            points = self.held.setdefault(name, [])
            if points and points[-1][0] == self.step:
                points.pop()
            points.append([self.step, value])

    def _sample_refresh(self) -> None:
        """The same after a step in which a method's mechanism fired. It waits for nothing."""
        fired = [getattr(optimizer, "refreshes", None) for optimizer in self.stepper.optimizers]
        if fired == self._fired:
            return
        self._fired = fired
        if self.step - self._sampled_at >= self.protocol.budget.steps / MAX_POINTS:
            self.sample_held()

    def _next_stop(self, *periods: int | None) -> int:
        """The next step at which the clock is read: end of warm-up, an evaluation, a checkpoint,
        the end."""
        stops = [self.protocol.budget.steps]
        stops += [(self.step // period + 1) * period for period in periods if period]
        if self.step < UNTIMED_STEPS:
            stops.append(UNTIMED_STEPS)
        return min(stops)

    def _last_loss(self) -> float:
        """The last training loss.

        Raises:
            Diverged: it is not finite.
        """
        loss = float(self.losses[self.step - 1])
        if not math.isfinite(loss):
            raise Diverged(f"training loss is {loss} at step {self.step - 1}")
        return loss

    def check_loss(self) -> None:
        """Read the last training loss: stop at a non-finite one, and tell where the trial is."""
        loss = self._last_loss()
        check_rates(self.stepper, self.spec, self.lr_scale(self.step - 1), self.step - 1)
        last, then_s = self._reported
        now_s = time.monotonic()
        if now_s - then_s >= 0.2:
            self._reported = (self.step, now_s)
            tokens = (self.step - last) * self.protocol.tokens_per_step
            self._report(
                Progress(
                    key=self.request.key,
                    step=self.step,
                    steps=self.protocol.budget.steps,
                    loss=loss,
                    tokens_per_s=tokens / (now_s - then_s),
                )
            )

    def _read(self, name: str, limit: int | None) -> tasks.Reading:
        return self.task.evaluate(self.model, name, limit, self.device)

    def _evaluate(self) -> None:
        """A point of the curve; controllers see the control slice and nothing else."""
        start = self.meter.now_s()
        self.sample_held()
        trained_s = float(self.wall_s["warmup"] + self.wall_s["step"])
        limit = self.protocol.evaluation.sequences
        with self.stepper.evaluating():
            reading = self._read("selection", limit)
            control = self._control_loss() if self.stepper.observes else None
            if self.protocol.task.metric and math.isfinite(reading.loss):
                self._keep_score(reading)
        loss = reading.loss
        self.curve.append([self.step * self.protocol.tokens_per_step, trained_s, loss])
        if control is not None:
            self.stepper.observe(control)
        self.wall_s["eval"] += self.meter.now_s() - start
        if not math.isfinite(loss):
            raise Diverged(f"selection loss is {loss} at step {self.step}")

    def _keep_score(self, reading: tasks.Reading) -> None:
        """A point of the score's curve; where it is the best so far, what the report slice says."""
        metric = self.protocol.task.metric
        tasks.objective(self.protocol, reading)  # the task has such a score
        score = reading.scores[metric]
        self.score_curve.append([self.step * self.protocol.tokens_per_step, score])
        before = self.best.get("best_selection", {}).get(metric, -math.inf)
        if score > before and self.step > 0:
            self.best["best_selection"] = dict(reading.scores)
            if self.request.phase in ("final", "transfer"):
                most = self.protocol.evaluation.most
                self.best["best_report"] = dict(self._read("report", most).scores)

    def _control_loss(self) -> float:
        """The loss that a controller sees, charged to its method: a forward pass is a third of a
        forward and backward one."""
        limit = self.protocol.evaluation.sequences
        self.passes += self.task.size("control", limit) / self.protocol.data.batch / 3
        return self._read("control", limit).loss

    def _finish(self) -> None:
        if self.step:
            self._evaluate()
        start = self.meter.now_s()
        with self.stepper.evaluating():
            self.selection_loss = self._final_reading("selection")
            if self.request.phase in ("final", "transfer"):
                self.report_loss = self._final_reading("report")
                self._leave_weights()
        self.scores |= self.best
        self.wall_s["eval"] += self.meter.now_s() - start
        for loss in (self.selection_loss, self.report_loss):
            if loss is not None and not math.isfinite(loss):
                raise Diverged(f"loss on a whole slice is {loss} at step {self.step}")

    def _final_reading(self, name: str) -> float:
        """The objective on a whole slice; its scores are kept."""
        reading = self._read(name, self.protocol.evaluation.most)
        if reading.scores and math.isfinite(reading.loss):
            self.scores[name] = {**reading.scores, "cross_entropy": reading.loss}
        return tasks.objective(self.protocol, reading)

    def _leave_weights(self) -> None:
        """Keep the final weights in the run's folder, where the protocol asks for it."""
        if not self.engine.save_final or self.request.folder is None:
            return
        self.final_sha256 = models.weights_sha256(self.params, self.group.whole)
        weights = self.group.whole(self.model.state_dict())
        if self.group.rank == 0:
            folder = Path(self.request.folder)
            final_weights.save(folder, self.request, self.model, weights, self.task)

    def _timing(self) -> None:
        """One window of steps after the untimed ones; no evaluation, no accounting. A controller
        makes a step cost something else later on: it is timed to the end, with what it reads."""
        observes = self.stepper.observes
        window = self.protocol.budget.steps if observes else self._window()
        if observes:
            self._observe()
        for _ in range(min(UNTIMED_STEPS, self.protocol.budget.steps)):
            self.one_step()
        self.meter.now_s()  # the device has done the steps before
        if self.step < self.protocol.budget.steps:
            self.meter.resume()
        start = self.meter.now_s()
        self.wall_s["warmup"] = None
        for _ in range(min(window, self.protocol.budget.steps - self.step)):
            self.one_step()
            self.timed_steps += 1
            if observes and self.step % self.protocol.evaluation.every == 0:
                self._observe()
        spent = self.meter.now_s() - start
        self.meter.pause()
        if self.timed_steps:
            self.wall_s["step"] = spent
            self.wall_s["windows"] = [spent / self.timed_steps]
        else:
            self.wall_s["step"] = None
            self.missing["wall_s.step"] = f"the first {UNTIMED_STEPS} steps are not timed"
        self._last_loss()

    def _observe(self) -> None:
        with self.stepper.evaluating():
            control = self._control_loss()
        self.stepper.observe(control)

    def _window(self) -> int:
        """Steps of a timing window: a whole number of the method's periods, so that what happens
        once a period is in it exactly as often as in a run."""
        least, total = self.protocol.timing.steps, self.protocol.budget.steps
        switches = self.spec.switches(self.request.hparams, total)
        if len(switches) < 2:
            return least
        period = max(later - sooner for sooner, later in itertools.pairwise(switches))
        return min(period * math.ceil(least / period), max(least, total - UNTIMED_STEPS))

    def _verdict(self) -> tuple[Status, str | None]:
        losses = _means(_floats(self.losses, self.step))
        return verdict(self.curve, losses, bool(self.protocol.task.metric))

    def record(self, status: Status, reason: str | None) -> TrialRecord:
        """The record of whatever happened."""
        steps, tokens = self.step, self.step * self.protocol.tokens_per_step
        missing = dict(self.missing)
        losses = _floats(getattr(self, "losses", None), steps)
        norms = [norm for norm in _floats(getattr(self, "norms", None), steps) if norm is not None]
        joules: float | None = None
        meter = getattr(self, "meter", None)
        if meter is not None:
            meter.stop()
            self.sample_held()
            self.peaks = {**self.peaks, **meter.peaks()}
            missing |= meter.reasons()
            joules = None if "joules" in self.missing else meter.joules()
        step_s = self.wall_s["step"] or 0.0
        timed = self.timed_steps * self.protocol.tokens_per_step
        finished = status in ("ok", "undertrained", "diverged")
        if self.selection_loss is None:
            missing["selection_loss"] = reason or "the timing phase evaluates nothing"
        if self.held_bytes is None:
            missing["state_bytes"] = "no step was taken" if steps == 0 else reason or "not counted"
        if self.request.phase not in ("final", "transfer"):
            missing["report_loss"] = "only final trials read the report slice"
        elif self.report_loss is None:
            missing["report_loss"] = reason or "not evaluated"
        if steps and not norms:
            missing["max_grad_norm"] = "the method reports no gradient norm"
        order = getattr(self, "order", None)
        return TrialRecord(
            **identity(self.request),
            status=status,
            reason=reason,
            initial_loss=_finite(self.curve[0][2]) if self.curve else None,
            selection_loss=_finite(self.selection_loss),
            report_loss=_finite(self.report_loss),
            scores=self.scores,
            score_curve=self.score_curve,
            adapter=self.adapter,
            final_sha256=self.final_sha256,
            tokens=tokens,
            steps=steps,
            passes=round(self.passes, 6),
            wall_s=self.wall_s,
            tokens_per_s=timed / step_s if step_s > 0 and timed else None,
            parameters=self.facts.get("parameters"),
            state_bytes=self.held_bytes,
            claimed_state_bytes=self.facts.get("claimed_state_bytes"),
            peak_bytes={k: v for k, v in self.peaks.items() if k != "host_reads"},
            host_reads=self.peaks.get("host_reads"),
            state_tensors=self.state_tensors,
            curve=[point for point in self.curve if math.isfinite(point[2])],
            train_loss=_means(losses),
            lr_trace=self._lr_trace() if steps else (),
            spikes=stats.spikes([x for x in losses if x is not None]) if finished else None,
            max_grad_norm=max(norms) if norms else None,
            weights_sha256=self.facts.get("weights_sha256"),
            batches_sha256=order.sha256 if order is not None else None,
            joules=joules,
            refreshes=self.refreshes,
            series={**self.series, **self.held},
            missing=missing,
        )

    def collect(self) -> None:
        """Take state bytes, and what the method counted itself.

        Raises:
            BenchError: what it counted makes no sense.
        """
        stepper = getattr(self, "stepper", None)
        if stepper is None or self.step == 0:
            return
        self.held_bytes = state_bytes(stepper.optimizers)
        self.state_tensors = sum(t.ndim > 0 for t in state_tensors(stepper.optimizers))
        self.adapter = dict(getattr(stepper, "adapter", None) or {})
        counts = [opt.refreshes for opt in stepper.optimizers if hasattr(opt, "refreshes")]
        try:
            self.refreshes = sum(map(int, counts)) if counts else None
            for optimizer in stepper.optimizers:
                for name, points in (getattr(optimizer, "series", None) or {}).items():
                    self.series[str(name)] = [[float(x), float(y)] for x, y in points]
        except (TypeError, ValueError, AttributeError) as error:
            raise BenchError(
                f"what {self.spec.name} counts makes no sense: {error}",
                "accepted: a number as `refreshes`, name -> [[step, value], ...] as `series`",
            ) from None

    def _lr_trace(self) -> list[list[float]]:
        peak = max(range(self.step), key=self.lr_scale)
        stride = max(1, self.step // 40)
        shown = sorted({*range(0, self.step, stride), peak, self.step - 1})
        return [[step, round(self.lr_scale(step), 9)] for step in shown]


def derive_seed_fast(seed: int, step: int) -> int:
    """A distinct seed for every (seed, step), cheap enough for every step (splitmix64)."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 1


def _unsupported(spec: OptimizerSpec, protocol: Protocol) -> str | None:
    """Why a method cannot do what the protocol asks, by its own words; None if it can."""
    engine = protocol.engine
    asked = {
        "bf16": (protocol.precision == "bf16", "train bf16 weights"),
        "grad_accumulation": (engine.accumulation > 1, "gather gradients over micro-batches"),
        "distributed": (engine.processes > 1, "share a batch between processes"),
        "sharding": (
            engine.processes > 1 and engine.parallel == "fsdp2",
            "train matrices that are cut up over processes (fsdp2): it needs each whole",
        ),
    }
    for one in trained_by(spec):
        for word, (wanted, what) in asked.items():
            if wanted and word in one.cannot:
                return f"{one.name} declares that it cannot {what}"
    if spec.tasks and protocol.task.kind not in spec.tasks:
        return f"{spec.name} is for tasks of kind {', '.join(spec.tasks)}"
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _floats(values: Tensor | None, steps: int) -> list[float | None]:
    if values is None:
        return []
    return [_finite(float(x)) for x in values[:steps].double().tolist()]


def _means(losses: list[float | None]) -> list[list[float]]:
    """[step, mean of the steps since the point before], at most `MAX_POINTS` points."""
    stride = max(1, math.ceil(len(losses) / MAX_POINTS))
    points = []
    for start in range(0, len(losses), stride):
        part = [x for x in losses[start : start + stride] if x is not None]
        if part:
            points.append([start + stride - 1, round(sum(part) / len(part), 6)])
    return points
