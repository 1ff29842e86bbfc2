"""Models: the role of every parameter, weights that depend on the seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from levelfield.bench.models import build_model, parameters, weights_sha256
from levelfield.bench.spec import BenchError, Model

SMALL = Model(hidden=16, layers=2, heads=2, intermediate=24)
TIED = replace(SMALL, tied=True)
VOCABULARY, SEQUENCE = 32, 8


def build(config: Model = SMALL, seed: int = 0) -> nn.Module:
    return build_model(config, VOCABULARY, SEQUENCE, seed)


LAYER = {
    "self_attn.q_proj.weight": ("matrix", (16, 16), 2),
    "self_attn.k_proj.weight": ("matrix", (16, 16), 2),
    "self_attn.v_proj.weight": ("matrix", (16, 16), 2),
    "self_attn.o_proj.weight": ("matrix", (16, 16), None),
    "mlp.gate_proj.weight": ("matrix", (24, 16), None),
    "mlp.up_proj.weight": ("matrix", (24, 16), None),
    "mlp.down_proj.weight": ("matrix", (16, 24), None),
    "input_layernorm.weight": ("vector", (16,), None),
    "post_attention_layernorm.weight": ("vector", (16,), None),
}
EMBED = {"model.embed_tokens.weight": ("embed", (32, 16), None)}
BODY = {
    f"model.layers.{layer}.{name}": value for layer in (0, 1) for name, value in LAYER.items()
} | {"model.norm.weight": ("vector", (16,), None)}
HEAD = {"lm_head.weight": ("head", (32, 16), None)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [(SMALL, EMBED | BODY | HEAD), (TIED, EMBED | BODY)],
    ids=["untied", "tied"],
)
def test_every_parameter_has_its_role(config: Model, expected: dict[str, tuple[object]]) -> None:
    model = build(config)
    found = parameters(model)
    assert {p.info.name: (p.info.role, p.info.shape, p.info.heads) for p in found} == expected
    assert [p.info.name for p in found] == list(expected)  # the model's order
    named = dict(model.named_parameters())
    assert all(named[p.info.name] is p.tensor for p in found)
    assert {p.info.dtype for p in found} == {"float32"}
    assert sum(p.info.numel for p in found) == sum(p.numel() for p in model.parameters())


def test_a_tied_head_is_the_embedding() -> None:
    model = build(TIED)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    untied = sum(p.info.numel for p in parameters(build(SMALL)))
    assert untied - sum(p.info.numel for p in parameters(model)) == VOCABULARY * 16


def test_frozen_parameters_are_left_out() -> None:
    model = build()
    model.lm_head.weight.requires_grad_(False)
    assert "lm_head.weight" not in {p.info.name for p in parameters(model)}


def test_roles_do_not_depend_on_names() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    found = {p.info.name: p.info.role for p in parameters(model)}
    assert found == {
        "0.weight": "embed",
        "1.weight": "matrix",
        "1.bias": "vector",
        "2.weight": "vector",
        "2.bias": "vector",
    }


def test_the_type_of_a_parameter_is_told() -> None:
    found = parameters(build().to(torch.bfloat16))
    assert {(p.info.dtype, p.info.itemsize) for p in found} == {("bfloat16", 2)}


@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_weights_depend_on_the_seed_alone(config: Model) -> None:
    one = weights_sha256(parameters(build(config)))
    torch.manual_seed(99)
    torch.rand(3)
    assert weights_sha256(parameters(build(config))) == one
    assert weights_sha256(parameters(build(config, seed=1))) != one


def test_the_hash_sees_every_weight_its_name_and_its_shape() -> None:
    model = build()
    params = parameters(model)
    one = weights_sha256(params)
    found = {one}
    for param in params:
        with torch.no_grad():
            kept = param.tensor.view(-1)[-1].clone()
            param.tensor.view(-1)[-1] += 1e-3
            found.add(weights_sha256(params))
            param.tensor.view(-1)[-1] = kept
    assert len(found) == len(params) + 1
    assert weights_sha256(params) == one
    renamed = replace(params[0], info=replace(params[0].info, name="other"))
    reshaped = replace(params[0], info=replace(params[0].info, shape=(16, 32)))
    for changed in (renamed, reshaped):
        assert weights_sha256((changed, *params[1:])) != one
    assert weights_sha256(params[::-1]) != one


def test_the_global_generators_are_left_as_they_were() -> None:
    states: list[Callable[[], bytes]] = [
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda: repr(random.getstate()).encode(),
        lambda: repr(np.random.get_state()).encode(),
    ]
    torch.manual_seed(12345)  # not what building leaves behind
    before = [state() for state in states]
    build()
    assert [state() for state in states] == before


def test_a_model_reads_tokens_and_answers_with_logits() -> None:
    logits = build()(input_ids=torch.zeros(3, SEQUENCE, dtype=torch.long)).logits
    assert logits.shape == (3, SEQUENCE, VOCABULARY)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(SMALL, heads=3), "model.heads=3 does not divide model.hidden=16"),
        (replace(SMALL, heads=32), "model.heads=32 does not divide"),
        (replace(SMALL, family="lama"), r"unknown model family 'lama' \(did you mean llama"),
        (replace(SMALL, family=""), "unknown model family ''"),
    ],
)
def test_a_model_that_cannot_be_is_told(config: Model, message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        build(config)
    assert "\n" not in str(caught.value)
