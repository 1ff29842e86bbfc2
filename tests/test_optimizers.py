"""Every registered method on a real tiny LLaMA: whatever its record claims is measured.

An exception to a rule is a fact in the record (`roles`, `cannot`, `schedule`, `switches`), never a
name here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from levelfield.bench.build import build_stepper, claimed_state_bytes
from levelfield.bench.meter import state_bytes
from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.bench.spec import ROLES, Model, OptimizerSpec, ParamInfo, Protocol, Role
from levelfield.bench.stepper import Parameter, StepBatch, Stepper
from levelfield.bench.store import comparable
from levelfield.bench.train import Trial
from levelfield.tests import small

STEPS = 40
MODELS = {
    "wide": Model(hidden=16, layers=1, heads=2, intermediate=40),
    "tied": Model(hidden=24, layers=2, heads=3, intermediate=20, tied=True),
}
over_models = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


@pytest.fixture(params=whole_model(OPTIMIZERS.entries()))
def spec(request: pytest.FixtureRequest) -> OptimizerSpec:
    return small.available(request.param)


def protocol(model: Model = MODELS["wide"], **fields: Any) -> Protocol:
    return small.changed(model=model, **{"steps": STEPS, **fields})


def start(spec: OptimizerSpec, protocol: Protocol, seed: int = 0, **hparams: Any) -> Trial:
    """A trial before its first step."""
    asked = small.request(spec.name, protocol, seed=seed, **hparams)
    trial = Trial(asked, lambda progress: None)
    trial.load()
    trial.setup()
    return trial


def go(trial: Trial, steps: int) -> None:
    for _ in range(steps):
        trial.one_step()


def weights(trial: Trial) -> list[Tensor]:
    return [param.tensor.detach().clone() for param in trial.params]


def same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- the record -------------------------------------------------------------------------------


def test_record(spec: OptimizerSpec) -> None:
    for name, dim in spec.space.items():
        assert dim.bounds[0] <= dim.default <= dim.bounds[1], name
        assert dim.value(dim.coordinate(dim.default)) == pytest.approx(dim.default, rel=1e-5)
    scale = spec.space[spec.scale]
    assert scale.scale == "log"
    assert scale.low <= scale.default <= scale.high
    assert spec.passes > 0
    assert len(set(spec.roles)) == len(spec.roles)
    for text in (spec.name, spec.family, spec.summary, spec.paper, spec.implementation):
        assert text.strip()
    assert len(spec.summary) <= 90
    assert "\n" not in spec.summary
    # The plain method that all are compared with has one rate, and so may its own rungs; everything
    # else tunes the largest confound there is.
    plain = OPTIMIZERS.load(small.PROTOCOL.reference).value
    assert "embed_multiplier" not in plain.space
    assert "embed_multiplier" in spec.space or spec.build is plain.build


def test_switches_lie_in_the_run_and_refreshes_are_named(spec: OptimizerSpec) -> None:
    for total in (STEPS, 400):
        steps = spec.switches(spec.defaults(), total)
        assert list(steps) == sorted(set(steps))
        assert all(0 <= step <= total for step in steps)
    if spec.refreshes is not None:
        assert spec.refreshes.strip()


# --- claims -----------------------------------------------------------------------------------


@over_models
def test_state_is_what_is_claimed(spec: OptimizerSpec, model: Model) -> None:
    trial = start(spec, protocol(model))
    infos = tuple(param.info for param in trial.params)
    hparams = trial.request.hparams
    for step in (STEPS // 2, STEPS):
        go(trial, step - trial.step)
        held = state_bytes(trial.stepper.optimizers)
        claimed = claimed_state_bytes(spec, trial.protocol, infos, hparams, step / STEPS)
        if step == STEPS or not spec.switches(hparams, STEPS):
            assert held == claimed
        else:  # what a method that switches holds on the way may depend on losses: a bound then
            assert 0 < held <= claimed
    trial.collect()
    assert (trial.refreshes is None) == (spec.refreshes is None)


def test_passes_are_what_is_claimed(spec: OptimizerSpec) -> None:
    asked = protocol()
    record = small.train(spec.name, asked)
    assert record.steps == STEPS, record.reason
    # A controller is charged a third of a pass for what it reads of the control slice.
    read = asked.evaluation.sequences * asked.data.sequence / asked.tokens_per_step / 3
    readings = STEPS // asked.evaluation.every + 1 if start(spec, asked).stepper.observes else 0
    passes = spec.passes * STEPS + readings * read
    assert record.passes == pytest.approx(passes, rel=0.05)
    assert record.claimed_state_bytes == record.state_bytes


def test_bf16_state_is_what_is_claimed_and_weights_stay_finite(spec: OptimizerSpec) -> None:
    if "bf16" in spec.cannot:
        assert small.train(spec.name, protocol(precision="bf16")).status == "unsupported"
        return
    trial = start(spec, protocol(precision="bf16"))
    before = weights(trial)
    go(trial, STEPS)
    assert all(torch.isfinite(param.tensor).all() for param in trial.params)
    assert not same_bits(before, weights(trial))
    infos = tuple(param.info for param in trial.params)
    claimed = claimed_state_bytes(spec, trial.protocol, infos, trial.request.hparams, 1.0)
    assert state_bytes(trial.stepper.optimizers) == claimed


# --- training ---------------------------------------------------------------------------------


def test_the_loss_falls_at_some_rate(spec: OptimizerSpec) -> None:
    dim = spec.space[spec.scale]
    seen = {}
    for factor in (1.0, 10.0, 0.1, 100.0):
        value = min(max(dim.default * factor, dim.bounds[0]), dim.bounds[1])
        record = small.train(spec.name, protocol(), **{spec.scale: value})
        seen[value] = (record.status, record.reason)
        if record.status == "ok":
            return
    pytest.fail(f"no {spec.scale} works: {seen}")


def test_two_runs_are_equal_and_a_third_seed_differs(spec: OptimizerSpec) -> None:
    one, again, other = (small.train(spec.name, seed=seed) for seed in (1, 1, 2))
    assert comparable(one) == comparable(again)
    assert one.train_loss != other.train_loss


def test_a_round_trip_goes_on_bit_for_bit(spec: OptimizerSpec) -> None:
    """Saved before and after every switch, at the start, midway and at the end."""
    asked = protocol(MODELS["tied"])
    straight = start(spec, asked)
    switches = spec.switches(straight.request.hparams, STEPS)
    points = {0, 1, 2, STEPS // 2, STEPS - 1, *switches, *(step + 1 for step in switches)}
    saved, after = {}, []
    for step in range(STEPS):
        if step in points:
            saved[step] = (weights(straight), copy.deepcopy(straight.stepper.state_dict()))
        go(straight, 1)
        after.append(weights(straight))
    for step, (values, state) in saved.items():
        resumed = start(spec, asked)
        for _ in range(step):
            resumed.order.next()
        resumed.step = step
        with torch.no_grad():
            for param, value in zip(resumed.params, values, strict=True):
                param.tensor.copy_(value)
        resumed.stepper.load_state_dict(state)
        last = min(step + 3, STEPS)
        go(resumed, last - step)
        assert same_bits(weights(resumed), after[last - 1]), f"after a round trip at step {step}"


# --- odd parameters ---------------------------------------------------------------------------


class Bare(nn.Module):
    """Parameters without a network: the loss is the square of all but the unused ones."""

    def __init__(self, tensors: Sequence[Tensor], unused: Sequence[int]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)
        self.unused = set(unused)

    def loss(self) -> Tensor:
        used = (param for index, param in enumerate(self.all) if index not in self.unused)
        return torch.stack([(param - 0.3).square().sum() for param in used]).sum()


def odd_tensors() -> dict[str, tuple[Role, Tensor]]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))

    return {
        "used": ("matrix", random(6, 4)),
        "unused": ("matrix", random(5, 3)),
        "scalar": ("vector", random()),
        "one": ("vector", random(1)),
        "vector": ("vector", random(7)),
        "no rows": ("matrix", random(0, 4)),
        "no columns": ("matrix", random(4, 0)),
        "nothing": ("vector", random(0)),
        "row": ("matrix", random(1, 9)),
        "column": ("matrix", random(9, 1)),
        "cube": ("matrix", random(2, 3, 4)),
        "transposed": ("matrix", random(8, 5).t()),
        "strided": ("matrix", random(6, 10)[:, ::2]),
        "embed": ("embed", random(11, 4)),
        "transposed head": ("head", random(4, 11).t()),
    }


def bare(
    spec: OptimizerSpec, tensors: dict[str, tuple[Role, Tensor]]
) -> tuple[Stepper, tuple[Parameter, ...], Bare]:
    model = Bare([tensor for _, tensor in tensors.values()], [list(tensors).index("unused")])
    params = tuple(
        Parameter(ParamInfo(name=name, shape=tuple(param.shape), role=role), param)
        for (name, (role, _)), param in zip(tensors.items(), model.all, strict=True)
    )
    asked = replace(protocol(), clip_norm=None)
    return build_stepper(spec, asked, model, params, spec.defaults(), 0), params, model


def test_odd_parameters(spec: OptimizerSpec) -> None:
    """One by one beside a plain matrix: finite, moved, and left alone without a gradient."""
    wrong: dict[str, str] = {}
    for name, (_, tensor) in odd_tensors().items():
        asked = {k: v for k, v in odd_tensors().items() if k in ("used", "unused", name)}
        stepper, params, model = bare(spec, asked)
        before = {param.info.name: param.tensor.detach().clone() for param in params}
        try:
            for _ in range(6):
                stepper.step(StepBatch([model.loss], 1), 1.0)
        except Exception as error:
            if tensor.numel() or "empty" not in spec.cannot:
                wrong[name] = repr(error)
            continue
        after = {param.info.name: param.tensor.detach() for param in params}
        if not all(torch.isfinite(value).all() for value in after.values()):
            wrong[name] = "not finite"
        elif not torch.equal(before["unused"], after["unused"]):
            wrong[name] = "moved without a gradient"
        elif name != "unused" and tensor.numel() and torch.equal(before[name], after[name]):
            wrong[name] = "not moved"
    assert wrong == {}


def test_a_model_without_the_roles_is_refused(spec: OptimizerSpec) -> None:
    others = [role for role in ROLES if role not in spec.roles]
    if not others:
        return
    tensors: dict[str, tuple[Role, Tensor]] = {
        "used": (others[0], torch.ones(3)),
        "unused": (others[0], torch.ones(3)),
    }
    with pytest.raises(Exception, match="this model has none"):
        bare(spec, tensors)
