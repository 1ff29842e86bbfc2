"""8-bit FOAM: FOAM whose folded moments are kept in 8 bits, blockwise.

    m~, v~ <- what their codes stand for
    the step of `foam`, in float32
    codes of m~ with a signed, of v~ with an unsigned dynamic map; see `_quant`

A matrix of at least `min_elements` elements is kept so: for m~ and for v~ a byte a fold, and 4
bytes for each `quant_block` folds, which run on over the ends of rows. R is this step's own and is
never kept, so it has full precision. Everything else is kept in float32 whatever the dtype of the
weights: smaller matrices, embedding, head, vectors. Two maps of 1 KiB are shared by all.

`refreshes` counts the steps in which at least one matrix was kept in 8 bits: none in a model whose
matrices are all too small, which is then plain FOAM. `series` holds `delta`; see `foam`.

Paper: Ziqing Wen, Jiahuan Wang, Ping Luo, Dongsheng Li, Tao Sun, "FOAM: Blocked State Folding for
Memory-Efficient LLM Training", https://arxiv.org/abs/2512.07112, 2025 (ICML 2026); it names an
8-bit FOAM without its recipe. Quantisation: Tim Dettmers et al., "8-bit Optimizers via Block-wise
Quantization", https://arxiv.org/abs/2110.02861, 2021.
Reference code: none for the combination: this is ours. FOAM's is
https://github.com/zqOuO/FOAM @ 13769c73 (no licence stated; nothing copied).
Defaults: those of `foam`; `quant_block` 256 is bitsandbytes', `min_elements` 1024 is ours: at
level 2 that is a whole block of folds. bitsandbytes' 4096 would keep small models in float32.
Decisions: only the folded moments are quantised, as that is what the paper's 8-bit form is about,
and as bitsandbytes advises 32 bits for embeddings. `min_elements` counts the parameter's elements,
as in bitsandbytes, not the folds. A v~ below 1.6e-7 of its block's largest becomes 0; where R is 0
as well, eps alone divides, as in any 8-bit Adam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._foam import Foam, folded_elements, options
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


class Foam8bit(Foam):
    """FOAM with m~ and v~ of large matrices in 8 bits, all other state in float32 at least.

    A quantised moment is two tensors of state: the codes under its name, and `NAME_largest`.

    Args:
        min_elements: smaller matrices are not quantised.
        quant_block: folds that share a scale.
        options: of `Foam`.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        min_elements: int = 1024,
        quant_block: int = 256,
        **options: Any,
    ) -> None:
        super().__init__(params, **options)
        if quant_block < 1:
            raise ValueError(f"quant_block is {quant_block}: at least 1 element is needed")
        self.min_elements = min_elements
        self.quant_block = quant_block
        self.refreshes = 0
        self.state_holders: dict[torch.device, tuple[Tensor, Tensor]] = {}
        """The maps, signed and unsigned, once a device."""
        self._quantised = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> float | None:  # type: ignore[override]
        self._quantised = False
        loss = super().step(closure)
        self.refreshes += self._quantised
        return loss

    def _start(
        self,
        state: dict[str, Any],
        param: Tensor,
        folds: bool,
        group: Mapping[str, Any],
        position: int,
    ) -> None:
        moment = torch.zeros(self._shape(param, folds), dtype=_work(param), device=param.device)
        for name in MOMENTS:
            state[name] = moment.clone()
        if folds and param.numel() >= max(1, self.min_elements):
            self._store(state, moment, moment)

    def _maps(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self.state_holders:
            self.state_holders[device] = (map_tensor(True, device), map_tensor(False, device))
        return self.state_holders[device]

    def _store(self, state: dict[str, Any], *moments: Tensor) -> None:
        maps = self._maps(moments[0].device)
        for name, moment, entries in zip(MOMENTS, moments, maps, strict=True):
            codes, largest = quantise(moment, entries, self.quant_block)
            state[name], state[f"{name}_largest"] = codes, largest
        self._quantised = True

    def _folded(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: Mapping[str, Any],
        norms: list[Tensor] | None,
    ) -> Tensor:
        grad = grad.to(_work(grad))
        if "exp_avg_largest" not in state:
            return super()._folded(grad, state, group, norms)
        moments = {
            name: dequantise(
                state[name], state[f"{name}_largest"], entries, self.quant_block, grad.dtype
            )
            for name, entries in zip(MOMENTS, self._maps(grad.device), strict=True)
        }
        direction = super()._folded(grad, moments, group, norms)
        self._store(state, *moments.values())
        return direction

    def _whole(self, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> Tensor:
        return super()._whole(grad.to(_work(grad)), state, group)

    def state_dict(self) -> dict[str, Any]:
        """FOAM's, and under `foam_8bit` the steps counted."""
        return {**super().state_dict(), "foam_8bit": {"refreshes": self.refreshes}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        restore_dtypes(self, state_dict)
        self.refreshes = state_dict["foam_8bit"]["refreshes"]


def _work(tensor: Tensor) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """Codes and scales of large matrices, maps if there are any, two of at least 4 bytes else."""
    total, maps = 0, 0
    for info in owners(params):
        folds = info.role == "matrix" and len(info.shape) > 1
        elements = folded_elements(info, hparams["level"]) if folds else info.numel
        if folds and info.numel >= max(1, hparams["min_elements"]):
            total += 2 * quantised_bytes(elements, hparams["quant_block"])
            maps = MAP_BYTES
        else:
            total += 2 * elements * max(4, info.itemsize)
    return total + maps


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Foam8bit:
    return Foam8bit(
        ctx.groups(hparams),
        second_moment=hparams["second_moment"],
        min_elements=hparams["min_elements"],
        quant_block=hparams["quant_block"],
        **options(ctx, hparams),
    )


SPEC = OptimizerSpec(
    name="foam_8bit",
    parent="foam",
    family="memory",
    summary="FOAM with its folded moments in blockwise 8 bits",
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
        "second_moment": "mean_of_sq",
        "residual": True,
        "min_elements": 1024,
        "quant_block": 256,
    },
    state_bytes=state_bytes,
    refreshes="steps with moments kept in 8 bits",
    cannot=("sharding",),
)
