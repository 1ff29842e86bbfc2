"""FOAM with Adam-mini: a folded first moment, and for the second one number a row or a head.

With the blocks B of `adam_mini` and, for every matrix W [m, n] with gradient G, the folds of
`foam`, in this order:

    g~  <- mean of G over blocks of 2^`level` columns;  R <- G - g~ E
    m~  <- beta1 m~ + (1 - beta1) g~                                [m, ceil(n / 2^level)]
    v_B <- beta2 v_B + (1 - beta2) (mean of G^2 over B)             one number a block
    W_B <- W_B - lr * alpha * c_t * (m~ E + R)_B / (sqrt(v_B + R_B^2) + eps)
    W   <- (1 - lr * weight_decay) W,   c_t = sqrt(1 - beta2^t) / (1 - beta1^t)

Embedding, head and vectors are not folded: they get Adam-mini with this place of eps at the full
`lr`, the first two times `embed_multiplier`. `level` 0 is Adam-mini with rate lr * alpha, as R is
then 0; one fold a row (`level` "row") with rows for blocks is `foam_mini`.

`series` holds `delta`, [step, ||R|| / ||G||]; see `foam`.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026); it names the
combination without its recipe. Yushun Zhang et al., "Adam-mini: Use Fewer Learning Rates To Gain
More", https://arxiv.org/abs/2406.16793, 2024.
Reference code: none for the combination: this is ours. FOAM's is
https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied).
Defaults: those of `foam`; `value_blocks` row as in `adam_mini`.
Decisions: R^2 stays in the denominator, which bounds a step's stateless part as in FOAM: a block's
mean of G^2 alone would let the largest elements of R through at their full size. Mean squares, as
both methods' codes have; so there is no `second_moment`. What FOAM does not fold is Adam-mini's,
whose point those parameters are as well. Order and place of eps are FOAM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adam_mini import VALUE_BLOCKS, count_blocks
from levelfield.optimizers._claims import owners
from levelfield.optimizers._foam import Foam, block_size, folded_elements, merge, options, split
from levelfield.optimizers._ops import adam_direction_hf


class FoamAdamMini(Foam):
    """FOAM with Adam-mini's second moment, over groups that carry the `infos` of their parameters.

    State: m~ for a matrix, m for the others, and v of one element a block.

    Args:
        value_blocks: as in `adam_mini`.
        options: of `Foam`.
    """

    def __init__(self, params: ParamsT, *, value_blocks: str = "row", **options: Any) -> None:
        super().__init__(params, **options)
        if value_blocks not in VALUE_BLOCKS:
            raise ValueError(f"value_blocks {value_blocks!r}: accepted: {', '.join(VALUE_BLOCKS)}")
        self.value_blocks = value_blocks

    def _start(
        self,
        state: dict[str, Any],
        param: Tensor,
        folds: bool,
        group: Mapping[str, Any],
        position: int,
    ) -> None:
        state["exp_avg"] = param.new_zeros(self._shape(param, folds))
        blocks = count_blocks(group["infos"][position], self.value_blocks)
        state["exp_avg_sq"] = param.new_zeros(blocks)

    def _folded(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: Mapping[str, Any],
        norms: list[Tensor] | None,
    ) -> Tensor:
        if grad.numel() == 0:
            return grad
        length = grad.shape[-1]
        m = state["exp_avg"]
        _, folded, rest = split(grad, block_size(self.level, length), norms)
        m.lerp_(folded, 1 - group["beta1"])
        v = second_moment_(state["exp_avg_sq"], grad, group["beta2"])
        return merge(m, by_rows(v, grad), rest, group["eps"], self.residual, length)

    def _whole(self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> Tensor:
        if grad.numel() == 0:
            return grad
        beta1, beta2 = group["beta1"], group["beta2"]
        m = state["exp_avg"].lerp_(grad, 1 - beta1)
        v = second_moment_(state["exp_avg_sq"], grad, beta2)
        v = v.view(grad.shape) if v.numel() == grad.numel() else by_rows(v, grad)
        return adam_direction_hf(m, v.expand(grad.shape), state["step"], beta1, beta2, group["eps"])


def second_moment_(v: Tensor, grad: Tensor, beta2: float) -> Tensor:
    """v_B <- beta2 v_B + (1 - beta2) mean(G_B^2), blocks of consecutive elements; v is [blocks]."""
    return v.lerp_(grad.reshape(v.numel(), -1).square().mean(dim=1), 1 - beta2)


def by_rows(v: Tensor, grad: Tensor) -> Tensor:
    """The block's number for each index of the first dimension, shaped to broadcast over `grad`.

    One block may be all of a vector.
    """
    if v.numel() == 1:
        return v.view((1,) * grad.ndim)
    rows = v.repeat_interleave(grad.shape[0] // v.numel())
    return rows.view(-1, *(1,) * (grad.ndim - 1))


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """m of a matrix's folds or of every element, and a number a block."""
    total = 0
    for info in owners(params):
        folds = info.role == "matrix" and len(info.shape) > 1
        first = folded_elements(info, hparams["level"]) if folds else info.numel
        total += (first + count_blocks(info, hparams["value_blocks"])) * info.itemsize
    return total


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> FoamAdamMini:
    return FoamAdamMini(
        ctx.groups(hparams), value_blocks=hparams["value_blocks"], **options(ctx, hparams)
    )


SPEC = OptimizerSpec(
    name="foam_adam_mini",
    parent="foam",
    family="memory",
    summary="FOAM's folded first moment with Adam-mini's second: one number a row or a head",
    paper="Wen et al., FOAM: Blocked State Folding for Memory-Efficient LLM Training, 2025, "
    "https://arxiv.org/abs/2512.07112",
    code="https://github.com/zqOuO/FOAM @ 13769c73",
    licence="none stated",
    build=build,
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
        "residual": True,
        "value_blocks": "row",
    },
    state_bytes=state_bytes,
)
