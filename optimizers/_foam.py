"""FOAM's maths and optimizer, shared by its family. What the method is, is told in `foam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.optimizer import ParamsT

from levelfield.bench.spec import ParamInfo
from levelfield.bench.stepper import BuildContext, gathered
from levelfield.optimizers._claims import owners
from levelfield.optimizers._ops import adam_direction_hf, decay_, descend_, moments_

SECOND_MOMENTS = ("mean_of_sq", "sq_of_mean")
POINTS = 100
"""At most so many points of `series` a run."""


def check_level(level: int | str) -> None:
    """Raises ValueError for anything but "row" and whole numbers from 0."""
    if level != "row" and (isinstance(level, str) or level < 0 or level != int(level)):
        raise ValueError(
            f"level is {level!r}: a whole number >= 0 is needed (blocks of 2^level), or 'row'"
        )


def block_size(level: int | str, length: int) -> int:
    """Columns of a block in rows of `length`: 2^level, or for "row" all of them, none added."""
    return max(1, length) if isinstance(level, str) else 2**level


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
    cells, folded, rest = split(grad, size, norms)
    if second_moment == "mean_of_sq":
        exp_avg.lerp_(folded, 1 - beta1)
        exp_avg_sq.mul_(beta2).add_(cells.square().sum(-1), alpha=(1 - beta2) / size)
    else:
        moments_(exp_avg, exp_avg_sq, folded, beta1, beta2)
    return merge(exp_avg, exp_avg_sq, rest, eps, residual, grad.shape[-1])


def split(grad: Tensor, size: int, norms: list[Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient in blocks, g~, and R in blocks; `norms` takes ||R|| and ||G||."""
    cells = blocked(grad, size)
    folded = cells.sum(-1).div_(size)
    rest = cells - folded.unsqueeze(-1)
    if norms is not None:
        accurate = torch.promote_types(grad.dtype, torch.float32)
        for part in (rest.flatten(-2)[..., : grad.shape[-1]], grad):
            norms.append(torch.linalg.vector_norm(part, dtype=accurate))
    return cells, folded, rest


def merge(
    exp_avg: Tensor, exp_avg_sq: Tensor, rest: Tensor, eps: float, residual: bool, length: int
) -> Tensor:
    """(m E + R) / (sqrt(v E + R^2) + eps), [.., length]. `rest`, in blocks, is used up.

    `exp_avg_sq` has a column a block, or one for all.
    """
    if not residual:
        size = rest.shape[-1]
        return unfold(exp_avg / exp_avg_sq.sqrt().add_(eps), size, length)
    denominator = torch.addcmul(exp_avg_sq.unsqueeze(-1), rest, rest).sqrt_().add_(eps)
    return rest.add_(exp_avg.unsqueeze(-1)).div_(denominator).flatten(-2)[..., :length]


class Residuals:
    """||R|| / ||G|| over all matrices together, at no more than `POINTS` steps of a run."""

    def __init__(self, total_steps: int) -> None:
        self._every = max(1, math.ceil(total_steps / POINTS))
        self._points: list[list[float]] = []
        self._unread: list[tuple[int, Tensor]] = []

    def due(self, clock: int) -> list[Tensor] | None:
        """A list for the norms of this step, or None if it is not recorded."""
        return None if clock % self._every else []

    def take(self, clock: int, norms: list[Tensor] | None) -> None:
        """Keep ||R||, ||G||, ||R||, ... of a step."""
        if norms:
            self._unread.append((clock, gathered(_ratio(norms[::2], norms[1::2]))))

    def read(self) -> list[list[float]]:
        """[step, value] so far; waits for the device, so never within a step."""
        if self._unread:
            values = torch.stack([value for _, value in self._unread]).tolist()
            steps = [step for step, _ in self._unread]
            self._points += [[step, value] for step, value in zip(steps, values, strict=True)]
            self._unread.clear()
        return [list(point) for point in self._points]

    def load(self, points: Sequence[Sequence[float]]) -> None:
        """Begin from what was read elsewhere."""
        self._points = [list(point) for point in points]
        self._unread.clear()


class Foam(torch.optim.Optimizer):
    """FOAM over groups that carry a `role`; only those of role `matrix` are folded.

    `lr` is Adam's rate; a matrix moves at lr * alpha. Parameters of fewer than two dimensions get
    plain Adam.

    State: m~ and v~ of ceil(n / 2^level) columns for a matrix [m, n], m and v for the others.
    `level` "row" folds the whole of a row.
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
        level: int | str = 2,
        alpha: float = 0.25,
        second_moment: str = "mean_of_sq",
        residual: bool = True,
        total_steps: int = 0,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}: 0 <= {name} < 1 is needed")
        check_level(level)
        if second_moment not in SECOND_MOMENTS:
            raise ValueError(f"second_moment {second_moment!r}: accepted: {SECOND_MOMENTS}")
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**adam, "role": "matrix"})
        self.level = level
        self.alpha = alpha
        self.second_moment = second_moment
        self.residual = residual
        self.clock = 0
        """Steps taken."""
        self.residuals = Residuals(total_steps)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        norms = self.residuals.due(self.clock)
        for group in self.param_groups:
            lr, beta1, beta2 = group["lr"], group["beta1"], group["beta2"]
            matrices = group["role"] == "matrix"
            for position, param in enumerate(group["params"]):
                grad = param.grad
                if grad is None:
                    continue
                folds = matrices and param.ndim > 1
                state = self.state[param]
                if not state:
                    state["step"] = 0
                    self._start(state, param, folds, group, position)
                state["step"] += 1
                if folds:
                    direction = self._folded(grad, state, group, norms)
                    step = state["step"]
                    correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
                    descend_(param, direction, lr * (self.alpha * correction))
                else:
                    descend_(param, self._whole(grad, state, group), lr)
                decay_(param, lr, group["weight_decay"])
        self.residuals.take(self.clock, norms)
        self.clock += 1
        return loss

    def _start(
        self,
        state: dict[str, Any],
        param: Tensor,
        folds: bool,
        group: Mapping[str, Any],
        position: int,
    ) -> None:
        """Zero moments, folded or whole, of the parameter at a position of its group."""
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = param.new_zeros(self._shape(param, folds))

    def _shape(self, param: Tensor, folds: bool) -> tuple[int, ...]:
        if not folds:
            return tuple(param.shape)
        length = param.shape[-1]
        return (*param.shape[:-1], -(-length // block_size(self.level, length)))

    def _folded(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: Mapping[str, Any],
        norms: list[Tensor] | None,
    ) -> Tensor:
        """The direction of a matrix, without c_t; its moments move on."""
        return foam_direction(
            grad,
            state["exp_avg"],
            state["exp_avg_sq"],
            size=block_size(self.level, grad.shape[-1]),
            beta1=group["beta1"],
            beta2=group["beta2"],
            eps=group["eps"],
            second_moment=self.second_moment,
            residual=self.residual,
            norms=norms,
        )

    def _whole(self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> Tensor:
        """The direction of any other parameter; its moments move on."""
        m, v = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["beta1"], group["beta2"]
        moments_(m, v, grad, beta1, beta2)
        return adam_direction_hf(m, v, state["step"], beta1, beta2, group["eps"])

    @property
    def series(self) -> dict[str, list[list[float]]]:
        """`delta` so far."""
        return {"delta": self.residuals.read()}

    def state_dict(self) -> dict[str, Any]:
        """The base class's, and under `foam` the steps taken and the series."""
        return {**super().state_dict(), "foam": {"clock": self.clock, "series": self.series}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(dict(state_dict))
        own = state_dict["foam"]
        self.clock = own["clock"]
        self.residuals.load(own["series"]["delta"])


def _ratio(parts: Sequence[Tensor], wholes: Sequence[Tensor]) -> Tensor:
    """Norm of all parts together over that of all wholes, 0-dim; 0 if both are."""
    part = torch.linalg.vector_norm(torch.stack(tuple(parts)))
    whole = torch.linalg.vector_norm(torch.stack(tuple(wholes)))
    return torch.div(part, whole.clamp_min(torch.finfo(whole.dtype).tiny))


def folded_elements(info: ParamInfo, level: int | str) -> int:
    """Blocks in all rows of a matrix."""
    length = info.shape[-1]
    return math.prod(info.shape[:-1]) * -(-length // block_size(level, length))


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """m and v: of a row's blocks for a matrix, of every element for the others."""
    total = 0
    for info in owners(params):
        if info.role == "matrix" and len(info.shape) > 1:
            total += 2 * folded_elements(info, hparams["level"]) * info.itemsize
        else:
            total += 2 * info.nbytes
    return total


def options(ctx: BuildContext, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """What all methods of the family give to the optimizer, their groups excepted."""
    return {
        "beta1": hparams["beta1"],
        "beta2": hparams["beta2"],
        "eps": hparams["eps"],
        "level": hparams["level"],
        "alpha": hparams["alpha"],
        "residual": hparams["residual"],
        "total_steps": ctx.total_steps,
    }


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Foam:
    """FOAM over the context's parameters."""
    groups = ctx.groups(hparams)
    return Foam(groups, second_moment=hparams["second_moment"], **options(ctx, hparams))
