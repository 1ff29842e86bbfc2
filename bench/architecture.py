"""Which model is meant: a published size by name, a transformers config file, or a local folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.bench.digest import did_you_mean
from levelfield.bench.errors import first_line
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.shapes import SHAPES, Shape
from levelfield.bench.spec import BenchError

if TYPE_CHECKING:
    from torch import nn

CONFIG = "config.json"
HEADS = (
    ("num_attention_heads", "hidden_size"),
    ("n_head", "n_embd"),
    ("num_heads", "hidden_size"),
    ("num_key_value_heads", "num_attention_heads"),
)
"""(divisor, what it must divide) in configs of transformers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A causal language model that can be built at any sequence length."""

    name: str
    vocabulary: int
    build: Callable[[int], nn.Module]
    """Longest sequence in tokens -> a module, on the default device, freshly initialised."""


def resolve(text: str) -> Architecture:
    """The architecture that a user means.

    Args:
        text: `llama-7b` or `7b`; a folder with a `config.json`; a `.json` file.

    Raises:
        BenchError: an unknown name, no config, or a config that makes no model.
    """
    shape = SHAPES.get(text) or SHAPES.get(f"llama-{text}")
    if shape is not None:
        return of_shape(shape)
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise BenchError(
                f"the folder {text} has no {CONFIG}", "accepted: a folder as transformers saves one"
            )
        return of_config(path.name or text, _read(path / CONFIG), text)
    if path.is_file():
        return of_config(path.stem, _read(path), text)
    if "/" in text or text.endswith(".json"):
        raise BenchError(
            f"there is no file or folder {text}",
            f"accepted: a folder with {CONFIG}, a config's JSON file, {', '.join(SHAPES)}",
        )
    raise BenchError(
        f"no model is named {text!r}",
        f"{did_you_mean(text, SHAPES)}; or a folder with {CONFIG}, or a config's JSON file",
    )


def of_shape(shape: Shape) -> Architecture:
    """A published size."""

    def build(sequence: int) -> nn.Module:
        from levelfield.bench.models import build_model

        return build_model(shape.model, shape.vocabulary, sequence, 0)

    return Architecture(name=shape.name, vocabulary=shape.vocabulary, build=build)


def of_config(name: str, settings: Mapping[str, Any], origin: str) -> Architecture:
    """A model of transformers from what its config says; no weights are read.

    Raises:
        BenchError: no known `model_type`, or sizes that do not fit together.
    """
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise BenchError(f"{origin}: no model_type", "accepted: a config that transformers wrote")
    for divisor, size in HEADS:
        heads, whole = settings.get(divisor), settings.get(size)
        if not isinstance(heads, int) or not isinstance(whole, int):
            continue
        if "head_dim" in settings and settings["head_dim"] and size == "hidden_size":
            continue
        if heads < 1 or whole % heads:
            raise BenchError(
                f"{origin}: {divisor}={heads} does not divide {size}={whole}",
                f"accepted: a divisor of {whole}",
            )
    vocabulary = settings.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise BenchError(f"{origin}: vocab_size is {vocabulary!r}", "accepted: a number from 1")
    return Architecture(
        name=name,
        vocabulary=vocabulary,
        build=partial(_from_config, kind, dict(settings), origin),
    )


def _from_config(kind: str, settings: dict[str, Any], origin: str, sequence: int) -> nn.Module:
    with quiet_imports():
        from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in settings.items() if key != "model_type"}
    longest = settings.get("max_position_embeddings", settings.get("n_positions"))
    if isinstance(longest, int) and sequence > longest:
        raise BenchError(
            f"{origin}: a sequence of {sequence} tokens, and the config has {longest} positions",
            f"accepted: --seq up to {longest}",
        )
    try:
        config = AutoConfig.for_model(kind, **settings)
        config.use_cache = False
        model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except BenchError:
        raise
    except Exception as error:  # whatever the sizes lead to inside transformers
        line = first_line(error)[:160]
        raise BenchError(
            f"{origin}: transformers makes no causal model of it: {line}",
            "accepted: a config of a causal language model",
        ) from None
    return model


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"cannot read {path}: {error}", "accepted: a JSON file") from None
    if not isinstance(found, dict):
        raise BenchError(f"{path} holds a {type(found).__name__}", "accepted: a JSON object")
    return found
