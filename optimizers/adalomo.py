"""AdaLomo: Adafactor's second moment without momentum, updated inside backward.

In the hook of every parameter p [m, n], as soon as its gradient g is there:

    b = 1 - t^(-`beta2_decay`)                         t from 1: b is 0 at the first step
    R [m] <- b R + (1 - b) mean over n of (g^2 + eps1)
    C [n] <- b C + (1 - b) mean over m of (g^2 + eps1)
    u = g / (sqrt(R / mean(R)) sqrt(C))                a vector: v [n] in full, u = g / sqrt(v)
    u <- u / max(1, RMS(u) / `clip_threshold`)         grouped normalisation: a bound a tensor
    alpha = lr * max(eps2, RMS(p))
    p <- (1 - alpha * weight_decay) p
    p <- p - alpha * u
    drop g

State: m + n float32 elements a matrix, n a vector (float64 for float64 parameters). One gradient
alive at a time, one pass a step. A tensor of more than two dimensions has R and C over its last
two.

`clip`: "none", the authors' advice, takes no notice of the protocol's bound on the gradient norm;
the normalisation of each tensor takes its place. "two_pass" heeds the bound as LOMO does, with a
second pass.

All parameters take part; embedding and head times `embed_multiplier`.

Paper: Kai Lv, Hang Yan, Qipeng Guo, Haijun Lv, Xipeng Qiu, "AdaLomo: Low-memory Optimization with
Adaptive Learning Rate", https://arxiv.org/abs/2310.10195, 2023 (Findings of ACL 2024).
Reference code: https://github.com/OpenLMLab/LOMO @ 45d4bac1 (MIT).
Defaults: that code's: lr 1e-3 (the authors advise 5e-4 to 1e-3), beta2_decay .8, eps (1e-30,
1e-3), clip_threshold 1, weight decay 0. b depends on the step alone, so nothing here is bound to
the horizon.

Deviations:
- The reference multiplies the loss by 1024 and the gradient by its inverse, powers of two that
  cancel but for underflow: left out, as is clipping by value.
- Post-accumulate hooks in place of a look through all parameters in every hook.
- RMS(p) stays on the device; the reference compares it on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._fused import (
    FusedOptimizer,
    FusedStepper,
    clip_norm_of,
    passes_at,
    work_dtype,
)


def rms(tensor: Tensor) -> Tensor:
    """Root of the mean square, 0-dim."""
    found: Tensor = torch.linalg.vector_norm(tensor) / math.sqrt(tensor.numel())
    return found


def adalomo_direction(grad: Tensor, state: dict[str, Any], beta2: float, eps1: float) -> Tensor:
    """g over the root of its second moment, which is updated in place; before normalisation."""
    square = grad.square().add_(eps1)
    if grad.ndim < 2:
        whole: Tensor = state["exp_avg_sq"]
        return whole.lerp_(square, 1 - beta2).rsqrt().mul_(grad)
    row: Tensor = state["exp_avg_sq_row"]
    column: Tensor = state["exp_avg_sq_col"]
    row.lerp_(square.mean(-1), 1 - beta2)
    column.lerp_(square.mean(-2), 1 - beta2)
    by_row = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    # Row factors first: of a zero gradient the column's alone is 1e15.
    return (grad * by_row).mul_(column.rsqrt().unsqueeze(-2))


class AdaLomo(FusedOptimizer):
    """For parameters of every shape. State in float32: a row and a column of a matrix."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta2_decay: float = 0.8,
        eps1: float = 1e-30,
        eps2: float = 1e-3,
        clip_threshold: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        if not beta2_decay > 0.0:
            raise ValueError(f"beta2_decay is {beta2_decay}: above 0 is needed")
        super().__init__(
            params,
            {
                "lr": lr,
                "beta2_decay": beta2_decay,
                "eps1": eps1,
                "eps2": eps2,
                "clip_threshold": clip_threshold,
                "weight_decay": weight_decay,
            },
        )
        self.clock = 0
        """Steps begun."""

    def begin(self) -> None:
        self.clock += 1

    def update(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], factor: Tensor | None
    ) -> None:
        if param.numel() == 0:
            return
        state = self.state[param]
        wide, grad = param.to(work_dtype(param)), grad.to(work_dtype(param))
        if factor is not None:
            grad = grad * factor
        if not state:
            _start(state, wide)
        beta2 = 1 - self.clock ** -group["beta2_decay"]
        update = adalomo_direction(grad, state, beta2, group["eps1"])
        update.div_((rms(update) / group["clip_threshold"]).clamp_(min=1.0))
        rate = rms(wide).clamp_(min=group["eps2"]) * group["lr"]
        if group["weight_decay"] != 0.0:
            wide.mul_(1 - rate * group["weight_decay"])
        wide.sub_(update.mul_(rate))
        if wide is not param:
            param.copy_(wide)

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and the number of steps."""
        return {**super().state_dict(), "adalomo": {"clock": self.clock}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        # The base class casts every tensor to its parameter's dtype: take them as they were saved.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                self.state[param][name] = value.to(param.device, copy=True)
        self.clock = state_dict["adalomo"]["clock"]


def _start(state: dict[str, Any], wide: Tensor) -> None:
    if wide.ndim < 2:
        state["exp_avg_sq"] = torch.zeros_like(wide)
    else:
        state["exp_avg_sq_row"] = wide.new_zeros(wide.shape[:-1])
        state["exp_avg_sq_col"] = wide.new_zeros((*wide.shape[:-2], wide.shape[-1]))


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    total = 0
    for info in owners(params):
        elements = info.numel
        if len(info.shape) > 1 and elements > 0:
            elements = info.numel // info.shape[-1] + info.numel // info.shape[-2]
        total += elements * max(4, info.itemsize)
    return total


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> FusedStepper:
    optimizer = AdaLomo(
        ctx.groups(hparams),
        beta2_decay=hparams["beta2_decay"],
        eps1=hparams["eps1"],
        eps2=hparams["eps2"],
        clip_threshold=hparams["clip_threshold"],
    )
    return FusedStepper(optimizer, clip_norm=clip_norm_of(ctx, hparams))


SPEC = OptimizerSpec(
    name="adalomo",
    family="fused",
    summary="Factored second moment, no momentum, updates inside backward",
    paper="Lv et al., AdaLomo: Low-memory Optimization with Adaptive Learning Rate, 2023, "
    "https://arxiv.org/abs/2310.10195",
    code="https://github.com/OpenLMLab/LOMO @ 45d4bac1",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-4, 1.0, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta2_decay": 0.8,
        "eps1": 1e-30,
        "eps2": 1e-3,
        "clip_threshold": 1.0,
        "weight_decay": 0.0,
        "clip": "none",
    },
    state_bytes=state_bytes,
    passes_at=passes_at,
    cannot=("grad_accumulation", "distributed"),
)
