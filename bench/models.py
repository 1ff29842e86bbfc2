"""Models from transformers configs, and the role of every parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import model_source
from levelfield.bench.digest import did_you_mean
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.spec import BenchError, ParamInfo, Role
from levelfield.bench.spec import Model as ModelConfig
from levelfield.bench.stepper import Parameter


def build_model(config: ModelConfig, vocabulary: int, sequence: int, seed: int) -> nn.Module:
    """A causal model; the same seed gives the same weights for every method.

    Args:
        config: sizes and family, or where the model comes from.
        vocabulary: rows of the embedding and of the head, unless the config says how many.
        sequence: the longest sequence in tokens, unless the config says so.
        seed: of the initial weights; the global generator is left as it was.

    Raises:
        BenchError: an unknown family or source, sizes that do not fit, too few rows or positions.
    """
    rows, positions = config.vocabulary or vocabulary, config.positions or sequence
    if rows < vocabulary:
        raise BenchError(
            f"model.vocabulary={rows}, and the tokenizer has {vocabulary} ids",
            f"accepted: {vocabulary} or more",
        )
    if positions < sequence:
        raise BenchError(
            f"model.positions={positions}, and sequences have {sequence} tokens",
            f"accepted: {sequence} or more",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model_source.is_function(config.source):
            return model_source.built_by(config.source, rows, positions)
    if config.source:
        return _from_source(config, vocabulary, sequence, seed)
    if config.family not in FAMILIES:
        raise BenchError(
            f"unknown model family {config.family!r}", did_you_mean(config.family, FAMILIES)
        )
    if config.head_dim is None and config.hidden % config.heads:
        raise BenchError(
            f"model.heads={config.heads} does not divide model.hidden={config.hidden}",
            "accepted: a divisor of the hidden size",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = FAMILIES[config.family](config, rows, positions)
    return model


def _from_source(config: ModelConfig, vocabulary: int, sequence: int, seed: int) -> nn.Module:
    model = model_source.load_model(config, "causal_lm", seed)
    written: Any = model.config
    if written.vocab_size < vocabulary:
        raise BenchError(
            f"{config.source} has {written.vocab_size} rows, and the tokenizer {vocabulary} ids",
            "accepted: data.tokenizer=model, the one that came with it",
        )
    longest = model_source.positions_of(written)
    if longest is not None and longest < sequence:
        raise BenchError(
            f"data.sequence={sequence}, and {config.source} takes {longest} positions",
            f"accepted: up to {longest}",
        )
    return model


def checkpointing_(model: nn.Module, name: str) -> None:
    """Have a model compute the activations inside its layers again in the backward pass.

    Raises:
        BenchError: a model that offers no such thing.
    """
    enable = getattr(
        model,
        "activation_checkpointing_enable",  # the newer name
        getattr(model, "gradient_checkpointing_enable", None),
    )
    if enable is None or not getattr(model, "supports_gradient_checkpointing", True):
        raise BenchError(f"{name} offers no activation checkpointing", "leave it out")
    enable({"use_reentrant": False, "preserve_rng_state": False})


_NO_SPECIAL: Mapping[str, Any] = {
    **{"use_cache": False, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    "attn_implementation": "sdpa",
}


def _decoder(config: ModelConfig, vocabulary: int, sequence: int) -> dict[str, Any]:
    """What LLaMA's and Qwen's configs call alike."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.head_dim or config.hidden // config.heads,
        "max_position_embeddings": sequence,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        **_NO_SPECIAL,
    }


def _llama(config: ModelConfig, vocabulary: int, sequence: int) -> nn.Module:
    with quiet_imports():
        from transformers import LlamaConfig, LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM(LlamaConfig(**_decoder(config, vocabulary, sequence)))
    return model


def _qwen3(config: ModelConfig, vocabulary: int, sequence: int) -> nn.Module:
    with quiet_imports():
        from transformers import Qwen3Config, Qwen3ForCausalLM

    model: nn.Module = Qwen3ForCausalLM(Qwen3Config(**_decoder(config, vocabulary, sequence)))
    return model


def _gpt2(config: ModelConfig, vocabulary: int, sequence: int) -> nn.Module:
    with quiet_imports():
        from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "n_positions": sequence,
        "n_embd": config.hidden,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.intermediate,
        "tie_word_embeddings": config.tied,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
        **_NO_SPECIAL,
    }
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**settings))
    return model


FAMILIES: Mapping[str, Any] = {"llama": _llama, "gpt2": _gpt2, "qwen3": _qwen3}


def parameters(model: nn.Module) -> tuple[Parameter, ...]:
    """Every trainable parameter once, in the model's order, with its role.

    The role follows from the module that holds it, never from its name: `embed` for an
    `nn.Embedding`, `head` for the output projection, `matrix` for any other tensor of two or more
    dimensions, `vector` for the rest. A tensor shared by embedding and head counts as `embed`. In a
    model with a head over labels, `head` is every matrix outside of its body.
    """
    head = _head_weights(model)
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


def _role(module: nn.Module, tensor: nn.Parameter, head: frozenset[int]) -> Role:
    if isinstance(module, nn.Embedding):
        return "embed"
    if id(tensor) in head:
        return "head"
    return "matrix" if tensor.ndim >= 2 else "vector"


def _head_weights(model: nn.Module) -> frozenset[int]:
    """Identities of the matrices of a model's head."""
    getter = getattr(model, "get_output_embeddings", None)
    module = getter() if getter is not None else None
    weight = getattr(module, "weight", None)
    if isinstance(weight, nn.Parameter):
        return frozenset({id(weight)})
    body = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if not isinstance(body, nn.Module) or body is model:
        return frozenset()
    inside = {id(tensor) for tensor in body.parameters()}
    return frozenset(
        id(tensor) for tensor in model.parameters() if id(tensor) not in inside and tensor.ndim >= 2
    )


def _attention_heads(model: nn.Module) -> dict[str, int]:
    """Heads stacked along dim 0 of the attention projections, by module name."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return {}
    shared = getattr(config, "num_key_value_heads", None) or heads
    return {"q_proj": heads, "k_proj": shared, "v_proj": shared}


def weights_sha256(
    params: tuple[Parameter, ...], whole: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> str:
    """Digest of names, shapes and values, in order; independent of the device.

    Args:
        whole: puts a tensor together that is cut up over processes.
    """
    digest = hashlib.sha256()
    for param in params:
        value = whole(param.tensor.detach()).to("cpu", torch.float32).contiguous()
        digest.update(f"{param.info.name} {param.info.shape}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
