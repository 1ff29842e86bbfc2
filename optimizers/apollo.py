"""APOLLO: the raw gradient, each channel scaled as Adam scales a random projection of it.

Shown for m >= n, where a channel j is a row; for m < n it is a column (see `_projection`):

    every T steps, and at the first:  P [r, n] <- random, elements from N(0, 1 / r)
    g = G P^T
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    N = m / (sqrt(v) + eps)
    S = diag(||N_j|| / (||g_j|| + 1e-8)) G         `scaling` = "channel"
    S = ||N|| / (||g|| + 1e-8) * G                 `scaling` = "tensor"
    f = max(||S|| / (q + 1e-8), gamma) / gamma;  S <- S / f;  q <- ||S||
    W <- W - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * sqrt(scale) * S
    W <- (1 - lr * weight_decay) W

r: `rank_fraction` of the smaller side; T: `refresh_fraction` of the run; gamma: `growth`, the most
that the norm of S may grow by from step to step (Fira's limiter), or None for no limit; q: the norm
that was let through last. The root of `scale` enters. Embedding, head and vectors get AdamW with
the same eps at lr without `scale`, the first two times `embed_multiplier`. Moments are neither
reset nor turned when P changes.

`projector` says what becomes of P between two refreshes, and nothing else: the numbers are the
same bits.

    regenerated   drawn anew from its seed at every step: 2 r max(m, n) elements of state a matrix
    kept          held, as in the reference code: r min(m, n) elements more

The default is `regenerated`: the paper counts no projector in its memory. q is one scalar more.

Paper: Hanqing Zhu, Zhenyu Zhang, Wenyan Cong, Xi Liu, Sem Park, Vikas Chandra, Bo Long, David Z.
Pan, Zhangyang Wang, Jinwon Lee, "APOLLO: SGD-like Memory, AdamW-level Performance",
https://arxiv.org/abs/2412.05270, 2024 (MLSys 2025).
Reference code: https://github.com/zhuhanqing/APOLLO @ 76b34725 (CC BY-NC 4.0; nothing of it is
here).
Defaults: that code's: betas (.9, .999), eps 1e-6, growth 1.01, weight decay 0, and its scripts':
lr .01, rank h/4, channels, scale 1.

T = `refresh_fraction` * total_steps, whole steps. The paper's T = 200 is a fiftieth of the 10k
steps at 60M and a five-hundredth of the 100k at 1B. A fiftieth of a short run is shorter than the
memory of the moments, so the default is a twentieth: 19 refreshes after the first projector.

`scale_front` puts sqrt(scale) before the limiter, as some of the scripts do. The limiter sees
ratios of norms, so that matters only beside its 1e-8 and to rounding. `decay_order` "after" the
update is the code's, "before" is torch's.

Deviations:
- Seeds follow from one number of the method's own generator, the parameter's position and the
  number of its projectors; the code's are the position alone, so equal in every run.
- The refresh follows the optimizer's steps, not each parameter's own.
- After a norm q of exactly 0 the limiter lets the next S pass, which the code would shrink to about
  1e-8 and let grow by 1 % a step from there.
- Norms are taken in float32 and q is kept so for bfloat16 parameters. No norm is read by the host.
- Projectors by singular vectors, the other sides and the quantised variant are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._projection import (
    SLACK,
    LowRank,
    channel_scaling,
    claim,
    correction,
    limit_growth_,
    norm,
    period_of,
    project,
    random_projector,
    rank_rule,
    refresh_steps,
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
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        **{name: hparams[name] for name in ("rank", "rank_fraction") if name in hparams},
        scale=hparams["scale"],
        scaling=hparams["scaling"],
        scale_front=hparams["scale_front"],
        period=period_of(hparams, ctx.total_steps),
        projector=hparams["projector"],
        growth=hparams["growth"],
        decay_order=hparams["decay_order"],
        seed=int(seed),
    )


def holds_projector(hparams: Mapping[str, Any]) -> bool:
    return bool(hparams["projector"] == "kept")


SPEC = OptimizerSpec(
    name="apollo",
    parent="adamw_split",
    family="memory",
    summary="Raw gradient, channels scaled as Adam scales a random projection",
    paper="Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, "
    "https://arxiv.org/abs/2412.05270",
    code="https://github.com/zhuhanqing/APOLLO @ 76b34725",
    licence="CC-BY-NC-4.0",
    build=build,
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.0,
        "rank_fraction": 0.25,
        "scale": 1.0,
        "scaling": "channel",
        "scale_front": False,
        "refresh_fraction": 0.05,
        "projector": "regenerated",
        "growth": 1.01,
        "decay_order": "after",
    },
    state_bytes=claim(projector=holds_projector),
    refreshes="new random projectors after the first",
    switches=refresh_steps,
)
