"""Shampoo: momentum between the inverse fourth roots of its two second moments, at Adam's size.

For every block of at most `max_preconditioner_dim` rows and columns, with gradient G at step t:

    L <- b2 L + (1 - b2) G G^T               R <- b2 R + (1 - b2) G^T G      b2 = 1: plain sums
    M <- b1 M + (1 - b1) G                   v <- bg v + (1 - bg) G^2
    A  = (M / (1 - b1^t)) / (sqrt(v / (1 - bg^t)) + graft_eps)               Adam's direction
    D  = A                                   before step S
    D  = P M Q * |A| / (|P M Q| + 1e-16)     from step S on; |.|: Frobenius norm of the block
    p <- (1 - lr wd) p - lr D

    at step S and at every later multiple of T, before D:
    P = (L / (1 - b2^t) + eps I)^-e          Q = (R / (1 - b2^t) + eps I)^-e

b1, b2, bg: `beta1`, `beta2`, `graft_beta2`; e: `exponent`, a quarter for the two sides of a matrix;
wd: `weight_decay`. If rounding leaves negative eigenvalues, the spectrum is lifted by the lowest of
them before eps is added. The size of a step is Adam's whatever L and R are, so Adam's rates serve.

T = `refresh_fraction` * total_steps and S = `start_fraction` * total_steps, in whole steps, at
least one. The reference recommends T = 100 (1 is the pure method, thousands its bound) and S = T;
a fortieth of the horizon is 10 steps of 400, and 100 of 4,000. `refreshes` counts the steps at
which roots are computed.

State, unpacked: for every block of [a, b], L, R, P and Q of 4 (2 a^2 + 2 b^2) bytes in float32, and
M and v in the parameter's dtype. The reference can store symmetric matrices as triangles, half.

Paper: Hao-Jun Michael Shi, Tsung-Hsien Lee, Shintaro Iwasaki, Jose Gallego-Posada, Zhijing Li,
Kaushik Rangadurai, Dheevatsa Mudigere, Michael Rabbat, "A Distributed Data-Parallel PyTorch
Implementation of the Distributed Shampoo Optimizer for Training Neural Networks At-Scale",
https://arxiv.org/abs/2309.06497, 2023; the method is of Vineet Gupta, Tomer Koren, Yoram Singer,
"Shampoo: Preconditioned Stochastic Tensor Optimization", https://arxiv.org/abs/1802.09568, 2018.
Reference code: https://github.com/facebookresearch/optimizers @ f6066066, distributed_shampoo
(BSD-3-Clause).
Defaults: those of its README for what takes over from AdamW: lr 1e-3, betas (.9, .999), eps 1e-12,
weight decay 1e-5, blocks up to 8192, Adam grafting with beta2 .999 and eps 1e-8.

It takes the hidden matrices, as the reference advises for language models; embedding, head and
vectors go to the protocol's fallback; `embed_multiplier` acts on the fallback's rate.

Deviations:
- A root that fails in float32 and in float64 keeps the one before, without the reference's limit
  of three: only non-finite gradients do that, and they end a run anyway.
- M between the roots is not divided by 1 - b1^t: grafting cancels it.
- Small dimensions are not merged: a tensor of more than two is taken as [first, the others].
- Weight decay is decoupled only, as for AdamW; momentum after preconditioning, iterate averaging
  and packed factors are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._curvature import (
    as_matrix,
    eigh,
    factor_dtype,
    factor_itemsize,
    matrix_shape,
    period_of,
    restore_state,
)
from levelfield.optimizers._ops import adam_direction, decay_, descend_, moments_


def cut(rows: int, columns: int, size: int) -> list[tuple[slice, slice]]:
    """A matrix as blocks of at most `size` rows and columns, row by row."""
    return [
        (slice(top, min(top + size, rows)), slice(left, min(left + size, columns)))
        for top in range(0, rows, size)
        for left in range(0, columns, size)
    ]


def inverse_root(matrix: Tensor, exponent: float, eps: float) -> Tensor | None:
    """(A + eps I)^-exponent of a symmetric matrix; None if its eigenvalues cannot be found."""
    found = eigh(matrix)
    if found is None:
        return None
    values, vectors = found
    values = values - values.amin().clamp(max=0.0) + eps
    return (vectors * values.pow(-exponent)) @ vectors.mT


def accumulate_(factor: Tensor, side: Tensor, beta: float) -> None:
    """F <- beta F + (1 - beta) S S^T for a side S [d, ..]; a plain sum if beta is 1."""
    factor.addmm_(side, side.mT, beta=beta, alpha=1.0 if beta == 1.0 else 1.0 - beta)


class Shampoo(torch.optim.Optimizer):
    """For hidden matrices. `lr` is that of the Adam whose size a step takes.

    `period` and `start` are in steps of a parameter, counted from 1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-12,
        exponent: float = 0.25,
        graft_beta2: float = 0.999,
        graft_eps: float = 1e-8,
        max_preconditioner_dim: int = 8192,
        period: int = 100,
        start: int = 100,
        weight_decay: float = 0.0,
    ) -> None:
        for name, beta in (("beta1", beta1), ("graft_beta2", graft_beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if not 0.0 < beta2 <= 1.0:
            raise ValueError(f"beta2 is {beta2}: 0 < beta2 <= 1 is needed")
        whole = {
            "max_preconditioner_dim": max_preconditioner_dim,
            "period": period,
            "start": start,
        }
        for name, value in whole.items():
            if value < 1:
                raise ValueError(f"{name} is {value}: at least 1 is needed")
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "exponent": exponent}
        graft = {"graft_beta2": graft_beta2, "graft_eps": graft_eps}
        super().__init__(params, {**defaults, **graft, **whole, "weight_decay": weight_decay})
        self.refreshes = 0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dim() < 2:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)}: Shampoo takes matrices, "
                    "give vectors to another optimizer"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refreshed = False
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None or param.numel() == 0:
                    continue
                state = self.state[param]
                if not state:
                    _start(state, param, group["max_preconditioner_dim"])
                refreshed |= _step(param, param.grad, state, group)
        self.refreshes += refreshed
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "refreshes": self.refreshes}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        restore_state(self, state_dict)
        self.refreshes = state_dict["refreshes"]


def _start(state: dict[str, Any], param: Tensor, size: int) -> None:
    state["step"] = 0
    state["momentum"] = torch.zeros_like(param)
    state["graft_sq"] = torch.zeros_like(param)
    blocks = []
    for rows, columns in cut(*matrix_shape(tuple(param.shape)), size):
        block: dict[str, Tensor] = {}
        for name, side in (("left", rows), ("right", columns)):
            length = side.stop - side.start
            eye = torch.eye(length, dtype=factor_dtype(param), device=param.device)
            block |= {name: torch.zeros_like(eye), f"{name}_root": eye}
        blocks.append(block)
    state["blocks"] = blocks


def _step(param: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> bool:
    """One step of one parameter; says whether its roots were computed."""
    state["step"] += 1
    step, beta2 = int(state["step"]), group["beta2"]
    start, period = int(group["start"]), int(group["period"])
    refresh = step == start or (step > start and step % period == 0)
    m, v = state["momentum"], state["graft_sq"]
    beta1, graft_beta2 = group["beta1"], group["graft_beta2"]
    moments_(m, v, grad, beta1, graft_beta2)
    adam = adam_direction(m, v, step, beta1, graft_beta2, group["graft_eps"])
    gradient, momentum, direction = as_matrix(grad), as_matrix(m), as_matrix(adam)
    result = torch.empty_like(direction)
    places = cut(*matrix_shape(tuple(param.shape)), group["max_preconditioner_dim"])
    for block, place in zip(state["blocks"], places, strict=True):
        part = gradient[place]
        accumulate_(block["left"], part, beta2)
        accumulate_(block["right"], part.mT, beta2)
        if refresh:
            correction = 1.0 if beta2 == 1.0 else 1.0 - beta2**step
            for name in ("left", "right"):
                root = inverse_root(block[name] / correction, group["exponent"], group["eps"])
                if root is not None:
                    block[f"{name}_root"] = root
        if step < start:
            result[place] = direction[place]
            continue
        turned = block["left_root"] @ momentum[place] @ block["right_root"]
        result[place] = turned * (direction[place].norm() / (turned.norm() + 1e-16))
    decay_(param, group["lr"], group["weight_decay"])
    descend_(param, result.to(param.dtype).reshape(param.shape), group["lr"])
    return refresh


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Momentum and Adam's v, and four square matrices a block."""
    total = 0
    for info in owners(params):
        total += 2 * info.nbytes
        if info.numel == 0:
            continue
        for rows, columns in cut(*matrix_shape(info.shape), hparams["max_preconditioner_dim"]):
            sides = (rows.stop - rows.start) ** 2 + (columns.stop - columns.start) ** 2
            total += 2 * factor_itemsize(info) * sides
    return total


def refresh_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, at which roots are computed."""
    start = period_of(hparams["start_fraction"], total_steps)
    period = period_of(hparams["refresh_fraction"], total_steps)
    first = period * (math.floor(start / period) + 1)
    steps = (start, *range(first, total_steps + 1, period))
    return tuple(step - 1 for step in steps if step <= total_steps)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Shampoo:
    same = ("beta1", "beta2", "eps", "exponent", "graft_beta2", "graft_eps")
    return Shampoo(
        ctx.groups(hparams),
        max_preconditioner_dim=hparams["max_preconditioner_dim"],
        period=period_of(hparams["refresh_fraction"], ctx.total_steps),
        start=period_of(hparams["start_fraction"], ctx.total_steps),
        **{name: hparams[name] for name in same},
    )


SPEC = OptimizerSpec(
    name="shampoo",
    family="curvature",
    summary="Momentum between inverse fourth roots of its two second moments, at Adam's size",
    paper="Shi et al., A Distributed Data-Parallel PyTorch Implementation of the Distributed "
    "Shampoo Optimizer for Training Neural Networks At-Scale, 2023, "
    "https://arxiv.org/abs/2309.06497",
    code="https://github.com/facebookresearch/optimizers @ f6066066",
    licence="BSD-3-Clause",
    roles=("matrix",),
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-12,
        "exponent": 0.25,
        "graft_beta2": 0.999,
        "graft_eps": 1e-8,
        "max_preconditioner_dim": 8192,
        "refresh_fraction": 0.025,
        "start_fraction": 0.025,
        "weight_decay": 1e-5,
    },
    state_bytes=state_bytes,
    refreshes="steps at which the inverse roots are computed",
    switches=refresh_steps,
    cannot=("sharding",),
)
