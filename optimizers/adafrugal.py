"""AdaFRUGAL: FRUGAL with a state-full share that falls and a period that grows with the loss.

    rho(k) = max(rho_end, rho_start - (rho_start - rho_end) k / (decay_fraction K))
    after an evaluation:  (L_before - L) / L_before < tau_low  ->  T <- min(T_max, growth T)

Both controls at once, each as told in `adafrugal_rho` and `adafrugal_t`. A selection is kept until
the next refresh, so a new rho takes effect there only, and the longer T is, the later the state
gets smaller.

When refreshes come depends on losses, so what is held while rho falls cannot be told beforehand;
the claim is then the most it can be, that of a selection as old as T allows. It is exact at the
start, and from decay_fraction + T_max on: by then rho was `rho_end` at the last refresh, whatever
the losses were. By default that is .96 of the run. With a larger
`decay_fraction` (the paper's K is 1), with blocks, or by `modulus` with T's that do not divide one
another, the claim at the end is a bound as well.

`refreshes` counts the selections after the first one. `series` holds [step, value]: `rho` and
`state_bytes` at every selection, `T` at the start and at every growth.

Paper: Quang-Hung Bui, Anh Son Ta, "AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic
Control", https://arxiv.org/abs/2601.11568, 2025.
Reference code: none was found; written from summaries of the paper, FRUGAL's parts from
https://github.com/fzmushko/FRUGAL @ c7ebe4c2 (Apache-2.0).
Defaults and deviations: those of `adafrugal_rho` and `adafrugal_t`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adafrugal import (
    FALLING_SHARE,
    FRUGAL,
    GROWING_PERIOD,
    LossAwareFrugal,
    build_loss_aware,
    falling_share,
    held_at_most,
)
from levelfield.optimizers._frugal_parts import refresh_steps


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """What is held at most after the step that ends at `progress`, and exactly at the end."""
    return held_at_most(params, hparams, progress, falling_share(hparams))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> LossAwareFrugal:
    return build_loss_aware(ctx, hparams, share=falling_share(hparams, ctx.total_steps))


SPEC = OptimizerSpec(
    name="adafrugal",
    parent="frugal",
    family="memory",
    summary="FRUGAL with a falling state-full share and a period that grows as the loss stalls",
    paper="Bui, Ta, AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic Control, 2025, "
    "https://arxiv.org/abs/2601.11568",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={**FRUGAL, **FALLING_SHARE, **GROWING_PERIOD},
    state_bytes=state_bytes,
    refreshes="selections of a new state-full part after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
