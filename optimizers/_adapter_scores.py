"""Which modules gain a rank: importance times uncertainty, as AdaLoRA's line of methods has it.

I <- b1 I + (1 - b1) s        s: the module's sensitivity in this step
U <- b2 U + (1 - b2) |s - I|  (with the I just updated)
score = I * U
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.spec import BenchError, ParamInfo
from levelfield.optimizers._adapter import count_modules

SIGNALS = ("both", "importance", "uncertainty", "random")
FLOAT32 = 4
"""Bytes."""


def averages(modules: int, device: torch.device) -> dict[str, Tensor]:
    """The two running averages, [modules] each, in fp32."""
    zeros = torch.zeros(modules, device=device)
    return {"importance": zeros, "uncertainty": zeros.clone()}


def averages_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Claimed bytes of both."""
    return 2 * FLOAT32 * count_modules(params)


def update_averages(
    kept: Mapping[str, Tensor], sensitivity: Tensor, beta1: float, beta2: float
) -> None:
    """Take in the sensitivities of a step, [modules]."""
    importance, uncertainty = kept["importance"], kept["uncertainty"]
    importance.mul_(beta1).add_(sensitivity, alpha=1.0 - beta1)
    uncertainty.mul_(beta2).add_((sensitivity - importance).abs(), alpha=1.0 - beta2)


def scores(kept: Mapping[str, Tensor], signal: str, draw: random.Random) -> list[float]:
    """A score a module; here the host reads them.

    Raises:
        BenchError: an unknown signal.
    """
    importance, uncertainty = kept["importance"], kept["uncertainty"]
    if signal == "random":
        return [draw.random() for _ in range(len(importance))]
    made = {"both": importance * uncertainty, **kept}
    if signal not in made:
        raise BenchError(f"signal={signal!r}", f"accepted: {', '.join(SIGNALS)}")
    return [float(value) for value in made[signal].tolist()]


def promoted(
    values: Sequence[float], ranks: Sequence[int], *, cap: int, budget: int, most: int
) -> list[int]:
    """The modules that gain a rank: highest scores first, the first module first among equals.

    Args:
        values: a score a module.
        ranks: of the modules now.
        cap: most ranks of one module.
        budget: most ranks together; it is never exceeded.
        most: modules at once.
    """
    room = max(0, min(most, budget - sum(ranks)))
    able = [index for index, rank in enumerate(ranks) if rank < cap]
    return sorted(able, key=lambda index: (-values[index], index))[:room]


def period(hparams: Mapping[str, Any], total_steps: int) -> int:
    """Steps between two growths: `interval` of the horizon, at least one."""
    return max(1, round(float(hparams["interval"]) * total_steps))


def at_once(hparams: Mapping[str, Any], missing: int) -> int:
    """Modules that grow together: `share` of the components that are to come, at least one."""
    return max(1, round(float(hparams["share"]) * missing))


def growth_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """Steps after which a rank may grow, until the budget is reached."""
    every = period(hparams, total_steps)
    return tuple(range(2 * every, total_steps, every))
