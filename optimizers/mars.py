"""MARS-AdamW: AdamW on a gradient corrected by its change since the last step.

For tensors of two and more dimensions:

    c = g + gamma * b1 / (1 - b1) * (g - g')     g': the gradient of the last step, 0 at first
    c = c / max(1, ||c||_2)                      `clip` = "tensor": the norm of each tensor
    m <- b1 m + (1 - b1) c;   v <- b2 v + (1 - b2) c^2
    p <- (1 - lr wd) p
    p <- p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; t: step, from 1. Vectors are stepped by AdamW with
betas `vector_beta1`, `vector_beta2` at lr * `vector_lr_ratio`. This is MARS-approx: g' was taken
on another batch and at the weights before the last step, so that one pass a step is enough.

`clip` "whole" takes the norm over all these tensors together, as the paper writes it; "tensor" is
what its code does; None leaves c as it is. The protocol's own clipping comes before.

Paper: Huizhuo Yuan, Yifeng Liu, Shuang Wu, Xun Zhou, Quanquan Gu, "MARS: Unleashing the Power of
Variance Reduction for Training Large Models", https://arxiv.org/abs/2411.10438, 2024.
Reference code: https://github.com/AGI-Arena/MARS/blob/4831e28e/MARS/optimizers/mars.py
(Apache-2.0).
Defaults: that code's: betas (.95, .99) and (.9, .95) for vectors, gamma .025, eps 1e-8; lr 3e-3,
half of it for vectors and weight decay .01 are its recipe for GPT-2 medium (README.md).

State: m, v and g' in the parameter's dtype; no g' for vectors.

Deviations: tensors of more than two dimensions count as matrices (the reference takes exactly
two). g' is a copy, not the gradient itself, which its owner may overwrite. The reference decays
vectors by .1; here the protocol says which roles decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import adamw_

CLIPS = ("tensor", "whole", None)


def corrected(grad: Tensor, last: Tensor, gamma: float, beta1: float) -> Tensor:
    """g + gamma b1 / (1 - b1) (g - g'): a new tensor, neither argument is changed."""
    return grad + (grad - last).mul_(gamma * beta1 / (1 - beta1))


class Mars(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is AdamW's, for vectors times `vector_lr_ratio`."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        *,
        beta1: float = 0.95,
        beta2: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gamma: float = 0.025,
        clip: str | None = "tensor",
        vector_lr_ratio: float = 1.0,
        vector_beta1: float = 0.9,
        vector_beta2: float = 0.95,
    ) -> None:
        betas = {"beta1": beta1, "beta2": beta2}
        vector_betas = {"vector_beta1": vector_beta1, "vector_beta2": vector_beta2}
        for name, beta in {**betas, **vector_betas}.items():
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if clip not in CLIPS:
            raise ValueError(f"clip {clip!r}: accepted: {', '.join(map(repr, CLIPS))}")
        own = {"gamma": gamma, "vector_lr_ratio": vector_lr_ratio, **vector_betas}
        adam = {"lr": lr, **betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, **own})
        self.clip = clip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not self.state[param]:
                    self._start(param)
        whole = self._whole_norm() if self.clip == "whole" else None
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, param.grad, group, whole)
        return loss

    def _start(self, param: Tensor) -> None:
        names = ("exp_avg", "exp_avg_sq", "last_grad")
        buffers = {name: torch.zeros_like(param) for name in names[: 3 if param.ndim > 1 else 2]}
        self.state[param] = {"step": 0, **buffers}

    def _corrected(self, param: Tensor, grad: Tensor, group: Mapping[str, Any]) -> Tensor:
        return corrected(grad, self.state[param]["last_grad"], group["gamma"], group["beta1"])

    def _whole_norm(self) -> Tensor | None:
        """Norm of all corrected gradients; they are made twice, never held together."""
        norms = [
            torch.linalg.vector_norm(self._corrected(param, param.grad, group))
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None and param.ndim > 1
        ]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def _step_one(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], whole: Tensor | None
    ) -> None:
        state = self.state[param]
        state["step"] += 1
        lr, prefix, update = group["lr"], "", grad
        if param.ndim > 1:
            update = self._corrected(param, grad, group)
            state["last_grad"].copy_(grad)
            if self.clip is not None:
                norm = whole if whole is not None else torch.linalg.vector_norm(update)
                update.div_(norm.clamp(min=1.0))
        else:
            lr, prefix = lr * group["vector_lr_ratio"], "vector_"
        adamw_(
            param,
            update,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["step"],
            lr=lr,
            beta1=group[prefix + "beta1"],
            beta2=group[prefix + "beta2"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
        )


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Three tensors of each matrix's shape, two of each vector's."""
    return sum((3 if len(info.shape) > 1 else 2) * info.nbytes for info in owners(params))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Mars:
    names = ("beta1", "beta2", "eps", "gamma", "clip", "vector_lr_ratio")
    vector = ("vector_beta1", "vector_beta2")
    return Mars(ctx.groups(hparams), **{name: hparams[name] for name in (*names, *vector)})


SPEC = OptimizerSpec(
    name="mars",
    family="adaptive",
    summary="AdamW on a gradient corrected by its change since the last step",
    paper="Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large "
    "Models, 2024, https://arxiv.org/abs/2411.10438",
    code="https://github.com/AGI-Arena/MARS/blob/4831e28e/MARS/optimizers/mars.py",
    licence="Apache-2.0",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=3e-3),
        "embed_multiplier": space.embed_multiplier(),
        "gamma": space.log(0.005, 0.2, default=0.025),
    },
    fixed={
        "beta1": 0.95,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "clip": "tensor",
        "vector_lr_ratio": 0.5,
        "vector_beta1": 0.9,
        "vector_beta2": 0.95,
    },
    state_bytes=state_bytes,
)
