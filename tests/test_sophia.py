"""Sophia-G against its equations, and that its curvature comes from labels of the model's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from levelfield.bench import models, next_token
from levelfield.bench.check import Bench
from levelfield.bench.spec import BenchError, Model
from levelfield.bench.stepper import BuildContext, Parameter, StepBatch
from levelfield.optimizers.sophia import (
    SPEC,
    SophiaG,
    SophiaStepper,
    build,
    hessian_beta,
    sophia_direction,
)
from levelfield.tests.curvature_cases import MODEL, NoHostReads, Promises
from levelfield.tests.optimizer_cases import (
    Array,
    context,
    gradients,
    lr_scales,
    parameters,
    same_bits,
    values,
)

STEPS = 24
SCALES = lr_scales(STEPS)


class TestPromises(Promises):
    spec = SPEC


def make(
    params: tuple[Parameter, ...], total: int = STEPS, clip_norm: float | None = 1.0, **changes: Any
) -> tuple[SophiaStepper, Mapping[str, Any]]:
    hparams = {**SPEC.defaults(), **changes}
    known = context(params, total_steps=total)
    fields = {name: getattr(known, name) for name in known.__slots__}
    return build(BuildContext(**{**fields, "clip_norm": clip_norm}), hparams), hparams


def linear(params: Sequence[Parameter], grads: Sequence[Array]) -> Tensor:
    """A loss whose gradient is given."""
    parts = [
        (param.tensor * torch.as_tensor(grad, dtype=param.tensor.dtype)).sum()
        for param, grad in zip(params, grads, strict=True)
    ]
    return torch.stack([part.double() for part in parts]).sum()


class Known:
    """Gradients of the data's labels and of drawn ones, for every step."""

    def __init__(self, params: Sequence[Parameter], steps: int = STEPS) -> None:
        shapes = [param.info.shape for param in params]
        self.params = params
        self.plain = [gradients(shape, steps, i) for i, shape in enumerate(shapes)]
        self.drawn = [gradients(shape, steps, 50 + i) for i, shape in enumerate(shapes)]

    def batch(self, t: int) -> StepBatch:
        def sampled(generator: torch.Generator) -> Tensor:
            return linear(self.params, [grads[t] for grads in self.drawn])

        def plain() -> Tensor:
            return linear(self.params, [grads[t] for grads in self.plain])

        return StepBatch([plain], 64, sampled_losses=[sampled])


def run(stepper: SophiaStepper, known: Known, start: int = 0, stop: int = STEPS) -> float:
    """Take steps; the passes that they took."""
    passes = 0.0
    for t in range(start, stop):
        batch = known.batch(t)
        stepper.step(batch, SCALES[t % STEPS])
        passes += batch.passes
    return passes


def textbook(
    starts: Sequence[Array], known: Known, wd: Sequence[float], lr: Sequence[float], h: Any
) -> tuple[list[Array], list[float]]:
    """Liu et al., algorithm 3 with algorithm 2, over all parameters: clipping is by their norm.

    Returns the parameters, and after each estimate the share of elements that are not clipped.
    """
    p = [start.copy() for start in starts]
    m = [np.zeros_like(start) for start in starts]
    hess = [np.zeros_like(start) for start in starts]
    win_rate: list[float] = []

    def clipped(grads: Sequence[Array]) -> list[Array]:
        norm = np.sqrt(sum(float((g**2).sum()) for g in grads))
        return [g * min(1.0, h["clip_norm"] / (norm + 1e-6)) for g in grads]

    def estimate(t: int) -> None:
        ghat = [grads[t] for grads in known.drawn]
        ghat = clipped(ghat) if h["clip_hessian"] else ghat
        for i, g in enumerate(ghat):
            hess[i] = h["b2"] * hess[i] + (1 - h["b2"]) * g**2
        wins = [np.abs(one) < h["rho"] * 64 * below for one, below in zip(m, hess, strict=True)]
        win_rate.append(sum(win.sum() for win in wins) / sum(win.size for win in wins))

    for t in range(STEPS):
        if h["hessian_at"] == "start" and t % h["hessian_every"] == 0:
            estimate(t)
        for i, g in enumerate(clipped([grads[t] for grads in known.plain])):
            rate = lr[i] * SCALES[t]
            m[i] = h["beta1"] * m[i] + (1 - h["beta1"]) * g
            below = h["rho"] * 64 * hess[i]
            added = h["eps_placement"] == "added"
            below = below + h["eps"] if added else np.maximum(below, h["eps"])
            ratio = np.minimum(np.abs(m[i]) / below, 1.0)
            p[i] = (1 - rate * wd[i]) * p[i] - rate * np.sign(m[i]) * ratio
        if h["hessian_at"] == "end" and (t + 1) % h["hessian_every"] == 0:
            estimate(t)
    return p, win_rate


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"hessian_every": 3, "hessian_at": "start", "clip_hessian": False, "rho": 0.01},
    {"eps_placement": "floor", "eps": 1e-2, "embed_multiplier": 3.0},
    {"eps_placement": "added", "eps": 1e-2, "memory_fraction": 10.0, "hessian_every": 2},
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_matches_its_textbook_reference(changes: dict[str, Any]) -> None:
    params = parameters(MODEL, torch.float64)
    start = [value.numpy() for value in values(params)]
    common = {"lr": 0.02, "weight_decay": 0.3, "hessian_every": 5}
    stepper, h = make(params, **{**common, **changes})
    known = Known(params)
    run(stepper, known)
    roles = [param.info.role for param in params]
    table = h["embed_multiplier"]
    expected, rates = textbook(
        start,
        known,
        [0.0 if role == "vector" else 0.3 for role in roles],
        [0.02 * (table if role in ("embed", "head") else 1.0) for role in roles],
        {**h, "clip_norm": 1.0, "b2": hessian_beta(h, STEPS)},
    )
    for param, want in zip(params, expected, strict=True):
        np.testing.assert_allclose(
            param.tensor.detach().numpy(), want, rtol=0, atol=1e-10, err_msg=param.info.name
        )
    win_rate = [rate for _, rate in stepper.sophia.series["win_rate"]]
    np.testing.assert_allclose(win_rate, rates, rtol=1e-6)
    assert any(0.0 < rate < 1.0 and rate != 0.5 for rate in win_rate)
    assert stepper.sophia.refreshes == len(win_rate) >= 4


def test_until_the_first_estimate_it_is_the_sign_of_momentum() -> None:
    params = parameters(MODEL, torch.float64)
    start = values(params)
    stepper, _ = make(params, lr=0.01, weight_decay=0.0)
    known = Known(params)
    stepper.step(known.batch(0), 1.0)
    for i, (old, param) in enumerate(zip(start, params, strict=True)):
        sign = torch.as_tensor(np.sign(known.plain[i][0]))
        torch.testing.assert_close(param.tensor.detach(), old - 0.01 * sign, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("at", "seen"), [("end", [5, 10, 15, 20]), ("start", [0, 5, 10, 15, 20])])
def test_estimates_come_every_k_steps_and_cost_a_pass(at: str, seen: list[int]) -> None:
    params = parameters(MODEL)
    stepper, h = make(params, hessian_every=5, hessian_at=at)
    passes = run(stepper, Known(params))
    assert passes == pytest.approx(STEPS + len(seen))
    assert [step for step, _ in stepper.sophia.series["win_rate"]] == seen
    assert SPEC.switches(h, STEPS) == tuple(seen)
    assert SPEC.passes == 1 + 1 / SPEC.fixed["hessian_every"]
    assert len(SPEC.switches(SPEC.defaults(), 400)) == 39


def test_drawn_labels_never_enter_the_momentum_and_data_never_the_curvature() -> None:
    momenta, curvatures = [], []
    for other_drawn, other_plain in ((False, False), (True, False), (False, True)):
        params = parameters(MODEL, torch.float64)
        stepper, _ = make(params, hessian_every=2)
        known = Known(params)
        if other_drawn:
            known.drawn = [[-2 * g[::-1] for g in grads] for grads in known.drawn]
        if other_plain:
            known.plain = [[-g[::-1] for g in grads] for grads in known.plain]
        run(stepper, known, stop=6)
        state = [stepper.sophia.state[param.tensor] for param in params]
        momenta.append([s["exp_avg"].clone() for s in state])
        curvatures.append([s["hessian"].clone() for s in state])
        assert all(param.tensor.grad is None for param in params)
    assert same_bits(momenta[0], momenta[1])
    assert not same_bits(momenta[0], momenta[2])
    assert same_bits(curvatures[0], curvatures[2])
    assert not same_bits(curvatures[0], curvatures[1])


def test_twice_the_batch_halves_what_is_not_clipped() -> None:
    m, h = torch.tensor([0.1, -0.2, 3.0]), torch.tensor([1.0, 2.0, 1e-9])
    one = sophia_direction(m, h, 0.05 * 64, 0.0, floor=False)
    two = sophia_direction(m, h, 0.05 * 128, 0.0, floor=False)
    torch.testing.assert_close(two[:2], one[:2] / 2)
    assert one[2] == two[2] == 1.0
    ends = []
    for tokens in (64, 128):
        param = nn.Parameter(torch.zeros(2))
        optimizer = SophiaG([param], lr=1.0, batch_tokens=tokens, beta2=0.0, weight_decay=0.0)
        param.grad = torch.tensor([2.0, 2.0])
        optimizer.update_hessian()
        param.grad = torch.tensor([1.0, -1.0])
        optimizer.step()
        ends.append(param.detach().clone())
    torch.testing.assert_close(ends[1], ends[0] / 2)


def test_the_memory_is_the_papers_or_a_share_of_the_run() -> None:
    h = SPEC.defaults()
    assert hessian_beta(h, 100_000) == hessian_beta(h, 4_000) == 0.99
    assert hessian_beta(h, 400) == pytest.approx(0.9)
    assert hessian_beta(h, 20) == 0.0


def test_micro_batches_are_averaged_in_both_passes() -> None:
    ends = []
    for parts in (1, 4):
        params = parameters(MODEL, torch.float64)
        stepper, _ = make(params, hessian_every=2)
        known = Known(params)
        for t in range(6):
            whole = known.batch(t)
            batch = StepBatch(whole.losses * parts, 64, sampled_losses=whole.sampled_losses * parts)
            stepper.step(batch, 1.0)
            assert batch.passes == pytest.approx(2.0 if t % 2 else 1.0)
        ends.append(values(params))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_restored_stepper_goes_on_with_the_same_bits() -> None:
    """Across estimates, with the clock, the generator and the series."""
    straight = Bench(SPEC, {**SPEC.defaults(), "hessian_every": 4})
    straight.take(13)
    for point in (3, 8):
        first = Bench(SPEC, {**SPEC.defaults(), "hessian_every": 4})
        first.take(point)
        saved = copy.deepcopy(first.stepper.state_dict())
        second = Bench(SPEC, {**SPEC.defaults(), "hessian_every": 4})
        for _ in range(point):
            second.order.next()
        second.step = point
        with torch.no_grad():
            for param, value in zip(second.params, first.weights(), strict=True):
                param.tensor.copy_(value)
        second.stepper.load_state_dict(saved)
        second.take(13 - point)
        assert same_bits(straight.weights(), second.weights())
        (sophia,), (other,) = straight.stepper.optimizers, second.stepper.optimizers
        assert isinstance(sophia, SophiaG)
        assert isinstance(other, SophiaG)
        assert sophia.series == other.series
        assert sophia.refreshes == other.refreshes == 3


def test_a_step_with_an_estimate_reads_nothing_on_the_host() -> None:
    params = parameters(MODEL)
    stepper, _ = make(params, hessian_every=2)
    known = Known(params)
    with NoHostReads():  # type: ignore[no-untyped-call]
        for t in range(4):
            batch = known.batch(t)
            stepper.estimate(batch)
            stepper.sophia.step()


def test_the_fallback_is_stepped_too() -> None:
    params = parameters(MODEL)
    rest = Parameter(params[0].info, nn.Parameter(torch.ones(3, 2)))
    fallback = torch.optim.SGD([rest.tensor], lr=0.5)
    known = context(params)
    fields = {name: getattr(known, name) for name in known.__slots__}
    stepper = build(BuildContext(**{**fields, "rest": fallback}), SPEC.defaults())
    assert list(stepper.optimizers) == [stepper.sophia, fallback]
    batch = StepBatch([lambda: linear([rest], [np.ones((3, 2))])], 64)
    stepper.step(batch, 0.5)
    assert torch.equal(rest.tensor.detach(), torch.full((3, 2), 0.75))


def test_a_task_without_sampled_labels_is_refused() -> None:
    params = parameters(MODEL)
    stepper, _ = make(params, hessian_every=1)
    with pytest.raises(BenchError, match="labels drawn from the model"):
        stepper.step(StepBatch([Known(params).batch(0).losses[0]], 64), 1.0)


# --- labels drawn from the model, whatever the method ------------------------------------------


class Fixed(nn.Module):
    """The same logits everywhere."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, input_ids: Tensor) -> Any:
        shape = (*input_ids.shape, len(self.logits))
        return type("Output", (), {"logits": self.logits.expand(shape)})


def sampled(module: nn.Module, tokens: Tensor, seed: int) -> Tensor:
    task = next_token.NextToken("fp32", "cpu")
    return task.sampled_loss(module, tokens, torch.Generator().manual_seed(seed))


def test_labels_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 3.0, -2.0])
    module = Fixed(logits)
    loss = sampled(module, torch.zeros(40, 501, dtype=torch.int64), seed=1)
    loss.backward()  # type: ignore[no-untyped-call]
    # d loss / d logits is softmax - frequency of the labels.
    assert module.logits.grad is not None
    frequency = logits.softmax(0) - module.logits.grad
    torch.testing.assert_close(frequency, logits.softmax(0), rtol=0, atol=0.015)
    assert module.logits.grad.abs().max() > 1e-5
    entropy = -(logits.softmax(0) * logits.log_softmax(0)).sum()
    torch.testing.assert_close(loss.detach(), entropy, rtol=0, atol=0.05)


def test_labels_of_the_data_play_no_part() -> None:
    config = Model(hidden=8, layers=1, heads=2, intermediate=12)
    network = models.build_model(config, 11, 6, 3)
    tokens = torch.arange(21).reshape(3, 7) % 11
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 5) % 11

    def grads(loss: Callable[[], Tensor]) -> list[Tensor]:
        network.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        return [p.grad.clone() for p in network.parameters() if p.grad is not None]

    task = next_token.NextToken("fp32", "cpu")
    here = torch.get_rng_state()
    drawn = grads(lambda: sampled(network, tokens, 1))
    assert same_bits(drawn, grads(lambda: sampled(network, other, 1)))
    assert not same_bits(drawn, grads(lambda: sampled(network, tokens, 2)))
    assert not same_bits(drawn, grads(lambda: task.loss(network, tokens)))
    assert torch.equal(here, torch.get_rng_state())


def test_drawing_labels_reads_nothing_on_the_host() -> None:
    module = Fixed(torch.randn(5))
    with NoHostReads():  # type: ignore[no-untyped-call]
        sampled(module, torch.zeros(2, 4, dtype=torch.int64), seed=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta1": 1.0},
        {"rho": 0.0},
        {"eps_placement": "middle"},
        {"hessian_at": "middle"},
        {"hessian_every": 0, "memory_fraction": 1.0},
    ],
    ids=str,
)
def test_refuses_what_it_cannot_do(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is needed|accepted are|at least"):
        make(parameters(MODEL), **wrong)
