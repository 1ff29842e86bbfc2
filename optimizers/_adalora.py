"""AdaLoRA's rule: peft's allocator between the update and the end of the gradients, and the penalty
on the training gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._adapter_peft import NAME
from levelfield.optimizers._adapter_stepper import CountedKept, Rule

AVERAGES = ("ipt", "exp_avg_ipt", "exp_avg_unc")
"""What peft's allocator keeps of each weight, by name: |w g|, and its two running averages."""


def phases(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, int, int]:
    """Steps before pruning, steps after it, and steps between two prunings."""
    settle = min(round(hparams["settle"] * total_steps), max(0, total_steps - 1))
    start = min(round(hparams["start"] * total_steps), max(0, total_steps - settle - 1))
    return start, settle, max(1, round(hparams["every"] * total_steps))


def config(hparams: Mapping[str, Any], total_steps: int, targets: Sequence[str]) -> Any:
    """peft's config with the values of the paper."""
    from peft import AdaLoraConfig

    start, settle, every = phases(hparams, total_steps)
    return AdaLoraConfig(
        init_r=hparams["init_rank"],
        target_r=hparams["rank"],
        lora_alpha=hparams["alpha"],
        lora_dropout=hparams["dropout"],
        beta1=hparams["score_beta"],
        beta2=hparams["score_beta"],
        orth_reg_weight=hparams["penalty"],
        tinit=start,
        tfinal=settle,
        deltaT=every,
        total_step=total_steps,
        target_modules=list(targets),
    )


def factors(model: nn.Module) -> list[tuple[Tensor, bool]]:
    """Every A and B in the model's order, with whether its components are columns."""
    return [
        (param, "lora_B" in name)
        for name, param in model.named_parameters()
        if "lora_A" in name or "lora_B" in name
    ]


def add_penalty_(pairs: Sequence[tuple[Tensor, bool]], gamma: float) -> None:
    """Add the gradient of gamma * mean |V V^T - I|_F to the factors' gradients; V: [r, n], the
    components of one factor as rows. The norm is not squared, in the code as here."""
    for tensor, columns in pairs:
        if tensor.grad is None:
            continue
        rows = tensor.mT if columns else tensor
        rest = rows @ rows.mT - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        slope = (2.0 * gamma / len(pairs)) * (rest @ rows) / rest.norm().clamp_min(1e-12)
        tensor.grad += slope.mT if columns else slope


class AdaLora(Rule):
    """The rule of the method.

    Args:
        ctx: as `build` gets it, the model with peft's layers.
        hparams: as `config` takes them.
    """

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        from peft.tuners.adalora.layer import RankAllocator
        from peft.tuners.adalora.model import AdaLoraModel

        super().__init__(ctx, CountedKept())
        self.keeps_grads = True
        self.model, self.gamma = ctx.model, hparams["penalty"]
        self.total = ctx.total_steps
        self.start, self.settle, self.every = phases(hparams, ctx.total_steps)
        made = config(hparams, ctx.total_steps, ())
        self.allocator = RankAllocator(ctx.model, made, NAME)
        self.kept.state_holders = [self.allocator]
        # peft's own step, with what it reads of its model.
        self.tuner = SimpleNamespace(
            peft_config={NAME: made},
            trainable_adapter_name=NAME,
            rankallocator=self.allocator,
            model=ctx.model,
        )
        self._allocate = AdaLoraModel.update_and_allocate
        self.config = made
        self.pairs = factors(ctx.model)
        self.parameters = [p for n, p in ctx.model.named_parameters() if "lora_" in n]
        self.init = {
            name: param.numel()
            for name, param in ctx.model.named_parameters()
            if f".lora_E.{NAME}" in name
        }
        self.width = {
            name: sum(
                param.numel() // self.init[name]
                for param in (
                    ctx.model.get_parameter(name.replace("lora_E", "lora_A")),
                    ctx.model.get_parameter(name.replace("lora_E", "lora_B")),
                )
            )
            for name in self.init
        }
        self.kept.series = {"total_rank": [[0, self.allocator.init_bgt]]}
        self.plain = {"pattern": {}}

    def before(self, step: int) -> None:
        if self.gamma:
            with torch.no_grad():
                add_penalty_(self.pairs, self.gamma)

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        done = step + 1
        if done <= self.total - self.settle:
            for param in self.parameters:  # the update has dropped them
                param.grad = grads[id(param)]
        self._allocate(self.tuner, done)
        for param in self.parameters:
            param.grad = None
        last = self.total - self.settle
        if self.start < done <= last and (done % self.every == 0 or done == last):
            self.plain["pattern"] = dict(self.config.rank_pattern)
            assert isinstance(self.kept, CountedKept)
            self.kept.refreshes += 1
            self.kept.series["total_rank"].append([done, sum(self.ranks().values())])

    def ranks(self) -> dict[str, int]:
        """Triplets that are kept, by the name of E."""
        pattern = self.plain["pattern"]
        return {name: sum(pattern.get(name, [True] * size)) for name, size in self.init.items()}

    def tensors(self) -> dict[str, Any]:
        return {name: dict(getattr(self.allocator, name)) for name in AVERAGES}

    def load_tensors(self, state: Mapping[str, Any]) -> None:
        for name in AVERAGES:
            setattr(self.allocator, name, {n: value.clone() for n, value in state[name].items()})

    def refresh(self) -> None:
        self.config.rank_pattern = dict(self.plain["pattern"])

    def told(self) -> dict[str, Any]:
        ranks = self.ranks()
        return {
            "trained_parameters": sum(k * (self.width[n] + 1) for n, k in self.init.items()),
            # The singular values go into a factor, as they are exported and as others are counted.
            "deployed_parameters": sum(k * self.width[n] for n, k in ranks.items()),
            "ranks": {name.removesuffix(f".lora_E.{NAME}"): k for name, k in ranks.items()},
            "budget": self.allocator.target_bgt,
            "cap": max(self.init.values()),
        }
