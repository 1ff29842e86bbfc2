"""8-bit AdamW: AdamW whose moments are kept in 8 bits, blockwise, by bitsandbytes.

    m, v <- what their codes stand for, in float32
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    W <- (1 - lr weight_decay) W
    W <- W - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    codes of m by a signed, of v by an unsigned dynamic map, 256 elements a scale; see `_quant`

A tensor of at least `min_elements` elements is kept so: 2 (1 + 4 / 256) = 2.03 bytes an element.
Smaller ones have float32 moments, whatever the dtype of the weights. Two maps of 1 KiB are shared.

`embed_bits` is 32 or 8, for the moments of the embedding alone. `refreshes` counts the steps in
which something was kept in 8 bits: none in a model whose tensors are all too small.

Paper: Tim Dettmers, Mike Lewis, Sam Shleifer, Luke Zettlemoyer, "8-bit Optimizers via Block-wise
Quantization", https://arxiv.org/abs/2110.02861, 2021 (ICLR 2022).
Code: https://github.com/bitsandbytes-foundation/bitsandbytes, 0.50 (MIT), which is what runs, on
CUDA and on the CPU.
Defaults: AdamW8bit's: lr 1e-3, betas (.9, .999), eps 1e-8, weight decay 1e-2, `min_elements` 4096.
The paper keeps the embedding in 32 bits, and the Trainer of transformers asks for the same; the
class by itself would not, which is `embed_bits` 8.

Where its backends differ, so that a run on the CPU says little about one on CUDA:
- The CPU looks codes up in a table of 65,536 steps over [-1, 1]. What is nearer to 0 than a step is
  kept as 2.1e-5 (m) or 1.6e-5 (v) of its block's largest, never as 0 and never as the map's smaller
  entries (measured, 0.50.2): a v that is far below its block's largest is kept too large.
- On the CPU the old weights are decayed, as is written above; the CUDA kernel decays the updated
  ones, which differs by lr^2 weight_decay times the direction.
The library waits for a CUDA device after every tensor.

Deviations: `StableEmbedding`'s layer norm after the embedding, a change of the model, is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._low_bit import check_embed_bits, claim, low_bit_groups
from levelfield.optimizers._quant import MAP_BYTES, quantised_bytes

BLOCK = 256
"""Elements that share a scale: fixed in the library."""


def _quantised(info: ParamInfo, hparams: Mapping[str, Any]) -> int | None:
    if info.numel < hparams["min_elements"]:
        return None
    if info.role == "embed" and hparams["embed_bits"] == 32:
        return None
    return 2 * quantised_bytes(info.numel, BLOCK)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    check_embed_bits(hparams)
    base: Any = importlib.import_module("bitsandbytes.optim").AdamW8bit

    class AdamW8bit(base):  # type: ignore[misc]
        """bitsandbytes' optimizer; every group says in `bits` what its large tensors get."""

        def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
            return {**super().get_config(gindex, pindex, group), "optim_bits": group["bits"]}

        @property
        def refreshes(self) -> int:
            counts = [
                state["step"]
                for state in self.state.values()
                if state["state1"].dtype == torch.uint8
            ]
            return max(counts, default=0)

    optimizer: torch.optim.Optimizer = AdamW8bit(
        low_bit_groups(ctx, hparams),
        betas=(hparams["beta1"], hparams["beta2"]),
        eps=hparams["eps"],
        min_8bit_size=hparams["min_elements"],
    )
    return optimizer


SPEC = OptimizerSpec(
    name="adamw_8bit",
    parent="adamw_split",
    family="memory",
    summary="AdamW with moments in blockwise 8 bits, by bitsandbytes",
    paper="Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021, "
    "https://arxiv.org/abs/2110.02861",
    code="https://github.com/bitsandbytes-foundation/bitsandbytes/tree/0.50.2",
    licence="MIT",
    implementation="bitsandbytes 0.50",
    requires=("bitsandbytes",),
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={
        "beta1": 0.9,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "min_elements": 4096,
        "embed_bits": 32,
    },
    state_bytes=claim(_quantised, lambda info: 4, MAP_BYTES),
    refreshes="steps with moments kept in 8 bits",
    cannot=("sharding",),
)
