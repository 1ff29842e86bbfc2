"""GaLore: Adam in the leading singular subspace of every gradient matrix.

With P the first r singular vectors of the smaller side, shown for m >= n (see `_projection`):

    every T steps, and at the first:  P <- the first r right singular vectors of G
    g = G P^T
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    N = sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)
    W <- W - lr * alpha * N P
    W <- (1 - lr * weight_decay) W

r: `rank_fraction` of the smaller side; T: `refresh_fraction` of the run; alpha: `alpha`. Embedding,
head and vectors get AdamW with the same eps at lr without alpha, the first two times
`embed_multiplier`. Moments are neither reset nor turned when P changes: they go on as coordinates
in the new basis, even where a singular vector comes back with the other sign.

State of a matrix: 2 r max(m, n) elements for m and v and r min(m, n) for P, plain tensors all.

Paper: Jiawei Zhao, Zhenyu Zhang, Beidi Chen, Zhangyang Wang, Anima Anandkumar, Yuandong Tian,
"GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
https://arxiv.org/abs/2403.03507, 2024 (ICML 2024).
Reference code: https://github.com/jiaweizzhao/GaLore @ 2cc66f88 (Apache-2.0).
Defaults: that code's: betas (.9, .999), eps 1e-6, weight decay 0, and its scripts': lr .01,
alpha .25, rank h/4 (60M, 350M, 1B; h/3 at 130M; the paper's range is h/4 to h/2).

T = `refresh_fraction` * total_steps, whole steps. The paper's T = 200 is a fiftieth of the 10k
steps at 60M and a five-hundredth of the 100k at 1B. A fiftieth of a short run is shorter than the
memory of the moments, so the default is a twentieth: 19 refreshes after the first projector.

Where paper and code differ: `eps_placement` "before" the bias correction of v, as in the code, or
"after" it, as in the paper's algorithm. The paper shows no weight decay; `decay_order` "after" the
update is the code's, "before" is torch's.

Deviations:
- The refresh follows the optimizer's steps, not each parameter's own.
- A non-finite element of G counts as 0 in the decomposition, which would raise an error otherwise.
- 8-bit moments, 4-bit projectors, projection of both sides and updates inside backward are left
  out. A tensor of more than two dimensions is projected as a matrix, not by Tucker factors.
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
    claim,
    options,
    project,
    project_back,
    rank_rule,
    refresh_steps,
    singular_projector,
)


class GaLore(LowRank):
    """GaLore over groups that carry a `role`; only those of role `matrix` are projected.

    State of a matrix: two moments and the projector, in the parameter's dtype.
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
        eps_placement: str = "before",
        decay_order: str = "after",
    ) -> None:
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
            eps_placement=eps_placement,
        )
        self.alpha = alpha

    def direction(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any], renew: bool
    ) -> tuple[Tensor, float]:
        if renew:
            state["projector"] = singular_projector(grad, self.rank(*grad.shape))
        projector = state["projector"]
        low = self.adam(project(grad, projector), state, group)
        return project_back(low, projector, grad.shape), self.alpha


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> GaLore:
    return GaLore(
        ctx.groups(hparams),
        rank_fraction=hparams["rank_fraction"],
        alpha=hparams["alpha"],
        eps_placement=hparams["eps_placement"],
        **options(ctx, hparams),
    )


SPEC = OptimizerSpec(
    name="galore",
    parent="adamw_split",
    family="memory",
    summary="Adam in the leading singular subspace of every gradient matrix",
    paper="Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, "
    "2024, https://arxiv.org/abs/2403.03507",
    code="https://github.com/jiaweizzhao/GaLore @ 2cc66f88",
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
        "eps_placement": "before",
        "decay_order": "after",
    },
    state_bytes=claim(projector=lambda hparams: True),
    refreshes="new projectors after the first",
    switches=refresh_steps,
)
