"""AdaPaD's rule: its passes, its masks, its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.spec import BenchError
from levelfield.bench.stepper import BuildContext, StepBatch
from levelfield.optimizers._adapter import LowRankLinear, budget_of, room_of, set_masks
from levelfield.optimizers._adapter_growth import Growing, ones, with_one
from levelfield.optimizers._adapter_scores import period

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
        return room_of(hparams, modules)
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


def passes_at(hparams: Mapping[str, Any]) -> float:
    """Passes a step over a whole run, if the deepest module takes a rank as early as it may; a run
    whose ranks spread takes fewer.

    Without `growth` every module is taken to have `rank` components.
    """
    if hparams["mode"] != "exact":
        return 1.0
    if hparams["growth"]:
        every, cap, first = hparams["interval"], hparams["cap"], 2
        private = min(1.0, every * (1 + 1 / hparams["share"]))  # until the budget is met
    else:
        every, cap, first = hparams["stagger"], hparams["rank"], 1
        private = 0.0
        if hparams["advance"]:  # those that are not published train as well
            every = 0.0
    # The k-th component joins, as the deepest of all, k - 2 + first intervals after the start.
    joined = [1.0] + [max(0.0, 1 - (k - 2 + first) * every) for k in range(2, cap + 1)]
    return float(sum(joined) + private * hparams["advance"])


class AdaPad(Growing):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        self.mode = check_mode(hparams)
        self.sliced = self.mode != "shared"
        self.rank, self.size = 0, 1
        self.trainable = [param for param in ctx.model.parameters() if param.requires_grad]
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
        loss = self.modules[0].lora_A.new_zeros(())
        for live, deepest in passes[self.rank :: self.size]:
            set_masks(self.modules, **self.pass_masks(live))
            found = batch.backward()
            if deepest or self.mode == "prefix":
                loss = found
            if not deepest:
                self._drop_head()
        set_masks(self.modules, **self.masks(deployed=False))
        return loss if self.size == 1 else self._exchanged(batch, loss, len(passes))

    def divide(self, rank: int, size: int, total: Callable[[Tensor], Tensor]) -> None:
        """Passes of `exact` go to the processes in turn. Each gradient, and the loss of the deepest
        prefix, comes from one of them: the sum is exact."""
        if self.mode != "exact":
            raise BenchError(
                f"adapad: mode={self.mode!r} makes one pass a step",
                "accepted: mode=exact, or engine.parallel=ddp",
            )
        self.rank, self.size, self._total = rank, size, total

    def _exchanged(self, batch: StepBatch, loss: Tensor, passes: int) -> Tensor:
        """Every gradient on every process; the loss. A parameter that no pass reaches gets 0."""
        batch.passes += passes - len(range(self.rank, passes, self.size))
        grads = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self.trainable]
        flat = self._total(torch.cat([*(grad.reshape(-1) for grad in grads), loss.reshape(1)]))
        pieces = torch.split(flat[:-1], [grad.numel() for grad in grads])
        for param, piece in zip(self.trainable, pieces, strict=True):
            param.grad = piece.view_as(param)
        return flat[-1]

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
            total = layer.lora_A.new_zeros((), dtype=torch.float32)
            for tensor in (layer.lora_A, layer.lora_B):
                if tensor.grad is not None:
                    total += (tensor * tensor.grad).abs().sum().float()
            found.append(total / ((rank + private) * layer.width))
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
    """Scale both factors of every component so that |s E b a|_F <= radius; E: its gain where it has
    one."""
    size = layer.scale * layer.lora_A.norm(dim=1) * layer.lora_B.norm(dim=0)
    if layer.lora_E is not None:
        size = size * layer.gain().abs()
    root = (radius / size.clamp_min(1e-30)).clamp_max(1.0).sqrt()
    layer.lora_A.mul_(root[:, None])
    layer.lora_B.mul_(root)
