"""Lion: the sign of an interpolated momentum.

    p <- (1 - lr wd) p
    p <- p - lr * sign(b1 m + (1 - b1) g)        the old m
    m <- b2 m + (1 - b2) g                       then m, with another beta

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; g: gradient. No bias correction, no eps.

Paper: Xiangning Chen, Chen Liang, Da Huang, Esteban Real, Kaiyuan Wang, Yao Liu, Hieu Pham,
Xuanyi Dong, Thang Luong, Cho-Jui Hsieh, Yifeng Lu, Quoc V. Le, "Symbolic Discovery of
Optimization Algorithms", https://arxiv.org/abs/2302.06675, 2023.
Reference code: https://github.com/google/automl/blob/6a54c874/lion/lion_pytorch.py (Apache-2.0).
Defaults: that code's: lr 1e-4, betas (.9, .99), weight decay 0. For language models the paper
uses betas (.95, .98); `beta2` is tuned here, `beta1` is not.

Every element moves by lr at every step, so clipping the gradient changes little and a row of the
embedding drifts on after its last gradient, until its momentum is exactly zero.

Deviations: none; both averages are written as `lerp`, which rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import decay_, descend_


def lion_update(grad: Tensor, momentum: Tensor, beta1: float, beta2: float) -> Tensor:
    """The direction sign(b1 m + (1 - b1) g), any shape; `momentum` is then updated in place."""
    direction = momentum.lerp(grad, 1 - beta1).sign_()
    momentum.lerp_(grad, 1 - beta2)
    return direction


class Lion(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is what every element moves by in one step.

    State: one momentum in the parameter's dtype.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        super().__init__(
            params, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            beta1, beta2 = group["beta1"], group["beta2"]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                decay_(param, lr, weight_decay)
                descend_(param, lion_update(grad, state["momentum"], beta1, beta2), lr)
        return loss


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Lion:
    return Lion(ctx.groups(hparams), beta1=hparams["beta1"], beta2=hparams["beta2"])


SPEC = OptimizerSpec(
    name="lion",
    family="sign",
    summary="Sign of an interpolated momentum, one state tensor",
    paper="Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, "
    "https://arxiv.org/abs/2302.06675",
    code="https://github.com/google/automl/blob/6a54c874/lion/lion_pytorch.py",
    licence="Apache-2.0",
    build=build,
    space={
        "lr": space.log(3e-5, 3e-2, default=1e-4),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.999, default=0.99),
    },
    fixed={"beta1": 0.9, "weight_decay": 0.0},
    state_bytes=copies(1),
)
