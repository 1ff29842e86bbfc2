"""8-bit AdamW by torchao: moments in 8 bits, blockwise, in a compiled step.

    m, v <- what their codes stand for, in float32
    W <- (1 - lr weight_decay) W
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    W <- W - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    codes of m and of v, each `block` elements divided by the largest of them, at least 1e-12

The maps are the dynamic ones of `_quant`: signed for m, unsigned for v.

A tensor of at least 4096 elements is kept so if their number is a multiple of `block`:
2 (1 + 4 / 256) = 2.03 bytes an element.
Every moment has a map of its own, of 1024 bytes. All others have moments in the parameter's dtype;
the embedding is no exception. `refreshes` counts the steps in which something was kept in 8 bits:
none in a model whose tensors are all too small.

Paper: Tim Dettmers, Mike Lewis, Sam Shleifer, Luke Zettlemoyer, "8-bit Optimizers via Block-wise
Quantization", https://arxiv.org/abs/2110.02861, 2021 (ICLR 2022).
Code: https://github.com/pytorch/ao, torchao 0.18 (BSD-3-Clause), which is what runs.
Defaults: its AdamW8bit's: lr 1e-3, betas (.9, .999), eps 1e-8, weight decay 1e-2, `block` 256,
and no stochastic rounding of bfloat16 weights (`bf16_stochastic_round`, which draws from the global
generator).

The library compiles its step with torch.compile: a C++ compiler is needed on the CPU, and the first
step takes from seconds to a minute, once for every shape.

Deviations: none in the rule. A step under accounting, where every operation is watched, runs the
same code uncompiled, which differs by rounding (see `_torchao`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._low_bit import claim
from levelfield.optimizers._torchao import build_low_bit, moment_bytes


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Any:
    from torchao.optim import AdamW8bit

    return build_low_bit(AdamW8bit, ctx, hparams)


SPEC = OptimizerSpec(
    name="adamw_8bit_ao",
    parent="adamw_split",
    family="memory",
    summary="AdamW with moments in blockwise 8 bits, by torchao",
    paper="Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021, "
    "https://arxiv.org/abs/2110.02861",
    code="https://github.com/pytorch/ao/tree/v0.18.0",
    licence="BSD-3-Clause",
    implementation="torchao 0.18",
    requires=("torchao",),
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
        "block": 256,
        "bf16_stochastic_round": False,
    },
    state_bytes=claim(
        lambda info, hparams: moment_bytes(info, hparams, 8), lambda info: info.itemsize
    ),
    refreshes="steps with moments kept in 8 bits",
    cannot=("sharding",),
)
