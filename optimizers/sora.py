"""SoRA: LoRA with a gate on each component, which an l1 proximal step drives to zero.

    y = W x + (alpha / r) B (g * A x)          g: [r], from N(0, 1)
    g <- update of the method under it
    g <- sign(g) max(|g| - xi_t, 0)            xi_t = eta_t * `sparsity`

eta_t: the gates' rate in that step. Deployed are the components whose gate is not zero, the gate
folded into B.

`shrink`: `prox` is the line above. `code` is what the reference file does: the threshold is that of
the full rate in every step, and |g| > xi is reduced first and |g| < xi zeroed then, so that
anything below 2 xi falls to zero at once. `l1`: eta of the term eta mean |g| that the code also
adds to its loss.

Paper: Ning Ding, Xingtai Lv, Qiaosen Wang, Yulin Chen, Bowen Zhou, Zhiyuan Liu, Maosong Sun,
"Sparse Low-rank Adaptation of Pre-trained Language Models", https://arxiv.org/abs/2311.11696, 2023.
Reference code: https://github.com/TsinghuaC3I/SoRA @ c275ac23. Defaults of its scripts: r 8, alpha
16, lr 8e-4, weight decay .1 (of A, B and the head; not of gates), sparsity .375: a threshold of
3e-4 at that rate.

Deviations: layer norms stay frozen (its lora_config.json trains them); `l1` is 0 (the proximal step
is the paper's whole regulariser); gates share the rate of A and B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import space
from levelfield.bench.spec import BenchError, OptimizerSpec
from levelfield.bench.stepper import AdapterContext, BuildContext, GradientStepper
from levelfield.optimizers._adapter import LowRankLinear, inject, kaiming_
from levelfield.optimizers._adapter_stepper import AdapterStepper, Kept, Rule, count
from levelfield.optimizers._adapter_values import check_values
from levelfield.optimizers._claims import copies


def adapt(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """Gated layers; B = 0, so that nothing changes at first."""
    check_values(hparams)
    rank = hparams["rank"]

    def make(base: nn.Linear) -> LowRankLinear:
        scale = hparams["alpha"] / rank
        layer = LowRankLinear(base, rank, scale, dropout=hparams["dropout"], gains=1.0)
        kaiming_(layer, ctx.generator)
        assert layer.lora_E is not None
        nn.init.normal_(layer.lora_E, generator=ctx.generator)
        layer.fixed.zero_()
        layer.learned.fill_(1.0)
        return layer

    return inject(model, ctx, hparams, make)


def soft_threshold_(gate: Tensor, xi: float) -> None:
    """gate <- sign(gate) max(|gate| - xi, 0), in place."""
    gate.copy_(gate.sign() * (gate.abs() - xi).clamp_min(0.0))


def code_threshold_(gate: Tensor, xi: float) -> None:
    """What the reference code does instead, in place."""
    gate.copy_(torch.where(gate > xi, gate - xi, gate))
    gate.copy_(torch.where(gate < -xi, gate + xi, gate))
    gate.masked_fill_(gate.abs() < xi, 0.0)


SHRINK = {"prox": soft_threshold_, "code": code_threshold_}


class Sora(Rule):
    """The rule of the method."""

    def __init__(self, ctx: BuildContext, hparams: Mapping[str, Any]) -> None:
        super().__init__(ctx, Kept())
        if hparams["shrink"] not in SHRINK:
            raise BenchError(f"sora: shrink={hparams['shrink']!r}", "accepted: prox, code")
        self.gates = [layer.lora_E for layer in self.modules if layer.lora_E is not None]
        self.sparsity = float(hparams["sparsity"])
        self.group: dict[str, Any] = {}
        self.l1, self.shrink = hparams["l1"], hparams["shrink"]
        self._every = max(1, ctx.total_steps // 50)
        self.kept.series = {"total_rank": []}

    def attach(self, inner: GradientStepper) -> None:
        gates = {id(gate) for gate in self.gates}
        groups = [group for optimizer in inner.optimizers for group in optimizer.param_groups]
        self.group = next(g for g in groups if any(id(p) in gates for p in g["params"]))

    def before(self, step: int) -> None:
        if self.l1:
            share = self.l1 / sum(gate.numel() for gate in self.gates)
            with torch.no_grad():
                for gate in self.gates:
                    if gate.grad is not None:
                        gate.grad += share * gate.sign()

    def after(self, step: int, lr_scale: float, grads: Mapping[int, Tensor]) -> None:
        rate = self.group["lr" if self.shrink == "prox" else "base_lr"]
        xi = self.sparsity * float(rate)
        for gate in self.gates:
            SHRINK[self.shrink](gate, xi)
        if (step + 1) % self._every == 0:  # a point of the series stays on the device
            nonzero = torch.stack([gate.count_nonzero() for gate in self.gates]).sum()
            self.kept.series["total_rank"].append([step + 1, nonzero])

    def told(self) -> dict[str, Any]:
        held = [len(gate) for gate in self.gates]
        ranks = [int(gate.count_nonzero()) for gate in self.gates]
        return {
            "trained_parameters": count(self.modules, held, gains=sum(held)),
            "deployed_parameters": count(self.modules, ranks),
            "ranks": dict(zip(self.layers, ranks, strict=True)),
            "budget": sum(held),
            "cap": max(held),
        }


def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> AdapterStepper:
    return AdapterStepper(ctx, Sora(ctx, hparams), "sora")


SPEC = OptimizerSpec(
    name="sora",
    family="adapter",
    summary="LoRA whose components have gates that a proximal l1 step drives to zero",
    paper="Ding et al., Sparse Low-rank Adaptation of Pre-trained Language Models, 2023, "
    "https://arxiv.org/abs/2311.11696",
    code="https://github.com/TsinghuaC3I/SoRA @ c275ac23",
    build=build,
    adapter=adapt,
    inner="adamw",
    parent="lora",
    space={
        "lr": space.log(1e-4, 1e-1, default=8e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 8,
        "alpha": 16.0,
        "dropout": 0.0,
        "target": "all-linear",
        "sparsity": 0.375,
        "shrink": "prox",
        "l1": 0.0,
        "weight_decay": 0.1,
    },
    state_bytes=copies(0),
    cannot=("sharding",),
)
