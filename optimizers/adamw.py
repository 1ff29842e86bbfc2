"""AdamW: momentum over the root of the second moment, decay apart from the gradient.

    p <- (1 - lr wd) p
    m <- b1 m + (1 - b1) g
    v <- b2 v + (1 - b2) g^2
    p <- p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

b1, b2: `beta1`, `beta2`; wd: `weight_decay`; g: gradient; t: step, from 1.

Paper: Ilya Loshchilov, Frank Hutter, "Decoupled Weight Decay Regularization",
https://arxiv.org/abs/1711.05101, 2019. Code: torch.optim.AdamW (BSD-3-Clause).
Defaults: torch's: lr 1e-3, betas (.9, .999), eps 1e-8, weight decay 1e-2.

It takes every parameter at one rate: the plain baseline, without an embedding/head multiplier
(`adamw_split` has one). State: m and v in the parameter's dtype.

`fused` is on, on the CPU as on CUDA: one kernel for all parameters. It is wrong for parameters that
are not contiguous; if there is one, torch's plain step is used (`_ops.build_adamw`).

Deviations: none.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._claims import copies
from levelfield.optimizers._ops import build_adamw

SPEC = OptimizerSpec(
    name="adamw",
    family="adaptive",
    summary="Adam with decoupled weight decay, one rate for every parameter",
    paper="Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019, "
    "https://arxiv.org/abs/1711.05101",
    code="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/adamw.py",
    licence="BSD-3-Clause",
    implementation="torch",
    build=build_adamw,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "beta2": space.beta(0.9, 0.9995, default=0.999),
    },
    fixed={"beta1": 0.9, "eps": 1e-8, "weight_decay": 0.01, "fused": True},
    state_bytes=copies(2),
)
