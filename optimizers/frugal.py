"""FRUGAL: AdamW on a rotating part of the weight matrices, signSGD on the rest of them.

With S the state-full part (`rho` of the matrices, chosen anew every T steps), for every matrix W
with gradient G, in this order:

    every T steps:  drop m, v and their step counter t;  choose a new S
    W   <- (1 - lr * weight_decay) W
    t   <- t + 1
    m   <- beta1 m + (1 - beta1) G_S
    v   <- beta2 v + (1 - beta2) G_S^2
    W_S <- W_S - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    W_rest <- W_rest - lr * inactive_lr_scale * sign(G_rest)

Embedding, head and vectors are always state-full: AdamW at the same `lr`, the first two times
`embed_multiplier`; their moments are never reset. As t restarts with each S, the first step after
a refresh moves every active coordinate by lr (to within eps), just as signSGD moves the others.

`selection` says what S is made of:

    column  floor(rho n) random columns of each matrix [m, n], drawn from the method's own
            generator. m and v are [m, floor(rho n)]; the index (int64) is state too.
    block   whole matrices, round(count * rho) at a time. `block_order` descending: a window that
            slides from the last matrix to the first and wraps; ascending: the other way; random:
            a draw from (block_seed, number of the selection).

A matrix outside S holds no buffers at all. Old buffers go before new ones come, so the peak of a
refresh is no higher than its ends.

T = `refresh_fraction` * total_steps. The paper's T = 200 is a hundredth of the 20k steps of a
learning-rate cycle at 130M and a thousandth of the 200k that its scripts run; either share of a
short run is shorter than Adam's own memory, so the default is a twentieth: 20 selections and 19
refreshes in any run of 20 steps and more. T need not be whole: selection i begins with the first
step that ends after i * T, so that what is held follows from the progress of the run alone.

`refreshes` counts the selections after the first one, which is made at step 0. `series` holds
[step, value] at every selection, the first included: `rho`, and `state_bytes` as then held.

Paper: Philip Zmushko, Aleksandr Beznosikov, Martin Takáč, Samuel Horváth, "FRUGAL: Memory-Efficient
Optimization by Reducing State Overhead for Scalable Training",
https://arxiv.org/abs/2411.07837, 2024 (ICML 2025).
Reference code: https://github.com/fzmushko/FRUGAL @ c7ebe4c2 (Apache-2.0).
Deviations:
- `column` is the default. The paper's pre-training scripts take blocks in descending order (its
  column variant serves fine-tuning): of the 14 matrices of a two-layer model that is 4, a share of
  .29 whose bytes depend on which 4. Columns hold the same floor(rho n) everywhere at every moment,
  and train every layer alike.
- The reference draws from the global generator, which ties the selection to whatever else draws.
  Random blocks are the same in every seed of a run: their sizes differ, so a selection that
  depends on the seed would have no bytes that can be told beforehand.
- The phase of the refresh is the optimizer's, not the first parameter's, which may be frozen.
- floor(rho n) forgives rounding: .29 * 100 is 29, not 28.
- `proj_params_lr_scale` (1 in the paper's main experiments; the embedding multiplier plays its
  part), the mirrored block order, the inactive rules other than signSGD and keeping the moments
  over a refresh are left out. `inactive_lr_scale` 0 gives the rule "no".
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import adamw_, decay_, descend_

SELECTIONS = ("block", "column")
BLOCK_ORDERS = ("random", "descending", "ascending")

_SLACK = 1e-9
"""Forgives the rounding of products such as .29 * 100 and .05 * 140."""


def count_columns(rho: float, columns: int) -> int:
    """State-full columns of a matrix: floor(rho * columns)."""
    return min(columns, math.floor(rho * columns + _SLACK))


def count_blocks(rho: float, matrices: int) -> int:
    """State-full matrices: round(rho * matrices), halves to even as in the reference code."""
    return min(matrices, round(rho * matrices))


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


def select_columns(columns: int, active: int, generator: torch.Generator) -> Tensor:
    """`active` distinct columns at random, int64 [active], owning no more memory than that."""
    drawn = torch.randperm(columns, generator=generator, device=generator.device)
    return drawn[:active].clone()


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


class Frugal(torch.optim.Optimizer):
    """FRUGAL over groups that carry a `role`; only those of role `matrix` are split.

    `lr` is the AdamW rate of every parameter and, times `inactive_lr_scale`, the size of a
    signSGD step. Parameters of fewer than two dimensions are always state-full.

    What is selected is told by `state` itself: a matrix without an entry is state-free, one with
    an `index` holds state for those columns, any other for the whole tensor. `rho` and `period`
    (in steps, may be fractional) may be changed between steps: a new `rho` acts from the next
    refresh on, a new `period` at once.
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
                    _start(state, param)
                state["step"] += 1
                if "index" in state:
                    columns_step_(param, grad, state, adam, inactive_lr)
                else:
                    m, v = state["exp_avg"], state["exp_avg_sq"]
                    adamw_(param, grad, m, v, state["step"], **adam)
        if selected:
            self._record()
        self.clock += 1
        return loss

    def _select_if_due(self) -> bool:
        """Select at the first step and whenever a period is over; says whether it did."""
        over = periods_over(self.clock + 1 - self.anchor, self.period)
        if over == 0 and self.clock > 0:
            return False
        if over > 0:
            self.anchor += over * self.period
            self.number += over
        # Of a period shorter than a step, several are over at once.
        if self.clock == 0:
            self.select(skipped=over)
        else:
            self.refreshes += 1
            self.select(skipped=over - 1)
        return True

    def select(self, skipped: int = 0) -> None:
        """Drop the matrices' state, then choose the part that holds state from now on.

        Takes `rho` as it is now. Buffers of the new part are allocated when its first gradient
        arrives, after all old ones are gone.

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
            active = count_blocks(self.rho, len(matrices))
            start = self.next_block + skipped * active
            self.next_block = start + active
            for position in select_blocks(
                len(matrices), active, self.block_order, start, self.block_seed, self.number
            ):
                self.state[matrices[position]] = {"step": 0}
            return
        for param in matrices:
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


def _start(state: dict[str, Any], param: Tensor) -> None:
    """Zero moments for a whole tensor, or for the columns `state["index"]` of it."""
    state.setdefault("step", 0)
    for name in ("exp_avg", "exp_avg_sq"):
        if "index" in state:
            state[name] = param.new_zeros((*param.shape[:-1], state["index"].numel()))
        else:
            state[name] = torch.zeros_like(param)


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """What is held after the step that ends at `progress`; blocks differ from one to the next."""
    rho = hparams["rho"]
    owned = list(owners(params))
    matrices = [info for info in owned if info.role == "matrix" and len(info.shape) > 1]
    total = 2 * (sum(info.nbytes for info in owned) - sum(info.nbytes for info in matrices))
    if hparams["selection"] == "block":
        active = count_blocks(rho, len(matrices))
        number = periods_over(progress, hparams["refresh_fraction"])
        order, seed = hparams["block_order"], hparams["block_seed"]
        chosen = select_blocks(len(matrices), active, order, number * active, seed, number)
        return total + 2 * sum(matrices[position].nbytes for position in chosen)
    for info in matrices:
        count = count_columns(rho, info.shape[-1])
        total += 2 * math.prod(info.shape[:-1]) * count * info.itemsize + 8 * count
    return total


def refresh_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, that begin with a refresh."""
    period = hparams["refresh_fraction"] * total_steps
    numbers = [periods_over(step + 1, period) for step in range(total_steps)]
    return tuple(step for step in range(1, total_steps) if numbers[step] > numbers[step - 1])


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Frugal:
    return Frugal(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        rho=hparams["rho"],
        period=hparams["refresh_fraction"] * ctx.total_steps,
        selection=hparams["selection"],
        block_order=hparams["block_order"],
        block_seed=hparams["block_seed"],
        inactive_lr_scale=hparams["inactive_lr_scale"],
        generator=ctx.generator,
    )


SPEC = OptimizerSpec(
    name="frugal",
    family="memory",
    summary="AdamW on a rotating quarter of each matrix, signSGD on the rest",
    paper="Zmushko et al., FRUGAL: Memory-Efficient Optimization by Reducing State Overhead for "
    "Scalable Training, 2024, https://arxiv.org/abs/2411.07837",
    code="https://github.com/fzmushko/FRUGAL @ c7ebe4c2",
    licence="Apache-2.0",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "rho": 0.25,
        "selection": "column",
        "block_order": "descending",
        "block_seed": 0,
        "inactive_lr_scale": 1.0,
        "refresh_fraction": 0.05,
    },
    state_bytes=state_bytes,
    refreshes="selections of a new state-full part after the first",
    switches=refresh_steps,
)
