"""`levelfield check`: a good method passes every line, a broken one fails its own and no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from levelfield.bench.check import CHECKS, Check, run_checks
from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.bench.spec import OptimizerSpec
from levelfield.bench.stepper import BuildContext, GradientStepper, StepBatch, StepResult
from levelfield.tests import small
from levelfield.tests.plugins.conformance import BROKEN, GOOD, Good

QUICK = (
    *("record", "roles", "convex", "rosenbrock", "matrix", "mixed", "schedule", "accumulation"),
    *("clipping", "closure", "groups", "no gradient", "zero gradients", "scalars", "vectors"),
    *("empty", "frozen", "strided"),
)
"""What takes no time, and what no other test tries over all methods."""
FAILS_TOO = {"deterministic": {"round trip"}}
"""What cannot be right either: a run that does not repeat does not resume."""


def found(spec: OptimizerSpec, only: Iterable[str] = CHECKS) -> dict[str, Check]:
    return {item.name: item for item in run_checks(spec, only) if item.name != "time"}


def outcomes(checks: dict[str, Check], outcome: str) -> dict[str, str]:
    return {name: item.reason for name, item in checks.items() if item.outcome == outcome}


@pytest.fixture(params=whole_model(OPTIMIZERS.entries()))
def spec(request: pytest.FixtureRequest) -> OptimizerSpec:
    return small.available(request.param)


def test_every_check_has_a_method_that_fails_it() -> None:
    assert list(BROKEN) == list(CHECKS)


def test_a_good_method_passes_every_check() -> None:
    checks = found(GOOD)
    assert list(checks) == list(CHECKS)
    assert {name: item for name, item in checks.items() if item.outcome != "passed"} == {}
    assert all(item.reason.strip() for item in checks.values())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_method_fails_its_check(name: str) -> None:
    checks = found(BROKEN[name], [name])
    assert checks[name].outcome == "failed", checks[name].reason


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_method_fails_no_other_check(name: str) -> None:
    failed = outcomes(found(BROKEN[name]), "failed")
    assert set(failed) == {name} | FAILS_TOO.get(name, set()), failed


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("grad_accumulation", "accumulation"),
        ("clipping", "clipping"),
        ("closure", "closure"),
        ("separate_groups", "groups"),
        ("zero_gradients", "zero gradients"),
        ("scalar", "scalars"),
        ("vector", "vectors"),
        ("empty", "empty"),
        ("strided", "strided"),
        ("bf16", "bf16 weights"),
    ],
)
def test_what_is_declared_is_unsupported_and_not_tried(word: str, name: str) -> None:
    checks = found(replace(BROKEN[name], cannot=(word,)), [name])
    assert checks[name].outcome == "unsupported"
    assert word in checks[name].reason


class NeedsLogits(GradientStepper):
    """Stands for a method that looks into the model: it knows the language model's loss alone."""

    def step(self, batch: StepBatch, lr_scale: float) -> StepResult:
        if "CausalLM" not in repr(batch.losses[0]):
            raise RuntimeError("no logits")
        return super().step(batch, lr_scale)


def test_a_method_that_needs_a_model_is_tried_on_one() -> None:
    """Its own stepper cannot drive bare parameters: the language model stands in, and is named."""

    def build(ctx: BuildContext, hparams: Mapping[str, Any]) -> NeedsLogits:
        return NeedsLogits([Good(ctx, ctx.groups(hparams))], clip_norm=ctx.clip_norm)

    told = found(replace(GOOD, build=build), ["convex"])["convex"]
    assert told.outcome == "passed"
    assert told.reason.startswith("on the tiny LM, as bare parameters do not do (no logits)")


def test_every_method_passes_the_quick_checks(spec: OptimizerSpec) -> None:
    assert outcomes(found(spec, QUICK), "failed") == {}


@pytest.mark.slow
def test_every_method_passes_every_check(spec: OptimizerSpec) -> None:
    assert outcomes(found(spec), "failed") == {}
