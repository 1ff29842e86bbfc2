"""Claimed bytes of state, by two routes that know nothing of each other, on LLaMAs of odd shapes.

One walks whatever the optimizers hold. The other counts live memory: what is there after a step
beyond weights, gradients and the loss is what the method has kept, wherever it keeps it.
"""

from __future__ import annotations

import gc

import pytest
import torch

from levelfield.bench import models
from levelfield.bench.build import build_stepper, claimed_state_bytes
from levelfield.bench.check_claims import CONSTANTS, scalars
from levelfield.bench.meter import StorageTracker, state_bytes
from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.bench.spec import Model, OptimizerSpec, Protocol
from levelfield.bench.stepper import StepBatch
from levelfield.tests import small

STEPS = 2
VOCABULARY = 37
MODELS = {
    "odd": Model(hidden=18, layers=1, heads=3, intermediate=25),
    "tied": Model(hidden=24, layers=2, heads=2, intermediate=17, tied=True),
    "narrow": Model(hidden=10, layers=1, heads=1, intermediate=41),
}
"""Odd widths, tall and flat matrices, one head and several, a tied head."""


@pytest.fixture(params=whole_model(OPTIMIZERS.entries()))
def spec(request: pytest.FixtureRequest) -> OptimizerSpec:
    return small.available(request.param)


@pytest.mark.parametrize("config", MODELS.values(), ids=list(MODELS))
def test_claimed_walked_and_allocated_bytes_are_equal(spec: OptimizerSpec, config: Model) -> None:
    asked: Protocol = small.changed(model=config, steps=STEPS)
    model = models.build_model(config, VOCABULARY, 8, 0)
    params = models.parameters(model)
    infos = tuple(param.info for param in params)
    hparams = spec.defaults()
    tokens = torch.randint(VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(0))

    def loss(generator: torch.Generator | None = None) -> torch.Tensor:
        logits = model(input_ids=tokens).logits.reshape(-1, VOCABULARY)
        labels = tokens.reshape(-1)
        if generator is not None:
            labels = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
        return torch.nn.functional.cross_entropy(logits, labels)

    tracker = StorageTracker([*model.parameters(), *model.buffers(), tokens])
    before = tracker.live_bytes
    with tracker:
        stepper = build_stepper(spec, asked, model, params, hparams, 0)
        for _ in range(STEPS):
            stepper.step(StepBatch([loss], tokens.numel(), sampled_losses=[loss]), 1.0)
    gc.collect()
    assert all(param.tensor.grad is None for param in params)
    claimed = claimed_state_bytes(spec, asked, infos, hparams, 1.0)
    assert state_bytes(stepper.optimizers) == claimed
    kept = tracker.live_bytes - before - scalars(stepper.optimizers) - claimed
    # A library may keep tables of constants, which do not grow with the model.
    assert kept == 0 or (spec.requires and 0 < kept <= CONSTANTS), kept
