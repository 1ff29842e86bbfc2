"""Sophia-G: momentum over a curvature estimated from labels that the model draws itself, clipped.

    m <- b1 m + (1 - b1) g
    p <- (1 - lr wd) p
    p <- p - lr * sign(m) * min(|m| / (rho * B * h + eps), 1)

    every k steps, one more pass whose labels are drawn from the model's own softmax:
    h <- b2 h + (1 - b2) ghat^2              ghat: gradient of that loss

b1: `beta1`; wd: `weight_decay`; k: `hessian_every`; B: tokens in the batch. B ghat^2 is the
Gauss-Newton-Bartlett estimate of the Hessian's diagonal. Gradients of the data's labels never
enter h, nor ghat m. h starts at zero and is not bias-corrected: until the first estimate every
element moves by lr (sign of m).

`eps_placement` "added" is the code's, "floor" the paper's max(rho B h, eps). `hessian_at` "end" is
the code's: after steps k, 2k, ...; "start" is the paper's: before steps 1, k + 1, ..., which then
have it. `clip_hessian`: the gradient clipping of the protocol acts on ghat too, as in the training
script; False is the paper.

b2 = min(`beta2`, 1 - k / (`memory_fraction` * total_steps)). The paper's .99 remembers 100
estimates, a thousand of its 100,000 steps; 400 steps make 40 estimates, of which h would reach a
third of its size only at the end. So the memory is at most a quarter of the run, and the paper's
from 4,000 steps on. k = 10 is the paper's: it is a share of the cost of a step, not of the horizon
(`passes` 1.1, the harness counts them).

`refreshes` counts the estimates. `series` holds `win_rate` after each of them: the share of
elements that are not clipped, |m| < rho B h; tune `rho` for .1 to .5 of it (README).

Paper: Hong Liu, Zhiyuan Li, David Hall, Percy Liang, Tengyu Ma, "Sophia: A Scalable Stochastic
Second-order Optimizer for Language Model Pre-training", https://arxiv.org/abs/2305.14342, 2023.
Reference code: https://github.com/Liuhong99/Sophia @ a7e15722, sophia.py and train_sophiag.py
(MIT).
Defaults: those of its smallest GPT-2 (125M): lr 6e-4, betas (.965, .99), rho .05, weight decay .2,
eps 1e-15, k 10. Its lr is the largest that an element moves by, as Lion's is.

Deviations: the labels are drawn for the inputs of the step's own batch, not of the next one: no
method gets more text than another. Over several micro-batches ghat is the gradient of their mean,
as in the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext, GradientStepper, StepBatch, StepResult
from levelfield.optimizers._claims import copies
from levelfield.optimizers._curvature import restore_state
from levelfield.optimizers._ops import decay_, descend_

EPS_PLACEMENTS = ("added", "floor")
HESSIAN_AT = ("end", "start")


def sophia_direction(
    exp_avg: Tensor, hessian: Tensor, scale: float, eps: float, floor: bool
) -> Tensor:
    """sign(m) min(|m| / (scale h + eps), 1), any shape; `floor`: max(scale h, eps) below."""
    curvature = hessian * scale
    curvature = curvature.clamp_(min=eps) if floor else curvature.add_(eps)
    return torch.div(exp_avg, curvature, out=curvature).clamp_(-1.0, 1.0)


class SophiaG(torch.optim.Optimizer):
    """For parameters of every shape. `lr` is the most that an element moves by in one step.

    `step` takes ordinary gradients, `update_hessian` those of labels drawn from the model.

    Args:
        batch_tokens: B, tokens in the batch of either.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 6e-4,
        *,
        batch_tokens: int,
        beta1: float = 0.965,
        beta2: float = 0.99,
        rho: float = 0.05,
        eps: float = 1e-15,
        eps_placement: str = "added",
        weight_decay: float = 0.2,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if not rho > 0.0:
            raise ValueError(f"rho is {rho}: rho > 0 is needed")
        if eps_placement not in EPS_PLACEMENTS:
            raise ValueError(
                f"eps_placement is {eps_placement!r}: accepted are {', '.join(EPS_PLACEMENTS)}"
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "beta1": beta1,
                "beta2": beta2,
                "rho": rho,
                "eps": eps,
                "eps_placement": eps_placement,
                "weight_decay": weight_decay,
            },
        )
        self.batch_tokens = batch_tokens
        self.clock = 0
        """Steps taken."""
        self.refreshes = 0
        self._win_rate: list[tuple[int, Tensor]] = []

    @property
    def series(self) -> dict[str, list[list[float]]]:
        """Read when the run is over: the values stay on their device until then."""
        return {"win_rate": [[step, float(value)] for step, value in self._win_rate]}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            scale = group["rho"] * self.batch_tokens
            floor = group["eps_placement"] == "floor"
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = _started(self.state[param], param)
                m = state["exp_avg"].lerp_(param.grad, 1 - group["beta1"])
                decay_(param, group["lr"], group["weight_decay"])
                direction = sophia_direction(m, state["hessian"], scale, group["eps"], floor)
                descend_(param, direction, group["lr"])
        self.clock += 1
        return loss

    @torch.no_grad()
    def update_hessian(self) -> None:
        """h <- b2 h + (1 - b2) ghat^2, with ghat in the parameters' `grad`."""
        unclipped: list[Tensor] = []
        elements = 0
        for group in self.param_groups:
            scale, beta2 = group["rho"] * self.batch_tokens, group["beta2"]
            for param in group["params"]:
                ghat = param.grad
                if ghat is None or param.numel() == 0:
                    continue
                state = _started(self.state[param], param)
                h = state["hessian"].mul_(beta2).addcmul_(ghat, ghat, value=1 - beta2)
                unclipped.append((state["exp_avg"].abs() < h * scale).sum())
                elements += param.numel()
        if unclipped:
            self._win_rate.append((self.clock, torch.stack(unclipped).sum() / elements))
        self.refreshes += 1

    def state_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("clock", "refreshes")}
        return {**super().state_dict(), "sophia": {**own, "win_rate": list(self._win_rate)}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        restore_state(self, state_dict)
        own = state_dict["sophia"]
        self.clock, self.refreshes = own["clock"], own["refreshes"]
        self._win_rate = list(own["win_rate"])


def _started(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    if not state:
        state["exp_avg"] = torch.zeros_like(param)
        state["hessian"] = torch.zeros_like(param)
    return state


class SophiaStepper(GradientStepper):
    """The ordinary step, and every `every` steps a pass on labels drawn from the model.

    Args:
        sophia: the method's optimizer.
        rest: the fallback over parameters that it does not hold.
        generator: what the labels are drawn with.
        every: k.
        at: one of `HESSIAN_AT`.
        clip_hessian: whether `clip_norm` acts on that pass too.
    """

    def __init__(
        self,
        sophia: SophiaG,
        rest: torch.optim.Optimizer | None,
        *,
        generator: torch.Generator,
        clip_norm: float | None,
        every: int,
        at: str,
        clip_hessian: bool,
    ) -> None:
        if every < 1:
            raise ValueError(f"hessian_every is {every}: at least 1 step is needed")
        if at not in HESSIAN_AT:
            raise ValueError(f"hessian_at is {at!r}: accepted are {', '.join(HESSIAN_AT)}")
        super().__init__([sophia] if rest is None else [sophia, rest], clip_norm=clip_norm)
        self.sophia, self.generator = sophia, generator
        self.every, self.at, self.clip_hessian = every, at, clip_hessian

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        due = self.sophia.clock % self.every
        if self.at == "start" and due == 0:
            self.estimate(batch)
        result = super().step(batch, lr_scale)
        if self.at == "end" and due == self.every - 1:
            self.estimate(batch)
        return result

    def estimate(self, batch: StepBatch) -> None:
        """Update h; leaves no gradient behind."""
        batch.backward_sampled(self.generator)
        if self.clip_hessian:
            self.clip()
        self.sophia.update_hessian()
        for param in self._parameters:
            param.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.generator.set_state(state["generator"].cpu())


def hessian_beta(hparams: Mapping[str, Any], total_steps: int) -> float:
    """b2, its memory cut to a share of the horizon."""
    longest = hparams["memory_fraction"] * total_steps
    beta2: float = min(hparams["beta2"], max(0.0, 1.0 - hparams["hessian_every"] / longest))
    return beta2


def hessian_steps(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """The steps, counted from 0, that are the first to have a new estimate."""
    every = hparams["hessian_every"]
    return tuple(range(0 if hparams["hessian_at"] == "start" else every, total_steps, every))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> SophiaStepper:
    sophia = SophiaG(
        ctx.groups(hparams),
        batch_tokens=ctx.tokens_per_step,
        beta1=hparams["beta1"],
        beta2=hessian_beta(hparams, ctx.total_steps),
        rho=hparams["rho"],
        eps=hparams["eps"],
        eps_placement=hparams["eps_placement"],
    )
    return SophiaStepper(
        sophia,
        ctx.rest,
        generator=ctx.generator,
        clip_norm=ctx.clip_norm,
        every=hparams["hessian_every"],
        at=hparams["hessian_at"],
        clip_hessian=hparams["clip_hessian"],
    )


SPEC = OptimizerSpec(
    name="sophia",
    family="curvature",
    summary="Momentum over a curvature from labels drawn by the model, clipped by element",
    paper="Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model "
    "Pre-training, 2023, https://arxiv.org/abs/2305.14342",
    code="https://github.com/Liuhong99/Sophia @ a7e15722",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(3e-5, 3e-2, default=6e-4),
        "embed_multiplier": space.embed_multiplier(),
        "rho": space.log(0.01, 0.1, default=0.05),
    },
    fixed={
        "beta1": 0.965,
        "beta2": 0.99,
        "memory_fraction": 0.25,
        "eps": 1e-15,
        "eps_placement": "added",
        "hessian_every": 10,
        "hessian_at": "end",
        "clip_hessian": True,
        "weight_decay": 0.2,
    },
    state_bytes=copies(2),
    passes=1.1,
    passes_at=lambda hparams: 1.0 + 1.0 / hparams["hessian_every"],
    refreshes="estimates of the Hessian's diagonal",
    switches=hessian_steps,
    cannot=("distributed",),  # labels are drawn for the batch as a whole, from one generator
)
