"""FOAM with Muon: a folded momentum, filled up with the residual, then orthogonalised.

For every matrix G [m, n], with the folds and R of `foam`:

    g~ <- mean of G over blocks of 2^`level` columns;  R <- G - g~ E
    m~ <- mu m~ + (1 - mu) g~                            [m, ceil(n / 2^level)], all that is kept
    u~  = (1 - mu) g~ + mu m~                            Nesterov; without it u~ = m~
    O   = NS(u~ E + R)
    p  <- (1 - lr wd) p
    p  <- p - lr * scale * O

mu: `momentum`; wd: `weight_decay`; NS, `steps` and scale (`adjust`) as in `muon`, which `level` 0
gives exactly. `residual` False leaves R out (an ablation): the update then has rank n / 2^level at
most.

It takes the hidden matrices. Embedding, head and vectors go to the protocol's fallback;
`embed_multiplier` acts on the fallback's rate. `series` holds `delta`, [step, ||R|| / ||G||]; see
`foam`.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026); it names the
combination without its recipe. Muon: Keller Jordan et al.,
https://kellerjordan.github.io/posts/muon/, 2024.
Reference code: none for the combination: this is ours. FOAM's is
https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied).
Defaults: those of `muon` (lr .02, momentum .95, Nesterov, 5 steps, weight decay 0), and FOAM's
level 2.
Decisions: R enters with weight 1, as in FOAM, not with 1 - mu; what no state can average keeps its
full size beside a mean that averaging has made small, so O leans to R where gradients are noisy.
No `alpha`: NS takes all size away, and lr is the matrices' alone. No bias correction for the same
reason: at the first step, u~ is (1 - mu^2) of g~ beside the whole of R. Matrices alone, as Muon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._foam import (
    Residuals,
    block_size,
    check_level,
    folded_elements,
    split,
    unfold,
)
from levelfield.optimizers._muon import ADJUST
from levelfield.optimizers._ops import decay_, descend_, newton_schulz, newton_schulz_dtype


def folded_momentum(
    grad: Tensor,
    momentum: Tensor,
    *,
    size: int,
    beta: float,
    nesterov: bool,
    residual: bool,
    norms: list[Tensor] | None = None,
) -> Tensor:
    """u~ E + R, shaped like `grad` [.., n]; `momentum` [.., ceil(n / size)] is changed in place.

    Args:
        norms: takes ||R|| and ||G|| (0-dim) if given.
    """
    length = grad.shape[-1]
    _, folded, rest = split(grad, size, norms)
    momentum.lerp_(folded, 1 - beta)
    mixed = folded.lerp_(momentum, beta) if nesterov else momentum
    if not residual:
        return unfold(mixed, size, length)
    return rest.add_(mixed.unsqueeze(-1)).flatten(-2)[..., :length]


class FoamMuon(torch.optim.Optimizer):
    """For hidden matrices. `lr` is the spectral norm of a step, before `adjust`.

    State: m~ of ceil(n / 2^level) columns for a matrix [m, n].
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        adjust: str = "original",
        weight_decay: float = 0.0,
        level: int | str = 2,
        residual: bool = True,
        total_steps: int = 0,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum is {momentum}: 0 <= momentum < 1 is needed")
        if adjust not in ADJUST:
            raise ValueError(f"adjust is {adjust!r}: accepted are {', '.join(ADJUST)}")
        check_level(level)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.momentum, self.nesterov = momentum, nesterov
        self.steps, self.adjust = steps, ADJUST[adjust]
        self.level, self.residual = level, residual
        self.clock = 0
        """Steps taken."""
        self.residuals = Residuals(total_steps)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dim() < 2:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)}: a matrix is needed, "
                    "give vectors to another optimizer"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        norms = self.residuals.due(self.clock)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, param.grad, group, norms)
        self.residuals.take(self.clock, norms)
        self.clock += 1
        return loss

    def _step_one(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], norms: list[Tensor] | None
    ) -> None:
        state, length = self.state[param], param.shape[-1]
        size = block_size(self.level, length)
        if not state:
            state["momentum"] = param.new_zeros((*param.shape[:-1], -(-length // size)))
        mixed = folded_momentum(
            grad,
            state["momentum"],
            size=size,
            beta=self.momentum,
            nesterov=self.nesterov,
            residual=self.residual,
            norms=norms,
        ).flatten(1)
        update = newton_schulz(mixed, self.steps, newton_schulz_dtype(mixed))
        decay_(param, group["lr"], group["weight_decay"])
        descend_(param, update.reshape_as(param), group["lr"] * self.adjust(*update.shape))

    @property
    def series(self) -> dict[str, list[list[float]]]:
        """`delta` so far."""
        return {"delta": self.residuals.read()}

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `foam` the steps taken and the series."""
        return {**super().state_dict(), "foam": {"clock": self.clock, "series": self.series}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        self.clock = state_dict["foam"]["clock"]
        self.residuals.load(state_dict["foam"]["series"]["delta"])


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """A number a block of every row."""
    return sum(folded_elements(info, hparams["level"]) * info.itemsize for info in owners(params))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> FoamMuon:
    return FoamMuon(
        ctx.groups(hparams),
        momentum=hparams["momentum"],
        nesterov=hparams["nesterov"],
        steps=hparams["steps"],
        adjust=hparams["adjust"],
        level=hparams["level"],
        residual=hparams["residual"],
        total_steps=ctx.total_steps,
    )


SPEC = OptimizerSpec(
    name="foam_muon",
    parent="muon",
    family="matrix",
    summary="Muon with a momentum folded to a quarter, the residual added before Newton-Schulz",
    paper="Wen et al., FOAM: Blocked State Folding for Memory-Efficient LLM Training, 2025, "
    "https://arxiv.org/abs/2512.07112",
    code="https://github.com/zqOuO/FOAM @ 13769c73",
    licence="none stated",
    roles=("matrix",),
    build=build,
    space={
        "lr": space.log(2e-3, 2e-1, default=0.02),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "momentum": 0.95,
        "nesterov": True,
        "steps": 5,
        "adjust": "original",
        "weight_decay": 0.0,
        "level": 2,
        "residual": True,
    },
    state_bytes=state_bytes,
)
