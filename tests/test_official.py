"""The authors' packages as methods: they go where ours go, and hold what is claimed.

Where a package is not installed, `test_golden` holds the same comparison against kept numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from levelfield.bench import registry, study
from levelfield.bench.meter import state_bytes
from levelfield.bench.spec import BenchError, OptimizerSpec, ParamInfo
from levelfield.bench.stepper import Parameter
from levelfield.optimizers import (
    _apollo,
    _official,
    apollo,
    apollo_official,
    galore,
    galore_official,
)
from levelfield.tests.golden import inputs
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    drive,
    gradients,
    parameters,
    same_bits,
    values,
)

STEPS = 50
OFFICIAL = {spec.name: spec for spec in (galore_official.SPEC, apollo_official.SPEC)}
MODEL = inputs.SHAPES
TOLERANCE = 5e-6
"""Of weights of size one after 50 steps at .02: float32 sums in another order."""

over_official = pytest.mark.parametrize("name", list(OFFICIAL))


def make(
    spec: OptimizerSpec, params: tuple[Parameter, ...], **hparams: Any
) -> torch.optim.Optimizer:
    for module in spec.requires:
        pytest.importorskip(module)
    assert callable(spec.build)
    built: torch.optim.Optimizer = spec.build(
        context(params, total_steps=STEPS), {**spec.defaults(), **hparams}
    )
    return built


def go(
    optimizer: torch.optim.Optimizer, params: tuple[Parameter, ...], steps: int, start: int = 0
) -> None:
    known = [gradients(param.info.shape, STEPS, index) for index, param in enumerate(params)]

    def grad_of(index: int, t: int) -> Array:
        return known[index][t]

    drive(optimizer, params, steps, start=start, total=STEPS, grad_of=grad_of)


def apart(one: tuple[Parameter, ...], other: tuple[Parameter, ...]) -> float:
    pairs = zip(values(one), values(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


COMMON = {"lr": 0.02, "weight_decay": 0.1, "embed_multiplier": 3.0, "refresh_fraction": 0.2}


@pytest.mark.parametrize(
    "changes", [{}, {"rank_fraction": 0.5, "eps": 1e-3, "alpha": 1.0}], ids=str
)
def test_galore_goes_where_its_package_goes(changes: Mapping[str, Any]) -> None:
    """Tall and wide, across four refreshes; singular vectors as they come, from one library."""
    one, other = parameters(MODEL), parameters(MODEL)
    theirs = make(galore_official.SPEC, one, **COMMON, **changes)
    ours = make(galore.SPEC, other, **COMMON, **changes)
    go(theirs, one, STEPS)
    go(ours, other, STEPS)
    assert theirs.refreshes == ours.refreshes == 4  # type: ignore[attr-defined]
    assert apart(one, other) < TOLERANCE
    assert apart(one, parameters(MODEL)) > 0.05


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scaling": "tensor", "scale": 8.0, "rank_fraction": 0.05},
        {"scale": 4.0, "scale_front": True, "eps": 1e-3},
        {"limited": False},
    ],
    ids=str,
)
def test_apollo_goes_where_its_package_goes(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projectors that the package draws, given to ours."""
    pytest.importorskip("apollo_torch")
    from apollo_torch.random_projector import next_seed

    def drawn(matrix: Tensor, rank: int, seed: int) -> Tensor:
        rows, columns = matrix.shape
        shape = (rank, columns) if rows >= columns else (rows, rank)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / math.sqrt(rank)

    one, other = parameters(MODEL), parameters(MODEL)
    limited = changes.get("limited", True)
    same = {key: value for key, value in changes.items() if key != "limited"}
    theirs = make(apollo_official.SPEC, one, **COMMON, **changes)
    ours = make(apollo.SPEC, other, **COMMON, **same, growth=1.01 if limited else None)
    # Before or after the limiter, the factor ends at the same numbers: only the flag tells.
    assert theirs.scale_front == changes.get("scale_front", False)  # type: ignore[attr-defined]
    # A seed there is the parameter's number among the groups, which are by rank; here it is its
    # number in the model.
    order = [id(param) for group in theirs.param_groups for param in group["params"]]
    numbers = [1 + order.index(id(param.tensor)) for param in one]

    def seed_of(seed: int, position: int, number: int) -> int:
        chained = numbers[position - 1]
        for _ in range(number - 1):
            chained = next_seed(chained)
        return chained

    monkeypatch.setattr(_apollo, "projector_seed", seed_of)
    monkeypatch.setattr(_apollo, "random_projector", drawn)
    go(theirs, one, STEPS)
    go(ours, other, STEPS)
    assert theirs.refreshes == ours.refreshes == 4  # type: ignore[attr-defined]
    assert apart(one, other) < TOLERANCE
    assert apart(one, parameters(MODEL)) > 0.05


# --- claims -------------------------------------------------------------------------------------


@over_official
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fraction", [0.25, 0.6])
def test_state_bytes_are_as_claimed(name: str, dtype: torch.dtype, fraction: float) -> None:
    spec = OFFICIAL[name]
    params = parameters(((*MODEL, ((4, 2, 6), "matrix"), ((1, 7), "matrix"))), dtype)
    optimizer = make(spec, params, rank_fraction=fraction, refresh_fraction=0.04)
    hparams = {**spec.defaults(), "rank_fraction": fraction}
    infos = [param.info for param in params]
    if name == "apollo_official":  # its projection of more dimensions is none
        infos = [
            ParamInfo(name="cube", shape=info.shape, role="vector", dtype=info.dtype)
            if len(info.shape) > 2
            else info
            for info in infos
        ]
    go(optimizer, params, 5)
    assert state_bytes([optimizer]) == spec.state_bytes(infos, hparams, 1.0)
    assert optimizer.refreshes == 2  # type: ignore[attr-defined]


def test_claims_by_hand() -> None:
    infos = [
        ParamInfo(name="a", shape=(60, 20), role="matrix"),
        ParamInfo(name="b", shape=(20, 60), role="matrix", dtype="bfloat16"),
        ParamInfo(name="e", shape=(11, 4), role="embed"),
        ParamInfo(name="h", shape=(11, 4), role="head", tied_to="e"),
    ]
    rest, moments = 2 * 4 * 44, 2 * 5 * 60 * (4 + 2)
    held = galore_official.SPEC.state_bytes(infos, galore_official.SPEC.defaults(), 1.0)
    assert held == rest + moments + 4 * 20 * 20 + 2 * 5 * 20
    held = apollo_official.SPEC.state_bytes(infos, apollo_official.SPEC.defaults(), 1.0)
    assert held == rest + moments + 5 * 20 * (4 + 2)


@over_official
def test_groups_have_one_rank_each_and_every_parameter_once(name: str) -> None:
    params = parameters(MODEL)
    hparams = {**OFFICIAL[name].defaults(), "weight_decay": 0.1}
    groups = _official.ranked_groups(context(params, total_steps=STEPS), hparams, extra=1)
    seen = [id(tensor) for group in groups for tensor in group["params"]]
    assert sorted(seen) == sorted(id(param.tensor) for param in params)
    for group in groups:
        if group["role"] != "matrix":
            assert "rank" not in group
            continue
        ranks = {max(1, round(0.25 * min(tensor.shape))) for tensor in group["params"]}
        assert ranks == {group["rank"]}
        assert (group["update_proj_gap"], group["extra"]) == (2, 1)


@over_official
def test_round_trip_goes_on_bit_for_bit(name: str) -> None:
    params = parameters(MODEL)
    optimizer = make(OFFICIAL[name], params, **COMMON)
    saved = {}
    for t in range(14):
        saved[t] = (values(params), copy.deepcopy(optimizer.state_dict()))
        go(optimizer, params, 1, start=t)
    for t in (0, 1, 9, 10, 11):
        others = parameters(MODEL)
        resumed = make(OFFICIAL[name], others, **COMMON)
        with torch.no_grad():
            for param, value in zip(others, saved[t][0], strict=True):
                param.tensor.copy_(value)
        resumed.load_state_dict(saved[t][1])
        go(resumed, others, 14 - t, start=t)
        assert same_bits(values(params), values(others))
        assert resumed.refreshes == 1  # type: ignore[attr-defined]


@over_official
def test_without_its_package_a_method_is_unavailable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = OFFICIAL[name].requires[0]
    monkeypatch.setattr(registry, "_importable", lambda module: module != package)
    with pytest.raises(BenchError, match=f"{name} needs {package}, which is not installed"):
        study.load_method(name)


def test_apollos_package_stays_behind_after_a_first_gradient_of_zeros() -> None:
    """What its spec says that it cannot; ours starts anew."""
    ends = []
    for spec in (apollo_official.SPEC, apollo.SPEC):
        params = parameters([((24, 10), "matrix")])
        optimizer = make(spec, params, lr=0.02)
        before = values(params)[0]
        known = [np.zeros((24, 10)), *gradients((24, 10), STEPS, 0)]
        drive(optimizer, params, 10, total=STEPS, grad_of=lambda index, t, k=known: k[t])
        ends.append(float((values(params)[0] - before).norm()))
    assert "zero_gradients" in apollo_official.SPEC.cannot
    assert ends[0] < 1e-6 < 1e-2 < ends[1]
