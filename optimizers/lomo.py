"""LOMO: plain SGD, each parameter updated inside backward and its gradient freed at once.

    first pass, if `clip` is "two_pass":
        G <- ||all gradients||
        c  = min(1, clip_norm / (G + 1e-6))
    second pass, in the hook of every parameter, as soon as its gradient g is there:
        p <- (1 - lr * weight_decay) p
        p <- p - lr * c * g
        drop g

No state, and one gradient alive at a time. The numbers are those of SGD without momentum after an
ordinary backward pass.

`clip`: "two_pass" heeds the protocol's bound on the global gradient norm, at the price of a whole
forward and backward pass that only measures: 2 passes a step, charged. "none" takes 1 pass and
clips nothing; under a protocol without a bound there is 1 pass in any case. The reference code's
published configuration clips at 1.0 with two passes, and its authors name clipping as the remedy
where larger rates diverge: hence the default.

All parameters take part; embedding and head times `embed_multiplier`.

Paper: Kai Lv, Yuqing Yang, Tengxiao Liu, Qinghui Gao, Qipeng Guo, Xipeng Qiu, "Full Parameter
Fine-tuning for Large Language Models with Limited Resources", https://arxiv.org/abs/2306.09782,
2023 (ACL 2024).
Reference code: https://github.com/OpenLMLab/LOMO @ 45d4bac1 (MIT).
Defaults: lr .03 of that code's configuration for fine-tuning (its class has 1e-3; nothing is
published for training from scratch), weight decay 0.

Deviations:
- Post-accumulate hooks: the reference looks through all parameters in every hook, and needs one
  more look after backward for the last of them.
- Clipping by value and the loss scaling for float16 are left out.
- bfloat16 parameters are updated in float32 and rounded once, as in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._fused import (
    FusedOptimizer,
    FusedStepper,
    clip_norm_of,
    passes_at,
    work_dtype,
)
from levelfield.optimizers._ops import decay_, descend_


class Lomo(FusedOptimizer):
    """SGD without momentum for parameters of every shape. No state."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 3e-2, *, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def update(
        self, param: Tensor, grad: Tensor, group: Mapping[str, Any], factor: Tensor | None
    ) -> None:
        lr = group["lr"]
        wide = param.to(work_dtype(param))  # the parameter itself, unless its dtype is short
        decay_(wide, lr, group["weight_decay"])
        if factor is None:
            descend_(wide, grad, lr)
        elif isinstance(lr, Tensor):
            wide.addcmul_(grad, factor * lr, value=-1)
        else:
            wide.addcmul_(grad, factor, value=-lr)
        if wide is not param:
            param.copy_(wide)


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    return 0


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> FusedStepper:
    return FusedStepper(Lomo(ctx.groups(hparams)), clip_norm=clip_norm_of(ctx, hparams))


SPEC = OptimizerSpec(
    name="lomo",
    family="fused",
    summary="SGD inside backward: no state, one gradient alive at a time",
    paper="Lv et al., Full Parameter Fine-tuning for Large Language Models with Limited "
    "Resources, 2023, https://arxiv.org/abs/2306.09782",
    code="https://github.com/OpenLMLab/LOMO @ 45d4bac1",
    licence="MIT",
    build=build,
    space={
        "lr": space.log(1e-3, 1e1, default=3e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={"weight_decay": 0.0, "clip": "two_pass"},
    state_bytes=state_bytes,
    passes=2.0,
    passes_at=passes_at,
    cannot=("grad_accumulation", "distributed"),
)
