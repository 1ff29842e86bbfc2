"""GaLore by its authors' package: the rival of `galore`, which is the same rule in our own code.

    the step of `galore`, in the order of its reference code

Groups of one rank each are handed to `GaLoreAdamW`; what is told here is what the package does. On
the same gradients it goes where `galore` goes, to the rounding of float32 (a test holds that).

What differs is what it holds: in float32 the projector is a view of all k singular vectors of the
smaller side k, of which r are used, so that it keeps k^2 elements and not r k. For bfloat16 it is a
copy of r k. Moments: 2 r M as in `galore`, for a larger side M. It decomposes on every tensor's
own count of steps, and raises an error where a gradient is not finite.

`refreshes` counts the new projectors after the first.

Paper: Jiawei Zhao, Zhenyu Zhang, Beidi Chen, Zhangyang Wang, Anima Anandkumar, Yuandong Tian,
"GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
https://arxiv.org/abs/2403.03507, 2024 (ICML 2024).
Code: https://github.com/jiaweizzhao/GaLore, the package galore-torch 1.0 (Apache-2.0), which is
what runs. It needs bitsandbytes and transformers, whatever is used of it.
Defaults: the package's: betas (.9, .999), eps 1e-6, weight decay 0, and its scripts': lr .01,
alpha .25, rank h/4. T = `refresh_fraction` * total_steps as in `galore`.

Deviations: none. What is not a matrix of two dimensions gets its plain AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners
from levelfield.optimizers._official import counted, official, ranked_groups
from levelfield.optimizers._projection import rank_of, refresh_steps


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """2 r M elements a matrix, k^2 in float32 or r k in other dtypes, two copies of all else."""
    total = 0
    for info in owners(params):
        if info.role != "matrix" or len(info.shape) != 2 or info.numel == 0:
            total += 2 * info.nbytes
            continue
        small, large = min(info.shape), max(info.shape)
        rank = rank_of(hparams["rank_fraction"], *info.shape)
        held = small if info.dtype == "float32" else rank
        total += (2 * rank * large + held * small) * info.itemsize
    return total


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Any:
    return counted(official("galore_torch", "GaLoreAdamW"))(
        ranked_groups(ctx, hparams, scale=hparams["alpha"], proj_type="std"),
        betas=(hparams["beta1"], hparams["beta2"]),
        eps=hparams["eps"],
        no_deprecation_warning=True,
    )


SPEC = OptimizerSpec(
    name="galore_official",
    parent="adamw_split",
    family="memory",
    summary="GaLore by its authors' package, a rival of our own",
    paper="Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, "
    "2024, https://arxiv.org/abs/2403.03507",
    code="https://github.com/jiaweizzhao/GaLore @ 2cc66f88",
    licence="Apache-2.0",
    implementation="galore-torch 1.0",
    requires=("galore_torch", "bitsandbytes", "transformers"),
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
        "alpha": 0.25,
        "refresh_fraction": 0.05,
    },
    state_bytes=state_bytes,
    refreshes="new projectors after the first",
    switches=refresh_steps,
)
