"""What an adapter has learned, merged into the weights or as a plain LoRA that peft loads.

Both take the components as they act when called: within a stepper's `evaluating()`, what is
deployed. Scale, singular values and gates are folded into B, so that a LoRA of scale 1 remains,
with a rank of its own for each layer.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench.spec import BenchError
from levelfield.optimizers._adapter import LowRankLinear, body_of
from levelfield.optimizers._adapter_peft import NAME


@dataclass(frozen=True, slots=True)
class Update:
    """The low-rank update of one layer: up [out, k] @ down [k, in]."""

    base: nn.Linear
    down: Tensor
    up: Tensor


def updates(model: nn.Module) -> dict[str, Update]:
    """The update of every adapted layer, by the layer's name; only components that act.

    Raises:
        BenchError: no layer is adapted.
    """
    found = {}
    for name, module in model.named_modules():
        with torch.no_grad():
            update = _update(module)
        if update is not None:
            found[name] = update
    if not found:
        raise BenchError(f"a {type(model).__name__} holds no adapter", "accepted: an adapted model")
    return found


def _update(module: nn.Module) -> Update | None:
    if isinstance(module, LowRankLinear):
        gain = module.scale * module.gain()
        return _acting(module.base, module.lora_A, module.lora_B, gain)
    base: Any = getattr(module, "base_layer", None)
    held: Any = module
    if not isinstance(base, nn.Linear) or NAME not in getattr(module, "lora_A", {}):
        return None
    if hasattr(module, "lora_E"):
        gain = held.lora_E[NAME][:, 0] * held.scaling[NAME] / (held.ranknum[NAME] + 1e-5)
        return _acting(base, held.lora_A[NAME], held.lora_B[NAME], gain)
    down, up = held.lora_A[NAME].weight, held.lora_B[NAME].weight
    return _acting(base, down, up, down.new_full((len(down),), held.scaling[NAME]))


def _acting(base: nn.Linear, down: Tensor, up: Tensor, gain: Tensor) -> Update:
    acts = gain != 0
    return Update(base, down[acts].clone(), (up * gain)[:, acts].clone())


def merged(model: nn.Module) -> nn.Module:
    """A copy of the model with plain layers, the updates added to their weights."""
    plain = copy.deepcopy(model)
    for name, update in updates(plain).items():
        with torch.no_grad():
            update.base.weight += update.up @ update.down
        _put(plain, name, update.base)
    return plain


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)


def as_lora(model: nn.Module) -> Any:
    """A copy as peft's `PeftModel` with a plain LoRA of equal outputs; `save_pretrained` writes
    what `PeftModel.from_pretrained` reads. A layer without a component is left as it is.

    Raises:
        BenchError: no layer is adapted, or no component is left.
    """
    from peft import LoraConfig, get_peft_model

    plain = copy.deepcopy(model)
    acting = {}
    for name, update in updates(plain).items():
        _put(plain, name, update.base)
        if len(update.down):
            acting[name] = update
    if not acting:
        raise BenchError("no component of the adapter is left", "there is nothing to export")
    ranks = {name: len(update.down) for name, update in acting.items()}
    head = _head(plain)
    config = LoraConfig(
        r=max(ranks.values()),
        lora_alpha=max(ranks.values()),
        rank_pattern=ranks,
        alpha_pattern=ranks,
        target_modules=list(ranks),
        modules_to_save=head or None,
        bias="none",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library tells of another one
        exported = get_peft_model(plain, config)
    with torch.no_grad():
        for name, update in acting.items():
            layer: Any = exported.base_model.model.get_submodule(name)
            layer.lora_A[NAME].weight.copy_(update.down)
            layer.lora_B[NAME].weight.copy_(update.up)
    return exported


def _head(model: nn.Module) -> list[str]:
    """The trained modules on top of the body."""
    body = body_of(model)
    if body is model:
        return []
    return [
        name
        for name, module in model.named_children()
        if module is not body and any(param.requires_grad for param in module.parameters())
    ]


def export(model: nn.Module, folder: Path) -> None:
    """Write `as_lora` into a folder."""
    exported = as_lora(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported.save_pretrained(str(folder))
