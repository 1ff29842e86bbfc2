"""What every first-order method promises, whatever its rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from levelfield.bench.meter import state_bytes as stored_bytes
from levelfield.bench.spec import OptimizerSpec, ParamInfo
from levelfield.bench.stepper import Parameter
from levelfield.tests.first_order import ALL_SHAPES, SPECS, STEPS, TOTAL, make
from levelfield.tests.optimizer_cases import (
    Array,
    as_gradient,
    drive,
    gradient,
    parameters,
    same_bits,
    state_tensors,
    values,
)

over_specs = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


@over_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_state_bytes_are_as_claimed(spec: OptimizerSpec, dtype: torch.dtype) -> None:
    params = parameters(ALL_SHAPES, dtype, spec.roles)
    optimizer, hparams = make(spec, params)
    infos = [param.info for param in params]
    shared = ParamInfo(name="twin", shape=(99, 9), role="matrix", tied_to=infos[0].name)
    for steps in (1, 2):
        drive(optimizer, params, steps)
        claimed = spec.state_bytes([*infos, shared], hparams, steps / TOTAL)
        assert stored_bytes([optimizer]) == claimed  # by storage: a view would pin a whole
        assert sum(t.numel() * t.element_size() for t in state_tensors(optimizer)) == claimed
    assert all(torch.isfinite(value).all() for value in values(params))


@over_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_restored_run_goes_on_with_the_same_bits(spec: OptimizerSpec, dtype: torch.dtype) -> None:
    for point in (1, 11):
        straight = parameters(ALL_SHAPES, dtype, spec.roles)
        optimizer, _ = make(spec, straight)
        drive(optimizer, straight, point, total=STEPS)
        saved, weights = copy.deepcopy(optimizer.state_dict()), values(straight)
        drive(optimizer, straight, STEPS - point, start=point, total=STEPS)
        restored = parameters(ALL_SHAPES, dtype, spec.roles)
        with torch.no_grad():
            for param, weight in zip(restored, weights, strict=True):
                param.tensor.copy_(weight)
        second, _ = make(spec, restored)
        second.load_state_dict(saved)
        drive(second, restored, STEPS - point, start=point, total=STEPS)
        assert same_bits(values(straight), values(restored))


@over_specs
def test_gradients_are_left_alone_and_missing_ones_are_passed_over(spec: OptimizerSpec) -> None:
    params = parameters(ALL_SHAPES, roles=spec.roles)
    before = values(params)
    optimizer, _ = make(spec, params, weight_decay=0.3)

    def grad_of(index: int, t: int) -> Array | None:
        return gradient(params[index].info.shape, t) if index % 2 else None

    drive(optimizer, params, 3, grad_of=grad_of)
    for index, (param, old) in enumerate(zip(params, before, strict=True)):
        assert torch.equal(param.tensor, old) == (index % 2 == 0)
        assert index % 2 == 1 or not optimizer.state.get(param.tensor)
        if index % 2:
            last = as_gradient(gradient(param.info.shape, 2), param.tensor)
            assert param.tensor.grad is not None
            assert torch.equal(param.tensor.grad, last)
    drive(optimizer, params, 2)  # gradients that come late are taken
    assert not any(torch.equal(p.tensor, old) for p, old in zip(params, before, strict=True))


@over_specs
def test_a_rate_kept_as_a_tensor_gives_the_same_step(spec: OptimizerSpec) -> None:
    results = []
    for as_tensor in (False, True):
        params = parameters(ALL_SHAPES, torch.float64, spec.roles)
        optimizer, _ = make(spec, params, weight_decay=0.3)
        for group in optimizer.param_groups:
            lr = torch.tensor(group["lr"], dtype=torch.float64)
            group["lr"] = lr if as_tensor else group["lr"]
        for t in range(3):
            for index, param in enumerate(params):
                grad = gradient(param.info.shape, 10 * t + index)
                param.tensor.grad = as_gradient(grad, param.tensor)
            optimizer.step()
        results.append(values(params))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@over_specs
@pytest.mark.parametrize("lr_as_tensor", [False, True])
def test_a_step_reads_nothing_on_the_host(spec: OptimizerSpec, lr_as_tensor: bool) -> None:
    if lr_as_tensor and spec.implementation == "torch":
        pytest.skip("torch's own step reads a rate kept as a tensor")
    with FakeTensorMode():  # raises when a value is asked for
        tensors = [
            torch.nn.Parameter(torch.empty(shape))
            for shape, role in ALL_SHAPES
            if role in spec.roles
        ]
        params = [
            Parameter(ParamInfo(name=str(i), shape=tuple(t.shape), role="matrix"), t)
            for i, t in enumerate(tensors)
        ]
        optimizer, _ = make(spec, params, weight_decay=0.3)
        for group in optimizer.param_groups:
            group["lr"] = torch.empty(()) if lr_as_tensor else group["lr"]
        for _ in range(2):
            for tensor in tensors:
                tensor.grad = torch.empty_like(tensor)
            optimizer.step()


@over_specs
def test_a_closure_is_called_with_gradients_on(spec: OptimizerSpec) -> None:
    params = parameters(ALL_SHAPES, roles=spec.roles)
    optimizer, _ = make(spec, params)

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.stack([param.tensor.square().sum() for param in params]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    first = optimizer.step(closure)
    assert first is not None
    assert closure() < first


@over_specs
def test_every_hyper_parameter_arrives(spec: OptimizerSpec) -> None:
    """Changing any of them changes the run (or is refused): none is forgotten on the way."""
    for name, value in spec.defaults().items():
        if name in NO_EFFECT.get(spec.name, ()):
            continue
        results = []
        for chosen in (value, _another(spec.name, name, value)):
            params = parameters(ALL_SHAPES, torch.float64, spec.roles)
            optimizer, _ = make(spec, params, **{"weight_decay": 0.1, name: chosen})
            drive(optimizer, params, 6)
            results.append(values(params))
        assert not same_bits(*results), name


NO_EFFECT = {
    "sgd": ("foreach", "fused"),
    "muon_rms": ("embed_multiplier",),
    "adam_mini": ("value_blocks",),
}
"""Kernels that compute the same, what acts on the fallback, what needs a value projection."""
OTHERS: dict[tuple[str, str], Any] = {
    ("cautious_adamw", "mask_scale"): "count",
    ("mars", "clip"): "whole",
    ("muon_rms", "adjust"): "original",
    ("muon_rms", "steps"): 4,
    ("prodigy", "beta3"): 0.5,
    ("prodigy", "growth_rate"): 1.01,
    ("prodigy", "slice_p"): 2,
    ("came", "eps1"): 1e-2,
    ("came", "eps2"): 1e-2,
    ("schedulefree_adamw", "power"): 1.0,
}


def _another(method: str, name: str, value: Any) -> Any:
    if (method, name) in OTHERS:
        return OTHERS[method, name]
    if isinstance(value, bool):
        return not value
    return 0.5 * value if value else 0.3
