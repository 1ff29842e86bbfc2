"""Weights and gradients that the authors' code and ours were both given, and what is kept of a run.

All of it comes from numpy's RandomState, whose stream is frozen, and needs no decomposition: the
same float32 numbers everywhere. Rows and columns of a gradient have sizes over two decades each, so
that its singular values are spread; every gradient has a part in common with the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench.spec import ParamInfo, Role
from levelfield.bench.stepper import Parameter

Array = np.ndarray[Any, np.dtype[Any]]

SHAPES: tuple[tuple[tuple[int, ...], Role], ...] = (
    ((24, 10), "matrix"),
    ((10, 24), "matrix"),
    ((12, 12), "matrix"),
    ((9, 30), "matrix"),
    ((20, 14), "matrix"),
    ((13, 16), "matrix"),
    ((15, 8), "embed"),
    ((15, 8), "head"),
    ((10,), "vector"),
)
KEPT = 64
"""Entries of a weight that are kept, evenly over it."""


def draw(shape: Sequence[int], seed: int) -> Array:
    """Normal numbers, each row and each column of a size of its own, float64."""
    rng = np.random.RandomState(seed)
    values = rng.standard_normal(tuple(shape)) * 10 ** rng.uniform(-0.5, 0.5)
    for axis, length in enumerate(shape):
        sizes = 10 ** rng.uniform(-1.0, 1.0, length)
        values = values * sizes.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.asarray(values)


def gradient(index: int, step: int) -> Array:
    """Of the parameter with this number, float32."""
    shape = SHAPES[index][0]
    common = draw(shape, 900_000 + index)
    return (draw(shape, 1000 * (index + 1) + step) + 0.5 * common).astype(np.float32)


def factor(step: int, steps: int) -> float:
    """Of the rate: a warm-up over a fifth and a cosine."""
    warmup = max(1, steps // 5)
    return min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def parameters() -> tuple[Parameter, ...]:
    """Float32 weights of size one."""
    found = []
    for index, (shape, role) in enumerate(SHAPES):
        value = np.random.RandomState(77 + index).standard_normal(shape).astype(np.float32)
        info = ParamInfo(name=f"p{index}.{role}", shape=shape, role=role)
        found.append(Parameter(info, nn.Parameter(torch.from_numpy(value))))
    return tuple(found)


def groups(
    params: Sequence[Parameter], lr: float, weight_decay: float
) -> Iterator[tuple[Role, dict[str, Any]]]:
    """A group a role for a class of others: decay on all but vectors."""
    for role in dict.fromkeys(param.info.role for param in params):
        members = [param.tensor for param in params if param.info.role == role]
        decay = 0.0 if role == "vector" else weight_decay
        yield role, {"params": members, "lr": lr, "weight_decay": decay}


def permutation(call: int, length: int) -> Tensor:
    """In place of the random numbers of a method: a permutation for its `call`-th draw."""
    return torch.from_numpy(np.random.RandomState(5_000 + call).permutation(length))


def normal(position: int, number: int, shape: Sequence[int]) -> Tensor:
    """In place of the random numbers of a method: for a parameter (from 1), its draws from 1."""
    rng = np.random.RandomState(100_000 + 1000 * position + number)
    return torch.from_numpy(rng.standard_normal(tuple(shape)).astype(np.float32))


def fixed_signs(vectors: Tensor, dim: int) -> Tensor:
    """Singular vectors along `dim` with their largest element positive: LAPACKs differ in signs."""
    largest = vectors.abs().argmax(dim, keepdim=True)
    return vectors * vectors.gather(dim, largest).sign()


def drive(optimizer: torch.optim.Optimizer, params: Sequence[Parameter], steps: int) -> Any:
    """Take all steps; what is kept of the weights: norms at four moments, entries at the end."""
    base = [float(group["lr"]) for group in optimizer.param_groups]
    norms: list[list[float]] = [[] for _ in params]
    for step in range(steps):
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * factor(step, steps)
        for index, param in enumerate(params):
            param.tensor.grad = torch.from_numpy(gradient(index, step))
        optimizer.step()
        if (step + 1) % max(1, steps // 4) == 0:
            for kept, param in zip(norms, params, strict=True):
                kept.append(float(param.tensor.detach().double().norm()))
    return [
        {
            "name": param.info.name,
            "shape": list(param.info.shape),
            "norms": [_digits(x) for x in kept],
            "entries": [_digits(x) for x in entries(param.tensor)],
        }
        for kept, param in zip(norms, params, strict=True)
    ]


def entries(tensor: Tensor) -> list[float]:
    flat = tensor.detach().double().flatten()
    at = np.linspace(0, flat.numel() - 1, min(KEPT, flat.numel())).round().astype(int)
    return [float(flat[i]) for i in at]


def _digits(x: float) -> float:
    return float(f"{x:.9g}")


def fingerprint() -> list[float]:
    """Of the inputs: their sums, so that a stream that differs is told from a method that does."""
    found = [float(np.float64(gradient(index, 3)).sum()) for index in range(len(SHAPES))]
    return [
        _digits(x)
        for x in (*found, *(float(p.tensor.detach().double().sum()) for p in parameters()))
    ]


def read(name: str) -> Mapping[str, Any]:
    """The numbers that are kept under a name."""
    file = Path(__file__).with_name(f"{name}.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def worst(found: Any, kept: Any) -> float:
    """Largest difference of weights and of norms, each relative to one plus its size."""
    largest = 0.0
    for one, other in zip(found, kept, strict=True):
        assert (one["name"], one["shape"]) == (other["name"], other["shape"])
        for field in ("entries", "norms"):
            a, b = np.asarray(one[field]), np.asarray(other[field])
            largest = max(largest, float((np.abs(a - b) / (1 + np.abs(b))).max()))
    return largest
