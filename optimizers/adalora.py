"""AdaLoRA: an update in the form of an SVD, pruned triplet by triplet to a falling budget.

    y = W x + alpha / (init_rank + 1e-5) * B diag(E) A x     A, B ~ N(0, 0.02^2), E = 0
    I <- b I + (1 - b) |w dL/dw|;  U <- b U + (1 - b) ||w dL/dw| - I|;  s = I U
    score of a triplet: s(E_i) + mean_j s(A_ij) + mean_j s(B_ji)
    budget: b0 until t_i, b_T + (b0 - b_T) (1 - (t - t_i) / (T - t_i - t_f))^3, b_T from T - t_f
    every `every`: E_i = 0 outside the budget's best triplets of all modules; they may come back
    penalty: gamma * mean over A, B of |A A^T - I|_F and |B^T B - I|_F

w: every single weight; b0, b_T: `init_rank` and `rank` a module; b: `score_beta`; t_i, t_f: `start`
and `settle`, shares of the horizon T; gamma: `penalty`, added to the training gradient here (and to
no loss that is read: the record's training and evaluation losses are the task's alone). From
T - t_f on, what is pruned stays so.

Paper: Qingru Zhang, Minshuo Chen, Alexander Bukharin, Nikos Karampatziakis, Pengcheng He, Yu Cheng,
Weizhu Chen, Tuo Zhao, "AdaLoRA: Adaptive Budget Allocation for Parameter-Efficient Fine-Tuning",
https://arxiv.org/abs/2303.10512, 2023. Reference code: https://github.com/QingruZhang/AdaLoRA
@ d10f5ebe; here layers, schedule, scores and masks are peft's (Apache-2.0), set to the paper's
values instead of peft's (gamma .5, an interval of 1, no phases).
Defaults of its CoLA script: init_rank 3, alpha 32, gamma .1, b .85, lr 8e-4; t_i, t_f and the
interval are .12, .52 and .0015 of its 6,700 steps. rank 2 instead of 1, so that all adapters have
about one size. State: that of the method under it, and I, U and the last |w g| of each weight.

Deviations: gradients are clipped by the protocol before they are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from levelfield.bench import space
from levelfield.bench.spec import BenchError, OptimizerSpec, ParamInfo
from levelfield.bench.stepper import AdapterContext, BuildContext
from levelfield.optimizers._adalora import AdaLora, config, phases
from levelfield.optimizers._adapter import adapter_infos, find_targets
from levelfield.optimizers._adapter_peft import inject_by_peft
from levelfield.optimizers._adapter_stepper import AdapterStepper
from levelfield.optimizers._adapter_values import check_values


def check_ranks(hparams: Mapping[str, Any]) -> None:
    """Raises:
    BenchError: a budget that does not fall.
    """
    start, end = hparams["init_rank"], hparams["rank"]
    if start <= end:
        raise BenchError(
            f"adalora: init_rank={start} does not fall to rank={end}",
            "accepted: an init_rank above rank",
        )


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """peft's SVD layers in the place of the targets."""
    check_values(hparams)
    check_ranks(hparams)
    targets = list(find_targets(model, hparams["target"]))
    return inject_by_peft(model, ctx, config(hparams, ctx.total_steps, targets))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, AdaLora(ctx, hparams), "adalora")


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Three copies of A, B and E until the last phase, in which nothing is scored."""
    scored = progress < 1.0 - hparams["settle"]
    return 3 * sum(info.nbytes for info in adapter_infos(params)) if scored else 0


def switches(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """Steps after which triplets are pruned."""
    start, settle, every = phases(hparams, total_steps)
    last = total_steps - settle
    return tuple(t for t in range(start + 1, last + 1) if t % every == 0 or t == last)


SPEC = OptimizerSpec(
    name="adalora",
    family="adapter",
    summary="low-rank updates in SVD form, pruned by importance to a falling budget",
    paper="Zhang et al., AdaLoRA: Adaptive Budget Allocation for Parameter-Efficient Fine-Tuning, "
    "2023, https://arxiv.org/abs/2303.10512",
    code="https://github.com/QingruZhang/AdaLoRA @ d10f5ebe",
    implementation="peft",
    build=build,
    adapter=adapt,
    inner="adamw",
    space={
        "lr": space.log(1e-4, 1e-1, default=8e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 2,
        "init_rank": 3,
        "alpha": 32.0,
        "dropout": 0.0,
        "target": "all-linear",
        "penalty": 0.1,
        "score_beta": 0.85,
        "start": 0.12,
        "settle": 0.52,
        "every": 0.0015,
        "weight_decay": 0.0,
    },
    state_bytes=state_bytes,
    refreshes="pruning to the budget",
    switches=switches,
    cannot=("sharding",),
)
