"""PSGD-Kron: momentum whitened by a Kronecker product of triangular matrices, fitted as it goes.

For a matrix p with gradient G at step t (U, V: Q of rows and of columns, upper triangular):

    m <- b1 m + (1 - b1) G;    M = m / (1 - b1^t)
    at the steps of the schedule, with Z drawn from N(0, 1) and X = M + sqrt(2^-23) mean|M| Z:
        A = U X V^T            B = U^-T Z V^-1
        U <- U - mu triu(A A^T - B B^T) / |A A^T + B B^T| U
        V <- V - mu triu(A^T A - B^T B) / |A^T A + B^T B| V
    D = U^T U M V^T V                        whitened: about one on every scale
    D <- D min(1, clip / RMS(D))
    p <- (1 - lr wd) p - lr D

b1: `beta1`; mu: `precond_lr`; clip: `clip_rms`; wd: `weight_decay`; |.|: the spectral norm's lower
bound from the largest column, max|.| for a diagonal Q. Q starts at the identity times
`init_scale` in all. `momentum_into_precond` False puts G for M into X. Every `balance_every`
updates the two Q of a matrix are scaled to equal largest elements, which leaves D as it is.

Schedule: an update when the steps since the last one reach 1 / probability, which is `max_prob`
for `flat_fraction` of the run and then falls by a factor e every `anneal_fraction` of it down to
`min_prob`. The code's 500 steps and 1,000 steps are these shares of a run of 4,000, in which its
schedule falls from 1 to .03; `refreshes` counts the updates, all parameters at once.

Which Q are diagonal: those of vectors, of sides of one element or of more than
`max_size_triangular`, and with `table_sides` "hidden" the vocabulary's side of embedding and head:
at the usual vocabularies of over 8,192 the code has it so, and so it is at every size here. "both"
is the code's rule. Thus it takes every role, as the code does.

State: m in the parameter's dtype; Q in float32, triangular ones stored in full.

Paper: Xi-Lin Li, "Preconditioned Stochastic Gradient Descent", https://arxiv.org/abs/1512.04202,
2015; in this form Omead Pooladzandi, Xi-Lin Li, "Curvature-Informed SGD via General Purpose
Lie-Group Preconditioners", https://arxiv.org/abs/2402.04553, 2024.
Reference code: https://github.com/evanatyourservice/kron_torch/blob/884427c3/kron_torch/kron.py
(CC-BY-4.0), after https://github.com/lixilinx/psgd_torch.
Defaults: that code's: lr 3e-4 ("around 3x smaller than adam's"), beta1 .9, no weight decay,
precond_lr .1, clip 1.1.

Deviations:
- Z comes from the method's own generator, and balancing is every tenth update instead of each with
  a chance of .01 (which 400 steps would hardly meet): it changes nothing but rounding.
- X is a copy: the code adds its noise to M itself, 3e-4 of it, before it is preconditioned.
- A tensor of more than two dimensions is taken as [first, the others]; the code merges to the
  squarest matrix. `smart_one_diag` and its like are left out.
pytorch-optimizer's Kron draws from the global generators and asks the host for the probability.
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
    factor_dtype,
    factor_itemsize,
    matrix_shape,
    restore_state,
)
from levelfield.optimizers._ops import decay_, descend_

TABLE_SIDES = ("hidden", "both")


def probability(
    step: int, max_prob: float, min_prob: float, flat_steps: float, anneal_steps: float
) -> float:
    """Of an update at step `step`, counted from 0."""
    fall = max(0.0, step - flat_steps) / anneal_steps
    return max(min_prob, max_prob * math.exp(-fall))


def triangular_sides(
    shape: tuple[int, ...], role: str, max_size: int, table_sides: str
) -> list[tuple[int, bool]]:
    """(size, whether its Q is triangular) of every side: one of a vector, two of a matrix."""
    if len(shape) < 2:
        return [(math.prod(shape), False)]
    table = role in ("embed", "head") and table_sides == "hidden"
    return [
        (size, 1 < size <= max_size and not (table and side == 0))
        for side, size in enumerate(matrix_shape(shape))
    ]


def left(q: Tensor, matrix: Tensor) -> Tensor:
    """Q M, for a triangular Q [d, d] or the diagonal [d] of one."""
    return q @ matrix if q.dim() == 2 else q.unsqueeze(1) * matrix


def left_solve_t(q: Tensor, matrix: Tensor) -> Tensor:
    """Q^-T M."""
    if q.dim() == 2:
        solved: Tensor = torch.linalg.solve_triangular(q.mT, matrix, upper=False)
        return solved
    return matrix / q.unsqueeze(1)


def norm_lower_bound(symmetric: Tensor) -> Tensor:
    """A lower bound of the spectral norm, from one power iteration on the largest column."""
    largest = symmetric.abs().amax()
    scaled = symmetric / largest
    column = scaled.index_select(1, scaled.square().sum(0).argmax().unsqueeze(0)).squeeze(1)
    turned = scaled @ column
    norm: Tensor = torch.linalg.vector_norm(scaled @ (turned / turned.norm()))
    return norm * largest


def fit_(q: Tensor, a: Tensor, b: Tensor, rate: float) -> None:
    """One update of a Q from its side of A and B, [d, ..] each."""
    tiny = torch.finfo(q.dtype).tiny
    if q.dim() == 2:
        up, down = a @ a.mT, b @ b.mT
        total = up + down
        # An all-zero total has no bound (0 / 0) and leaves Q alone.
        bound = torch.where(total.abs().amax() > 0, norm_lower_bound(total), 0.0).clamp(min=tiny)
        q.sub_((up - down).triu_().mul_(rate / bound) @ q)
    else:
        up, down = a.square().sum(1), b.square().sum(1)
        q.sub_((up - down) * q * (rate / (up + down).amax().clamp(min=tiny)))


def fit_all_(qs: Sequence[Tensor], x: Tensor, z: Tensor, rate: float) -> None:
    """Update the Q of rows, and of columns if there is one, from X and the noise Z [rows, ..]."""
    a, b = left(qs[0], x), left_solve_t(qs[0], z)
    if len(qs) == 2:
        a, b = left(qs[1], a.mT).mT, left_solve_t(qs[1], b.mT).mT
        fit_(qs[1], a.mT, b.mT, rate)
    fit_(qs[0], a, b, rate)


def whiten(qs: Sequence[Tensor], matrix: Tensor) -> Tensor:
    """U^T U M V^T V."""
    rows = qs[0]
    result = left(rows.mT if rows.dim() == 2 else rows, left(rows, matrix))
    if len(qs) == 2:
        columns = qs[1]
        turned = left(columns, result.mT)
        result = left(columns.mT if columns.dim() == 2 else columns, turned).mT
    return result


def balance_(qs: Sequence[Tensor]) -> None:
    """Scale the Q of a parameter to equal largest elements; their product stays."""
    largest = torch.stack([q.abs().amax() for q in qs])
    for q, factor in zip(qs, largest.log().mean().exp() / largest, strict=True):
        q.mul_(factor)


class Kron(torch.optim.Optimizer):
    """For parameters of every shape, in groups that may carry a `role`.

    `flat_steps` and `anneal_steps` may be fractional; `generator` gives the noise of the fits.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-4,
        *,
        beta1: float = 0.9,
        weight_decay: float = 0.0,
        precond_lr: float = 0.1,
        init_scale: float = 1.0,
        momentum_into_precond: bool = True,
        max_prob: float = 1.0,
        min_prob: float = 0.03,
        flat_steps: float = 500.0,
        anneal_steps: float = 1000.0,
        balance_every: int = 10,
        max_size_triangular: int = 8192,
        table_sides: str = "hidden",
        clip_rms: float = 1.1,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0.0 <= beta1 < 1.0:
            raise ValueError(f"beta1 is {beta1}: 0 <= beta1 < 1 is needed")
        if not 0.0 < min_prob <= max_prob <= 1.0:
            raise ValueError(
                f"min_prob is {min_prob} and max_prob {max_prob}: "
                "0 < min_prob <= max_prob <= 1 is needed"
            )
        if not anneal_steps > 0.0:
            raise ValueError(f"anneal_steps is {anneal_steps}: more than 0 is needed")
        if table_sides not in TABLE_SIDES:
            raise ValueError(
                f"table_sides is {table_sides!r}: accepted are {', '.join(TABLE_SIDES)}"
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "beta1": beta1,
                "weight_decay": weight_decay,
                "precond_lr": precond_lr,
                "init_scale": init_scale,
                "momentum_into_precond": momentum_into_precond,
                "max_size_triangular": max_size_triangular,
                "table_sides": table_sides,
                "clip_rms": clip_rms,
                "role": "matrix",
            },
        )
        self.schedule = (max_prob, min_prob, flat_steps, anneal_steps)
        self.balance_every = balance_every
        self.generator = generator or torch.Generator().manual_seed(0)
        self.clock = 0
        """Steps taken."""
        self.since = 0
        """Steps since the last update of the preconditioners."""
        self.refreshes = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.since += 1
        update = self.since >= 1.0 / probability(self.clock, *self.schedule)
        balance = update and (self.refreshes + 1) % self.balance_every == 0
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.numel() > 0:
                    self._step(param, param.grad, group, update, balance)
        if update:
            self.since = 0
            self.refreshes += 1
        self.clock += 1
        return loss

    def _step(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], update: bool, balance: bool
    ) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["momentum"] = torch.zeros_like(param)
            state["q"] = _first_qs(param, group)
        state["step"] += 1
        beta1, qs = group["beta1"], state["q"]
        momentum = _columns(state["momentum"].lerp_(grad, 1 - beta1))
        momentum = momentum / (1 - beta1 ** state["step"])
        if balance and len(qs) == 2:
            balance_(qs)
        if update:
            x = momentum if group["momentum_into_precond"] else _columns(grad)
            z = torch.randn(x.shape, generator=self.generator, dtype=x.dtype, device=x.device)
            fit_all_(qs, x + _DAMPING * x.abs().mean() * z, z, group["precond_lr"])
        direction = whiten(qs, momentum)
        rms = direction.square().mean().sqrt() + 1e-12
        direction = direction * (group["clip_rms"] / rms).clamp(max=1.0)
        decay_(param, group["lr"], group["weight_decay"])
        descend_(param, direction.to(param.dtype).reshape(param.shape), group["lr"])

    def state_dict(self) -> dict[str, Any]:
        own: dict[str, Any] = {name: getattr(self, name) for name in _KEPT}
        own["generator"] = self.generator.get_state()
        return {**super().state_dict(), "kron": own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        restore_state(self, state_dict)
        own = state_dict["kron"]
        for name in _KEPT:
            setattr(self, name, own[name])
        self.generator.set_state(own["generator"].cpu())


_DAMPING = math.sqrt(torch.finfo(torch.float32).eps)
_KEPT = ("clock", "since", "refreshes")


def _columns(tensor: Tensor) -> Tensor:
    """A matrix as it is, a vector as one column."""
    if tensor.dim() >= 2:
        return as_matrix(tensor)
    return tensor.reshape(-1, 1).to(factor_dtype(tensor))


def _first_qs(param: Tensor, group: Mapping[str, Any]) -> list[Tensor]:
    kinds = triangular_sides(
        tuple(param.shape), group["role"], group["max_size_triangular"], group["table_sides"]
    )
    scale = group["init_scale"] ** (1 / len(kinds))
    found = []
    for size, triangular in kinds:
        ones = torch.full((size,), scale, dtype=factor_dtype(param), device=param.device)
        found.append(ones.diag() if triangular else ones)
    return found


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Momentum, and a full matrix or a diagonal for every side."""
    total = 0
    for info in owners(params):
        total += info.nbytes
        if info.numel > 0:
            limit, tables = hparams["max_size_triangular"], hparams["table_sides"]
            kinds = triangular_sides(info.shape, info.role, limit, tables)
            elements = sum(size**2 if triangular else size for size, triangular in kinds)
            total += factor_itemsize(info) * elements
    return total


def end_of_flat(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The first step, counted from 0, whose probability is below `max_prob`."""
    step = math.floor(hparams["flat_fraction"] * total_steps) + 1
    return (step,) if step < total_steps else ()


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Kron:
    other = ("lr", "embed_multiplier", "weight_decay", "flat_fraction", "anneal_fraction")
    return Kron(
        ctx.groups(hparams),
        flat_steps=hparams["flat_fraction"] * ctx.total_steps,
        anneal_steps=hparams["anneal_fraction"] * ctx.total_steps,
        generator=ctx.generator,
        **{name: value for name, value in hparams.items() if name not in other},
    )


SPEC = OptimizerSpec(
    name="psgd_kron",
    family="curvature",
    summary="Momentum whitened by a Kronecker product of triangular matrices",
    paper="Pooladzandi & Li, Curvature-Informed SGD via General Purpose Lie-Group "
    "Preconditioners, 2024, https://arxiv.org/abs/2402.04553",
    code="https://github.com/evanatyourservice/kron_torch/blob/884427c3/kron_torch/kron.py",
    licence="CC-BY-4.0",
    build=build,
    space={
        "lr": space.log(3e-5, 3e-2, default=3e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "weight_decay": 0.0,
        "precond_lr": 0.1,
        "init_scale": 1.0,
        "momentum_into_precond": True,
        "max_prob": 1.0,
        "min_prob": 0.03,
        "flat_fraction": 0.125,
        "anneal_fraction": 0.25,
        "balance_every": 10,
        "max_size_triangular": 8192,
        "table_sides": "hidden",
        "clip_rms": 1.1,
    },
    state_bytes=state_bytes,
    refreshes="updates of the preconditioners",
    switches=end_of_flat,
    cannot=("sharding",),
)
