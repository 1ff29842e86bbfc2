"""What part of the matrices is state-full in FRUGAL, when that changes, and what it weighs.

All of it follows from sizes and progress: no tensor is looked at.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levelfield.bench.spec import ParamInfo
from levelfield.optimizers._claims import owners

_SLACK = 1e-9
"""Forgives the rounding of products such as .29 * 100 and .05 * 140."""


def count_columns(rho: float, columns: int) -> int:
    """State-full columns of a matrix: floor(rho * columns)."""
    return min(columns, math.floor(rho * columns + _SLACK))


def count_blocks(rho: float, matrices: int) -> int:
    """State-full matrices: round(rho * matrices), halves to even as in the reference code."""
    return min(matrices, round(rho * matrices))


def count_rank(rho: float, shape: Sequence[int]) -> int:
    """Directions of a matrix [.., n] taken as [m, n]: round(rho * min(m, n)), halves to even."""
    return round(rho * min(math.prod(shape[:-1]), shape[-1]))


def periods_over(elapsed: float, period: float) -> int:
    """Whole periods that are over when the step that ends at `elapsed` begins to count.

    The step that ends exactly with a period still belongs to it.
    """
    return max(0, math.ceil(elapsed / period - _SLACK) - 1)


def select_blocks(
    matrices: int, active: int, order: str, start: int, seed: int, number: int
) -> list[int]:
    """Positions of the state-full matrices.

    Args:
        start: matrices that earlier windows have gone over (for the orders that slide).
        seed, number: what the random order is drawn from; `number` counts selections from 0.
    """
    if order == "random":
        return random.Random(f"{seed}/{number}").sample(range(matrices), active)
    window = range(start, start + active)
    if order == "descending":
        return [-(1 + position) % matrices for position in window]
    return [position % matrices for position in window]


# --- claims: what is held follows from rho, and for blocks from the position of the window --------


def held_bytes(
    params: Sequence[ParamInfo],
    hparams: Mapping[str, Any],
    rho: float,
    window: tuple[int, int] | None,
) -> int:
    """Bytes while a share `rho` of the matrices is state-full.

    Args:
        window: where blocks begin and the number of the selection; None: the largest ones, a bound.
    """
    owned = list(owners(params))
    matrices = [info for info in owned if info.role == "matrix" and len(info.shape) > 1]
    total = 2 * (sum(info.nbytes for info in owned) - sum(info.nbytes for info in matrices))
    if hparams["selection"] == "block":
        active = count_blocks(rho, len(matrices))
        if window is None:
            return total + 2 * sum(
                sorted((info.nbytes for info in matrices), reverse=True)[:active]
            )
        start, number = window
        order, seed = hparams["block_order"], hparams["block_seed"]
        chosen = select_blocks(len(matrices), active, order, start, seed, number)
        return total + 2 * sum(matrices[position].nbytes for position in chosen)
    for info in matrices:
        rows, columns = math.prod(info.shape[:-1]), info.shape[-1]
        if hparams["selection"] == "svd":
            rank = count_rank(rho, info.shape)
            total += rank * (2 * max(rows, columns) + min(rows, columns)) * info.itemsize
        else:
            count = count_columns(rho, columns)
            total += 2 * rows * count * info.itemsize + 8 * count
    return total


def held_at(
    params: Sequence[ParamInfo],
    hparams: Mapping[str, Any],
    progress: float,
    share: Callable[[float], float],
) -> int:
    """Bytes after the step that ends at `progress`, refreshes coming at every `refresh_fraction`.

    Args:
        share: rho of a selection that begins at a progress.
    """
    period = hparams["refresh_fraction"]
    number = periods_over(progress, period)
    matrices = sum(info.role == "matrix" and len(info.shape) > 1 for info in owners(params))
    start = sum(count_blocks(share(i * period), matrices) for i in range(number))
    return held_bytes(params, hparams, share(number * period), (start, number))


def refresh_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, that begin with a refresh."""
    period = hparams["refresh_fraction"] * total_steps
    numbers = [periods_over(step + 1, period) for step in range(total_steps)]
    return tuple(step for step in range(1, total_steps) if numbers[step] > numbers[step - 1])
