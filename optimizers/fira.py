"""Fira: GaLore's step, and the rest of the gradient scaled as Adam scales the projected part.

With P the first r singular vectors of the smaller side, shown for m >= n (see `_projection`), and
c = sqrt(1 - beta2^t) / (1 - beta1^t):

    every T steps, and at the first:  P <- the first r right singular vectors of G
    g = G P^T
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    N = m / (sqrt(v) + eps)
    S = diag(||N_j|| / (||g_j|| + 1e-8)) R         j: a row; for m < n a column
    R = G - g P              `residual` = "paper"
    R = G - alpha g P        `residual` = "code"
    f = max(||S|| / (q + 1e-8), gamma) / gamma;  S <- S / f;  q <- ||S||
    W <- W - lr * c * (alpha N P + S)
    W <- (1 - lr * weight_decay) W

r: `rank_fraction` of the smaller side; T: `refresh_fraction` of the run; alpha: `alpha`;
gamma: `growth`, the most that the norm of S, and of S alone, may grow by from step to step; q: the
norm that was let through last. Embedding, head and vectors get AdamW with the same eps at lr
without alpha, the first two times `embed_multiplier`. Moments are neither reset nor turned when P
changes.

State of a matrix: 2 r max(m, n) elements for m and v, r min(m, n) for P, and the scalar q.

Paper: Xi Chen, Kaituo Feng, Changsheng Li, Xunhao Lai, Xiangyu Yue, Ye Yuan, Guoren Wang, "Fira:
Can We Achieve Full-rank Training of LLMs Under Low-rank Constraint?",
https://arxiv.org/abs/2410.01623, 2024.
Reference code: https://github.com/xichen-fy/Fira @ 5c28b134 (Apache-2.0).
Defaults: that code's: betas (.9, .999), eps 1e-6, growth 1.01, weight decay 0, and its scripts':
lr .01, alpha .25, rank h/4.

Where paper and code differ: the code projects back by one function that multiplies by alpha, so
its residual leaves (1 - alpha) of the projected gradient in. The published perplexities come from
it: `residual` "code" is the default. `decay_order` "after" the update is the code's, "before" is
torch's.

T = `refresh_fraction` * total_steps, whole steps. The paper's T = 200 is a fiftieth of the 10k
steps at 60M and a five-hundredth of the 100k at 1B; the default is a twentieth for the reason
given in GaLore's file: 19 refreshes after the first projector.

Deviations:
- The refresh follows the optimizer's steps, not each parameter's own.
- After a norm q of exactly 0 the limiter lets the next S pass, which the code would shrink to about
  1e-8 and let grow by 1 % a step from there.
- Norms are taken in float32 and q is kept so for bfloat16 parameters.
- A non-finite element of G counts as 0 in the decomposition, which would raise an error otherwise.
- The projections from the other side or from both sides are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._projection import (
    LowRank,
    channel_scaling,
    claim,
    correction,
    limit_growth_,
    options,
    project,
    project_back,
    rank_rule,
    refresh_steps,
    singular_projector,
)

RESIDUALS = ("code", "paper")


class Fira(LowRank):
    """Fira over groups that carry a `role`; only those of role `matrix` are projected.

    State of a matrix: two moments and the projector, in the parameter's dtype, and one norm.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        rank_fraction: float = 0.25,
        alpha: float = 0.25,
        period: float = math.inf,
        residual: str = "code",
        growth: float = 1.01,
        decay_order: str = "after",
    ) -> None:
        if residual not in RESIDUALS:
            raise ValueError(f"residual {residual!r}: accepted: {', '.join(RESIDUALS)}")
        if not growth >= 1.0:
            raise ValueError(f"growth is {growth}: at least 1 is needed")
        super().__init__(
            params,
            lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            rank=rank_rule({"rank_fraction": rank_fraction}),
            period=period,
            decay_order=decay_order,
        )
        self.alpha = alpha
        self.taken_out = alpha if residual == "code" else 1.0
        """Share of the projected gradient that the residual leaves out."""
        self.growth = growth

    def direction(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any], renew: bool
    ) -> tuple[Tensor, float]:
        if renew:
            state["projector"] = singular_projector(grad, self.rank(*grad.shape))
        projector = state["projector"]
        low = project(grad, projector)
        m, v = self.moments(low, state, group)
        normalised = m / v.sqrt().add_(group["eps"])
        residual = grad.sub(project_back(low, projector, grad.shape), alpha=self.taken_out)
        residual.mul_(channel_scaling(normalised, low, grad.shape))
        limit_growth_(residual, state, self.growth)
        inside = project_back(normalised, projector, grad.shape)
        return residual.add_(inside, alpha=self.alpha), correction(state, group)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Fira:
    return Fira(
        ctx.groups(hparams),
        rank_fraction=hparams["rank_fraction"],
        alpha=hparams["alpha"],
        residual=hparams["residual"],
        growth=hparams["growth"],
        **options(ctx, hparams),
    )


SPEC = OptimizerSpec(
    name="fira",
    parent="galore",
    family="memory",
    summary="GaLore's step plus the rest of the gradient, scaled by channel",
    paper="Chen et al., Fira: Can We Achieve Full-rank Training of LLMs Under Low-rank "
    "Constraint?, 2024, https://arxiv.org/abs/2410.01623",
    code="https://github.com/xichen-fy/Fira @ 5c28b134",
    licence="Apache-2.0",
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
        "alpha": 0.25,
        "refresh_fraction": 0.05,
        "residual": "code",
        "growth": 1.01,
        "decay_order": "after",
    },
    state_bytes=claim(projector=lambda hparams: True),
    refreshes="new projectors after the first",
    switches=refresh_steps,
)
