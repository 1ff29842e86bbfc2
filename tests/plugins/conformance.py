"""A method that keeps every promise of `levelfield check`, and one for each way to break one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext, GradientStepper, StepBatch, StepResult

LARGE = 1000
"""Elements that only a language model's tables have here, never a bare parameter."""


class Good(torch.optim.Optimizer):
    """The sign of a momentum: one state tensor a parameter. What goes wrong overrides a part."""

    def __init__(self, ctx: BuildContext, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 1e-3, "copies": 1})
        self.ctx = ctx
        self.clock = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.before()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    self.skip(param, group["lr"])
                    continue
                state = self.state[param]
                if not state:
                    state["m"] = torch.zeros_like(param)
                    state["more"] = [torch.zeros_like(param) for _ in range(group["copies"] - 1)]
                state["m"].lerp_(self.gradient(param), 0.1)
                self.move(param, state["m"].sign(), group)
        self.clock += 1
        self.after()
        return loss

    def before(self) -> None: ...
    def after(self) -> None: ...
    def skip(self, param: Tensor, lr: float) -> None: ...

    def gradient(self, param: Tensor) -> Tensor:
        return param.grad  # type: ignore[return-value]

    def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        param.sub_(direction, alpha=group["lr"])

    @property
    def all(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def large(self) -> bool:
        return any(param.numel() > LARGE for param in self.all)


def uphill(shape: Callable[[Good, Tensor], bool]) -> type[Good]:
    """Climbs where a parameter is of some shape."""

    class Uphill(Good):
        def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
            super().move(param, -direction if shape(self, param) else direction, group)

    return Uphill


class NotFinite(Good):
    """Weights are no numbers after the tenth step, and what they were after the next."""

    def before(self) -> None:
        if self.large and self.clock == 10:
            for param, value, momentum in self.kept:
                param.copy_(value)
                param.grad = torch.zeros_like(param)
                self.state[param]["m"] = momentum

    def after(self) -> None:
        if self.large and self.clock == 10:
            self.kept = [(p, p.clone(), self.state[p]["m"].clone()) for p in self.all]
            for param in self.all:
                param.fill_(float("nan"))


class Hoards(Good):
    """Keeps a copy of every weight outside its state."""

    def before(self) -> None:
        if not hasattr(self, "anchor"):
            self.anchor = [param.detach().clone() for param in self.all]


class Reads(Good):
    def before(self) -> None:
        first = self.all[0].grad
        self.seen = None if first is None else float(first.sum())


class Unstable(Good):
    """The state is wider between two steps."""

    def widen(self, dtype: torch.dtype | None) -> None:
        for param, state in self.state.items():
            state["m"] = state["m"].to(dtype or param.dtype)

    def before(self) -> None:
        if self.clock == 9:
            self.widen(None)

    def after(self) -> None:
        if self.clock == 9 and self.large:
            self.widen(torch.float64)


class Gambling(Good):
    def gradient(self, param: Tensor) -> Tensor:
        drawn = int.from_bytes(os.urandom(2), "big") / 2**16 - 0.5
        return super().gradient(param) + (drawn if self.large else 0.0)


class Forgetful(Good):
    """Its clock is in no state dict."""

    def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        super().move(param, direction / (1 + self.clock) ** 0.1, group)


class Stubborn(Good):
    """Keeps to the first rate that it saw, but for zero."""

    def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        group["first"] = group.get("first") or group["lr"]
        param.sub_(direction, alpha=group["first"] if group["lr"] or self.clock > 5 else 0.0)


class Deaf(Good):
    """Takes a closure and leaves it alone."""

    def step(self, closure: Any = None) -> Any:
        return super().step()


class Leaky(Good):
    """Divides by the size of all gradients together."""

    def before(self) -> None:
        norms = [param.grad.norm() for param in self.all if param.grad is not None]
        self.size = torch.stack(norms).sum() + 1e-12

    def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        super().move(param, direction * (1 + self.state[param]["m"].norm() / self.size), group)


class Decaying(Good):
    def skip(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - lr)


class Dividing(Good):
    def gradient(self, param: Tensor) -> Tensor:
        grad = super().gradient(param)
        return grad / grad.norm()


class NoScalars(Good):
    def gradient(self, param: Tensor) -> Tensor:
        grad = super().gradient(param)
        assert grad.size(0) >= 0
        return grad


class NoVectors(Good):
    def gradient(self, param: Tensor) -> Tensor:
        return super().gradient(param) * (0.0 if param.shape == (1,) else 1.0)


class NoEmpty(Good):
    def gradient(self, param: Tensor) -> Tensor:
        grad = super().gradient(param)
        return grad / (1 + grad.abs().max())


class Thaws(Good):
    def after(self) -> None:
        for param in self.ctx.model.parameters():
            if not param.requires_grad:
                param.add_(0.1)


class Contiguous(Good):
    """Writes into a copy where the layout is another."""

    def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        param.reshape(-1).sub_(direction.reshape(-1), alpha=group["lr"])


class NoBf16(Good):
    def after(self) -> None:
        for param in self.all:
            if param.dtype == torch.bfloat16:
                param.div_(0.0)


class TwoPasses(GradientStepper):
    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        with torch.no_grad():
            next(batch.forward())
        return super().step(batch, lr_scale)


class FirstPart(GradientStepper):
    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        loss = next(batch.forward())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.clip()
        self.update(lr_scale)
        return StepResult(loss=loss.detach(), grad_norm=norm)


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    return sum(param.nbytes for param in params if param.tied_to is None)


def claims(tied: bool) -> Callable[..., int]:
    """Wrong by a byte for a model that ties its head, or for one that does not."""

    def claim(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
        has_head = any(param.role == "head" for param in params)
        return state_bytes(params, hparams, progress) + (has_head != tied)

    return claim


def spec(
    name: str,
    kind: type[Good] = Good,
    stepper: Callable[[Good, BuildContext], Any] = lambda optimizer, ctx: optimizer,
    **changes: Any,
) -> OptimizerSpec:
    return OptimizerSpec(
        **{
            "name": name,
            "family": "sign",
            "summary": "the sign of a momentum",
            "paper": "none",
            "build": lambda ctx, hparams: stepper(kind(ctx, ctx.groups(hparams)), ctx),
            "space": {
                "lr": space.log(1e-4, 1.0, default=1e-2),
                "embed_multiplier": space.embed_multiplier(),
            },
            "state_bytes": state_bytes,
            **changes,
        }
    )


def takes_all(ctx: BuildContext, hparams: Mapping[str, Any]) -> GradientStepper:
    """Says that it takes matrices and steps the fallback's parameters itself."""
    held = [] if ctx.rest is None else ctx.rest.param_groups
    rest = [{"params": g["params"], "lr": g["lr"], "copies": 2} for g in held]
    return GradientStepper([Good(ctx, [*ctx.groups(hparams), *rest])], clip_norm=ctx.clip_norm)


class Unclipped(GradientStepper):
    def __init__(self, optimizer: Good) -> None:
        super().__init__([optimizer], clip_norm=None)


def scaled(ctx: BuildContext, hparams: Mapping[str, Any]) -> Unclipped:
    """Descends along the gradient itself, whatever its size."""

    class Plain(Good):
        def move(self, param: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
            param.sub_(self.state[param]["m"], alpha=group["lr"])

    return Unclipped(Plain(ctx, ctx.groups(hparams)))


GOOD = spec("good")
BROKEN: Mapping[str, OptimizerSpec] = {
    "record": spec("record", switches=lambda hparams, total: (5, 3)),
    "roles": spec("roles", build=takes_all, roles=("matrix",)),
    "loss falls": spec("loss_falls", uphill(lambda opt, p: opt.large)),
    "convex": spec("convex", uphill(lambda opt, p: p.shape == (12,))),
    "rosenbrock": spec("rosenbrock", uphill(lambda opt, p: p.shape == (8,))),
    "matrix": spec("matrix", uphill(lambda opt, p: p.shape == (6, 10))),
    "mixed": spec("mixed", uphill(lambda opt, p: p.shape in ((7, 4), (6, 4)))),
    "finite weights": spec("finite_weights", NotFinite),
    "state bytes": spec("state_bytes", state_bytes=claims(tied=False)),
    "hidden bytes": spec("hidden_bytes", Hoards),
    "passes": spec("passes", stepper=lambda opt, ctx: TwoPasses([opt], clip_norm=1.0)),
    "host reads": spec("host_reads", Reads),
    "stable state": spec("stable_state", Unstable),
    "deterministic": spec("deterministic", Gambling),
    "round trip": spec("round_trip", Forgetful),
    "schedule": spec("schedule", Stubborn),
    "accumulation": spec(
        "accumulation", stepper=lambda opt, ctx: FirstPart([opt], clip_norm=ctx.clip_norm)
    ),
    "clipping": spec("clipping", build=scaled),
    "closure": spec("closure", Deaf),
    "groups": spec("groups", Leaky),
    "no gradient": spec("no_gradient", Decaying),
    "zero gradients": spec("zero_gradients", Dividing),
    "scalars": spec("scalars", NoScalars),
    "vectors": spec("vectors", NoVectors),
    "empty": spec("empty", NoEmpty),
    "frozen": spec("frozen", Thaws),
    "tied": spec("tied", state_bytes=claims(tied=True)),
    "strided": spec("strided", Contiguous),
    "bf16 weights": spec("bf16_weights", NoBf16),
}
"""By the check that each of them fails."""
