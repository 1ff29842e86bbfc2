"""Our methods against numbers that the authors' own code gave for the same weights and gradients.

What is kept of their runs lies in `golden/*.json`, with the commit; `golden.inputs` makes what both
sides are given. Random draws are replaced on both sides by the same numbers, and singular vectors
get the same signs, in which LAPACKs differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers import _apollo, _frugal, apollo, foam, frugal, galore
from levelfield.tests.golden import inputs
from levelfield.tests.optimizer_cases import context

TOLERANCE = 5e-6
"""Of a weight or norm, relative to one plus its size: float32 sums in another order. Rates are .02,
so a single step that differs, or one sign, would be thousands of times that."""

KEPT = {name: inputs.read(name) for name in ("frugal", "foam", "galore", "apollo")}


def cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", list(KEPT[name]["cases"]))


def run(spec: OptimizerSpec, hparams: Mapping[str, Any], steps: int) -> Any:
    """What is kept of a run of ours."""
    params = inputs.parameters()
    assert callable(spec.build)
    optimizer = spec.build(context(params, total_steps=steps), {**spec.defaults(), **hparams})
    return inputs.drive(optimizer, params, steps)


def compare(name: str, spec: OptimizerSpec, case: str, **changes: Any) -> float:
    """Largest difference from what is kept under a case, with hyper-parameters changed."""
    kept = KEPT[name]
    told = kept["cases"][case]
    assert set(told["hparams"]) <= set(spec.defaults())
    found = run(spec, {**told["hparams"], **changes}, kept["steps"])
    return inputs.worst(found, told["params"])


@pytest.fixture
def same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10_000))

    def select(columns: int, active: int, generator: torch.Generator) -> Tensor:
        return inputs.permutation(next(calls), columns)[:active].clone()

    monkeypatch.setattr(_frugal, "select_columns", select)


@pytest.fixture
def same_projectors(monkeypatch: pytest.MonkeyPatch) -> None:
    singular = galore.singular_projector

    def signed(matrix: Tensor, rank: int) -> Tensor:
        return inputs.fixed_signs(singular(matrix, rank), int(matrix.shape[0] >= matrix.shape[1]))

    def drawn(matrix: Tensor, rank: int, seed: int) -> Tensor:
        rows, columns = matrix.shape
        shape = (rank, columns) if rows >= columns else (rows, rank)
        return inputs.normal(seed // 100, seed % 100, shape) / math.sqrt(rank)

    monkeypatch.setattr(galore, "singular_projector", signed)
    monkeypatch.setattr(_apollo, "projector_seed", lambda seed, at, number: 100 * at + number)
    monkeypatch.setattr(_apollo, "random_projector", drawn)


@pytest.mark.parametrize("name", list(KEPT))
def test_the_inputs_are_those_of_the_authors_run(name: str) -> None:
    np.testing.assert_allclose(inputs.fingerprint(), KEPT[name]["fingerprint"], rtol=1e-6)
    for told in KEPT[name]["cases"].values():
        for param, kept in zip(inputs.parameters(), told["params"], strict=True):
            start = np.asarray(inputs.entries(param.tensor))
            assert np.abs(np.asarray(kept["entries"]) - start).max() > 0.05  # it has moved


@pytest.mark.usefixtures("same_columns")
@cases("frugal")
def test_frugal(case: str) -> None:
    """Blocks, columns and singular vectors over three refreshes."""
    assert compare("frugal", frugal.SPEC, case) < TOLERANCE


@cases("foam")
def test_foam(case: str) -> None:
    """Levels 0 to 5, widths that fill no whole number of blocks, with and without the residual."""
    assert compare("foam", foam.SPEC, case) < TOLERANCE


@pytest.mark.usefixtures("same_projectors")
@cases("galore")
def test_galore(case: str) -> None:
    """Four refreshes in 50 steps, moments going on in the new basis."""
    assert compare("galore", galore.SPEC, case) < TOLERANCE


@pytest.mark.usefixtures("same_projectors")
@pytest.mark.parametrize("projector", ["regenerated", "kept"])
@cases("apollo")
def test_apollo(case: str, projector: str) -> None:
    """Channels and tensors, with and without the limiter, its factor before or after it."""
    assert compare("apollo", apollo.SPEC, case, projector=projector) < TOLERANCE


@pytest.mark.usefixtures("same_columns", "same_projectors")
@pytest.mark.parametrize(
    ("name", "spec", "case", "changes"),
    [
        ("frugal", frugal.SPEC, "block-descending", {"block_order": "ascending"}),
        ("frugal", frugal.SPEC, "block-descending", {"refresh_fraction": 1.0}),
        ("frugal", frugal.SPEC, "column", {"inactive_lr_scale": 0.99}),
        ("frugal", frugal.SPEC, "column", {"weight_decay": 0.101}),
        ("frugal", frugal.SPEC, "svd", {"selection": "column"}),
        ("frugal", frugal.SPEC, "column-small-rest", {"eps": 1.1e-3}),
        ("foam", foam.SPEC, "level-1", {"second_moment": "sq_of_mean"}),
        ("foam", foam.SPEC, "level-2", {"residual": False}),
        ("foam", foam.SPEC, "level-2", {"beta2": 0.951}),
        ("galore", galore.SPEC, "half", {"eps_placement": "after"}),
        ("galore", galore.SPEC, "half", {"decay_order": "before"}),
        ("galore", galore.SPEC, "half", {"refresh_fraction": 0.4}),
        ("apollo", apollo.SPEC, "channel", {"growth": None}),
        ("apollo", apollo.SPEC, "channel", {"scaling": "tensor"}),
        ("apollo", apollo.SPEC, "channel-front", {"scale": 4.01}),
        ("apollo", apollo.SPEC, "channel-free", {"decay_order": "before"}),
    ],
)
def test_another_rule_would_be_seen(
    name: str, spec: OptimizerSpec, case: str, changes: dict[str, Any]
) -> None:
    assert compare(name, spec, case, **changes) > 10 * TOLERANCE
