"""AdaPaD: rank-one components in parallel, each fitting what those before it leave.

    component k of every module minimises   loss(W0 + s sum_{k' < k} sg(b_k' a_k') + s b_k a_k)
    importance   I <- b1 I + (1 - b1) mean |w g|
    uncertainty  U <- b2 U + (1 - b2) |mean |w g| - I|
    every `interval`: the modules of the highest I U commit their reserve and get another one,
    until the committed components of all modules reach the budget

sg: no gradient to the predecessors' parameters (activations still carry it to earlier layers);
successors are left out. Components start warm from the step before, and all read the same weights
(Jacobi). The reserve learns in advance, in private: neither deployed nor read by other components.
w, g: parameters and gradients of a module's components; b1, b2: `score_beta1`, `score_beta2`.
Evaluations are of the committed components. Deployed is their plain sum: an ordinary LoRA.

Three readings for networks, `mode`:
- `exact`: a pass a component, each updated by the loss of its own prefix, and one for the reserves.
  The literal form; it costs as many passes as the deepest module has components, and one more
  while ranks grow. How deep that is depends on the scores: what is claimed is the most.
- `prefix`: one pass a step; which component's is drawn evenly. Its gradient is an unbiased estimate
  of that of `exact` (by its mean over components).
- `shared` (default): one pass with everything in it. Growth and advance learning stay, the order
  between components goes: without growth it is LoRA to the bit of rounding. Reserves are in that
  pass with a gain of 1e-5 and, once committed, a trained gain from there (as in IncreLoRA), so that
  nothing jumps; their gradients are small, hence `eps` 1e-12. It is the default because a step then
  costs what a step of every other adapter costs; the price of `exact` is what the paper's parallel
  devices hide. Passes are counted either way.

In `exact` and `prefix` the head is trained by the deepest prefix alone. Without `growth` every
module has `rank` components from the start; there, component k is published (in these two modes)
`stagger` (k - 1) of the horizon later. `radius`: bound on |s b a|_F of a component, its gain
included; null: none.
`signal`: both, importance, uncertainty or random. `advance`: false trains no reserve.

Paper: Su, Liao, Kyrillidis, "AdaPaD", https://arxiv.org/abs/2605.10741, 2026. Reference code: none
was found, and the appendix was not at hand. From the abstract and the authors' essay: components,
staggering, advance learning, importance x uncertainty, one global budget, at most 4 a module.
Chosen here: the modes, `interval` and `share` (those of IncreLoRA), alpha and lr (likewise), b1 =
b2 = .85, one local step a round, a ~ N(0, 0.02^2) and b = 0, a warm-up of half an interval for a
late component, clipping by the protocol over all parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import AdapterContext, BuildContext
from levelfield.optimizers._adapad import (
    RESERVE,
    AdaPad,
    check_mode,
    has_gains,
    held_by,
    passes_at,
)
from levelfield.optimizers._adapter import LowRankLinear, find_targets, inject, normal_
from levelfield.optimizers._adapter_scores import averages_bytes, growth_steps
from levelfield.optimizers._adapter_stepper import AdapterStepper
from levelfield.optimizers._adapter_values import check_values


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Layers whose components all have b = 0: nothing changes at first."""
    check_values(hparams)
    check_mode(hparams)
    room = held_by(hparams, len(find_targets(model, hparams["target"])))
    gains = RESERVE if has_gains(hparams) else None
    # What ends at a rank is scaled as a LoRA of that rank.
    scale = hparams["alpha"] / (hparams["rank"] if hparams["growth"] else room)

    def make(base: nn.Linear) -> LowRankLinear:
        layer = LowRankLinear(base, room, scale, dropout=hparams["dropout"], gains=gains)
        normal_(layer, ctx.generator, both=False)
        return layer

    return inject(model, ctx, hparams, make)


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, AdaPad(ctx, hparams), "adapad")


def switches(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    """Steps after which ranks may change."""
    if hparams["growth"]:
        return growth_steps(hparams, total_steps)
    if hparams["mode"] == "shared" or hparams["stagger"] <= 0.0:
        return ()
    every = max(1, round(hparams["stagger"] * total_steps))
    return tuple(range(every, total_steps, every))


SPEC = OptimizerSpec(
    name="adapad",
    family="adapter",
    summary="rank-one components that fit what those before leave; ranks grow under one budget",
    paper="Su, Liao & Kyrillidis, AdaPaD, 2026, https://arxiv.org/abs/2605.10741",
    build=build,
    adapter=adapt,
    inner="adamw",
    space={
        "lr": space.log(1e-4, 1e-1, default=8e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "mode": "shared",
        "rank": 2,
        "budget": None,
        "cap": 4,
        "alpha": 16.0,
        "dropout": 0.0,
        "target": "all-linear",
        "growth": True,
        "advance": True,
        "signal": "both",
        "interval": 0.02,
        "share": 1 / 24,
        "stagger": 0.02,
        "radius": None,
        "score_beta1": 0.85,
        "score_beta2": 0.85,
        "weight_decay": 0.0,
        "eps": 1e-12,
    },
    state_bytes=averages_bytes,
    passes_at=passes_at,
    refreshes="growth of the ranks",
    switches=switches,
    cannot=("sharding",),
)
