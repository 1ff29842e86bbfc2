"""AdaFRUGAL, dynamic rho: FRUGAL whose state-full share falls linearly with the step.

    rho(k) = max(rho_end, rho_start - (rho_start - rho_end) k / (decay_fraction K))

k: the step at which a selection begins; K: the steps of the run. The rest is `frugal`: every T
steps all moments are dropped and a new part of the matrices is chosen, now of the share rho(k);
between refreshes nothing changes, so the state gets smaller at refreshes only. Old buffers go
before new ones come. The peak of a run is its start, at `rho_start`: a job that does not fit
there never gets to the savings.

With columns (the default) and with `svd` the state after any step follows from the progress alone;
with blocks too, but unevenly, as matrices differ in size. Saved at the end, in bytes: 2 *
itemsize * (rho_start - rho_end) * (elements of the matrices), to within a column a matrix. A CUDA
device gives the bytes back to torch's allocator, not to the driver.

`refreshes` counts the selections after the first one; `series` holds [step, value] at every
selection: `rho`, and `state_bytes` as then held.

Paper: Quang-Hung Bui, Anh Son Ta, "AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic
Control", https://arxiv.org/abs/2601.11568, 2025.
Reference code: none was found; written from summaries of the paper, FRUGAL's parts from
https://github.com/fzmushko/FRUGAL @ c7ebe4c2 (Apache-2.0).
Defaults: ours where the paper's are not known to us. `rho_start` .25: its 0.52 GiB at 130M is
FRUGAL's at that share. `rho_end` .01: its 0.37 GiB asks for no more than .0136. The others are
those of `frugal`; T is .04 of the run, where `adafrugal_t` starts.
Deviations:
- `decay_fraction` .8: rho arrives at `rho_end` and is held there, where the paper's K (1.0 here)
  is reached after the last refresh. In `adafrugal`, whose refreshes depend on losses, that alone
  makes the state at the end known beforehand; the law is the same here so that the two compare.
- The paper does not say which selection it used: its time saved fits an SVD, its bytes do not.
  `column`, as in `frugal`; `svd` and `block` can be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adafrugal import FALLING_SHARE, FRUGAL, falling_share
from levelfield.optimizers._frugal import Frugal, options
from levelfield.optimizers._frugal_parts import held_at, refresh_steps


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """What is held after the step that ends at `progress`."""
    return held_at(params, hparams, progress, falling_share(hparams))


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Frugal:
    share = falling_share(hparams, ctx.total_steps)
    return Frugal(ctx.groups(hparams), share=share, **options(ctx, hparams))


SPEC = OptimizerSpec(
    name="adafrugal_rho",
    parent="frugal",
    family="memory",
    summary="FRUGAL with a state-full share that falls from a quarter to nearly nothing",
    paper="Bui, Ta, AdaFRUGAL: Adaptive Memory-Efficient Training with Dynamic Control, 2025, "
    "https://arxiv.org/abs/2601.11568",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={**FRUGAL, **FALLING_SHARE},
    state_bytes=state_bytes,
    refreshes="selections of a new state-full part after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
