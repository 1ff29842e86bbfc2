"""signSGD: the sign of the gradient, nothing remembered.

    p <- (1 - lr wd) p
    p <- p - lr * sign(g)

wd: `weight_decay`; g: gradient; sign(0) = 0.

Paper: Jeremy Bernstein, Yu-Xiang Wang, Kamyar Azizzadenesheli, Anima Anandkumar, "signSGD:
Compressed Optimisation for Non-Convex Problems", https://arxiv.org/abs/1802.04434, 2018.
Reference code: https://github.com/jxbz/signSGD @ 2368bf83 (no licence stated; not used).
Default lr 1e-3: the best of the authors' own search for momentum 0, which is this method
(cifar/README.md of that code). Its weight decay of .1 belongs to that image task; 0 here.

The magnitude of the gradient plays no part, so clipping changes nothing; with small batches the
sign is mostly noise.

Deviations: the paper has no weight decay; this one is decoupled.
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


class SignSGD(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is what every element moves by in one step.

    State: none.
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                decay_(param, lr, weight_decay)
                descend_(param, grad.sign(), lr)
        return loss


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> SignSGD:
    return SignSGD(ctx.groups(hparams))


SPEC = OptimizerSpec(
    name="signsgd",
    family="sign",
    summary="Sign of the gradient, no state",
    paper="Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018, "
    "https://arxiv.org/abs/1802.04434",
    code="https://github.com/jxbz/signSGD @ 2368bf83",
    build=build,
    space={
        "lr": space.log(1e-4, 3e-2, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={"weight_decay": 0.0},
    state_bytes=copies(0),
)
