"""SOAP: Adam in the eigenbasis of Shampoo's two factors.

For a matrix p with gradient G, with bases U, V from the steps before:

    G' = U^T G V
    m  <- b1 m + (1 - b1) G'                 m and v live in the rotated space
    v  <- b2 v + (1 - b2) G'^2
    N  = U (m / (sqrt(v) + eps)) V^T         normalize_grads: N / RMS(N)
    p  <- p - lr sqrt(1 - b2^t) / (1 - b1^t) N
    p  <- (1 - lr wd) p
    L  <- bs L + (1 - bs) G G^T              R <- bs R + (1 - bs) G^T G
    every T steps, for each side: one power iteration and QR
        order the columns of U by diag(U^T L U), falling; v's rows are put in that order too
        U' = QR(L U);  m is turned from the old basis into the new one; v is not turned

The first gradient only starts L and R; U and V are their eigenvectors, falling, and with
`skip_first` no weight moves and t stays 0 (paper and code), so that no gradient is ever seen in a
basis made from it. Without, the step is taken in those bases.

b1, b2: `beta1`, `beta2`; bs: `shampoo_beta`, or b2 if that is None; wd: `weight_decay`.
`eps_placement` "before" is the code's: eps is added before v's bias correction; "after" is Adam's:
eps sqrt(1 - b2^t) in its place. `decay_order` "after" is the code's; "before" is AdamW's. Without
`correct_bias` the factor on lr is 1. `reorder` False is the paper's refresh: no order, v as it was.

T = `refresh_fraction` * total_steps, in whole steps, at least one: a fortieth is the 10 steps of
paper and code in a run of 400. `refreshes` counts the steps at which bases are renewed, the first
not included.

Which sides: none of vectors (plain Adam), nor one longer than `max_precond_dim` (10,000 in the
code, "so that we exclude most common vocab sizes"). In the paper the side of the vocabulary is
always that long and embedding and head are turned over the hidden side alone; with
`table_sides` "hidden" that holds for every vocabulary, bytes included, so that the method is the
same at every size. "both" is the code's rule. Thus it takes every role, as the code does.

State: m and v in the parameter's dtype; a factor and a basis for every side, in float32.

Paper: Nikhil Vyas, Depen Morwani, Rosie Zhao, Itai Shapira, David Brandfonbrener, Lucas Janson,
Sham Kakade, "SOAP: Improving and Stabilizing Shampoo using Adam",
https://arxiv.org/abs/2409.11321, 2024 (ICLR 2025).
Reference code: https://github.com/nikhilvyas/SOAP/blob/a1e55353/soap.py (MIT).
Defaults: that code's: lr 3e-3, betas (.95, .95), eps 1e-8, weight decay .01.

Deviations:
- m is turned when a basis changes, where the code turns it to and fro in every step: the same but
  for rounding, at three fifths of the products.
- Gradients are rotated in float32 also for bfloat16 weights, where the code mixes dtypes.
- A tensor of more than two dimensions is taken as [first, the others]; `merge_dims` and
  `precondition_1d`, off in the code, are left out.
- Non-finite factors keep the identity for a basis, so that a run ends by its loss.
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
    factor_itemsize,
    matrix_shape,
    period_of,
    restore_state,
)
from levelfield.optimizers._ops import decay_, descend_, moments_

CHOICES: Mapping[str, tuple[str, ...]] = {
    "eps_placement": ("before", "after"),
    "decay_order": ("after", "before"),
    "table_sides": ("hidden", "both"),
}


def sides(
    shape: tuple[int, ...], role: str, max_precond_dim: int, table_sides: str
) -> tuple[int, ...]:
    """The sides of a parameter, 0 for rows and 1 for columns, that get a basis."""
    if len(shape) < 2:
        return ()
    table = role in ("embed", "head") and table_sides == "hidden"
    return tuple(
        side
        for side, size in enumerate(matrix_shape(shape))
        if size <= max_precond_dim and not (table and side == 0)
    )


def turn(matrix: Tensor, bases: Mapping[int, Tensor], back: bool = False) -> Tensor:
    """U^T M V with the bases {0: U, 1: V} of the sides that have one; `back`: U M V^T."""
    for side, basis in bases.items():
        if side == 0:
            matrix = (basis if back else basis.mT) @ matrix
        else:
            matrix = matrix @ (basis.mT if back else basis)
    return matrix


def gather_(factors: Mapping[int, Tensor], grad: Tensor, beta: float) -> None:
    """L <- beta L + (1 - beta) G G^T, and R likewise."""
    for side, factor in factors.items():
        rows = grad if side == 0 else grad.mT
        factor.addmm_(rows, rows.mT, beta=beta, alpha=1 - beta)


def first_basis(factor: Tensor) -> Tensor:
    """Eigenvectors by falling eigenvalue; the identity if they cannot be found."""
    found = eigh(factor)
    if found is None:
        return torch.eye(factor.shape[0], dtype=factor.dtype, device=factor.device)
    return found[1].flip(1)


def next_basis(factor: Tensor, basis: Tensor, reorder: bool) -> tuple[Tensor, Tensor | None]:
    """One power iteration and QR: the new basis, and the order in which the old columns went in."""
    product = factor @ basis
    order = None
    if reorder:
        order = (basis * product).sum(0).argsort(descending=True, stable=True)
        product = product.index_select(1, order)
    return torch.linalg.qr(product).Q, order


class Soap(torch.optim.Optimizer):
    """For parameters of every shape, in groups that may carry a `role`; `lr` is Adam's.

    `period` is in steps of a parameter, the first not counted if it is skipped.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        *,
        beta1: float = 0.95,
        beta2: float = 0.95,
        shampoo_beta: float | None = None,
        eps: float = 1e-8,
        eps_placement: str = "before",
        weight_decay: float = 0.01,
        decay_order: str = "after",
        period: int = 10,
        max_precond_dim: int = 10_000,
        table_sides: str = "hidden",
        skip_first: bool = True,
        reorder: bool = True,
        normalize_grads: bool = False,
        correct_bias: bool = True,
    ) -> None:
        shampoo_beta = beta2 if shampoo_beta is None else shampoo_beta
        for name, beta in (("beta1", beta1), ("beta2", beta2), ("shampoo_beta", shampoo_beta)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if period < 1:
            raise ValueError(f"period is {period}: at least 1 step is needed")
        chosen = {
            "eps_placement": eps_placement,
            "decay_order": decay_order,
            "table_sides": table_sides,
        }
        for name, choice in chosen.items():
            if choice not in CHOICES[name]:
                raise ValueError(f"{name} is {choice!r}: accepted are {', '.join(CHOICES[name])}")
        numbers = {"beta1": beta1, "beta2": beta2, "shampoo_beta": shampoo_beta, "eps": eps}
        switches = {
            "skip_first": skip_first,
            "reorder": reorder,
            "normalize_grads": normalize_grads,
            "correct_bias": correct_bias,
        }
        sizes = {"period": period, "max_precond_dim": max_precond_dim}
        own = {"lr": lr, "weight_decay": weight_decay, "role": "matrix"}
        super().__init__(params, {**own, **numbers, **chosen, **switches, **sizes})
        self.refreshes = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refreshed = False
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.numel() > 0:
                    refreshed |= _step(param, param.grad, self.state[param], group)
        self.refreshes += refreshed
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "refreshes": self.refreshes}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        restore_state(self, state_dict)
        self.refreshes = state_dict["refreshes"]


def _step(param: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> bool:
    """One step of one parameter; says whether it renewed its bases."""
    shape, dtype = tuple(param.shape), param.dtype
    gradient = as_matrix(grad) if param.dim() >= 2 else grad
    started = bool(state)
    if not started:
        state["step"] = 0
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = param.new_zeros(gradient.shape)
        turned = sides(shape, group["role"], group["max_precond_dim"], group["table_sides"])
        state["factors"] = {
            side: gradient.new_zeros(gradient.shape[side], gradient.shape[side]) for side in turned
        }
        gather_(state["factors"], gradient, group["shampoo_beta"])
        state["bases"] = {side: first_basis(f) for side, f in state["factors"].items()}
        if group["skip_first"]:
            return False
    state["step"] += 1
    t, m, v, bases = state["step"], state["exp_avg"], state["exp_avg_sq"], state["bases"]
    moments_(m, v, turn(gradient, bases).to(dtype), group["beta1"], group["beta2"])
    root = math.sqrt(1 - group["beta2"] ** t)
    eps = group["eps"] * (root if group["eps_placement"] == "after" else 1.0)
    direction = turn((m / (v.sqrt() + eps)).to(gradient.dtype), bases, back=True)
    if group["normalize_grads"]:
        direction = direction / (direction.square().mean().sqrt() + 1e-30)
    lr, weight_decay = group["lr"], group["weight_decay"]
    scale = root / (1 - group["beta1"] ** t) if group["correct_bias"] else 1.0
    if group["decay_order"] == "before":
        decay_(param, lr, weight_decay)
    descend_(param, direction.to(dtype).reshape(shape), lr * scale)
    if group["decay_order"] == "after":
        decay_(param, lr, weight_decay)
    if started:
        gather_(state["factors"], gradient, group["shampoo_beta"])
    if t % group["period"] != 0 or not bases:
        return False
    for side, factor in state["factors"].items():
        _renew(state, side, *next_basis(factor, bases[side], group["reorder"]))
    return True


def _renew(state: dict[str, Any], side: int, basis: Tensor, order: Tensor | None) -> None:
    """Put a new basis in: m is turned into it, v follows the order of its columns."""
    m, v, old = state["exp_avg"], state["exp_avg_sq"], state["bases"][side]
    if order is not None:
        v.copy_(v.index_select(side, order))
    original = turn(m.to(basis.dtype), {side: old}, back=True)
    m.copy_(turn(original, {side: basis}))
    state["bases"][side] = basis


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Two moments, and a factor and a basis for every side that has one."""
    total = 0
    for info in owners(params):
        total += 2 * info.nbytes
        if info.numel > 0:
            limit, tables = hparams["max_precond_dim"], hparams["table_sides"]
            for side in sides(info.shape, info.role, limit, tables):
                total += 2 * factor_itemsize(info) * matrix_shape(info.shape)[side] ** 2
    return total


def refresh_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, that end with new bases."""
    period = period_of(hparams["refresh_fraction"], total_steps)
    skipped = 1 if hparams["skip_first"] else 0
    return tuple(range(period - 1 + skipped, total_steps, period))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Soap:
    other = ("lr", "embed_multiplier", "weight_decay", "refresh_fraction")
    return Soap(
        ctx.groups(hparams),
        period=period_of(hparams["refresh_fraction"], ctx.total_steps),
        **{name: value for name, value in hparams.items() if name not in other},
    )


SPEC = OptimizerSpec(
    name="soap",
    family="curvature",
    summary="Adam in the eigenbasis of Shampoo's factors, renewed by power iterations",
    paper="Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, 2024, "
    "https://arxiv.org/abs/2409.11321",
    code="https://github.com/nikhilvyas/SOAP/blob/a1e55353/soap.py",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=3e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.95,
        "beta2": 0.95,
        "shampoo_beta": None,
        "eps": 1e-8,
        "eps_placement": "before",
        "weight_decay": 0.01,
        "decay_order": "after",
        "refresh_fraction": 0.025,
        "max_precond_dim": 10_000,
        "table_sides": "hidden",
        "skip_first": True,
        "reorder": True,
        "normalize_grads": False,
        "correct_bias": True,
    },
    state_bytes=state_bytes,
    refreshes="steps at which the bases are renewed, after the first",
    switches=refresh_steps,
)
