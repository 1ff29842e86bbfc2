"""FRUGAL's maths and optimizer, shared by `frugal` and the AdaFRUGAL methods.

What the method is, its paper and its deviations are told in `frugal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._frugal_parts import (
    count_blocks,
    count_columns,
    count_rank,
    periods_over,
    select_blocks,
)
from levelfield.optimizers._ops import adam_direction, adamw_, decay_, descend_, moments_

SELECTIONS = ("block", "column", "svd")
BLOCK_ORDERS = ("random", "descending", "ascending")


def select_columns(columns: int, active: int, generator: torch.Generator) -> Tensor:
    """`active` distinct columns at random, int64 [active], owning no more memory than that."""
    drawn = torch.randperm(columns, generator=generator, device=generator.device)
    return drawn[:active].clone()


def leading_basis(matrix: Tensor, rank: int) -> Tensor:
    """The first singular vectors on the smaller side of [m, n]: [rank, n] if m >= n, [m, rank].

    Non-finite elements count as finite ones here: a diverged run is told by its loss.
    """
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    left, _, right = torch.linalg.svd(matrix.to(dtype).nan_to_num(), full_matrices=False)
    chosen = right[:rank] if matrix.shape[0] >= matrix.shape[1] else left[:, :rank]
    # A view would keep all singular vectors alive.
    basis: Tensor = chosen.to(matrix.dtype, copy=True, memory_format=torch.contiguous_format)
    return basis


def columns_step_(
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Any],
    adam: Mapping[str, Any],
    inactive_lr: float | Tensor,
) -> None:
    """AdamW on the columns `state["index"]` of a matrix [.., n], signSGD on the others.

    Args:
        adam: `lr`, `beta1`, `beta2`, `eps`, `weight_decay`.
        inactive_lr: size of the signSGD step.
    """
    index = state["index"]
    active = param.index_select(-1, index)
    part = grad.index_select(-1, index)
    adamw_(active, part, state["exp_avg"], state["exp_avg_sq"], state["step"], **adam)
    decay_(param, adam["lr"], adam["weight_decay"])
    descend_(param, grad.sign(), inactive_lr)
    param.index_copy_(-1, index, active)


def basis_step_(
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Any],
    adam: Mapping[str, Any],
    inactive_lr: float | Tensor,
) -> None:
    """AdamW in the span of `state["basis"]` of a matrix [.., n], signSGD on what it leaves.

    A basis of the whole space leaves rounding noise alone, whose signs are not taken.
    """
    matrix = grad.flatten(0, -2)
    basis, m, v = state["basis"], state["exp_avg"], state["exp_avg_sq"]
    wide = matrix.shape[0] < matrix.shape[1]
    part = basis.mT @ matrix if wide else matrix @ basis.mT
    beta1, beta2 = adam["beta1"], adam["beta2"]
    moments_(m, v, part, beta1, beta2)
    direction = adam_direction(m, v, state["step"], beta1, beta2, adam["eps"])
    decay_(param, adam["lr"], adam["weight_decay"])
    whole = basis @ direction if wide else direction @ basis
    descend_(param, whole.reshape(param.shape), adam["lr"])
    if basis.shape[0] != basis.shape[1]:
        rest = matrix - (basis @ part if wide else part @ basis)
        descend_(param, rest.sign_().reshape(param.shape), inactive_lr)


class Frugal(torch.optim.Optimizer):
    """FRUGAL over groups that carry a `role`; only those of role `matrix` are split.

    `lr` is the AdamW rate of every parameter and, times `inactive_lr_scale`, the size of a
    signSGD step. Parameters of fewer than two dimensions are always state-full.

    What is selected is told by `state` itself: a matrix without an entry is state-free, one with
    an `index` holds state for those columns, one with a `rank` for so many directions, any other
    for the whole tensor. `rho` and `period` (in steps, may be fractional) may be changed between
    steps: a new `rho` acts from the next refresh on, a new `period` at once.

    Args:
        share: moment in steps -> rho; asked at every selection for the moment at which it begins.
            None: `rho` as it is.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rho: float = 0.25,
        period: float = math.inf,
        selection: str = "column",
        block_order: str = "descending",
        block_seed: int = 0,
        inactive_lr_scale: float = 1.0,
        generator: torch.Generator | None = None,
        share: Callable[[float], float] | None = None,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"rho is {rho}: a share of the matrices, 0 <= rho <= 1, is needed")
        if not period > 0.0:
            raise ValueError(f"period is {period}: a number of steps above 0 is needed")
        if selection not in SELECTIONS:
            raise ValueError(f"selection {selection!r}: accepted: {', '.join(SELECTIONS)}")
        if block_order not in BLOCK_ORDERS:
            raise ValueError(f"block_order {block_order!r}: accepted: {', '.join(BLOCK_ORDERS)}")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "role": "matrix"})
        self.share = share
        self.rho = rho
        self.period = period
        self.selection = selection
        self.block_order = block_order
        self.block_seed = block_seed
        self.inactive_lr_scale = inactive_lr_scale
        self.generator = generator or torch.Generator().manual_seed(0)
        self.clock = 0
        """Steps taken."""
        self.anchor = 0.0
        """When the selection in force began, in steps: a multiple of a constant period."""
        self.number = 0
        """Number of the selection in force, from 0."""
        self.next_block = 0
        """Matrices that the windows have gone over, the one in force included."""
        self.refreshes = 0
        self.series: dict[str, list[list[float]]] = {"rho": [], "state_bytes": []}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        selected = self._select_if_due()
        for group in self.param_groups:
            adam = {name: group[name] for name in _ADAM}
            lr, weight_decay = group["lr"], group["weight_decay"]
            inactive_lr = lr * self.inactive_lr_scale
            split = group["role"] == "matrix"
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if split and param.ndim > 1 and param not in self.state:
                    decay_(param, lr, weight_decay)
                    descend_(param, grad.sign(), inactive_lr)
                    continue
                state = self.state[param]
                if "exp_avg" not in state:
                    _start(state, param, grad)
                state["step"] += 1
                if "index" in state:
                    columns_step_(param, grad, state, adam, inactive_lr)
                elif "rank" in state:
                    basis_step_(param, grad, state, adam, inactive_lr)
                else:
                    m, v = state["exp_avg"], state["exp_avg_sq"]
                    adamw_(param, grad, m, v, state["step"], **adam)
        if selected:
            self._record()
        self.clock += 1
        return loss

    def _select_if_due(self) -> bool:
        """Select at the first step and whenever a period is over; says whether it did."""
        over = self._advance()
        if over == 0 and self.clock > 0:
            return False
        self.number += over
        # Of a period shorter than a step, several are over at once.
        if self.clock == 0:
            self.select(skipped=over)
        else:
            self.refreshes += 1
            self.select(skipped=over - 1)
        return True

    def _advance(self) -> int:
        """Periods that are over when the next step counts; moves `anchor` to their end."""
        over = periods_over(self.clock + 1 - self.anchor, self.period)
        if over > 0:
            self.anchor += over * self.period
        return over

    def _share_at(self, moment: float) -> float:
        return self.rho if self.share is None else self.share(moment)

    def select(self, skipped: int = 0) -> None:
        """Drop the matrices' state, then choose the part that holds state from now on.

        Takes `rho` as it is now, or as `share` has it. Buffers of the new part are allocated when
        its first gradient arrives, after all old ones are gone; a basis is taken from that
        gradient.

        Args:
            skipped: selections passed over since the last one made.
        """
        matrices = [
            param
            for group in self.param_groups
            if group["role"] == "matrix"
            for param in group["params"]
            if param.ndim > 1
        ]
        for param in matrices:
            self.state.pop(param, None)
        if self.selection == "block":
            for back in range(skipped, 0, -1):
                passed = self._share_at(self.anchor - back * self.period)
                self.next_block += count_blocks(passed, len(matrices))
        self.rho = self._share_at(self.anchor)
        if self.selection == "block":
            active = count_blocks(self.rho, len(matrices))
            start = self.next_block
            self.next_block = start + active
            for position in select_blocks(
                len(matrices), active, self.block_order, start, self.block_seed, self.number
            ):
                self.state[matrices[position]] = {"step": 0}
            return
        for param in matrices:
            if self.selection == "svd":
                rank = count_rank(self.rho, param.shape)
                if rank > 0:
                    self.state[param] = {"step": 0, "rank": rank}
                continue
            count = count_columns(self.rho, param.shape[-1])
            if count > 0:
                index = select_columns(param.shape[-1], count, self.generator)
                index = index.to(param.device, non_blocking=True)
                self.state[param] = {"step": 0, "index": index}

    def _record(self) -> None:
        held = sum(
            value.numel() * value.element_size()
            for state in self.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        self.series["rho"].append([self.clock, self.rho])
        self.series["state_bytes"].append([self.clock, held])

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `frugal` where the selection stands."""
        own = {name: getattr(self, name) for name in _KEPT}
        own["generator"] = self.generator.get_state()
        own["series"] = deepcopy(self.series)
        return {**super().state_dict(), "frugal": own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        # The base class casts every tensor to its parameter's dtype: take an index as it was saved.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            index = state_dict["state"].get(key, {}).get("index")
            if index is not None:
                self.state[param]["index"] = index.to(param.device, copy=True)
        own = state_dict["frugal"]
        for name in _KEPT:
            setattr(self, name, own[name])
        self.generator.set_state(own["generator"].cpu())
        self.series = deepcopy(own["series"])


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")
_KEPT = ("clock", "anchor", "number", "next_block", "refreshes", "rho", "period")


def _start(state: dict[str, Any], param: Tensor, grad: Tensor) -> None:
    """Zero moments: for a whole tensor, for columns of it, or in a basis taken from `grad`."""
    state.setdefault("step", 0)
    rank = state.get("rank")
    if rank is not None:
        state["basis"] = leading_basis(grad.flatten(0, -2), rank)
        long = max(math.prod(param.shape[:-1]), param.shape[-1])
        tall = state["basis"].shape[1] == param.shape[-1]
    for name in ("exp_avg", "exp_avg_sq"):
        if rank is not None:
            state[name] = param.new_zeros((long, rank) if tall else (rank, long))
        elif "index" in state:
            state[name] = param.new_zeros((*param.shape[:-1], state["index"].numel()))
        else:
            state[name] = torch.zeros_like(param)


def options(ctx: BuildContext, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """What all methods of the family give to the optimizer, their groups and share excepted."""
    return {
        "beta1": hparams["beta1"],
        "beta2": hparams["beta2"],
        "eps": hparams["eps"],
        "period": hparams["refresh_fraction"] * ctx.total_steps,
        "selection": hparams["selection"],
        "block_order": hparams["block_order"],
        "block_seed": hparams["block_seed"],
        "inactive_lr_scale": hparams["inactive_lr_scale"],
        "generator": ctx.generator,
    }
