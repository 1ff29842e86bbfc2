"""Adam-mini: its blocks, and its equations over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from levelfield.bench import models
from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import Model, ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.optimizers.adam_mini import SPEC, AdamMini, count_blocks
from levelfield.tests.first_order import STEPS, make
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    drive,
    gradients,
    lr_scales,
    values,
)

LAYER = "model.layers.0."
NAMED: tuple[tuple[str, tuple[int, ...], Role, int | None], ...] = (
    ("model.embed_tokens.weight", (11, 6), "embed", None),
    (LAYER + "self_attn.q_proj.weight", (6, 6), "matrix", 3),
    (LAYER + "self_attn.k_proj.weight", (4, 6), "matrix", 2),
    (LAYER + "self_attn.v_proj.weight", (4, 6), "matrix", 2),
    (LAYER + "self_attn.o_proj.weight", (6, 6), "matrix", None),
    (LAYER + "mlp.up_proj.weight", (9, 6), "matrix", None),
    (LAYER + "mlp.down_proj.weight", (6, 9), "matrix", None),
    (LAYER + "mlp.up_proj.bias", (9,), "vector", None),
    ("model.norm.weight", (6,), "vector", None),
    ("model.scale", (), "vector", None),
    ("model.conv.weight", (2, 3, 4), "matrix", None),
    ("lm_head.weight", (11, 6), "head", None),
)
BLOCKS = {
    "row": [11, 3, 2, 4, 6, 9, 6, 9, 1, 1, 2, 11],
    "head": [11, 3, 2, 2, 6, 9, 6, 9, 1, 1, 2, 11],
    "whole": [11, 3, 2, 1, 6, 9, 6, 9, 1, 1, 2, 11],
}


def named(dtype: torch.dtype = torch.float32) -> tuple[Parameter, ...]:
    found = []
    for index, (name, shape, role, heads) in enumerate(NAMED):
        value = np.random.default_rng(index).standard_normal(shape)
        tensor = nn.Parameter(torch.as_tensor(value).to(dtype))
        kind = str(dtype).removeprefix("torch.")
        info = ParamInfo(name=name, shape=shape, role=role, dtype=kind, heads=heads)
        found.append(Parameter(info, tensor))
    return tuple(found)


def textbook(
    p: Array,
    grads: list[Array],
    lrs: list[float],
    wd: float,
    h: Mapping[str, Any],
    blocks: int,
) -> Array:
    """Zhang et al., algorithm 1: every block is an array of its own."""
    shape, b1, b2 = p.shape, h["beta1"], h["beta2"]
    parts = np.split(p.reshape(-1), blocks)
    ms, vs = [np.zeros_like(part) for part in parts], [0.0] * blocks
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        for b, piece in enumerate(np.split(g.reshape(-1), blocks)):
            ms[b] = b1 * ms[b] + (1 - b1) * piece
            vs[b] = b2 * vs[b] + (1 - b2) * float(np.mean(piece**2))
            root = np.sqrt(vs[b] / (1 - b2**t)) + h["eps"]
            parts[b] = (1 - lr * wd) * parts[b] - lr * ms[b] / (1 - b1**t) / root
    return np.concatenate(parts).reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.02, "weight_decay": 0.3, "embed_multiplier": 3.0},
        {"lr": 0.02, "value_blocks": "whole", "beta1": 0.8, "beta2": 0.9},
        {"lr": 0.02, "value_blocks": "head", "eps": 1e-2},
    ],
    ids=str,
)
def test_follows_the_equations(changes: dict[str, Any], dtype: torch.dtype) -> None:
    params = named(dtype)
    start = [value.double().numpy() for value in values(params)]
    optimizer, hparams = make(SPEC, params, **changes)
    drive(optimizer, params, STEPS)
    for index, param in enumerate(params):
        table = param.info.role in ("embed", "head")
        lr = hparams["lr"] * (hparams["embed_multiplier"] if table else 1.0)
        wd = 0.0 if param.info.role == "vector" else hparams["weight_decay"]
        grads = gradients(param.info.shape, STEPS, index)
        rates = [lr * scale for scale in lr_scales(STEPS)]
        blocks = BLOCKS[hparams["value_blocks"]][index]
        expected = textbook(start[index], grads, rates, wd, hparams, blocks)
        np.testing.assert_allclose(
            param.tensor.detach().double().numpy(),
            expected,
            rtol=0,
            atol=1e-10 if dtype == torch.float64 else 5e-6,
            err_msg=param.info.name,
        )


@pytest.mark.parametrize("value_blocks", list(BLOCKS))
def test_blocks_and_what_they_cost(value_blocks: str) -> None:
    params = named()
    infos = [param.info for param in params]
    assert [count_blocks(info, value_blocks) for info in infos] == BLOCKS[value_blocks]
    optimizer, hparams = make(SPEC, params, value_blocks=value_blocks)
    drive(optimizer, params, 2)
    found = [optimizer.state[param.tensor]["exp_avg_sq"].numel() for param in params]
    assert found == BLOCKS[value_blocks]
    # The momentum of the one parameter without dimensions is left out as a counter would be.
    claim = SPEC.state_bytes(infos, hparams, 1.0)
    assert stored_bytes([optimizer]) + 4 == claim


@pytest.mark.parametrize(
    ("info", "blocks"),
    [
        (ParamInfo(name="v_proj.weight", shape=(4, 6), role="matrix", heads=2), 4),
        (ParamInfo(name="q_proj.weight", shape=(5, 6), role="matrix", heads=2), 5),
        (ParamInfo(name="bias", shape=(5,), role="vector"), 5),
        (ParamInfo(name="weight", shape=(5,), role="vector"), 1),
        (ParamInfo(name="w", shape=(0, 4), role="matrix"), 0),
        (ParamInfo(name="w", shape=(4, 0), role="matrix"), 0),
    ],
)
def test_odd_parameters(info: ParamInfo, blocks: int) -> None:
    assert count_blocks(info, "row") == blocks


@pytest.mark.parametrize("role", ["embed", "head"])
def test_a_table_is_cut_by_its_role_whatever_its_name(role: Role) -> None:
    info = ParamInfo(name="value.weight", shape=(5, 6), role=role)
    assert count_blocks(info, "whole") == 5


def test_blocks_of_a_llama_of_130_million() -> None:
    """One number for a head of query and key, a neuron, a token, a norm: 141,113 in all."""
    hidden, ffn, vocabulary, heads = 768, 2048, 32_000, 12
    infos = [
        ParamInfo(name="model.embed_tokens.weight", shape=(vocabulary, hidden), role="embed"),
        ParamInfo(name="lm_head.weight", shape=(vocabulary, hidden), role="head"),
        ParamInfo(name="model.norm.weight", shape=(hidden,), role="vector"),
    ]
    for layer in range(12):
        prefix = f"model.layers.{layer}."
        infos += [
            ParamInfo(
                name=f"{prefix}self_attn.{kind}_proj.weight",
                shape=(hidden, hidden),
                role="matrix",
                heads=None if kind == "o" else heads,
            )
            for kind in "qkvo"
        ]
        for name, shape in (
            ("gate", (ffn, hidden)),
            ("up", (ffn, hidden)),
            ("down", (hidden, ffn)),
        ):
            name = f"{prefix}mlp.{name}_proj.weight"
            infos.append(ParamInfo(name=name, shape=shape, role="matrix"))
        for name in ("input_layernorm", "post_attention_layernorm"):
            infos.append(ParamInfo(name=f"{prefix}{name}.weight", shape=(hidden,), role="vector"))
    assert sum(count_blocks(info, "row") for info in infos) == 141_113
    parameters = sum(info.numel for info in infos)
    assert SPEC.state_bytes(infos, SPEC.defaults(), 1.0) == 4 * (parameters + 141_113)


def test_heads_of_a_model_are_found() -> None:
    model = models.build_model(Model(hidden=16, layers=1, heads=4, intermediate=24), 13, 8, 0)
    found = {
        param.info.name.split(".")[-2]: count_blocks(param.info, "row")
        for param in models.parameters(model)
    }
    assert (found["q_proj"], found["k_proj"], found["v_proj"], found["o_proj"]) == (4, 4, 16, 16)
    assert (found["up_proj"], found["down_proj"], found["norm"]) == (24, 16, 1)
    assert (found["embed_tokens"], found["lm_head"]) == (13, 13)


def test_gradients_of_one_size_in_every_block_give_adam() -> None:
    ours, theirs = named(torch.float64), named(torch.float64)

    def grad_of(index: int, t: int) -> Array:
        rng = np.random.default_rng(100 * index + t)
        blocks = BLOCKS["row"][index]
        size = rng.uniform(0.1, 3.0, blocks).repeat(ours[index].info.numel // blocks)
        sign = rng.choice([-1.0, 1.0], size.shape)
        return np.asarray(size * sign).reshape(ours[index].info.shape)

    optimizer, _ = make(SPEC, ours, lr=0.01, weight_decay=0.1)
    groups = context(theirs).groups({"lr": 0.01, "weight_decay": 0.1})
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    for one, params in ((optimizer, ours), (adamw, theirs)):
        drive(one, params, STEPS, grad_of=grad_of)
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta2": -0.1}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    tensor = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="is needed"):
        AdamMini([tensor], **wrong)
    with pytest.raises(ValueError, match="accepted: row, head, whole"):
        AdamMini([tensor], value_blocks="column")
