"""What tests of methods share: parameters, gradients with spread spectra, a driver of N steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench.spec import OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import BuildContext, Parameter

Array = np.ndarray[Any, np.dtype[np.float64]]

SHAPES: tuple[tuple[tuple[int, ...], Role], ...] = (
    ((6, 4), "matrix"),
    ((3, 8), "matrix"),
    ((5, 5), "matrix"),
    ((1, 7), "matrix"),
    ((11, 4), "embed"),
    ((11, 4), "head"),
    ((4,), "vector"),
    ((1,), "vector"),
)
"""A small model: rectangular both ways, square, one row, tables, vectors."""


def gradient(shape: tuple[int, ...], seed: int, decades: float = 3.0) -> Array:
    """A gradient whose singular values fall over `decades`; a vector's elements do likewise.

    The basis and the overall size vary with the seed, so that moments, signs and norms all move.
    """
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(-1.0, 1.0)
    if len(shape) < 2:
        count = math.prod(shape)
        values = rng.choice([-1.0, 1.0], count) * np.logspace(0.0, -decades, count)
        return np.asarray(size * rng.permutation(values).reshape(shape))
    rows, columns = shape[0], math.prod(shape[1:])
    rank = min(rows, columns)
    left = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    return np.asarray((left * (size * np.logspace(0.0, -decades, rank))) @ right.T).reshape(shape)


def gradients(shape: tuple[int, ...], steps: int, seed: int) -> list[Array]:
    """`steps` gradients with a common part, as in training: momentum has something to gather."""
    common = gradient(shape, 7_919 * (seed + 1))
    return [gradient(shape, 104_729 * (seed + 1) + t) + 0.5 * common for t in range(steps)]


def lr_scales(steps: int) -> list[float]:
    """A warm-up and a cosine: a rate that differs at every step."""
    warmup = max(1, steps // 5)
    return [
        min(1.0, (t + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * t / steps))
        for t in range(steps)
    ]


def parameters(
    shapes: Sequence[tuple[tuple[int, ...], Role]] = SHAPES,
    dtype: torch.dtype = torch.float32,
    roles: Sequence[Role] | None = None,
) -> tuple[Parameter, ...]:
    """Parameters of the given shapes, those of `roles` only; equal at every call."""
    generator = torch.Generator().manual_seed(20_240)
    found = []
    for index, (shape, role) in enumerate(shapes):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if roles is None or role in roles:
            info = ParamInfo(
                name=f"p{index}.{role}",
                shape=shape,
                role=role,
                dtype=str(dtype).removeprefix("torch."),
            )
            found.append(Parameter(info, nn.Parameter(values.to(dtype))))
    return tuple(found)


def context(
    params: Sequence[Parameter], total_steps: int = 24, model: nn.Module | None = None
) -> BuildContext:
    """What a spec's `build` gets; weight decay touches every role but `vector`."""
    return BuildContext(
        params=tuple(params),
        model=model or nn.Module(),
        total_steps=total_steps,
        warmup_steps=total_steps // 10,
        tokens_per_step=64,
        device_type="cpu",
        generator=torch.Generator().manual_seed(17),
    )


def build(
    spec: OptimizerSpec, params: Sequence[Parameter], **changes: Any
) -> tuple[torch.optim.Optimizer, Mapping[str, Any]]:
    """The spec's optimizer at its defaults with `changes`, and the hyper-parameters used."""
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    optimizer = spec.build(context(params), hparams)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer, hparams


def drive(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Parameter],
    steps: int,
    *,
    start: int = 0,
    total: int | None = None,
    scales: Sequence[float] | None = None,
    grad_of: Callable[[int, int], Array | None] | None = None,
) -> None:
    """Take steps `start`..`start + steps` with given gradients, the rate scaled at every step.

    Args:
        total: length of the whole sequence, for a drive in several parts.
        scales: factors on the base rates, one a step of the sequence; `lr_scales` if None.
        grad_of: (index of the parameter, step) -> gradient or None; `gradients` if None.
    """
    total = total or start + steps
    scales = scales or lr_scales(total)
    for group in optimizer.param_groups:
        group.setdefault("base_lr", float(group["lr"]))
    known = [
        [] if grad_of else gradients(tuple(param.tensor.shape), total, index)
        for index, param in enumerate(params)
    ]
    for t in range(start, start + steps):
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * scales[t]
        for index, param in enumerate(params):
            grad = grad_of(index, t) if grad_of else known[index][t]
            param.tensor.grad = None if grad is None else as_gradient(grad, param.tensor)
        optimizer.step()


def as_gradient(grad: Array, tensor: Tensor) -> Tensor:
    """A gradient in the parameter's dtype and memory layout, as autograd leaves it."""
    return torch.empty_like(tensor, requires_grad=False).copy_(torch.as_tensor(grad))


def values(params: Sequence[Parameter]) -> list[Tensor]:
    """Copies of the parameters' values."""
    return [param.tensor.detach().clone() for param in params]


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Every distinct tensor held in the state, however deep; 0-dim step counters left out.

    A 0-dim parameter's own moments are left out too: give methods no such parameter when bytes
    are counted.
    """
    seen: set[int] = set()

    def walk(value: Any) -> Iterator[Tensor]:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.dim() > 0:
                yield value
        elif isinstance(value, Mapping):
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list | tuple | set):
            for item in value:
                yield from walk(item)
        elif hasattr(value, "__dict__"):
            yield from walk(vars(value))

    for state in optimizer.state.values():
        yield from walk(state)


def measured_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(optimizer))
