"""Steps of the real method on the real architecture, with tensors that have no memory.

Fake tensors know shape, dtype and the size of their storage, and every operation of forward,
backward and update is run on them; the tracker that watches a real trial watches them too. Nothing
is allocated, so a model of seven billion parameters takes seconds.

They lie on a fake CPU: a build of torch without CUDA has no autograd for other devices. The
*target* is declared beside them: a method that asks sees a CUDA tensor (Newton-Schulz then runs in
bfloat16), and a choice that torch makes by device (`foreach`) is made as for the target.

A host read has no answer; it gets `SCALAR` and is counted. Outside of all this is what no operation
returns: scratch space inside a kernel, the device's context, fragmentation.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils

from levelfield.bench import models
from levelfield.bench.accounting import STRETCHES, Stretch, Watch, watch
from levelfield.bench.architecture import Architecture
from levelfield.bench.build import build_stepper
from levelfield.bench.meter import StorageTracker, state_bytes
from levelfield.bench.next_token import NextToken
from levelfield.bench.spec import WEIGHTS, Budget, Data, OptimizerSpec, Precision, Protocol
from levelfield.bench.stepper import StepBatch

Target = Literal["cuda", "cpu"]

STEPS = 3
"""The first allocates the state, the second and third have it."""
HORIZON = 400
"""Steps of the run that they are the beginning of, unless a method's periods need a shorter one."""
SCALAR = 1.0
"""What the host reads from a fake tensor."""
SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained, whatever the method."""

    architecture: Architecture
    batch: int = 1
    """Sequences of one forward and backward pass."""
    sequence: int = 256
    """Tokens a sequence."""
    accumulation: int = 1
    """Passes whose gradients are gathered before an update."""
    precision: Precision = "bf16"
    checkpointing: bool = False
    """Whether activations inside a layer are computed again in backward instead of kept."""
    target: Target = "cuda"
    """The device that is planned for."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and gradients."""
        found: torch.dtype = getattr(torch, WEIGHTS[self.precision])
        return found

    def protocol(self, horizon: int = HORIZON) -> Protocol:
        """The protocol's part in a step: clipping, fallback, the steps of the run."""
        return Protocol(
            name="memory",
            summary="the first steps of a run",
            data=Data(sequence=self.sequence, batch=self.batch * self.accumulation),
            budget=Budget(steps=horizon),
            precision=self.precision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What `STEPS` steps showed."""

    horizon: int
    """Steps of the run that they began."""
    stretches: Mapping[str, Stretch]
    """The highest peak of `pass` and of `update`, over the steps, and the most of each
    kind."""
    state_bytes: tuple[int, ...]
    """State after each step, each storage once, 0-dim counters left out."""
    host_reads: int
    """Scalars that the host read inside the last step."""
    compiled: bool
    """Whether a step asks for `torch.compile`: what it takes is then not what was seen."""
    libraries: tuple[str, ...]
    """Whose operations beyond torch's own were seen, as one each: what they take inside was not."""
    wall_s: float


def build(load: Workload) -> nn.Module:
    """The model as a trial would have it, on the default device."""
    model = load.architecture.build(load.sequence).to(load.dtype).train()
    if load.checkpointing:
        models.checkpointing_(model, load.architecture.name)
    return model


def of_protocol(protocol: Protocol, target: Target) -> Simulator:
    """A simulator of a protocol's language model on one of its processes: a micro-batch a pass."""
    from levelfield.bench import architecture, tasks
    from levelfield.bench.shapes import Shape

    engine = protocol.engine
    shape = Shape(
        name=protocol.name,
        model=protocol.model,
        vocabulary=tasks.open_task(protocol, "cpu").vocabulary,
    )
    load = Workload(
        architecture=architecture.of_shape(shape),
        batch=max(1, protocol.data.batch // (engine.accumulation * engine.processes)),
        sequence=protocol.data.sequence,
        accumulation=min(2, engine.accumulation),  # no further pass takes more
        precision=protocol.precision,
        checkpointing=engine.activation_checkpointing,
        target=target,
    )
    return Simulator(load, build_meta(load))


def build_meta(load: Workload) -> nn.Module:
    """The model without memory and without values: its shapes."""
    with torch.device("meta"):
        return build(load)


class Simulator:
    """Simulates one method after the other on one model.

    Args:
        load: what is trained.
        model: the model that `build_meta` made; it is turned into one of fake tensors.
    """

    def __init__(self, load: Workload, model: nn.Module) -> None:
        self.load, self.model = load, model
        self._mode = FakeTensorMode()

    def run(self, spec: OptimizerSpec, hparams: Mapping[str, Any]) -> Seen:
        """Take `STEPS` steps of a method.

        Raises:
            Exception: whatever an operation without a fake form raises.
        """
        load = self.load
        if load.target == "cuda" and "foreach" in hparams and hparams["foreach"] is None:
            hparams = {**hparams, "foreach": True}  # torch's choice on CUDA
        with self._mode, _fakes_pass_for_real(), DeclaredTarget(load.target):
            fake_(self.model)
            try:
                return take_steps(spec, hparams, load, self.model, _fake_tokens, SCALAR)
            finally:
                fake_(self.model)  # new weights: hooks and gradients of the method go
                gc.collect()


def take_steps(
    spec: OptimizerSpec,
    hparams: Mapping[str, Any],
    load: Workload,
    model: nn.Module,
    draw: Callable[[Workload], Tensor],
    scalar: float | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> Seen:
    """`STEPS` steps of a method under the tracker, by the stepper and the task of a trial.

    Args:
        spec, hparams: the method.
        load: what is trained.
        model: real or fake.
        draw: the tokens of a pass, [batch, sequence + 1].
        scalar: as for `StorageTracker`.
        on_phase: told `pass` and `update` as well.
    """
    start = time.perf_counter()
    params = models.parameters(model)
    protocol = load.protocol(horizon(spec, hparams))
    task = NextToken(load.precision, params[0].tensor.device.type)
    with StorageTracker(scalar=scalar):  # what a method reads while it is built
        stepper = build_stepper(spec, protocol, model, params, hparams, SEED)
    highest: dict[str, Stretch] = {}
    held, reads = [], 0
    libraries: set[str] = set()
    compiled = False
    for _ in range(STEPS):
        with _compilations() as asked, watch(params, model, stepper, scalar) as found:
            parts = [draw(load) for _ in range(load.accumulation)]
            batch = StepBatch(
                [partial(task.loss, model, part) for part in parts],
                protocol.tokens_per_step,
                _both(found, on_phase),
                [partial(task.sampled_loss, model, part) for part in parts],
            )
            stepper.step(batch, 1.0)
            del parts, batch
        held.append(state_bytes(stepper.optimizers))
        reads, compiled = found.host_reads, compiled or bool(asked)
        libraries |= found.libraries
        for name, stretch in found.stretches.items():
            before = highest.get(name, stretch)
            upper = stretch if stretch.total > before.total else before
            highest[name] = replace(upper, most=_largest(before.most, stretch.most))
    return Seen(
        horizon=protocol.budget.steps,
        stretches={name: highest[name] for name in STRETCHES if name in highest},
        state_bytes=tuple(held),
        host_reads=reads,
        compiled=compiled,
        libraries=tuple(sorted(libraries)),
        wall_s=time.perf_counter() - start,
    )


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(value, other[name]) for name, value in one.items()}


def horizon(spec: OptimizerSpec, hparams: Mapping[str, Any]) -> int:
    """The longest run, up to `HORIZON`, whose first `STEPS` steps show a switch of the method.

    Periods are shares of the run: what happens once a period then happens with the state in place.
    """
    for steps in range(HORIZON, STEPS, -1):
        if any(0 < step < STEPS for step in spec.switches(hparams, steps)):
            return steps
    return HORIZON


def _both(found: Watch, on_phase: Callable[[str], None] | None) -> Callable[[str], None]:
    if on_phase is None:
        return found.phase

    def phase(name: str) -> None:
        found.phase(name)
        on_phase(name)

    return phase


def real_tokens(load: Workload) -> Tensor:
    """Random token ids on the default device."""
    shape = (load.batch, load.sequence + 1)
    return torch.randint(load.architecture.vocabulary, shape)


def _fake_tokens(load: Workload) -> Tensor:
    return torch.empty((load.batch, load.sequence + 1), dtype=torch.int64)


def fake_(model: nn.Module) -> None:
    """Replace weights and buffers by new fake ones of the same shapes, shared as they were.

    To be called inside the fake mode.
    """
    bases: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = _fake_like(tensor, bases)
                store[name] = made[id(tensor)]  # type: ignore[assignment]


def _fake_like(tensor: Tensor, bases: dict[int, Tensor]) -> Tensor:
    """Like a tensor, on a fake storage that stands for its own in `bases`."""
    storage = tensor.untyped_storage()
    elements = storage.nbytes() // max(1, tensor.element_size())
    key = storage._cdata
    if key not in bases:
        bases[key] = torch.empty((elements,), dtype=tensor.dtype, device="cpu")
    base = bases[key] if bases[key].dtype == tensor.dtype else bases[key].view(tensor.dtype)
    made = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


class DeclaredTarget(TorchFunctionMode):
    """Tensors say that they are on the target device."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._cuda = target == "cuda"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == _IS_CUDA:
            return self._cuda
        return func(*args, **(kwargs or {}))


@contextmanager
def _fakes_pass_for_real() -> Iterator[None]:
    """Libraries take another way if they see a fake tensor; the way of a real run is wanted.

    torch groups tensors of known types only; transformers makes an attention mask, which it leaves
    out of a real run after it has read that nothing is masked. Fake tensors can be read here.
    """
    from transformers.utils import import_utils

    known: list[Any] = _foreach_utils._foreach_supported_types
    log = logging.getLogger("torch._subclasses.fake_tensor")
    quiet = log.disabled
    seen = getattr(import_utils, "is_fake_tensor", None)
    known.append(FakeTensor)
    import_utils.is_fake_tensor = lambda _: False
    log.disabled = True  # a failure is told in the plan, without its traceback
    try:
        yield
    finally:
        log.disabled = quiet
        known.remove(FakeTensor)
        if seen is None:
            del import_utils.is_fake_tensor
        else:
            import_utils.is_fake_tensor = seen


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """Fills up with a name for each call of `torch.compile`."""
    asked: list[str] = []
    real = torch.compile

    def noted(*args: Any, **options: Any) -> Any:
        asked.append(getattr(args[0], "__name__", "a function") if args else "a function")
        return real(*args, **options)

    torch.compile = noted
    try:
        yield asked
    finally:
        torch.compile = real
