"""CAME: Adafactor with momentum, each step weighed by how far the momentum strays from it.

    R  <- b2 R + (1 - b2) * mean of (g^2 + eps1) over columns;   C likewise over rows
    u   = g / sqrt(R C / mean(R))
    u   = u / max(1, RMS(u) / d)
    m  <- b1 m + (1 - b1) u
    R' <- b3 R' + (1 - b3) * mean of ((u - m)^2 + eps2) over columns;   C' likewise over rows
    p  <- (1 - lr wd) p
    p  <- p - lr * m / sqrt(R' C' / mean(R'))

b1, b2: `beta1`, `beta2`; d: `clip`; wd: `weight_decay`. Vectors keep V <- b2 V + (1 - b2)(g^2 +
eps1) itself, u = g / sqrt(V), and step by m alone. Tensors of more than two dimensions are
factored along the last two. No average has bias correction: R' starts at 0, so a step is about
1 / sqrt(1 - b3^t) times its later size.

b3 remembers 1 / (1 - b3) = `residual_fraction` * total_steps steps. The paper's .9999 is 10,000
steps; within a short run such an average only grows, and its growth is a rate that falls with
1 / sqrt(t). The default is a fifth of the run.

Paper: Yang Luo, Xiaozhe Ren, Zangwei Zheng, Zhuo Jiang, Xin Jiang, Yang You, "CAME:
Confidence-guided Adaptive Memory Efficient Optimization", https://arxiv.org/abs/2307.02047, 2023.
Reference code: https://github.com/yangluo7/CAME/blob/e77c5c02/came_pytorch/CAME.py (MIT).
Defaults: that repository's: lr 2e-4, betas (.9, .999), eps (1e-30, 1e-16), d 1, weight decay .01.

State: m; R, C, R' and C' (V for vectors). All of it in float32 for bfloat16 parameters, as in the
reference: with b2 = .999 averages stall in bfloat16.

Deviations: the share in place of b3.
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
from levelfield.optimizers._ops import decay_, descend_


def factors_(row: Tensor, column: Tensor, square: Tensor, beta: float) -> None:
    """Update the means of `square` [.., m, n]: row [.., m], column [.., n]."""
    row.lerp_(square.mean(dim=-1), 1 - beta)
    column.lerp_(square.mean(dim=-2), 1 - beta)


def inverse_root(row: Tensor, column: Tensor) -> Tensor:
    """1 / sqrt(row column / mean(row)), [.., m, n]."""
    scaled = (row / row.mean(dim=-1, keepdim=True)).rsqrt_()
    return scaled.unsqueeze(-1) * column.rsqrt().unsqueeze(-2)


def came_direction(
    grad: Tensor, state: Mapping[str, Any], betas: tuple[float, float, float], hparams: Any
) -> Tensor:
    """The direction of a step, a new tensor of the gradient's shape; `state` is updated in place.

    Args:
        grad: in the state's dtype.
        betas: b1, b2, b3.
        hparams: a mapping with `eps1`, `eps2`, `clip`.
    """
    beta1, beta2, beta3 = betas
    square = grad.square().add_(hparams["eps1"])
    if "row" in state:
        factors_(state["row"], state["column"], square, beta2)
        update = inverse_root(state["row"], state["column"]).mul_(grad)
    else:
        update = state["exp_avg_sq"].lerp_(square, 1 - beta2).rsqrt().mul_(grad)
    rms = torch.linalg.vector_norm(update) / math.sqrt(update.numel())
    update.div_((rms / hparams["clip"]).clamp_(min=1.0))
    momentum: Tensor = state["exp_avg"].lerp_(update, 1 - beta1)
    if "row" not in state:
        return momentum.clone()
    residual = update.sub_(momentum).square_().add_(hparams["eps2"])
    factors_(state["residual_row"], state["residual_column"], residual, beta3)
    return inverse_root(state["residual_row"], state["residual_column"]).mul_(momentum)


class Came(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is the size of a step relative to its unsteadiness."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-4,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        beta3: float = 0.9999,
        eps1: float = 1e-30,
        eps2: float = 1e-16,
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        betas = {"beta1": beta1, "beta2": beta2, "beta3": beta3}
        for name, beta in betas.items():
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if not clip > 0.0:
            raise ValueError(f"clip is {clip}: a bound above 0 is needed")
        own = {"eps1": eps1, "eps2": eps2, "clip": clip}
        super().__init__(params, {"lr": lr, **betas, **own, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            betas = (group["beta1"], group["beta2"], group["beta3"])
            for param in group["params"]:
                if param.grad is None or param.numel() == 0:
                    continue
                state = self.state[param]
                if not state:
                    state.update(_start(param))
                grad = param.grad.to(state["exp_avg"].dtype)
                update = came_direction(grad, state, betas, group)
                decay_(param, lr, weight_decay)
                descend_(param, update, lr)
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        # The base class casts every tensor to its parameter's dtype: take them as they were saved.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                self.state[param][name] = value.to(param.device)


def _start(param: Tensor) -> dict[str, Tensor]:
    dtype = torch.float32 if param.dtype in (torch.bfloat16, torch.float16) else param.dtype
    state = {"exp_avg": torch.zeros_like(param, dtype=dtype)}
    if param.ndim < 2:
        return {**state, "exp_avg_sq": torch.zeros_like(param, dtype=dtype)}
    *outer, rows, columns = param.shape
    for prefix in ("", "residual_"):
        state[prefix + "row"] = param.new_zeros((*outer, rows), dtype=dtype)
        state[prefix + "column"] = param.new_zeros((*outer, columns), dtype=dtype)
    return state


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """A momentum, and two rows and columns for every matrix; float32 at least."""
    total = 0
    for info in owners(params):
        if info.numel == 0:
            continue
        elements = 2 * info.numel
        if len(info.shape) > 1:
            *outer, rows, columns = info.shape
            elements = info.numel + 2 * math.prod(outer) * (rows + columns)
        total += elements * max(4, info.itemsize)
    return total


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Came:
    memory = hparams["residual_fraction"] * ctx.total_steps
    return Came(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        beta3=1 - 1 / max(1.0, memory),
        eps1=hparams["eps1"],
        eps2=hparams["eps2"],
        clip=hparams["clip"],
    )


SPEC = OptimizerSpec(
    name="came",
    family="memory",
    summary="Adafactor with momentum, weighed by how far the momentum strays",
    paper="Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023, "
    "https://arxiv.org/abs/2307.02047",
    code="https://github.com/yangluo7/CAME/blob/e77c5c02/came_pytorch/CAME.py",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(3e-5, 3e-2, default=2e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "residual_fraction": 0.2,
        "eps1": 1e-30,
        "eps2": 1e-16,
        "clip": 1.0,
        "weight_decay": 0.01,
    },
    state_bytes=state_bytes,
)
