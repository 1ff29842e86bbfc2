"""APOLLO by its authors' package: the rival of `apollo`, which is the same rule in our own code.

    the step of `apollo`, in the order of its reference code, projectors kept

Groups of one rank each are handed to `APOLLOAdamW`; what is told here is what the package does. On
the same gradients and with the same projectors it goes where `apollo` goes, to the rounding of
float32 (a test holds that).

A projector is drawn from a seed that is the parameter's number alone, so that every run has the
same ones, and is held: r k elements for a smaller side k, beside 2 r M of moments for a larger side
M. The limiter is read by the host, once a matrix and step: on CUDA the step waits for it.

After a gradient of zeros at the first step the limiter holds a norm of 0: it lets through about
1e-8 of the next step, and from there 1 % more a step (`cannot`: zero_gradients; `apollo` starts
anew).

`refreshes` counts the new projectors after the first.

Paper: Hanqing Zhu, Zhenyu Zhang, Wenyan Cong, Xi Liu, Sem Park, Vikas Chandra, Bo Long, David Z.
Pan, Zhangyang Wang, Jinwon Lee, "APOLLO: SGD-like Memory, AdamW-level Performance",
https://arxiv.org/abs/2412.05270, 2024 (MLSys 2025).
Code: https://github.com/zhuhanqing/APOLLO, the package apollo-torch 1.0.3 (CC BY-NC 4.0), which is
what runs; nothing of it is here. It needs bitsandbytes and transformers, whatever is used of it.
Defaults: the package's: betas (.9, .999), eps 1e-6, weight decay 0, growth 1.01 (not to be chosen),
and its scripts': lr .01, rank h/4, channels, scale 1. T = `refresh_fraction` * total_steps as in
`apollo`. `limited` False takes the limiter of the norm away.

Deviations: none. What is not a matrix of two dimensions gets its plain AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._official import counted, official, ranked_groups
from levelfield.optimizers._projection import claim, refresh_steps


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Any:
    projected = {"proj": "random", "proj_type": "std", "scale_type": hparams["scaling"]}
    return counted(official("apollo_torch", "APOLLOAdamW"))(
        ranked_groups(ctx, hparams, scale=hparams["scale"], **projected),
        betas=(hparams["beta1"], hparams["beta2"]),
        eps=hparams["eps"],
        scale_front=hparams["scale_front"],
        disable_nl=not hparams["limited"],
    )


SPEC = OptimizerSpec(
    name="apollo_official",
    parent="adamw_split",
    family="memory",
    summary="APOLLO by its authors' package, a rival of our own",
    paper="Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024, "
    "https://arxiv.org/abs/2412.05270",
    code="https://github.com/zhuhanqing/APOLLO @ 76b34725",
    licence="CC-BY-NC-4.0",
    implementation="apollo-torch 1.0.3",
    cannot=("zero_gradients", "sharding"),
    requires=("apollo_torch", "bitsandbytes", "transformers"),
    build=build,
    space={
        "lr": space.log(1e-3, 1e-1, default=1e-2),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.0,
        "rank_fraction": 0.25,
        "scale": 1.0,
        "scaling": "channel",
        "scale_front": False,
        "refresh_fraction": 0.05,
        "limited": True,
    },
    state_bytes=claim(projector=lambda hparams: True),
    refreshes="new projectors after the first",
    switches=refresh_steps,
)
