"""FRUGAL: AdamW on a rotating part of the weight matrices, signSGD on the rest of them.

With S the state-full part (`rho` of the matrices, chosen anew every T steps), for every matrix W
with gradient G, in this order:

    every T steps:  drop m, v and their step counter t;  choose a new S
    W   <- (1 - lr * weight_decay) W
    t   <- t + 1
    m   <- beta1 m + (1 - beta1) G_S
    v   <- beta2 v + (1 - beta2) G_S^2
    W_S <- W_S - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    W_rest <- W_rest - lr * inactive_lr_scale * sign(G_rest)

Embedding, head and vectors are always state-full: AdamW at the same `lr`, the first two times
`embed_multiplier`; their moments are never reset. As t restarts with each S, the first step after
a refresh moves every active coordinate by lr (to within eps), just as signSGD moves the others; in
`svd` those are coordinates of G_S.

`selection` says what S is made of:

    column  floor(rho n) random columns of each matrix [m, n], drawn from the method's own
            generator. m and v are [m, floor(rho n)]; the index (int64) is state too.
    svd     the span of the first round(rho min(m, n)) singular vectors of the gradient that comes
            with the refresh, on the smaller side of [m, n]: G_S = G P^T with P [r, n] if m >= n,
            P^T G with P [m, r] otherwise. m and v are shaped like G_S, P is state too. Adam's
            direction is carried back by P, and rest = G - (G_S carried back): every element of
            W takes both steps. The decomposition waits for a CUDA device, once a refresh.
    block   whole matrices, round(count * rho) at a time. `block_order` descending: a window that
            slides from the last matrix to the first and wraps; ascending: the other way; random:
            a draw from (block_seed, number of the selection).

A matrix outside S holds no buffers at all. Old buffers go before new ones come, so the peak of a
refresh is no higher than its ends.

T = `refresh_fraction` * total_steps. The paper's T = 200 is a hundredth of the 20k steps of a
learning-rate cycle at 130M and a thousandth of the 200k that its scripts run; either share of a
short run is shorter than Adam's own memory, so the default is a twentieth: 20 selections and 19
refreshes in any run of 20 steps and more. T need not be whole: selection i begins with the first
step that ends after i * T, so that what is held follows from the progress of the run alone.

`refreshes` counts the selections after the first one, which is made at step 0. `series` holds
[step, value] at every selection, the first included: `rho`, and `state_bytes` as then held.

Paper: Philip Zmushko, Aleksandr Beznosikov, Martin Takáč, Samuel Horváth, "FRUGAL: Memory-Efficient
Optimization by Reducing State Overhead for Scalable Training",
https://arxiv.org/abs/2411.07837, 2024 (ICML 2025).
Reference code: https://github.com/fzmushko/FRUGAL @ c7ebe4c2 (Apache-2.0).
Deviations:
- `column` is the default. The paper's pre-training scripts take blocks in descending order (its
  column variant serves fine-tuning): of the 14 matrices of a two-layer model that is 4, a share of
  .29 whose bytes depend on which 4. Columns hold the same floor(rho n) everywhere at every moment,
  and train every layer alike.
- The reference draws from the global generator, which ties the selection to whatever else draws.
  Random blocks are the same in every seed of a run: their sizes differ, so a selection that
  depends on the seed would have no bytes that can be told beforehand.
- The phase of the refresh is the optimizer's, not the first parameter's, which may be frozen.
- floor(rho n) forgives rounding: .29 * 100 is 29, not 28.
- In `svd` a basis of the whole space (rho 1) leaves no rest: the signs of its rounding noise, which
  the reference takes, would move every element by lr. Projection to both sides at once and random
  or permuted bases are left out.
- `proj_params_lr_scale` (1 in the paper's main experiments; the embedding multiplier plays its
  part), the mirrored block order, the inactive rules other than signSGD and keeping the moments
  over a refresh are left out. `inactive_lr_scale` 0 gives the rule "no".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._frugal import Frugal, options
from levelfield.optimizers._frugal_parts import held_at, refresh_steps


def state_bytes(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
    """What is held after the step that ends at `progress`; blocks differ from one to the next."""
    return held_at(params, hparams, progress, lambda moment: hparams["rho"])


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> Frugal:
    return Frugal(ctx.groups(hparams), rho=hparams["rho"], **options(ctx, hparams))


SPEC = OptimizerSpec(
    name="frugal",
    parent="adamw_split",
    family="memory",
    summary="AdamW on a rotating quarter of each matrix, signSGD on the rest",
    paper="Zmushko et al., FRUGAL: Memory-Efficient Optimization by Reducing State Overhead for "
    "Scalable Training, 2024, https://arxiv.org/abs/2411.07837",
    code="https://github.com/fzmushko/FRUGAL @ c7ebe4c2",
    licence="Apache-2.0",
    build=build,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "rho": 0.25,
        "selection": "column",
        "block_order": "descending",
        "block_seed": 0,
        "inactive_lr_scale": 1.0,
        "refresh_fraction": 0.05,
    },
    state_bytes=state_bytes,
    refreshes="selections of a new state-full part after the first",
    switches=refresh_steps,
    cannot=("sharding",),
)
