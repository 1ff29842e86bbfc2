"""8-bit GaLore: GaLore whose moments are kept in 8 bits, blockwise.

    m, v <- what their codes stand for, in float32
    the step of `galore`, its direction in float32
    codes of m by a signed, of v by an unsigned dynamic map; see `_quant`

Moments of at least `min_elements` elements are kept so: a byte an element and 4 bytes for each
`quant_block` of them. For a matrix those are the r max(m, n) elements of its projection, for
anything else its own. Smaller ones have float32 moments, whatever the dtype of the weights. Two
maps of 1 KiB are shared by all. Projectors stay in the parameter's dtype. `embed_bits` is 8 or 32,
for the embedding alone.

Paper: Jiawei Zhao, Zhenyu Zhang, Beidi Chen, Zhangyang Wang, Anima Anandkumar, Yuandong Tian,
"GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
https://arxiv.org/abs/2403.03507, 2024 (ICML 2024). Quantisation: Tim Dettmers et al., "8-bit
Optimizers via Block-wise Quantization", https://arxiv.org/abs/2110.02861, 2021.
Reference code: https://github.com/jiaweizzhao/GaLore @ 2cc66f88 (Apache-2.0), its AdamW8bit.
Defaults: that code's: betas (.9, .999), eps 1e-8, and its scripts': lr .01, alpha .25, rank h/4,
weight decay 0; `min_elements` 4096 and `quant_block` 256 are bitsandbytes', on which it is built.
`embed_bits` 8: it keeps every large tensor in 8 bits, where the paper of the quantisation keeps the
embedding in 32. T = `refresh_fraction` * total_steps as in `galore`.

eps is added "after" the bias correction (`eps_placement`), as bitsandbytes does, against GaLore's
own AdamW, and weight decay comes "after" the update (`decay_order`).

Deviations: those of `galore`. The reference runs bitsandbytes on a copy of each weight that has the
shape of the projection, and rounds the direction times lr to the dtype of the weights; here the
direction alone is rounded. Its decay of what is not projected is bitsandbytes', which may come
before the update; here there is one order for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._low_bit import check_embed_bits, low_bit_groups
from levelfield.optimizers._projection import (
    LowRank,
    options,
    project,
    project_back,
    rank_rule,
    refresh_steps,
    singular_projector,
    work_dtype,
)
from levelfield.optimizers._quant import (
    MAP_BYTES,
    dequantise,
    map_tensor,
    quantise,
    quantised_bytes,
    restore_dtypes,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Kept with a signed and an unsigned map, in this order."""


class GaLore8bit(LowRank):
    """GaLore with large moments in 8 bits, all others in float32 at least.

    Groups carry a `role` and, if not 8, the `bits` of their large moments: 8 or 32. A quantised
    moment is two tensors of state: the codes under its name, and `NAME_largest`.

    Args:
        min_elements: smaller moments are not quantised.
        quant_block: elements that share a scale.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rank_fraction: float = 0.25,
        alpha: float = 0.25,
        period: float = math.inf,
        eps_placement: str = "after",
        decay_order: str = "after",
        min_elements: int = 4096,
        quant_block: int = 256,
    ) -> None:
        if quant_block < 1:
            raise ValueError(f"quant_block is {quant_block}: at least 1 element is needed")
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
        self.min_elements = min_elements
        self.quant_block = quant_block
        self.state_holders: dict[torch.device, tuple[Tensor, Tensor]] = {}
        """The maps, signed and unsigned, once a device."""

    def direction(
        self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any], renew: bool
    ) -> tuple[Tensor, float]:
        if renew:
            state["projector"] = singular_projector(grad, self.rank(*grad.shape))
        projector = state["projector"]
        low = self.adam(project(grad, projector), state, group)
        return project_back(low, projector, grad.shape), self.alpha

    def adam(self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> Tensor:
        """Adam's direction in the dtype of `grad`; the moments in `state` move on."""
        accurate = grad.to(work_dtype(grad))
        if not self._in_few_bits(grad, group):
            return super().adam(accurate, state, group).to(grad.dtype)
        maps = self._maps(grad.device)
        held: dict[str, Any] = {"step": state["step"]}
        if "exp_avg" in state:
            for name, entries in zip(MOMENTS, maps, strict=True):
                codes, largest = state[name], state[f"{name}_largest"]
                held[name] = dequantise(codes, largest, entries, self.quant_block, accurate.dtype)
        direction = super().adam(accurate, held, group)
        for name, entries in zip(MOMENTS, maps, strict=True):
            codes, largest = quantise(held[name], entries, self.quant_block)
            state[name], state[f"{name}_largest"] = codes, largest
        return direction.to(grad.dtype)

    def _in_few_bits(self, grad: Tensor, group: Mapping[str, Any]) -> bool:
        return group.get("bits", 8) == 8 and grad.numel() >= max(1, self.min_elements)

    def _maps(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self.state_holders:
            self.state_holders[device] = (map_tensor(True, device), map_tensor(False, device))
        return self.state_holders[device]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        restore_dtypes(self, state_dict)


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Codes and scales of large moments, 4 bytes an element of others, projectors, maps if used."""
    rank, total, maps = rank_rule(hparams), 0, 0
    for info in owners(params):
        elements = info.numel
        if info.role == "matrix" and len(info.shape) > 1 and info.numel > 0:
            rows, columns = info.shape[0], math.prod(info.shape[1:])
            elements = rank(rows, columns) * max(rows, columns)
            total += rank(rows, columns) * min(rows, columns) * info.itemsize
        few = info.role != "embed" or hparams["embed_bits"] == 8
        if few and elements >= max(1, hparams["min_elements"]):
            total += 2 * quantised_bytes(elements, hparams["quant_block"])
            maps = MAP_BYTES
        else:
            total += 2 * elements * max(4, info.itemsize)
    return total + maps


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> GaLore8bit:
    check_embed_bits(hparams)
    return GaLore8bit(
        low_bit_groups(ctx, hparams),
        rank_fraction=hparams["rank_fraction"],
        alpha=hparams["alpha"],
        eps_placement=hparams["eps_placement"],
        **options(ctx, hparams),
        min_elements=hparams["min_elements"],
        quant_block=hparams["quant_block"],
    )


SPEC = OptimizerSpec(
    name="galore_8bit",
    parent="galore",
    family="memory",
    summary="GaLore with its moments in blockwise 8 bits",
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
        "eps": 1e-8,
        "weight_decay": 0.0,
        "rank_fraction": 0.25,
        "alpha": 0.25,
        "refresh_fraction": 0.05,
        "eps_placement": "after",
        "decay_order": "after",
        "min_elements": 4096,
        "quant_block": 256,
        "embed_bits": 8,
    },
    state_bytes=state_bytes,
    refreshes="new projectors after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
