"""FOAM: Adam on block means of the gradient, the rest of it added back without a state.

With s = 2^`level`, E the repetition of a block mean over its s columns, and for every matrix W
[m, n] with gradient G, in this order:

    g~ <- mean of G over blocks of s columns                        [m, ceil(n / s)]
    R  <- G - g~ E                                                  this step's only, never stored
    m~ <- beta1 m~ + (1 - beta1) g~
    v~ <- beta2 v~ + (1 - beta2) (mean of G^2 over the same blocks)  `mean_of_sq`, the code's form
       or beta2 v~ + (1 - beta2) g~^2                                `sq_of_mean`, the paper's form
    W  <- W - lr * alpha * c_t * (m~ E + R) / (sqrt(v~ E + R^2) + eps)
    W  <- (1 - lr * weight_decay) W,   c_t = sqrt(1 - beta2^t) / (1 - beta1^t)

The form of v~ is `second_moment`. Blocks lie along the last dimension, a linear layer's inputs;
the last block is filled up with zeros, which count in its mean. `level` 0 is Adam with rate
lr * alpha; with s >= n one number a row is kept. `residual` False leaves R out (an ablation).
Embedding, head and vectors get plain Adam (same place of eps) at the full `lr`, the first two
times `embed_multiplier`: matrices alone know `level` and `alpha`.

mean(G^2) = (mean G)^2 + variance inside the block, so the code's form takes smaller steps than the
paper's; they agree exactly where G is constant inside the blocks.

`series` holds `delta`, [step, ||R|| / ||G||] over all matrices together (0 if G is 0), at no more
than a hundred steps of a run: the share of the gradient that gets no momentum.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026).
Reference code: https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied).
Defaults: its pre-training scripts' lr 1e-2, alpha .25, level 2, eps 1e-8, weight decay 0. Its
scripts ask for beta2 .95, yet its driver never hands the betas on, so that .999 runs; which of the
two the paper's tables show is not known. Here .95: the residual carries c_t, and with .999 that is
.31 after 98 steps and .57 after 400, which hides it in short runs.
Deviations: none in the update. Its `res_scale` (1 there) is the switch `residual`; padding is never
longer than the row itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import adam_direction_hf, decay_, descend_, moments_

SECOND_MOMENTS = ("mean_of_sq", "sq_of_mean")
POINTS = 100
"""At most so many points of `series` a run."""


def blocked(x: Tensor, size: int) -> Tensor:
    """[.., n] as [.., ceil(n / size), min(size, n)], a view where it can be; zeros fill it up."""
    length = x.shape[-1]
    if length <= size:
        return x.unsqueeze(-2) if length else x.unsqueeze(-1)
    if length % size:
        x = pad(x, (0, size - length % size))
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def fold(x: Tensor, size: int) -> Tensor:
    """Means over blocks of `size` along the last dimension: [.., n] -> [.., ceil(n / size)].

    The last block's mean counts the zeros that fill it up.
    """
    return blocked(x, size).sum(-1).div_(size)


def unfold(x: Tensor, size: int, length: int) -> Tensor:
    """Every block's value at all its places: [.., ceil(length / size)] -> [.., length]."""
    return x.unsqueeze(-1).expand(*x.shape, min(size, length)).flatten(-2)[..., :length]


def foam_direction(
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    size: int,
    beta1: float,
    beta2: float,
    eps: float,
    second_moment: str,
    residual: bool,
    norms: list[Tensor] | None = None,
) -> Tensor:
    """(m~ E + R) / (sqrt(v~ E + R^2) + eps), without c_t, shaped like `grad` [.., n].

    The moments [.., ceil(n / size)] are changed in place.

    Args:
        norms: takes ||R|| and ||G|| (0-dim) if given.
    """
    length = grad.shape[-1]
    cells = blocked(grad, size)
    folded = cells.sum(-1).div_(size)
    if second_moment == "mean_of_sq":
        exp_avg.lerp_(folded, 1 - beta1)
        exp_avg_sq.mul_(beta2).add_(cells.square().sum(-1), alpha=(1 - beta2) / size)
    else:
        moments_(exp_avg, exp_avg_sq, folded, beta1, beta2)
    rest = cells - folded.unsqueeze(-1)
    if norms is not None:
        accurate = torch.promote_types(grad.dtype, torch.float32)
        for part in (rest.flatten(-2)[..., :length], grad):
            norms.append(torch.linalg.vector_norm(part, dtype=accurate))
    if not residual:
        return unfold(exp_avg / exp_avg_sq.sqrt().add_(eps), size, length)
    denominator = torch.addcmul(exp_avg_sq.unsqueeze(-1), rest, rest).sqrt_().add_(eps)
    return rest.add_(exp_avg.unsqueeze(-1)).div_(denominator).flatten(-2)[..., :length]


class Foam(torch.optim.Optimizer):
    """FOAM over groups that carry a `role`; only those of role `matrix` are folded.

    `lr` is Adam's rate; a matrix moves at lr * alpha. Parameters of fewer than two dimensions get
    plain Adam.

    State: m~ and v~ of ceil(n / 2^level) columns for a matrix [m, n], m and v for the others.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        level: int = 2,
        alpha: float = 0.25,
        second_moment: str = "mean_of_sq",
        residual: bool = True,
        total_steps: int = 0,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        if level < 0 or level != int(level):
            raise ValueError(f"level is {level}: a whole number >= 0 is needed (blocks of 2^level)")
        if second_moment not in SECOND_MOMENTS:
            raise ValueError(f"second_moment {second_moment!r}: accepted: {SECOND_MOMENTS}")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "role": "matrix"})
        self.size = 2 ** int(level)
        self.alpha = alpha
        self.second_moment = second_moment
        self.residual = residual
        self.record_every = max(1, math.ceil(total_steps / POINTS))
        self.clock = 0
        """Steps taken."""
        self._delta: list[list[float]] = []
        self._unread: list[tuple[int, Tensor]] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        norms: list[Tensor] | None = None if self.clock % self.record_every else []
        for group in self.param_groups:
            lr, weight_decay = group["lr"], group["weight_decay"]
            beta1, beta2, eps = group["beta1"], group["beta2"], group["eps"]
            matrices = group["role"] == "matrix"
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                folds = matrices and param.ndim > 1
                state = self.state[param]
                if not state:
                    _start(state, param, self.size if folds else None)
                state["step"] += 1
                step, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
                if folds:
                    direction = foam_direction(
                        grad,
                        m,
                        v,
                        size=self.size,
                        beta1=beta1,
                        beta2=beta2,
                        eps=eps,
                        second_moment=self.second_moment,
                        residual=self.residual,
                        norms=norms,
                    )
                    correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
                    descend_(param, direction, lr * (self.alpha * correction))
                else:
                    moments_(m, v, grad, beta1, beta2)
                    descend_(param, adam_direction_hf(m, v, step, beta1, beta2, eps), lr)
                decay_(param, lr, weight_decay)
        if norms:
            self._unread.append((self.clock, _ratio(norms[::2], norms[1::2])))
        self.clock += 1
        return loss

    @property
    def series(self) -> dict[str, list[list[float]]]:
        """`delta` so far; reading it waits for the device, so never within a step."""
        if self._unread:
            values = torch.stack([value for _, value in self._unread]).tolist()
            steps = [step for step, _ in self._unread]
            self._delta += [[step, value] for step, value in zip(steps, values, strict=True)]
            self._unread.clear()
        return {"delta": [list(point) for point in self._delta]}

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `foam` the steps taken and the series."""
        return {**super().state_dict(), "foam": {"clock": self.clock, "series": self.series}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        own = state_dict["foam"]
        self.clock = own["clock"]
        self._delta = [list(point) for point in own["series"]["delta"]]
        self._unread.clear()


def _start(state: dict[str, Any], param: Tensor, size: int | None) -> None:
    """Zero moments: folded to blocks of `size`, or whole."""
    state["step"] = 0
    for name in ("exp_avg", "exp_avg_sq"):
        if size is None:
            state[name] = torch.zeros_like(param)
        else:
            state[name] = param.new_zeros((*param.shape[:-1], -(-param.shape[-1] // size)))


def _ratio(parts: Sequence[Tensor], wholes: Sequence[Tensor]) -> Tensor:
    """Norm of all parts together over that of all wholes, 0-dim; 0 if both are."""
    part = torch.linalg.vector_norm(torch.stack(tuple(parts)))
    whole = torch.linalg.vector_norm(torch.stack(tuple(wholes)))
    return torch.div(part, whole.clamp_min(torch.finfo(whole.dtype).tiny))


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """m and v: of a row's blocks for a matrix, of every element for the others."""
    size, total = 2 ** hparams["level"], 0
    for info in owners(params):
        if info.role == "matrix" and len(info.shape) > 1:
            blocks = -(-info.shape[-1] // size)
            total += 2 * math.prod(info.shape[:-1]) * blocks * info.itemsize
        else:
            total += 2 * info.nbytes
    return total


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Foam:
    return Foam(
        ctx.groups(hparams),
        beta1=hparams["beta1"],
        beta2=hparams["beta2"],
        eps=hparams["eps"],
        level=hparams["level"],
        alpha=hparams["alpha"],
        second_moment=hparams["second_moment"],
        residual=hparams["residual"],
        total_steps=ctx.total_steps,
    )


SPEC = OptimizerSpec(
    name="foam",
    family="memory",
    summary="Adam on block means of the gradient, the residual added back stateless",
    paper="Wen et al., FOAM: Blocked State Folding for Memory-Efficient LLM Training, 2025, "
    "https://arxiv.org/abs/2512.07112",
    code="https://github.com/zqOuO/FOAM @ 13769c73",
    licence="none stated",
    build=build,
    # No third dimension. alpha is a rate for matrices: against lr and embed_multiplier it would
    # only free the rate of the vectors. level is the memory that is asked for.
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "level": 2,
        "alpha": 0.25,
        "second_moment": "mean_of_sq",
        "residual": True,
    },
    state_bytes=state_bytes,
)
