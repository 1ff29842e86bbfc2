"""AdaPaD: adaptive parallel deflation; rank-one components, each fitting what those before it leave.

    component k of every module minimises   loss(W0 + s sum_{k' < k} sg(b_k' a_k') + s b_k a_k)
    importance  I <- b1 I + (1 - b1) mean |w g|;   uncertainty  U <- b2 U + (1 - b2) |mean |w g| - I|
    every `interval`: the modules of the highest I U commit their reserve and get another one,
    until the committed components of all modules reach the budget

sg: no gradient to the predecessors' parameters (activations still carry it to earlier layers);
successors are left out. Components start warm from the step before, and all read the same weights
(Jacobi). The reserve learns in advance, in private: neither deployed nor read by other components.
w, g: parameters and gradients of a module's components; b1, b2: `score_beta1`, `score_beta2`.
Evaluations are of the committed components. Deployed is their plain sum: an ordinary LoRA.

Three readings for networks, `mode`:
- `exact`: a pass a component, each updated by the loss of its own prefix, and one for the reserves.
  The literal form; it costs as many passes as the deepest module has components, and one more.
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
`stagger` (k - 1) of the horizon later. `radius`: bound on |s b a|_F of a component; null: none.
`signal`: both, importance, uncertainty or random. `advance`: false trains no reserve.

Paper: Su, Liao, Kyrillidis, "AdaPaD", https://arxiv.org/abs/2605.10741, 2026. Reference code: none
was found, and the appendix was not at hand. From the abstract and the authors' essay: components, staggering, advance
learning, importance x uncertainty, one global budget, at most 4 a module. Chosen here: `interval`
and `share` (those of IncreLoRA), alpha and lr (likewise), b1 = b2 = .85, one local step a round,
a ~ N(0, 0.02^2) and b = 0, a warm-up of half an interval for a late component, clipping by the
protocol over all parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import space
from levelfield.bench.spec import BenchError, OptimizerSpec
from levelfield.bench.stepper import AdapterContext, BuildContext, StepBatch
from levelfield.optimizers._adapter import (
    LowRankLinear,
    budget_of,
    check_rank,
    find_targets,
    inject,
    normal_,
    set_masks,
)
from levelfield.optimizers._adapter_growth import Growing, ones, with_one
from levelfield.optimizers._adapter_scores import averages_bytes, growth_steps, period
from levelfield.optimizers._adapter_stepper import AdapterStepper

MODES = ("shared", "exact", "prefix")
RESERVE = 1e-5
"""Gain of a reserve in the shared pass."""


def check_mode(hparams: Mapping[str, Any]) -> str:
    """Raises:
    BenchError: an unknown mode.
    """
    mode: str = hparams["mode"]
    if mode not in MODES:
        raise BenchError(f"adapad: mode={mode!r}", f"accepted: {', '.join(MODES)}")
    return mode


def held_by(hparams: Mapping[str, Any], modules: int) -> int:
    """Components that every module has room for.

    Raises:
        BenchError: a budget that does not fit.
    """
    if hparams["growth"]:
        cap = check_rank(hparams["cap"], "cap")
        budget_of(hparams, modules, cap)
        return cap
    budget = budget_of(hparams, modules)
    if budget % modules:
        raise BenchError(
            f"adapad without growth: a budget of {budget} gives {modules} modules unequal ranks",
            f"accepted: a multiple of {modules}",
        )
    return budget // modules


def has_gains(hparams: Mapping[str, Any]) -> bool:
    """Whether committed components have a trained gain."""
    return bool(hparams["mode"] == "shared" and hparams["growth"] and hparams["advance"])


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Layers whose components all have b = 0: nothing changes at first."""
    check_mode(hparams)
    room = held_by(hparams, len(find_targets(model, hparams["target"])))
    gains = RESERVE if has_gains(hparams) else None

    def make(base: nn.Linear) -> LowRankLinear:
        scale = hparams["alpha"] / hparams["rank"]
        layer = LowRankLinear(base, room, scale, dropout=hparams["dropout"], gains=gains)
        normal_(layer, ctx.generator, both=False)
        return layer

    return inject(model, ctx, hparams, make)


class AdaPad(Growing):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        self.mode = check_mode(hparams)
        self.sliced = self.mode != "shared"
        super().__init__(ctx, hparams, start=1)
        self.warmup = period(hparams, ctx.total_steps) // 2
        self.publish_every = 0
        if not hparams["growth"]:
            self.plain["grows"] = False
            if self.sliced and hparams["stagger"] > 0.0:
                self.publish_every = max(1, round(hparams["stagger"] * ctx.total_steps))
            else:
                self.plain["ranks"] = [self.cap] * len(self.modules)
                self.kept.series["total_rank"] = [[0, self.cap * len(self.modules)]]
        for layer in self.modules:
            layer.cuts = self.sliced

    @property
    def private(self) -> list[int]:
        if self.publish_every and self.hparams["advance"]:
            return [self.cap - rank for rank in self.ranks]
        return super().private

    # --- passes -------------------------------------------------------------------------------

    def backward(self, batch: StepBatch, step: int) -> Tensor:
        if not self.sliced:
            return batch.backward()
        passes = self.passes()
        if self.mode == "prefix":
            passes = [passes[self.draw(step).randrange(len(passes))]]
        for live, deepest in passes:
            set_masks(self.modules, **self.pass_masks(live))
            if deepest:
                self._drop_head()  # of the passes before
            loss = batch.backward()
            if not deepest:
                self._drop_head()
        set_masks(self.modules, **self.masks(deployed=False))
        return loss

    def _drop_head(self) -> None:
        for param in self.head:
            param.grad = None

    def passes(self) -> list[tuple[list[int | None], bool]]:
        """For each pass of `exact`, the component that is live in each module (None: none), and
        whether it is that of the deepest prefix, which comes last."""
        found: list[tuple[list[int | None], bool]] = []
        for depth in range(max(self.private)):
            held = zip(self.ranks, self.private, strict=True)
            found.append(([r + depth if depth < p else None for r, p in held], False))
        deepest = max(self.ranks)
        for k in range(deepest):
            found.append(([k if k < rank else None for rank in self.ranks], k + 1 == deepest))
        return found

    def pass_masks(self, live: Sequence[int | None]) -> dict[str, list[list[float]]]:
        """Which components are in the forward pass, and which one has a gradient."""
        none = ones(0, self.cap)
        shown, trained = [], []
        for rank, k in zip(self.ranks, live, strict=True):
            if k is None:
                shown.append(ones(rank, self.cap))
            else:
                shown.append(with_one(ones(min(k, rank), self.cap), k, 1.0))
            trained.append(none if k is None else with_one(none, k, 1.0))
        return {"fixed": shown, "live": trained}

    def masks(self, deployed: bool) -> dict[str, list[list[float]]]:
        if not has_gains(self.hparams):
            rows = [ones(rank, self.cap) for rank in self.ranks]
            return {"fixed": rows, "live": [[1.0] * self.cap for _ in rows]}
        reserve = 0.0 if deployed else RESERVE
        held = zip(self.ranks, self.private, strict=True)
        fixed = [with_one(ones(1, self.cap), rank, reserve * p) for rank, p in held]
        learned = [with_one(ones(rank, self.cap), 0, 0.0) for rank in self.ranks]
        return {"fixed": fixed, "learned": learned}

    # --- ranks --------------------------------------------------------------------------------

    def sensitivity(self) -> Tensor:
        found = []
        for layer, rank, private in zip(self.modules, self.ranks, self.private, strict=True):
            total = sum(
                (tensor * tensor.grad).abs().sum().float()
                for tensor in (layer.lora_A, layer.lora_B)
                if tensor.grad is not None
            )
            found.append(torch.as_tensor(total) / ((rank + private) * layer.width))
        return torch.stack(found)

    def gains(self) -> int:
        return sum(self.ranks) - len(self.ranks) if has_gains(self.hparams) else 0

    def committed(self, module: int, component: int, step: int) -> None:
        if self.clock is None:
            return
        if has_gains(self.hparams):
            self.clock.born("gains", module, component, step + 1)
        if not self.hparams["advance"]:
            self.clock.born("factors", module, component, step + 1)

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        if self.hparams["radius"] is not None:
            for layer in self.modules:
                project_(layer, self.hparams["radius"])
        due = self.publish_every and (step + 1) % self.publish_every == 0
        if due and self.ranks[0] < self.cap:
            for module in range(len(self.modules)):
                self.commit(module, step)
            self.changed(step)
        super().after(step, lr_scale, grads)

    def commit(self, module: int, step: int) -> None:
        if not self.publish_every:
            super().commit(module, step)
            return
        self.ranks[module] += 1
        self.committed(module, self.ranks[module] - 1, step)


def project_(layer: LowRankLinear, radius: float) -> None:
    """Scale both factors of every component so that |s b a|_F <= radius."""
    size = layer.scale * layer.lora_A.norm(dim=1) * layer.lora_B.norm(dim=0)
    root = (radius / size.clamp_min(1e-30)).clamp_max(1.0).sqrt()
    layer.lora_A.mul_(root[:, None])
    layer.lora_B.mul_(root)


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
    refreshes="growth of the ranks",
    switches=switches,
)
