"""AdEMAMix: AdamW with a second, much slower momentum.

    m1 <- b1 m1 + (1 - b1) g
    m2 <- b3 m2 + (1 - b3) g                 b3 and a of step t, see below
    v  <- b2 v + (1 - b2) g^2
    p  <- (1 - lr wd) p
    p  <- p - lr * (m1 / (1 - b1^t) + a m2) / (sqrt(v / (1 - b2^t)) + eps)

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; g: gradient; t: step, from 1. m2 has no bias
correction. Over the first W = `warmup_fraction` * total_steps steps, a rises linearly from 0 to
`alpha`, and b3 rises from b1 to its end so that its half-life ln(.5) / ln(b3) is linear in t.

The end of b3 follows from the length of the run: it remembers 1 / (1 - b3) = `slow_fraction` *
total_steps steps, but never fewer than b1 does. The paper's .9999 over 256k steps is 10,000 steps,
a share of .039; in a run of 400 that is 16 steps, hardly slower than b1 = .9 with its 10. The
default is a tenth, 40 steps there, and the share is tuned.

Paper: Matteo Pagliardini, Pierre Ablin, David Grangier, "The AdEMAMix Optimizer: Better, Faster,
Older", https://arxiv.org/abs/2409.03137, 2024.
Reference code: https://github.com/apple/ml-ademamix/blob/c3d73c09/pytorch/ademamix.py (MIT).
Defaults: that repository's recipe for language models (README.md): lr 1e-3, betas (.9, .999),
alpha 8, both warm-ups over the whole run, weight decay .1; eps 1e-8. (The class alone has alpha 2
and decay 0.)

State: m1, m2 and v in the parameter's dtype; no m1 if `beta1` is 0.

Deviations: the share in place of b3. The reference adds 1e-8 to betas inside logarithms; here the
half-life of b = 0 is 0.
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
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import decay_, descend_


def half_life(beta: float) -> float:
    """Steps after which an average has forgotten a half."""
    return math.log(0.5) / math.log(beta) if beta > 0.0 else 0.0


def beta_at(step: int, start: float, end: float, warmup: float) -> float:
    """The slow beta at `step`, from 1: its half-life is linear from `start` to `end`."""
    if step >= warmup:
        return end
    share = step / warmup
    steps = (1 - share) * half_life(start) + share * half_life(end)
    return 0.5 ** (1 / steps) if steps > 0.0 else 0.0


def alpha_at(step: int, end: float, warmup: float) -> float:
    """The weight of the slow momentum at `step`, from 1."""
    return end * min(1.0, step / warmup) if warmup > 0.0 else end


def slow_beta(memory: float, beta1: float) -> float:
    """The beta that remembers `memory` steps, not below `beta1`."""
    return max(beta1, 1 - 1 / memory) if memory > 0.0 else beta1


class AdEMAMix(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is AdamW's; a step is up to 1 + `alpha` times as long.

    `warmup` is in steps.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        beta3: float = 0.9999,
        alpha: float = 8.0,
        warmup: float = 0.0,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2), ("beta3", beta3)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "beta3": beta3, "alpha": alpha, "warmup": warmup})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, param.grad, group)
        return loss

    def _step_one(self, param: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        beta1, beta2, warmup = group["beta1"], group["beta2"], group["warmup"]
        state = self.state[param]
        if not state:
            state["step"] = 0
            if beta1 > 0.0:
                state["fast"] = torch.zeros_like(param)
            state["slow"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        step: int = state["step"]
        fast = state["fast"].lerp_(grad, 1 - beta1) if beta1 > 0.0 else grad
        slow = state["slow"].lerp_(grad, 1 - beta_at(step, beta1, group["beta3"], warmup))
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        update = fast / (1 - beta1**step)
        update.add_(slow, alpha=alpha_at(step, group["alpha"], warmup)).div_(denominator)
        decay_(param, group["lr"], group["weight_decay"])
        descend_(param, update, group["lr"])


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Three tensors of each parameter's shape, two without the fast momentum."""
    return copies(3 if hparams["beta1"] > 0.0 else 2)(params, hparams, progress)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdEMAMix:
    beta1 = hparams["beta1"]
    return AdEMAMix(
        ctx.groups(hparams),
        beta1=beta1,
        beta2=hparams["beta2"],
        beta3=slow_beta(hparams["slow_fraction"] * ctx.total_steps, beta1),
        alpha=hparams["alpha"],
        warmup=hparams["warmup_fraction"] * ctx.total_steps,
        eps=hparams["eps"],
    )


SPEC = OptimizerSpec(
    name="ademamix",
    family="adaptive",
    summary="AdamW with a second momentum that remembers a share of the run",
    paper="Pagliardini et al., The AdEMAMix Optimizer: Better, Faster, Older, 2024, "
    "https://arxiv.org/abs/2409.03137",
    code="https://github.com/apple/ml-ademamix/blob/c3d73c09/pytorch/ademamix.py",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "slow_fraction": space.log(0.02, 0.5, default=0.1, upper_bound=1.0),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "alpha": 8.0,
        "warmup_fraction": 1.0,
        "eps": 1e-8,
        "weight_decay": 0.1,
    },
    state_bytes=state_bytes,
)
