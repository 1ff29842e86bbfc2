"""The optimizer behind `apollo` and `apollo_mini`; the rule and its sources are in `apollo`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._projection import (
    SLACK,
    LowRank,
    channel_scaling,
    correction,
    limit_growth_,
    norm,
    options,
    project,
    random_projector,
    rank_rule,
)

SCALINGS = ("channel", "tensor")
PROJECTORS = ("regenerated", "kept")


def projector_seed(seed: int, position: int, number: int) -> int:
    """The seed of a parameter's projector, the `number`-th of them: 63 bits, splitmix64."""
    mask = (1 << 64) - 1
    x = (seed + position * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 1


class Apollo(LowRank):
    """APOLLO over groups that carry a `role`; only those of role `matrix` are projected.

    State of a matrix: two moments of its projection, the projector if it is `kept`, one norm.

    Args:
        rank: rank of every projection; if None, `rank_fraction` of the smaller side.
        seed: what all projectors are drawn from.
    """

    kept = (*LowRank.kept, "seed")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        rank: int | None = None,
        rank_fraction: float = 0.25,
        scale: float = 1.0,
        scaling: str = "channel",
        scale_front: bool = False,
        period: float = math.inf,
        projector: str = "regenerated",
        growth: float | None = 1.01,
        decay_order: str = "after",
        seed: int = 0,
    ) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling {scaling!r}: accepted: {', '.join(SCALINGS)}")
        if projector not in PROJECTORS:
            raise ValueError(f"projector {projector!r}: accepted: {', '.join(PROJECTORS)}")
        if growth is not None and not growth >= 1.0:
            raise ValueError(f"growth is {growth}: at least 1 is needed, or None for no limit")
        super().__init__(
            params,
            lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            rank=rank_rule({"rank_fraction": rank_fraction} if rank is None else {"rank": rank}),
            period=period,
            decay_order=decay_order,
        )
        self.scale = scale
        self.scaling = scaling
        self.scale_front = scale_front
        self.projector = projector
        self.growth = growth
        self.seed = seed

    def direction(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any], renew: bool
    ) -> tuple[Tensor, float]:
        low = project(grad, self._projector(grad, state, renew))
        m, v = self.moments(low, state, group)
        normalised = m / v.sqrt().add_(group["eps"])
        if self.scaling == "channel":
            scaled = grad * channel_scaling(normalised, low, grad.shape)
        else:
            scaled = grad * (norm(normalised) / (norm(low) + SLACK))
        root = math.sqrt(self.scale)
        if self.scale_front:
            scaled.mul_(root)
            root = 1.0
        if self.growth is not None:
            limit_growth_(scaled, state, self.growth)
        return scaled, root * correction(state, group)

    def _projector(self, grad: Tensor, state: dict[str, Any], renew: bool) -> Tensor:
        if renew:
            state["number"] = state.get("number", 0) + 1
        elif self.projector == "kept":
            held: Tensor = state["projector"]
            return held
        seed = projector_seed(self.seed, state["position"], state["number"])
        drawn = random_projector(grad, self.rank(*grad.shape), seed)
        if self.projector == "kept":
            state["projector"] = drawn
        return drawn


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Apollo:
    device = ctx.generator.device
    seed = torch.randint(2**62, (), generator=ctx.generator, device=device)
    return Apollo(
        ctx.groups(hparams),
        **{name: hparams[name] for name in ("rank", "rank_fraction") if name in hparams},
        scale=hparams["scale"],
        scaling=hparams["scaling"],
        scale_front=hparams["scale_front"],
        projector=hparams["projector"],
        growth=hparams["growth"],
        seed=int(seed),
        **options(ctx, hparams),
    )


def holds_projector(hparams: Mapping[str, Any]) -> bool:
    return bool(hparams["projector"] == "kept")
