"""Signum: the sign of a momentum.

    m <- b m + (1 - b) g
    p <- (1 - lr wd) p
    p <- p - lr * sign(m)                    with Nesterov sign((1 - b) g + b m)

b: `beta`; wd: `weight_decay`; g: gradient; sign(0) = 0. No bias correction, no eps. With b = 0 it
is `signsgd`; `lion` with equal betas is Signum.

Paper: Jeremy Bernstein, Yu-Xiang Wang, Kamyar Azizzadenesheli, Anima Anandkumar, "signSGD:
Compressed Optimisation for Non-Convex Problems", https://arxiv.org/abs/1802.04434, 2018.
Reference code: https://github.com/jxbz/signSGD @ 2368bf83 (no licence stated; not used).
Defaults: `beta` .9 (the paper's); lr 1e-3, the best of the authors' search (cifar/README.md of
that code), as for `signsgd`. Weight decay 0: the .1 of that search belongs to its image task.

State: one momentum in the parameter's dtype.

Deviations: the paper has no weight decay; this one is decoupled. `nesterov` is of later users
(off); written with g + b B over a sum B of gradients, it is 1 / (1 - b) times ours: the same sign.
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


def signum_update(grad: Tensor, momentum: Tensor, beta: float, nesterov: bool) -> Tensor:
    """The direction, any shape; `momentum` is updated in place before."""
    momentum.lerp_(grad, 1 - beta)
    return grad.lerp(momentum, beta).sign_() if nesterov else momentum.sign()


class Signum(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is what every element moves by in one step."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"beta is {beta}: 0 <= beta < 1 is needed")
        super().__init__(
            params, {"lr": lr, "beta": beta, "nesterov": nesterov, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            beta, nesterov = group["beta"], group["nesterov"]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                decay_(param, lr, weight_decay)
                descend_(param, signum_update(grad, state["momentum"], beta, nesterov), lr)
        return loss


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Signum:
    return Signum(ctx.groups(hparams), beta=hparams["beta"], nesterov=hparams["nesterov"])


SPEC = OptimizerSpec(
    name="signum",
    family="sign",
    summary="Sign of a momentum, one state tensor",
    paper="Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018, "
    "https://arxiv.org/abs/1802.04434",
    code="https://github.com/jxbz/signSGD @ 2368bf83",
    build=build,
    space={
        "lr": space.log(3e-5, 3e-2, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta": space.beta(0.7, 0.99, default=0.9),
    },
    fixed={"nesterov": False, "weight_decay": 0.0},
    state_bytes=copies(1),
)
