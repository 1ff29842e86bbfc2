"""What GaLore, Fira and APOLLO share: projectors, the limiter, AdamW for all that is not projected.

A matrix G [m, n] is projected on its smaller side, to rank r; M and k are its larger and smaller
side:

    m >= n, on the right:  P [r, n],  g = G P^T [m, r],  back: g P
    m <  n, on the left:   P [m, r],  g = P^T G [r, n],  back: P g

Adam's moments are kept for g alone: 2 r M elements, and r k for a projector that is held. What is
not a matrix gets AdamW as in Hugging Face's old code, at the plain `lr` of its group. A tensor of
more than two dimensions is taken as [first, product of the others].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench.spec import ParamInfo, StateBytes
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import (
    adam_direction,
    adam_direction_hf,
    decay_,
    descend_,
    moments_,
)

DECAY_ORDERS = ("after", "before")
"""Weight decay of the updated weights, as in Hugging Face's old AdamW, or of the old, as in torch.
Both multiply by 1 - lr * weight_decay."""

EPS_PLACEMENTS = {"before": adam_direction_hf, "after": adam_direction}
"""Where eps is added: before or after the bias correction of the second moment."""

SLACK = 1e-8
"""Added to a norm before a division by it, as in the code of Fira and APOLLO."""


def on_right(rows: int, columns: int) -> bool:
    """Whether a matrix [rows, columns] is projected from the right: its columns are fewer."""
    return rows >= columns


def rank_of(fraction: float, rows: int, columns: int) -> int:
    """round(fraction * smaller side), at least 1: the paper's r = h/4 where that side is h."""
    smaller = min(rows, columns)
    return min(smaller, max(1, round(fraction * smaller)))


def project(matrix: Tensor, projector: Tensor) -> Tensor:
    """[m, n] -> [m, r] or [r, n]."""
    if on_right(*matrix.shape):
        return matrix @ projector.mT
    return projector.mT @ matrix


def project_back(low: Tensor, projector: Tensor, shape: torch.Size) -> Tensor:
    """[m, r] or [r, n] -> `shape`, [m, n]."""
    return low @ projector if on_right(*shape) else projector @ low


def singular_projector(matrix: Tensor, rank: int) -> Tensor:
    """The first `rank` singular vectors of the smaller side, in the matrix's dtype.

    The decomposition runs in float32, or float64 for float64. A non-finite element counts as 0: a
    run that diverges must show that in its loss, not as a decomposition that fails.
    """
    finite = torch.nan_to_num(matrix.to(work_dtype(matrix)), nan=0.0, posinf=0.0, neginf=0.0)
    left, _, right = torch.linalg.svd(finite, full_matrices=False)
    chosen = right[:rank] if on_right(*matrix.shape) else left[:, :rank]
    # A view would keep all singular vectors alive.
    projector: Tensor = chosen.to(matrix.dtype, copy=True, memory_format=torch.contiguous_format)
    return projector


def random_projector(matrix: Tensor, rank: int, seed: int) -> Tensor:
    """Elements from N(0, 1 / rank), in the matrix's dtype: the seed and the device say it all."""
    rows, columns = matrix.shape
    shape = (rank, columns) if on_right(rows, columns) else (rows, rank)
    generator = torch.Generator(matrix.device).manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device=matrix.device, dtype=work_dtype(matrix))
    return drawn.div_(math.sqrt(rank)).to(matrix.dtype)


def work_dtype(tensor: Tensor) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def norm(tensor: Tensor, dim: int | None = None) -> Tensor:
    """Euclidean norm in `work_dtype`: 0-dim, or over one dimension that is kept."""
    found: Tensor = torch.linalg.vector_norm(
        tensor, dim=dim, keepdim=dim is not None, dtype=work_dtype(tensor)
    )
    return found


def channel_scaling(direction: Tensor, low: Tensor, shape: torch.Size) -> Tensor:
    """||N_j|| / ||g_j|| for every channel j of the larger side: [m, 1] or [1, n]."""
    low_rank = 1 if on_right(*shape) else 0
    return (norm(direction, low_rank) / (norm(low, low_rank) + SLACK)).to(low.dtype)


def limit_growth_(update: Tensor, state: dict[str, Any], gamma: float) -> Tensor:
    """Fira's norm-growth limiter: the norm of `update` grows at most by `gamma` from step to step.

        f = max(||S|| / (q + 1e-8), gamma) / gamma;  S <- S / f;  q <- ||S||

    q is `state["norm"]`, 0-dim, the norm that was let through last; without one the update passes.
    So it does after a norm of zero, from which growth by a factor leads nowhere. `update` is
    changed in place and returned.
    """
    size, last = norm(update), state.get("norm")
    if last is not None:
        excess = (size / (last + SLACK)).clamp_(min=gamma).div_(gamma)
        excess = torch.where(last > 0, excess, 1.0)
        update.div_(excess)
        size = size / excess
    state["norm"] = size
    return update


class LowRank(torch.optim.Optimizer):
    """AdamW of which the matrices' part is replaced; groups carry a `role`.

    A method overrides `direction`. A projector is renewed every `period` steps, counted from the
    first, whatever a single parameter has seen of them; `refreshes` counts the renewals after the
    first projector. Moments are neither reset nor turned when it changes.

    Args:
        rank: (rows, columns) -> rank of the projection.
        period: T, whole steps, or `math.inf`.
        decay_order: one of `DECAY_ORDERS`.
        eps_placement: one of `EPS_PLACEMENTS`.
    """

    kept: tuple[str, ...] = ("clock", "refreshes")
    """Attributes that a state dict carries."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        rank: Callable[[int, int], int],
        period: float,
        decay_order: str,
        eps_placement: str = "before",
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if not period >= 1:
            raise ValueError(f"period is {period}: a number of steps, at least 1, is needed")
        if decay_order not in DECAY_ORDERS:
            raise ValueError(f"decay_order {decay_order!r}: accepted: {', '.join(DECAY_ORDERS)}")
        if eps_placement not in EPS_PLACEMENTS:
            raise ValueError(
                f"eps_placement {eps_placement!r}: accepted: {', '.join(EPS_PLACEMENTS)}"
            )
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "role": "matrix"})
        self.rank = rank
        self.period = period
        self.decay_order = decay_order
        self.eps_placement = eps_placement
        self.clock = 0
        """Steps taken."""
        self.refreshes = 0

    def direction(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any], renew: bool
    ) -> tuple[Tensor, float]:
        """The direction of a matrix [m, n] and a factor on its rate.

        Args:
            state: has `step`, from 1, and `position`, the parameter's number among all.
            renew: whether a new projector is due.
        """
        raise NotImplementedError

    def moments(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Adam's moments of a gradient, projected or not, after it has entered them."""
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(grad)
            state["exp_avg_sq"] = torch.zeros_like(grad)
        m, v = state["exp_avg"], state["exp_avg_sq"]
        moments_(m, v, grad, group["beta1"], group["beta2"])
        return m, v

    def adam(self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> Tensor:
        """Adam's direction for a gradient, projected or not."""
        m, v = self.moments(grad, state, group)
        betas = (group["beta1"], group["beta2"])
        return EPS_PLACEMENTS[self.eps_placement](m, v, state["step"], *betas, group["eps"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due, position = self.clock % self.period == 0, 0
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            for param in group["params"]:
                position += 1
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                first = not state
                if first:
                    state.update(step=0, position=position)
                state["step"] += 1
                if group["role"] == "matrix" and param.ndim > 1 and param.numel() > 0:
                    update, factor = self.direction(grad.flatten(1), state, group, due or first)
                    update = update.reshape_as(param)
                else:
                    update, factor = self.adam(grad, state, group), 1.0
                if self.decay_order == "before":
                    decay_(param, lr, weight_decay)
                descend_(param, update, lr * factor)
                if self.decay_order == "after":
                    decay_(param, lr, weight_decay)
        self.refreshes += due and self.clock > 0
        self.clock += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and what is `kept` under `low_rank`."""
        return {
            **super().state_dict(),
            "low_rank": {name: getattr(self, name) for name in self.kept},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        # The base class casts every tensor to its parameter's dtype: take a norm as it was saved.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            size = state_dict["state"].get(key, {}).get("norm")
            if size is not None:
                self.state[param]["norm"] = size.to(param.device, copy=True)
        for name in self.kept:
            setattr(self, name, state_dict["low_rank"][name])


def correction(state: Mapping[str, Any], group: Mapping[str, Any]) -> float:
    """Adam's bias correction as one factor: sqrt(1 - b2^t) / (1 - b1^t)."""
    t = state["step"]
    first, second = 1 - group["beta1"] ** t, 1 - group["beta2"] ** t
    return float(math.sqrt(second) / first)


def period_of(hparams: Mapping[str, Any], total_steps: int) -> int:
    """T in whole steps, at least 1."""
    return int(max(1, round(hparams["refresh_fraction"] * total_steps)))


def options(ctx: BuildContext, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """What all methods of the family give to the optimizer, their groups excepted."""
    return {
        "beta1": hparams["beta1"],
        "beta2": hparams["beta2"],
        "eps": hparams["eps"],
        "period": period_of(hparams, ctx.total_steps),
        "decay_order": hparams["decay_order"],
    }


def refresh_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, that begin with a new projector after the first."""
    period = period_of(hparams, total_steps)
    return tuple(range(period, total_steps, period))


def rank_rule(hparams: Mapping[str, Any]) -> Callable[[int, int], int]:
    """A fixed `rank` if there is one, else `rank_fraction` of the smaller side."""
    if "rank" in hparams:
        return lambda rows, columns: min(hparams["rank"], rows, columns)
    return lambda rows, columns: rank_of(hparams["rank_fraction"], rows, columns)


def claim(projector: Callable[[Mapping[str, Any]], bool]) -> StateBytes:
    """2 r M elements a matrix, r k more if `projector(hparams)`, two copies of all else."""

    def state_bytes(
        params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float
    ) -> int:
        rank, total = rank_rule(hparams), 0
        for info in owners(params):
            if info.role != "matrix" or len(info.shape) < 2 or info.numel == 0:
                total += 2 * info.nbytes
                continue
            rows, columns = info.shape[0], math.prod(info.shape[1:])
            elements = 2 * max(rows, columns) + projector(hparams) * min(rows, columns)
            total += rank(rows, columns) * elements * info.itemsize
        return total

    return state_bytes
