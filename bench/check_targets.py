"""Checks that a method descends: on a language model, and on functions with a known shape.

The functions are least squares over bare parameters. A method whose own stepper cannot drive those
is tried on the tiny language model instead, and the line says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from levelfield.bench.check_bare import Bare, Target
from levelfield.bench.check_bench import PROTOCOL, Bench, Failure, randn
from levelfield.bench.spec import OptimizerSpec, Role

STEPS = 120
"""Of a run on a function: some of the scales tried are far too small for fewer."""
LEARNED, LEARNED_BESIDE = 0.3, 0.03
"""Nats by which the tiny model's loss must fall; of an adapter, beside weights that are random and
stay so."""
FALL = 0.5
"""The last loss, as a share of the first, that counts as having descended."""


def _scales(spec: OptimizerSpec, factors: tuple[float, ...]) -> Iterator[float]:
    dim = spec.space[spec.scale]
    values = (min(max(dim.default * f, dim.bounds[0]), dim.bounds[1]) for f in factors)
    yield from dict.fromkeys(values)


def learns(spec: OptimizerSpec) -> str:
    """The loss of the tiny model falls at one of five scales around the default."""
    seen = {}
    least = LEARNED if spec.adapter is None else LEARNED_BESIDE
    for value in _scales(spec, (1.0, 10.0, 0.1, 100.0, 0.01)):
        losses = Bench(spec, {**spec.defaults(), spec.scale: value}).take(PROTOCOL.budget.steps)
        seen[value] = losses[-1]
        if math.isfinite(losses[-1]) and losses[-1] < losses[0] - least:
            return f"{losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps at {value:g}"
    tried = ", ".join(f"{value:g}: {loss:.2f}" for value, loss in seen.items())
    raise Failure(f"the loss does not fall by {least:g} at any {spec.scale} tried ({tried})")


def convex(spec: OptimizerSpec) -> str:
    """A quadratic whose curvature spreads over two decades."""
    return _descends(spec, _quadratic)


def rosenbrock(spec: OptimizerSpec) -> str:
    """Four curved valleys side by side, from the usual start."""
    return _descends(spec, _rosenbrock)


def matrix(spec: OptimizerSpec) -> str:
    """Least squares over a rectangular matrix."""
    return _descends(spec, _matrix)


def mixed(spec: OptimizerSpec) -> str:
    """A table, a matrix and a vector in one."""
    return _descends(spec, mixed_target)


def _descends(spec: OptimizerSpec, make: Callable[[OptimizerSpec], Target]) -> str:
    seen: dict[float, float] = {}
    for value in _scales(spec, (1.0, 10.0, 100.0, 0.1, 1000.0, 0.01)):
        hparams = {**spec.defaults(), spec.scale: value}
        try:
            bare = Bare(spec, make(spec), hparams=hparams, steps=STEPS)
            first = bare.loss()
            bare.take(STEPS)
        except Exception as error:
            if Bench(spec, spec.defaults()).plain:
                raise
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"on the tiny LM, as bare parameters do not do ({line}): {learns(spec)}"
        last = bare.loss()
        seen[value] = last
        if last < FALL * first:  # false for NaN
            return f"{first:.3g} to {last:.3g} in {STEPS} steps at {value:g}"
    tried = ", ".join(f"{value:g}: {loss:.3g}" for value, loss in seen.items())
    raise Failure(f"{first:.3g} is not halved at any {spec.scale} tried ({tried})")


def _parameter(spec: OptimizerSpec, value: Tensor) -> dict[str, tuple[Role, Tensor]]:
    """One parameter of a role that the method takes; elements as given, in any other shape."""
    if "vector" in spec.roles:
        return {"w": ("vector", value.float())}
    return {"w": (spec.roles[0], value.float().reshape(2, -1))}


def _quadratic(spec: OptimizerSpec) -> Target:
    root = torch.logspace(0.0, -1.0, 12)

    def residual(p: Mapping[str, Tensor]) -> Tensor:
        return (root * (p["w"].reshape(-1) - 1.0)).reshape(1, -1)

    return Target(_parameter(spec, randn(12)), residual)


def _rosenbrock(spec: OptimizerSpec) -> Target:
    def residual(p: Mapping[str, Tensor]) -> Tensor:
        x, y = p["w"].reshape(2, 4)
        return torch.stack([10.0 * (y - x.square()), 1.0 - x]).mT

    start = torch.tensor([[-1.2, -0.8, 0.4, -1.0], [1.0, 0.5, -0.3, 1.2]]).reshape(-1)
    return Target(_parameter(spec, start), residual)


def _matrix(spec: OptimizerSpec) -> Target:
    role: Role = "matrix" if "matrix" in spec.roles else spec.roles[0]
    inputs, truth = randn(20, 6).float(), randn(6, 10, seed=1).float()

    def residual(p: Mapping[str, Tensor]) -> Tensor:
        return inputs @ (p["w"].reshape(6, 10) - truth)

    start = torch.zeros(60) if role == "vector" else torch.zeros(6, 10)
    return Target({"w": (role, start)}, residual)


def mixed_target(spec: OptimizerSpec) -> Target:
    """12 rows: a table's row through a matrix, plus a vector. One row of the table is not used."""
    return _tables(rows=6, used=5, outputs=7, dtype=torch.float32)


def exact_target() -> Target:
    """The same in float64, square and with gradients of full rank.

    Where singular values are zero, their vectors are rounding: a method that divides by them turns
    a change of the last bit into another step, and no comparison of two ways could hold.
    """
    return _tables(rows=4, used=4, outputs=4, dtype=torch.float64)


def _tables(rows: int, used: int, outputs: int, dtype: torch.dtype) -> Target:
    index = torch.arange(12) * used // 12  # unlike in every part of the batch
    table, vector = randn(rows, 4), randn(outputs)
    truth = (table[index] @ randn(outputs, 4, seed=3).mT + vector).to(dtype)

    def residual(p: Mapping[str, Tensor]) -> Tensor:
        return p["table"][index] @ p["matrix"].mT + p["vector"] - truth

    # Most of the way is the matrix's: a fallback's rate, for the rest, is not what is tuned here.
    return Target(
        {
            "table": ("embed", (table + 0.1 * randn(rows, 4, seed=4)).to(dtype)),
            "matrix": ("matrix", 0.1 * randn(outputs, 4, seed=5).to(dtype)),
            "vector": ("vector", (vector + 0.1 * randn(outputs, seed=6)).to(dtype)),
        },
        residual,
    )
