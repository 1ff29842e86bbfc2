"""SGD with momentum: the oldest rule, one rate for all coordinates.

    g <- g + wd p
    B <- mu B + (1 - dampening) g            at the first step B = g
    p <- p - lr * B                          with Nesterov p - lr * (g + mu B)

mu: `momentum`; wd: `weight_decay`; `dampening` and `nesterov` by their names.

Paper: Ilya Sutskever, James Martens, George Dahl, Geoffrey Hinton, "On the importance of
initialization and momentum in deep learning", https://proceedings.mlr.press/v28/sutskever13.html,
ICML 2013; the momentum is Boris Polyak's (1964). Code: torch.optim.SGD (BSD-3-Clause).
Defaults: lr .1 and momentum .9, as in the example of torch's documentation (its arguments default
to 1e-3 and 0); no dampening, no Nesterov, no weight decay, as in torch.

The size of a step is that of the gradient: the protocol's clipping shapes this method more than
any other. A heavy ball gathers 1 / (1 - mu) gradients, so the rate acts tenfold at mu = .9.

State: B in the parameter's dtype. `foreach` None leaves the choice to torch: a loop on the CPU,
grouped kernels on CUDA. `fused` is off: torch's fused step does not take a parameter whose first
gradient comes later than those of the others.

Deviations: none. Weight decay is torch's, part of the gradient (L2), unlike everywhere else here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext, merge_groups
from levelfield.optimizers._claims import copies


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """torch's SGD over the context's parameters."""
    return torch.optim.SGD(
        merge_groups(ctx.groups(hparams)),
        momentum=hparams["momentum"],
        dampening=hparams["dampening"],
        nesterov=hparams["nesterov"],
        foreach=hparams["foreach"],
        fused=hparams["fused"],
    )


SPEC = OptimizerSpec(
    name="sgd",
    family="sgd",
    summary="Stochastic gradient descent with momentum",
    paper="Sutskever et al., On the importance of initialization and momentum in deep learning, "
    "2013, https://proceedings.mlr.press/v28/sutskever13.html",
    code="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/sgd.py",
    licence="BSD-3-Clause",
    implementation="torch",
    build=build,
    space={
        "lr": space.log(1e-2, 10.0, default=0.1),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "momentum": 0.9,
        "dampening": 0.0,
        "nesterov": False,
        "weight_decay": 0.0,
        "foreach": None,
        "fused": False,
    },
    state_bytes=copies(1),
)
