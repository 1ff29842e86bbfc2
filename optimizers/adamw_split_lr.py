"""AdamW with its two learning rates tuned and nothing else: a rung of the gain ladder.

The rule of `adamw_split` with beta2 at torch's default. Beside the method that tunes beta2 as well
it tells how much of a gain is the decay rate of the second moment.

Paper: Ilya Loshchilov, Frank Hutter, "Decoupled Weight Decay Regularization",
https://arxiv.org/abs/1711.05101, 2019. Code: torch.optim.AdamW (BSD-3-Clause).

Deviations: none but the multiplier of `adamw_split`.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import build_adamw

SPEC = OptimizerSpec(
    name="adamw_split_lr",
    family="adaptive",
    summary="AdamW, only its two rates tuned: a rung of the gain ladder",
    paper="Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019, "
    "https://arxiv.org/abs/1711.05101",
    code="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/adamw.py",
    licence="BSD-3-Clause",
    implementation="torch",
    build=build_adamw,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "fused": True},
    state_bytes=copies(2),
)
