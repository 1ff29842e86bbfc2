"""LoRA as peft injects it, and what a plain adapter tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from levelfield.bench.spec import BenchError
from levelfield.bench.stepper import AdapterContext, BuildContext, Stepper
from levelfield.optimizers._adapter import find_targets, freeze_, is_adapter, mergeable
from levelfield.optimizers._adapter_values import check_values

NAME = "default"
"""Of the adapter inside peft."""


def inject_lora(model: nn.Module, ctx: AdapterContext, hparams: Mapping[str, Any]) -> nn.Module:
    """LoRA layers in the place of the targets; `use_rslora` is read from the hyper-parameters."""
    from peft import LoraConfig

    check_values(hparams)
    config = LoraConfig(
        r=hparams["rank"],
        lora_alpha=hparams["alpha"],
        lora_dropout=hparams["dropout"],
        bias="none",
        use_rslora=hparams["rank_stabilised"],
        target_modules=list(find_targets(model, hparams["target"])),
    )
    return inject_by_peft(model, ctx, config)


def inject_by_peft(model: nn.Module, ctx: AdapterContext, config: Any) -> nn.Module:
    """The model with the config's layers in place, its body frozen, its head trained; the model
    keeps its class, so that everything else finds what it looks for."""
    from peft import inject_adapter_in_model

    freeze_(model, ctx.kind)
    head = [param for param in model.parameters() if param.requires_grad]
    adapted: nn.Module = inject_adapter_in_model(config, model, adapter_name=NAME)
    for param in head:  # peft freezes whatever is not its own
        param.requires_grad_(True)
    return mergeable(adapted)


def sizes(ctx: BuildContext) -> dict[str, int]:
    """Elements of every trained parameter, by name."""
    return {
        name: param.numel() for name, param in ctx.model.named_parameters() if param.requires_grad
    }


def ranks(model: nn.Module) -> dict[str, int]:
    """Components held by each layer of peft."""
    end = f".lora_A.{NAME}.weight"
    return {
        name.removesuffix(end): param.shape[0]
        for name, param in model.named_parameters()
        if name.endswith(end)
    }


def build_plain(ctx: BuildContext, hparams: Mapping[str, Any]) -> Stepper:
    """The method under the adapter, over everything that is trained.

    Raises:
        BenchError: the model has no adapter in it.
    """
    held = sizes(ctx)
    count = sum(size for name, size in held.items() if is_adapter(name))
    if ctx.inner is None or not count:
        raise BenchError("the model holds no adapter", "an adapter method is built by a trial")
    found = ranks(ctx.model)
    stepper = ctx.inner()
    stepper.adapter = {  # type: ignore[attr-defined]
        "trained_parameters": count,
        "deployed_parameters": count,
        "head_parameters": sum(held.values()) - count,
        "ranks": found,
        "budget": sum(found.values()),
        "cap": hparams["rank"],
    }
    return stepper
