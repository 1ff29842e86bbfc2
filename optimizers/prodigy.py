"""Prodigy: Adam that estimates its own learning rate from the distance it has come.

One d for all parameters, d0 at first. With k = d * lr * bias, for every parameter:

    r  <- b3 r + (d / d0) k * sum of <g, p0 - p>          p0: the initial weights
    m  <- b1 m + (1 - b1) d g;   v <- b2 v + (1 - b2) d^2 g^2
    s  <- b3 s + (d / d0) k g                             safeguard_warmup: d in place of k
    d'  = max(d, d_coef * r / sum of |s|)                 at most d * growth_rate
    p  <- (1 - k wd) p
    p  <- p - k * m / (sqrt(v) + d' eps);   then d <- d'

b1, b2: `beta1`, `beta2`; b3: `beta3`, None: sqrt(b2); wd: `weight_decay`; bias: sqrt(1 - b2^t) /
(1 - b1^t) with `use_bias_correction`, else 1. r and sum of |s| run over all parameters. Where no
gradient but 0 has come yet, d stays. `slice_p` n keeps s and p0 for every n-th element only.

`lr` stays 1 and is what the protocol's schedule scales; what is tuned is `d_coef`.
`embed_multiplier` is the rate of embedding and head relative to that of the others: the method acts
as if these tables were stored divided by it. Their |s| counts `embed_multiplier` times; <g, p0 - p>
is the same either way.

Paper: Konstantin Mishchenko, Aaron Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free
Learner", https://arxiv.org/abs/2306.06101, 2023.
Reference code: https://github.com/konstmish/prodigy/blob/3efb213e/prodigyopt/prodigy.py (MIT).
Defaults: that code's: lr 1, betas (.9, .999), beta3 None, eps 1e-8, d0 1e-6, d_coef 1, no growth
limit, slice_p 1, no bias correction, weight decay 0. `safeguard_warmup` is on, as its README asks
for where the rate warms up linearly (off in the code).

State: m, v, s and p0 in the parameter's dtype. d, its estimate and r stay on the device: nothing
is read on the host. `series` holds [step, d].

Deviations: relative rates, which the reference refuses; p0 is kept for weights that are all 0 too;
sums over bfloat16 parameters are taken in float32; the variant with decay inside the gradient is
left out. d' in the denominator is the code's, the paper has d.
"""

from __future__ import annotations

import math
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
from levelfield.optimizers._ops import decay_, descend_, moments_


def sliced(tensor: Tensor, every: int) -> Tensor:
    """Every `every`-th element, one-dimensional."""
    return tensor.detach().flatten()[::every]


def move_d(
    d: Tensor, d_max: Tensor, estimate: Tensor, d0: float, growth_rate: float | None
) -> tuple[Tensor, Tensor]:
    """The next d and the largest estimate so far, new 0-dim tensors."""
    largest = torch.maximum(d_max, estimate)
    if growth_rate is None:
        return largest, largest
    # The first estimate above d0 is taken as it is: only what follows is limited.
    start = torch.where(d == d0, torch.maximum(d, estimate), d)
    return torch.minimum(largest, start * growth_rate), largest


def _start(param: Tensor, every: int) -> dict[str, Tensor]:
    initial = sliced(param, every)
    return {
        "exp_avg": torch.zeros_like(param),
        "exp_avg_sq": torch.zeros_like(param),
        "s": torch.zeros_like(initial, memory_format=torch.contiguous_format),
        "p0": initial.clone(memory_format=torch.contiguous_format),
    }


class Prodigy(torch.optim.Optimizer):
    """For parameters of every shape. `lr` multiplies the estimated rate.

    A group may carry `relative`: how its rate relates to that of the others. Its `lr` contains it.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float | None = None,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        slice_p: int = 1,
        record_every: int = 1,
    ) -> None:
        beta3 = math.sqrt(beta2) if beta3 is None else beta3
        for name, beta in (("beta1", beta1), ("beta2", beta2), ("beta3", beta3)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        for name, value in (("d0", d0), ("d_coef", d_coef), ("slice_p", slice_p)):
            if not value > 0:
                raise ValueError(f"{name} is {value}: a number above 0 is needed")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "relative": 1.0})
        self.beta3, self.d0, self.d_coef, self.slice_p = beta3, d0, d_coef, slice_p
        self.growth_rate = growth_rate
        self.use_bias_correction, self.safeguard_warmup = use_bias_correction, safeguard_warmup
        self.record_every = record_every
        first = self.param_groups[0]["params"][0]
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.d = torch.full((), d0, dtype=dtype, device=first.device)
        self.d_max = self.d
        self.numerator = torch.zeros_like(self.d)
        self.clock = 0
        """Steps taken."""
        self.series: dict[str, list[list[Any]]] = {"d": []}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.clock % self.record_every == 0:
            self.series["d"].append([self.clock, self.d])
        rates = [self.d * group["lr"] * self._bias(group) for group in self.param_groups]
        estimate = self._take_gradients(rates)
        self.d, self.d_max = move_d(self.d, self.d_max, estimate, self.d0, self.growth_rate)
        for group, rate in zip(self.param_groups, rates, strict=True):
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                denominator = state["exp_avg_sq"].sqrt().add_(self.d * group["eps"])
                decay_(param, rate, group["weight_decay"])
                descend_(param, torch.div(state["exp_avg"], denominator, out=denominator), rate)
        self.clock += 1
        return loss

    def _bias(self, group: Mapping[str, Any]) -> float:
        if not self.use_bias_correction:
            return 1.0
        t = self.clock + 1
        return math.sqrt(1 - group["beta2"] ** t) / float(1 - group["beta1"] ** t)

    def _take_gradients(self, rates: Sequence[Tensor]) -> Tensor:
        """Move every average; `rates` are k * relative, one a group. Returns the estimate of d."""
        d = self.d
        numerator, total = self.numerator * self.beta3, torch.zeros_like(d)
        for group, rate in zip(self.param_groups, rates, strict=True):
            relative = group["relative"]
            common = d / self.d0 * rate / relative
            weight = d / self.d0 * d if self.safeguard_warmup else common
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(_start(param, self.slice_p))
                scaled = (grad * d).to(grad.dtype)
                moments_(
                    state["exp_avg"], state["exp_avg_sq"], scaled, group["beta1"], group["beta2"]
                )
                part = sliced(grad, self.slice_p)
                way = state["p0"].to(d.dtype) - sliced(param, self.slice_p).to(d.dtype)
                numerator = numerator + common * torch.dot(part.to(d.dtype), way)
                s = state["s"].mul_(self.beta3).add_(part * weight)
                total = total + relative * torch.linalg.vector_norm(s, 1, dtype=d.dtype)
        self.numerator = numerator
        # No gradient but 0 so far: the quotient is 0 / 0, and d stays.
        return torch.where(total > 0, self.d_coef * numerator / total, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `prodigy` the estimate."""
        return {**super().state_dict(), "prodigy": {n: deepcopy(getattr(self, n)) for n in _KEPT}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        for name in _KEPT:
            value = deepcopy(state_dict["prodigy"][name])
            setattr(self, name, value.to(self.d) if isinstance(value, Tensor) else value)


_KEPT = ("d", "d_max", "numerator", "clock", "series")


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Two tensors of each parameter's shape and two of every `slice_p`-th element."""
    step = hparams["slice_p"]
    return sum(
        2 * (info.numel + math.ceil(info.numel / step)) * info.itemsize for info in owners(params)
    )


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Prodigy:
    groups = ctx.groups(hparams)
    for group in groups:
        group["relative"] = group["lr"] / hparams["lr"]
    names = ("beta1", "beta2", "beta3", "eps", "d0", "d_coef", "growth_rate", "slice_p")
    switches = ("use_bias_correction", "safeguard_warmup")
    return Prodigy(
        groups,
        **{name: hparams[name] for name in (*names, *switches)},
        record_every=max(1, ctx.total_steps // 100),
    )


SPEC = OptimizerSpec(
    name="prodigy",
    family="lr-free",
    summary="Adam with a learning rate estimated from the distance it has come",
    paper="Mishchenko & Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner, 2023, "
    "https://arxiv.org/abs/2306.06101",
    code="https://github.com/konstmish/prodigy/blob/3efb213e/prodigyopt/prodigy.py",
    licence="MIT",
    build=build,
    scale="d_coef",
    space={
        "d_coef": space.log(0.03, 10.0, default=1.0),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={
        "lr": 1.0,
        "beta1": 0.9,
        "beta3": None,
        "eps": 1e-8,
        "d0": 1e-6,
        "growth_rate": None,
        "use_bias_correction": False,
        "safeguard_warmup": True,
        "slice_p": 1,
        "weight_decay": 0.0,
    },
    state_bytes=state_bytes,
    cannot=("separate_groups",),
)
