"""Low-rank layers beside frozen linear ones: what all adapter methods of our own inject.

    y = W x + scale * B diag(gain) A x          gain = fixed + learned * E

A: [r, in], B: [out, r] and, where a method has one, E: [r] (a singular value or a gate) are
trained; W and everything else of the model's body is frozen. All r components are there from the
start: `fixed` and `learned` are 0/1 masks (or a small constant for a component that is learned in
private), so that ranks can grow and shrink while the tensors stay, and with them the optimizer's
state, checkpoints and compiled code. A component of gain 0 gets gradients that are exactly 0, so
the moments of an optimizer stay 0 until it is switched on.

`live` cuts the gradient of single components' *parameters*; activations carry gradient to earlier
layers all the same.

Names are those of peft (`lora_A`, `lora_B`, `lora_E`), so that parameters are counted alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from levelfield.bench.spec import BenchError, ParamInfo
from levelfield.bench.stepper import AdapterContext

LABELLED = ("classification", "regression", "extractive_qa")
"""Kinds of task whose model has a fresh head on top of its body."""
INIT_STD = 0.02
"""Of the factors that AdaLoRA's line of methods draws from a normal distribution."""


class LowRankLinear(nn.Module):
    """A frozen linear layer and its low-rank update.

    Args:
        base: the layer, [out, in].
        rank: components held, r.
        scale: factor on the whole update.
        dropout: share of the inputs of A that is dropped in training.
        gains: value that the trained E starts from; None: the layer has no E.
    """

    fixed: Tensor
    learned: Tensor
    live: Tensor
    scale: Tensor

    def __init__(
        self,
        base: nn.Linear,
        rank: int,
        scale: float,
        *,
        dropout: float = 0.0,
        gains: float | None = None,
    ) -> None:
        super().__init__()
        weight = base.weight
        self.base = base
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_A = nn.Parameter(weight.new_zeros((rank, base.in_features)))
        self.lora_B = nn.Parameter(weight.new_zeros((base.out_features, rank)))
        self.lora_E: nn.Parameter | None = None
        if gains is not None:
            self.lora_E = nn.Parameter(weight.new_full((rank,), gains))
        self.register_buffer("fixed", weight.new_ones(rank), persistent=False)
        self.register_buffer("learned", weight.new_zeros(rank), persistent=False)
        self.register_buffer("live", weight.new_ones(rank), persistent=False)
        self.register_buffer("scale", weight.new_tensor(scale), persistent=False)
        self.cuts = False
        """Whether `live` is looked at."""
        self.on_output: Callable[[Tensor, Tensor], None] | None = None
        """Told the inputs and the gradient of the update's output in a backward pass."""

    @property
    def width(self) -> int:
        """Parameters of one component without its gain, in + out."""
        return self.base.in_features + self.base.out_features

    def gain(self) -> Tensor:
        """Factor on each component, [r]."""
        return self.fixed if self.lora_E is None else self.fixed + self.learned * self.lora_E

    def delta(self) -> Tensor:
        """The update of the weight as it acts now, [out, in]."""
        return self.scale * (self.lora_B * self.gain()) @ self.lora_A

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.lora_A
        up: Tensor = self.lora_B
        if self.cuts:
            live = self.live.bool()
            down = torch.where(live[:, None], down, down.detach())
            up = torch.where(live, up, up.detach())
        inputs = self.dropout(x)
        update = self.scale * F.linear(F.linear(inputs, down) * self.gain(), up)
        if self.on_output is not None and update.requires_grad:
            tell = self.on_output
            update.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: tell(inputs.detach(), grad)
            )
        out: Tensor = self.base(x) + update
        return out


def kaiming_(layer: LowRankLinear, generator: torch.Generator) -> None:
    """LoRA's start: A uniform as torch starts a linear layer, B zero."""
    nn.init.kaiming_uniform_(layer.lora_A, a=math.sqrt(5), generator=generator)


def normal_(layer: LowRankLinear, generator: torch.Generator, *, both: bool) -> None:
    """A, and B if both, from N(0, 0.02^2)."""
    for tensor in (layer.lora_A, layer.lora_B)[: 1 + both]:
        nn.init.normal_(tensor, std=INIT_STD, generator=generator)


# --- the model --------------------------------------------------------------------------------


def body_of(model: nn.Module) -> nn.Module:
    """The model without what its task puts on top; the model itself where it names no body."""
    body = getattr(model, getattr(model, "base_model_prefix", "") or "", None)
    return body if isinstance(body, nn.Module) else model


def freeze_(model: nn.Module, kind: str) -> None:
    """Freeze the body; what is on top of it is trained where the task has labels of its own."""
    inside = {id(param) for param in body_of(model).parameters()}
    for param in model.parameters():
        param.requires_grad_(kind in LABELLED and id(param) not in inside)


def find_targets(model: nn.Module, target: str) -> dict[str, nn.Linear]:
    """The linear layers that get an update, by name in the model's order.

    Args:
        model: as the task builds it.
        target: `all-linear`: every linear layer in the body's layers (what lies in an
            `nn.ModuleList`; all of the body where there is none); or suffixes joined by `+` or `,`.

    Raises:
        BenchError: no such layers.
    """
    body = body_of(model)
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    inside = {id(module) for module in body.modules()} - {id(head)}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside
    }
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    deep = {n: m for n, m in linear.items() if any(n.startswith(f"{item}.") for item in lists)}
    layers = deep or linear
    if not layers:
        raise BenchError(
            f"an adapter finds no nn.Linear in a {type(model).__name__}",
            "accepted: a model whose layers are linear ones (llama, qwen3, bert and their kin)",
        )
    if target == "all-linear":
        return layers
    ends = [end.strip() for end in target.replace("+", ",").split(",") if end.strip()]
    for end in ends:
        if not any(_ends(name, end) for name in linear):
            known = dict.fromkeys(name.rsplit(".", 1)[-1] for name in layers)
            raise BenchError(
                f"target={target}: {end!r} names no linear layer of a {type(model).__name__}",
                f"it has {', '.join(known)}; accepted: all-linear, or some of these",
            )
    if not ends:
        raise BenchError("target is empty", "accepted: all-linear, or suffixes joined by +")
    return {name: m for name, m in linear.items() if any(_ends(name, end) for end in ends)}


def _ends(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def inject(
    model: nn.Module,
    ctx: AdapterContext,
    hparams: Mapping[str, Any],
    make: Callable[[nn.Linear], LowRankLinear],
) -> nn.Module:
    """Freeze the model's body and put `make(layer)` in the place of each target."""
    targets = find_targets(model, hparams["target"])
    freeze_(model, ctx.kind)
    for name, base in targets.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, make(base))
    return mergeable(model)


def mergeable(model: nn.Module) -> nn.Module:
    """The model, with how to get one of plain layers from it as its attribute `merged`, and how to
    write its adapter as peft reads it as `exported`."""
    from levelfield.optimizers._adapter_export import export, merged

    model.merged, model.exported = merged, export  # type: ignore[assignment]
    return model


def layers_of(model: nn.Module) -> dict[str, LowRankLinear]:
    """The injected layers by name, in the model's order."""
    return {n: m for n, m in model.named_modules() if isinstance(m, LowRankLinear)}


def set_masks(layers: Iterable[LowRankLinear], **masks: Sequence[Sequence[float]]) -> None:
    """Set buffers (`fixed`, `learned`, `live`) of all layers, a row of [r] values a layer."""
    held = list(layers)
    for name, rows in masks.items():
        buffers = [getattr(layer, name) for layer in held]
        values = torch.tensor(rows, dtype=buffers[0].dtype, device=buffers[0].device)
        torch._foreach_copy_(buffers, list(values.unbind()))


# --- ranks and counts -------------------------------------------------------------------------


def is_adapter(name: str) -> bool:
    """Whether a parameter of that name belongs to an adapter and not to a head."""
    return ".lora_" in name or name.startswith("lora_")


def adapter_infos(params: Sequence[ParamInfo]) -> Iterator[ParamInfo]:
    """Those of the parameters that are an adapter's."""
    return (info for info in params if is_adapter(info.name))


def count_modules(params: Sequence[ParamInfo]) -> int:
    """Adapted layers, told by their A."""
    return sum("lora_A" in info.name for info in params)


def check_rank(rank: int, name: str = "rank") -> int:
    """Raises:
    BenchError: a rank that is no whole number from 1.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise BenchError(f"{name}={rank!r}", "accepted: a whole number from 1")
    return rank


def budget_of(hparams: Mapping[str, Any], modules: int, cap: int | None = None) -> int:
    """Components in all modules together: `budget`, or `rank` a module where that is null.

    Raises:
        BenchError: fewer than one a module, or more than `cap` a module.
    """
    given = hparams["budget"]
    budget = check_rank(given, "budget") if given is not None else modules * hparams["rank"]
    if budget < modules:
        told = f"budget={given}" if given is not None else f"rank={hparams['rank']}"
        raise BenchError(
            f"{told} is below one rank a module", f"accepted: {modules} or more, for {modules}"
        )
    if cap is not None and budget > cap * modules:
        raise BenchError(
            f"a budget of {budget} does not fit into {modules} modules of at most {cap}",
            f"accepted: up to {cap * modules}, or a higher cap",
        )
    return int(budget)


def room_of(hparams: Mapping[str, Any], modules: int) -> int:
    """Components that a module of a growing adapter has room for: `cap`, or what is left of the
    budget where every other module has one.

    Raises:
        BenchError: a budget that does not fit.
    """
    cap = check_rank(hparams["cap"], "cap")
    return min(cap, budget_of(hparams, modules, cap) - modules + 1)


def head_parameters(names: Mapping[str, int]) -> int:
    """Trained elements outside of the adapter, from name -> elements."""
    return sum(size for name, size in names.items() if not is_adapter(name))
