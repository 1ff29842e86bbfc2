"""Adafactor: Adam's second moment kept as the sums of its rows and columns.

    w   = t^d2                              weight of the new gradient, 1 - b2 at step t
    R  <- (1 - w) R + w * mean of g^2 over columns;   C likewise over rows
    V   = R C / max(mean(R), eps1)          vectors keep V itself: V <- (1 - w) V + w g^2
    U   = g / sqrt(max(V, eps1^2))
    rho = min(lr, 1 / sqrt(t));   a = max(eps2, RMS(p)) * rho
    p  <- (1 - lr wd) p
    p  <- p - a * U / max(1, RMS(U) / d)

d2: `beta2_decay`; d: `clip`; wd: `weight_decay`; eps1 None: the machine epsilon of the
parameter's dtype; t: step, from 1; RMS(p) is that before the decay. Tensors of more than two
dimensions are factored along the last two, a matrix for each index of the others.

Paper: Noam Shazeer, Mitchell Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
Cost", https://arxiv.org/abs/1804.04235, 2018. Code: torch.optim.Adafactor (BSD-3-Clause).
Defaults: torch's, which are the paper's: lr 1e-2, beta2_decay -.8, d 1, eps2 1e-3, no momentum.

What `lr` means: the cap of a relative step. The step is never longer than 1 / sqrt(t) and is
multiplied by the size of the parameter itself. The protocol's schedule scales the cap, not the
1 / sqrt(t): where lr * factor > 1 / sqrt(t), the schedule and lr have no effect (at lr 1e-2 from
step 10,000 on, at lr 1e-1 from step 100 on), except on the decay, which uses lr alone.

State: R and C (V for vectors) in the gradient's dtype. In bfloat16 these averages stall after
about a thousand steps, when w falls below the dtype's resolution.

Host reads: two a parameter and step, RMS(p) and RMS(U), made by torch; on an accelerator each one
waits for the device. `foreach` None leaves the choice to torch: a loop on the CPU, grouped
kernels on CUDA (faster, but it holds every U at once). Empty tensors are refused by torch.

Deviations from the paper, all torch's: eps1 is a floor instead of being added to g^2; R and C are
means, not sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """torch's Adafactor over the context's parameters."""
    return torch.optim.Adafactor(
        ctx.groups(hparams),
        beta2_decay=hparams["beta2_decay"],
        eps=(hparams["eps1"], hparams["eps2"]),
        d=hparams["clip"],
        foreach=hparams["foreach"],
    )


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """A row and a column for every matrix, the whole tensor for vectors."""
    return sum(_state_numel(param.shape) * param.itemsize for param in owners(params))


def _state_numel(shape: tuple[int, ...]) -> int:
    if len(shape) < 2:
        return math.prod(shape)
    return math.prod(shape[:-2]) * (shape[-2] + shape[-1])


SPEC = OptimizerSpec(
    name="adafactor",
    family="adaptive",
    summary="Factored second moment, step relative to the size of the parameter",
    paper="Shazeer & Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018, "
    "https://arxiv.org/abs/1804.04235",
    code="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/_adafactor.py",
    licence="BSD-3-Clause",
    implementation="torch",
    build=build,
    space={
        "lr": space.log(1e-3, 1.0, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta2_decay": -0.8,
        "eps1": None,
        "eps2": 1e-3,
        "clip": 1.0,
        "weight_decay": 0.0,
        "foreach": None,
    },
    state_bytes=state_bytes,
    cannot=("empty", "sharding"),
)
