"""Models from transformers configs, and the role of every parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from levelfield.bench.digest import did_you_mean
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.spec import BenchError, ParamInfo, Role
from levelfield.bench.spec import Model as ModelConfig
from levelfield.bench.stepper import Parameter


def build_model(config: ModelConfig, vocabulary: int, sequence: int, seed: int) -> nn.Module:
    """A freshly initialised causal model; the same seed gives the same weights for every method.

    Args:
        config: sizes and family.
        vocabulary: rows of the embedding and of the head.
        sequence: the longest sequence in tokens.
        seed: of the initial weights; the global generator is left as it was.
    """
    if config.family not in FAMILIES:
        raise BenchError(
            f"unknown model family {config.family!r}", did_you_mean(config.family, FAMILIES)
        )
    if config.hidden % config.heads:
        raise BenchError(
            f"model.heads={config.heads} does not divide model.hidden={config.hidden}",
            "accepted: a divisor of the hidden size",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = FAMILIES[config.family](config, vocabulary, sequence)
    return model


def _llama(config: ModelConfig, vocabulary: int, sequence: int) -> nn.Module:
    with quiet_imports():
        from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": sequence,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "sdpa",
    }
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**settings))
    return model


FAMILIES: Mapping[str, Any] = {"llama": _llama}


def parameters(model: nn.Module) -> tuple[Parameter, ...]:
    """Every trainable parameter once, in the model's order, with its role.

    The role follows from the module that holds it, never from its name: `embed` for an
    `nn.Embedding`, `head` for the output projection, `matrix` for any other tensor of two or more
    dimensions, `vector` for the rest. A tensor shared by embedding and head counts as `embed`.
    """
    head = _head_weight(model)
    heads = _attention_heads(model)
    found: list[Parameter] = []
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for short, tensor in module.named_parameters(recurse=False):
            if id(tensor) in seen or not tensor.requires_grad:
                continue
            seen.add(id(tensor))
            info = ParamInfo(
                name=f"{module_name}.{short}" if module_name else short,
                shape=tuple(tensor.shape),
                role=_role(module, tensor, head),
                dtype=str(tensor.dtype).removeprefix("torch."),
                heads=heads.get(module_name.rsplit(".", maxsplit=1)[-1]),
            )
            found.append(Parameter(info, tensor))
    return tuple(found)


def _role(module: nn.Module, tensor: nn.Parameter, head: nn.Parameter | None) -> Role:
    if isinstance(module, nn.Embedding):
        return "embed"
    if tensor is head:
        return "head"
    return "matrix" if tensor.ndim >= 2 else "vector"


def _head_weight(model: nn.Module) -> nn.Parameter | None:
    getter = getattr(model, "get_output_embeddings", None)
    module = getter() if getter is not None else None
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, nn.Parameter) else None


def _attention_heads(model: nn.Module) -> dict[str, int]:
    """Heads stacked along dim 0 of the attention projections, by module name."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return {}
    shared = getattr(config, "num_key_value_heads", None) or heads
    return {"q_proj": heads, "k_proj": shared, "v_proj": shared}


def weights_sha256(params: tuple[Parameter, ...]) -> str:
    """Digest of names, shapes and values, in order; independent of the device."""
    digest = hashlib.sha256()
    for param in params:
        value = param.tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{param.info.name} {param.info.shape}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
