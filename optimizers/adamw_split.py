"""AdamW whose embedding and head have their own learning rate.

The rule of `adamw` with lr replaced by lr * `embed_multiplier` for the embedding and the head.
A model's tables want another rate than its matrices, and most newer methods are published with
such a split: without it AdamW is beaten by the split, not by the method. This is the baseline
that has what the others have.

Paper: Ilya Loshchilov, Frank Hutter, "Decoupled Weight Decay Regularization",
https://arxiv.org/abs/1711.05101, 2019. Code: torch.optim.AdamW (BSD-3-Clause).
Defaults: those of `adamw`, multiplier 1. State: m and v in the parameter's dtype.

Deviations: the multiplier; it also scales the decay of those parameters, which goes with the rate.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import build_adamw

SPEC = OptimizerSpec(
    name="adamw_split",
    family="adaptive",
    summary="AdamW with a learning rate of its own for embedding and head",
    paper="Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019, "
    "https://arxiv.org/abs/1711.05101",
    code="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/adamw.py",
    licence="BSD-3-Clause",
    implementation="torch",
    build=build_adamw,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={"beta1": 0.9, "eps": 1e-8, "weight_decay": 0.01, "fused": True},
    state_bytes=copies(2),
)
