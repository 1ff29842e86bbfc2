"""AdaFRUGAL, dynamic T: FRUGAL that selects less often once the loss falls slowly.

After every evaluation the optimizer is told the loss L on the control slice:

    (L_before - L) / L_before < tau_low  ->  T <- min(T_max, growth T)

T: steps from one selection to the next, first `refresh_fraction`, at most `max_fraction` of the
run; it never falls. `loss_change` signed: a loss that rises counts as one that stalls; absolute:
the size of the change is compared. The first evaluation only sets L_before; a loss that is not
finite is passed over. The rest is `frugal`, with a constant rho.

When a step k begins with a refresh, T being what it is by then:

    modulus   k mod T == 0, the paper's rule. After a growth the next refresh can come early or
              late. A T that is not whole refreshes at the first step after each multiple.
    elapsed   k - (when the last selection began) >= T.

Both start from k = 0. With several processes the loss must be reduced over them before it is told,
or they choose different T's.

`refreshes` counts the selections after the first one. `series` holds [step, value]: `T` at the
start and at every growth, `rho` and `state_bytes` at every selection. The steps that the record
names as switches are those of a T that never grows; by `modulus` with the default T's, the
refreshes are some of them.

Paper: Quang-Hung Bui, Anh Son Ta, "AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic
Control", https://arxiv.org/abs/2601.11568, 2025.
Reference code: none was found; written from summaries of the paper, FRUGAL's parts from
https://github.com/fzmushko/FRUGAL @ c7ebe4c2 (Apache-2.0).
Defaults: ours, not theirs, which are not known to us. T from .04 of the run to .16: the ratio of
200 to 800 steps, and 6 refreshes in any run of 25 steps and more. `growth` 2: each T divides the
next, so that multiples of the largest are refreshes whenever T grows. `tau_low` .03: between
evaluations a sixteenth of a 400-step run apart the loss of a small LLaMA falls by 3 % half-way and
by less than 1 % near the end alone; where evaluations are closer, less is right. `loss_change`
signed: the window and the sign of the change are not told. The evaluations are the protocol's.
Deviations: `selection` as in `frugal`. What a refresh costs is what can be saved: nearly nothing
with columns and blocks, a decomposition a matrix with `svd`. Steps that are timed apart from
training see no losses and so the first T.

Bytes do not depend on when refreshes come, except for blocks, whose claim is that of the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adafrugal import (
    FRUGAL,
    GROWING_PERIOD,
    LossAwareFrugal,
    build_loss_aware,
)
from levelfield.optimizers._frugal_parts import held_bytes, refresh_steps


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """What is held at any time; with blocks, what is held at most."""
    return held_bytes(params, hparams, hparams["rho"], None)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> LossAwareFrugal:
    return build_loss_aware(ctx, hparams, rho=hparams["rho"])


SPEC = OptimizerSpec(
    name="adafrugal_t",
    parent="frugal",
    family="memory",
    summary="FRUGAL with a period that doubles when the control loss stalls",
    paper="Bui, Ta, AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic Control, 2025, "
    "https://arxiv.org/abs/2601.11568",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={**FRUGAL, "rho": 0.25, **GROWING_PERIOD},
    state_bytes=state_bytes,
    refreshes="selections of a new state-full part after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
