"""What several methods share: pure tensor functions, and torch's AdamW.

Nothing here reads a tensor on the host. A trailing underscore means that the first argument is
changed in place. `lr` is a float or a 0-dim tensor everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.stepper import BuildContext, merge_groups

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's quintic: steepest at zero, settles around one instead of at it."""


def decay_(param: Tensor, lr: float | Tensor, weight_decay: float) -> None:
    """Decoupled weight decay: p <- (1 - lr * weight_decay) * p."""
    if weight_decay != 0.0:
        param.mul_(1 - lr * weight_decay)


def descend_(param: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """p <- p - lr * direction. A rate kept as a tensor stays on its device."""
    if isinstance(lr, Tensor):
        param.sub_(direction * lr)
    else:
        param.add_(direction, alpha=-lr)


def moments_(exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, beta1: float, beta2: float) -> None:
    """Adam's moments: m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2."""
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)


def adam_direction(
    exp_avg: Tensor, exp_avg_sq: Tensor, step: int, beta1: float, beta2: float, eps: float
) -> Tensor:
    """Adam's direction as in the paper and in torch: eps added after the bias correction of v.

        (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    `step` is t, from 1.
    """
    denominator = (exp_avg_sq.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
    return torch.div(exp_avg, denominator, out=denominator).div_(1 - beta1**step)


def adam_direction_hf(
    exp_avg: Tensor, exp_avg_sq: Tensor, step: int, beta1: float, beta2: float, eps: float
) -> Tensor:
    """Adam's direction as in Hugging Face's old AdamW: eps added before the bias correction.

        sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    The effective eps is eps / sqrt(1 - b2^t): larger in the first steps. `step` is t, from 1.
    """
    denominator = exp_avg_sq.sqrt().add_(eps)
    correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
    return torch.div(exp_avg, denominator, out=denominator).mul_(correction)


def adamw_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: int,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """A whole AdamW step, bit for bit that of `torch.optim.AdamW(foreach=False)` for a float lr."""
    decay_(param, lr, weight_decay)
    moments_(exp_avg, exp_avg_sq, grad, beta1, beta2)
    if isinstance(lr, Tensor):
        descend_(param, adam_direction(exp_avg, exp_avg_sq, step, beta1, beta2, eps), lr)
        return
    denominator = (exp_avg_sq.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**step))


def newton_schulz(matrix: Tensor, steps: int, dtype: torch.dtype, eps: float = 1e-7) -> Tensor:
    """Send the singular values of a matrix [m, n] to about one; returns [m, n] in `dtype`.

        X <- G / (||G||_F + eps),  then `steps` times:  A = X X^T,  X <- a X + (b A + c A^2) X

    The smaller side is put first, so that A is [min(m, n), min(m, n)]. Every singular value s in
    (0, 1] follows s <- a s + b s^3 + c s^5: five steps send [.02, 1] to [.68, 1.14].
    """
    a, b, c = NS_COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.to(dtype)
    if tall:
        x = x.mT
    x = x / (x.norm() + eps)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def newton_schulz_dtype(tensor: Tensor) -> torch.dtype:
    """Where the iteration runs: bfloat16 on CUDA, float32 elsewhere, float64 for float64."""
    if tensor.dtype == torch.float64:
        return torch.float64
    return torch.bfloat16 if tensor.is_cuda else torch.float32


def build_adamw(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.AdamW:
    """torch's AdamW over the context's parameters.

    The fused kernel walks parameter, gradient and state as flat memory. Autograd gives a gradient
    the layout of its parameter, so that is right for contiguous parameters; if any is not, torch's
    plain step is used for all of them.
    """
    fused = hparams["fused"] and all(param.tensor.is_contiguous() for param in ctx.params)
    return torch.optim.AdamW(
        merge_groups(ctx.groups(hparams)),
        betas=(hparams["beta1"], hparams["beta2"]),
        eps=hparams["eps"],
        fused=fused,
    )
