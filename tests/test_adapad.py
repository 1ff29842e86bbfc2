"""AdaPaD: each component's own loss, growth under one budget, and what it is without its parts."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from levelfield.bench import horizons
from levelfield.bench.reference import load_spec
from levelfield.bench.stepper import StepBatch
from levelfield.optimizers._adapad import RESERVE, project_
from levelfield.tests import adapter_cases as cases
from levelfield.tests import small


def factors(case: cases.Case) -> list[Any]:
    return list(case.rule.modules)


def spread(case: cases.Case) -> None:
    """Give every component of every module factors of its own, so that all of them matter."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in factors(case):
            for param in (layer.lora_A, layer.lora_B):
                param.copy_(0.3 * torch.randn(param.shape, generator=generator))


def grads(case: cases.Case) -> list[tuple[Tensor, Tensor]]:
    found = []
    for layer in factors(case):
        assert layer.lora_A.grad is not None
        assert layer.lora_B.grad is not None
        found.append((layer.lora_A.grad.clone(), layer.lora_B.grad.clone()))
    return found


def by_definition(
    case: cases.Case, ranks: list[int], live: list[int | None], step: int
) -> list[tuple[Tensor, Tensor]]:
    """Gradients of one component a module from weights written out: W0 + s sum of detached
    predecessors + s b a, without successors. Knows no mask."""
    plain, weights, leaves = cases.bert(), {}, []
    for name, rank, k in zip(case.rule.layers, ranks, live, strict=True):
        layer = case.rule.layers[name]
        a, b = layer.lora_A.detach().clone(), layer.lora_B.detach().clone()
        s = float(layer.scale)
        weight = layer.base.weight.detach()
        before = range(rank if k is None else min(k, rank))
        for j in before:
            weight = weight + s * torch.outer(b[:, j], a[j])
        row, column = a[0].clone().requires_grad_(), b[:, 0].clone().requires_grad_()
        if k is not None:
            row, column = a[k].clone().requires_grad_(), b[:, k].clone().requires_grad_()
            weight = weight + s * torch.outer(column, row)
        weights[f"{name}.weight"] = weight
        leaves += [row, column]
    state = {**{n: p.detach() for n, p in plain.named_parameters()}, **weights}
    head = {n: p.detach() for n, p in case.model.named_parameters() if n.startswith("classifier")}

    class Called(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return functional_call(plain, {**state, **head}, kwargs={"input_ids": input_ids})

    loss = case.loss(Called(), step)
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return list(zip(found[::2], found[1::2], strict=True))  # type: ignore[arg-type]


def exact(**hparams: Any) -> cases.Case:
    case = cases.start("adapad(mode=exact)", **hparams)
    spread(case)
    return case


def test_every_component_has_the_gradient_of_its_own_loss() -> None:
    """Modules of unequal ranks, a reserve in each: the whole of a step against the definition."""
    case = exact(budget=40)
    ranks = [1, 2, 3, 1, 2, 3, 4, 1, 1, 2, 1, 3]
    case.rule.plain["ranks"] = list(ranks)
    case.rule.refresh()
    case.rule.backward(batch(case), 0)
    found = grads(case)
    lives: list[list[int | None]] = [[k if k < r else None for r in ranks] for k in range(4)]
    lives.append([r if r < 4 else None for r in ranks])  # the reserves, all at once
    for live in lives:
        expected = by_definition(case, ranks, live, 0)
        for (a, b), (row, column), k in zip(found, expected, live, strict=True):
            if k is not None:
                torch.testing.assert_close(a[k], row, rtol=1e-4, atol=1e-6)
                torch.testing.assert_close(b[:, k], column, rtol=1e-4, atol=1e-6)
    for (a, b), rank in zip(found, ranks, strict=True):  # unused ones
        assert torch.count_nonzero(a[rank + 1 :]) == 0
        assert torch.count_nonzero(b[:, rank + 1 :]) == 0


def batch(case: cases.Case, step: int = 0) -> StepBatch:
    return StepBatch([lambda: case.loss(case.model, step)], 1)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_pass_leaves_other_components_without_gradient(k: int) -> None:
    from levelfield.optimizers._adapter import set_masks

    case = exact(growth=False, rank=3, stagger=0.0)
    live: list[int | None] = [k] * 12
    set_masks(factors(case), **case.rule.pass_masks(live))
    case.loss(case.model, 0).backward()
    for a, b in grads(case):
        others = [j for j in range(3) if j != k]
        assert torch.count_nonzero(a[others]) == torch.count_nonzero(b[:, others]) == 0
        assert bool((a[k] != 0).all())
    mine = [a[k].clone() for a, _ in grads(case)]
    # Successors are out: whatever they hold changes nothing.
    with torch.no_grad():
        for layer in factors(case):
            layer.lora_B[:, k + 1 :].normal_()
            layer.lora_A.grad = None
    case.loss(case.model, 0).backward()
    assert all(torch.equal(a[k], before) for (a, _), before in zip(grads(case), mine, strict=True))


def test_the_sum_of_components_is_what_merged_weights_give() -> None:
    from levelfield.optimizers._adapter_export import merged

    case = exact(growth=False, rank=3, stagger=0.0)
    with torch.no_grad():
        seen = case.model(input_ids=cases.tokens(0)).logits
        plain = merged(case.model)
        for name, layer in case.rule.layers.items():
            weight = layer.base.weight + layer.scale * sum(
                torch.outer(layer.lora_B[:, j], layer.lora_A[j]) for j in range(3)
            )
            torch.testing.assert_close(plain.get_submodule(name).weight, weight)
        torch.testing.assert_close(plain(input_ids=cases.tokens(0)).logits, seen)


def test_the_head_learns_from_the_deepest_prefix_alone() -> None:
    case = exact(growth=False, rank=3, stagger=0.0)
    loss = case.rule.backward(batch(case), 0)
    head = [param.grad.clone() for param in case.rule.head]
    for param in case.model.parameters():
        param.grad = None
    deployed = case.loss(case.model, 0)
    deployed.backward()
    assert float(loss) == pytest.approx(float(deployed.detach()), rel=1e-6)
    for mine, param in zip(head, case.rule.head, strict=True):
        torch.testing.assert_close(mine, param.grad)


def test_passes_are_one_a_component_and_one_for_the_reserves() -> None:
    case = cases.start("adapad(mode=exact)", steps=60)
    passes, before = [], 0.0
    for _ in range(60):
        expected = max(case.rule.ranks) + (1 if case.rule.plain["grows"] else 0)
        case.take(1)
        passes.append(case.passes - before)
        before = case.passes
        assert passes[-1] == expected
    assert passes[0] == 2
    assert max(passes) > 2
    assert not case.rule.plain["grows"]
    for reference in ("adapad", "adapad(mode=prefix)"):
        other = cases.start(reference)
        other.take(10)
        assert other.passes == 10


@pytest.mark.parametrize(
    ("values", "claimed"),
    [
        # Two of its components, then three, four from 2, 3 and 4 intervals on; reserves for 25.
        ("mode=exact", 1 + 0.96 + 0.94 + 0.92 + 0.5),
        ("mode=exact,cap=2", 1 + 0.96 + 0.5),
        ("mode=exact,advance=false", 1 + 0.96 + 0.94 + 0.92),
        ("mode=exact,growth=false,rank=3", 3.0),
        ("mode=exact,growth=false,rank=3,advance=false,stagger=0.25", 1 + 0.75 + 0.5),
        ("mode=exact,inner=lion", 1 + 0.96 + 0.94 + 0.92 + 0.5),
        ("mode=prefix", 1.0),
        ("mode=shared,cap=8", 1.0),
        ("mode=exact,cap=many", 1.0),  # which it refuses
    ],
)
def test_a_spec_claims_the_most_passes_that_its_values_make(values: str, claimed: float) -> None:
    spec = load_spec(f"adapad({values})").value
    assert spec.passes == pytest.approx(claimed)
    assert load_spec(f"{spec.name}(alpha=8)").value.passes == pytest.approx(claimed)


@pytest.mark.parametrize("values", ["growth=false,rank=3,stagger=0.0", "cap=3", ""])
def test_no_run_makes_more_passes_than_its_spec_claims(values: str) -> None:
    reference = f"adapad({','.join(part for part in ('mode=exact', values) if part)})"
    case = cases.start(reference, steps=50)
    case.take(50)
    claimed = load_spec(reference).value.passes
    assert 0.6 * claimed < case.passes / 50 <= claimed + 1e-9


def test_a_budget_in_passes_buys_fewer_steps_of_the_exact_form() -> None:
    protocol = small.changed(steps=100)
    budget = dataclasses.replace(protocol.budget, unit="passes", amount=100.0)
    protocol = dataclasses.replace(protocol, budget=budget)
    bought = {
        mode: horizons.steps(protocol, load_spec(f"adapad(mode={mode})").value, [])
        for mode in ("shared", "prefix", "exact")
    }
    assert bought == {"shared": 100, "prefix": 100, "exact": 23}


def test_prefix_takes_the_passes_of_exact_evenly() -> None:
    whole = exact(growth=False, rank=3, stagger=0.0)
    whole.rule.backward(batch(whole), 0)
    expected = grads(whole)
    case = cases.start("adapad(mode=prefix)", growth=False, rank=3, stagger=0.0)
    spread(case)
    seen: Counter[int] = Counter()
    order: list[int] = []
    for step in range(60):
        for param in case.model.parameters():
            param.grad = None
        case.rule.backward(batch(case), step)
        drawn = [k for k in range(3) if torch.count_nonzero(grads(case)[0][0][k])]
        assert len(drawn) == 1
        seen[drawn[0]] += 1
        k = drawn[0]
        for (a, b), (row, column) in zip(grads(case), expected, strict=True):
            torch.testing.assert_close(a[k], row[k])
            torch.testing.assert_close(b[:, k], column[:, k])
        assert all((param.grad is not None) == (k == 2) for param in case.rule.head)
        order.append(k)
    assert all(12 <= seen[k] <= 28 for k in range(3))
    # Drawn, not taken in turn: batches come in turns too.
    assert 10 <= sum(a == b for a, b in pairwise(order)) <= 30


def test_shared_without_growth_is_lora() -> None:
    lora = cases.start("lora", rank=3, alpha=6.0, lr=5e-3)
    case = cases.start("adapad", growth=False, rank=3, alpha=6.0, lr=5e-3, eps=1e-8)
    with torch.no_grad():
        for name, layer in case.rule.layers.items():
            twin: Any = lora.model.get_submodule(name)
            layer.lora_A.copy_(twin.lora_A["default"].weight)
    for _ in range(20):
        assert case.take(1) == pytest.approx(lora.take(1), rel=1e-5)
    moved = 0.0
    for name, layer in case.rule.layers.items():
        twin = lora.model.get_submodule(name)
        for mine, other in ((layer.lora_A, "lora_A"), (layer.lora_B, "lora_B")):
            theirs = getattr(twin, other)["default"].weight
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
            moved += float(theirs.detach().abs().sum())
    assert moved > 1.0
    assert case.told["ranks"] == lora.told["ranks"]
    assert case.told["deployed_parameters"] == lora.told["deployed_parameters"]


def test_without_growth_a_budget_is_the_rank_of_a_lora() -> None:
    for hparams in ({"budget": 36}, {"rank": 3}):
        case = cases.start("adapad", growth=False, alpha=6.0, **hparams)
        assert case.told["ranks"] == dict.fromkeys(case.rule.layers, 3)
        assert {float(layer.scale) for layer in factors(case)} == {2.0}


@pytest.mark.parametrize("mode", ["shared", "exact"])
def test_a_promoted_reserve_does_not_raise_the_loss_on_average(mode: str) -> None:
    """On a fixed batch, right before and after each growth, over several seeds."""
    rises = []
    for seed in range(3):
        case = cases.start(f"adapad(mode={mode})", steps=60, interval=0.1, share=0.2, seed=seed)
        inside = case.rule.changed

        def changed(step: int, case: cases.Case = case, inside: Any = inside) -> None:
            before = deployed(case)  # masks are still those of the old ranks
            inside(step)
            rises.append(deployed(case) - before)

        case.rule.changed = changed
        case.take(60)
    assert len(rises) == 3 * 6  # two modules at each of the steps 12, 18, ..., 42
    assert sum(rises) / len(rises) < 1e-3
    if mode == "exact":
        assert any(rise < -1e-4 for rise in rises)  # what was learned in advance acts at once


def deployed(case: cases.Case) -> float:
    return sum(float(case.loss(case.model, step).detach()) for step in range(3)) / 3


def test_a_reserve_is_private_and_starts_warm() -> None:
    case = cases.start("adapad(mode=exact)", steps=60, interval=0.2)
    case.take(20)
    reserve = [layer.lora_B[:, 1].detach().clone() for layer in factors(case)]
    assert all(float(b.norm()) > 1e-3 for b in reserve)
    seen = case.held_out()
    with torch.no_grad():
        for layer in factors(case):
            layer.lora_B[:, 1] += 1.0
    assert case.held_out() == seen  # neither deployed
    first = [a[0].clone() for a, _ in passed(case)]
    with torch.no_grad():
        for layer, b in zip(factors(case), reserve, strict=True):
            layer.lora_B[:, 1] = b
    for one, (a, _) in zip(first, passed(case), strict=True):
        assert torch.equal(one, a[0])  # nor read by what is committed
    case.take(3)
    case.rule.changed = lambda step: None  # growth is at step 24: look before masks change
    state = [layer.lora_B[:, 1].detach().clone() for layer in factors(case)]
    case.take(1)
    grown = [m for m, rank in enumerate(case.rule.ranks) if rank == 2]
    assert len(grown) == 1
    now = factors(case)[grown[0]].lora_B[:, 1].detach()
    assert float((now - state[grown[0]]).abs().max()) < 0.02


def passed(case: cases.Case) -> list[tuple[Tensor, Tensor]]:
    for param in case.model.parameters():
        param.grad = None
    case.rule.backward(batch(case), 0)
    return grads(case)


def test_without_advance_a_component_starts_at_its_promotion() -> None:
    case = cases.start("adapad", steps=60, interval=0.2, advance=False)
    before = [layer.lora_A.detach().clone() for layer in factors(case)]
    case.take(23)
    for layer, a in zip(factors(case), before, strict=True):
        assert torch.equal(layer.lora_A[1:], a[1:])
        assert torch.count_nonzero(layer.lora_B[:, 1:]) == 0
    case.take(10)
    grown = [m for m, rank in enumerate(case.rule.ranks) if rank == 2]
    assert grown
    assert all(float(factors(case)[m].lora_B[:, 1].detach().norm()) > 0 for m in grown)


def test_the_shared_pass_holds_reserves_at_a_tiny_gain() -> None:
    case = cases.start("adapad", steps=60, interval=0.2)
    for layer in factors(case):
        assert layer.gain().tolist() == pytest.approx([1.0, RESERVE, 0.0, 0.0])
    with case.stepper.evaluating():
        assert all(x.gain().tolist() == [1.0, 0.0, 0.0, 0.0] for x in factors(case))
    case.take(30)
    grown = next(m for m, rank in enumerate(case.rule.ranks) if rank == 2)
    gain = factors(case)[grown].gain().tolist()
    assert gain[0] == 1.0
    assert gain[1] != pytest.approx(RESERVE)  # trained from there
    assert gain[2:] == pytest.approx([RESERVE, 0.0])


def test_components_are_published_one_after_the_other() -> None:
    case = cases.start("adapad(mode=exact)", growth=False, rank=3, stagger=0.25, steps=40)
    published = []
    for _ in range(40):
        published.append(set(case.rule.ranks))
        case.take(1)
    assert published == [{1}] * 10 + [{2}] * 10 + [{3}] * 20
    assert case.passes == 3 * 40  # those in private train too
    quiet = cases.start(
        "adapad(mode=exact)", growth=False, rank=3, stagger=0.25, steps=40, advance=False
    )
    quiet.take(40)
    assert quiet.passes == 10 + 20 + 3 * 20


def test_the_projection_bounds_every_component() -> None:
    case = exact(growth=False, rank=3, stagger=0.0, radius=0.5)
    copies = [copy.deepcopy(layer) for layer in factors(case)]
    with torch.no_grad():
        for layer in copies:
            before = [torch.outer(layer.lora_B[:, j], layer.lora_A[j]) for j in range(3)]
            project_(layer, 0.5)
            for j in range(3):
                now = torch.outer(layer.lora_B[:, j], layer.lora_A[j])
                size = float(layer.scale * before[j].norm())
                assert float(layer.scale * now.norm()) == pytest.approx(min(size, 0.5), rel=1e-4)
                torch.testing.assert_close(now / now.norm(), before[j] / before[j].norm())
    case.take(3)
    with torch.no_grad():
        for layer in factors(case):
            sizes = layer.scale * layer.lora_A.norm(dim=1) * layer.lora_B.norm(dim=0)
            assert float(sizes.detach().max()) <= 0.5 * (1 + 1e-5)


def test_the_projection_is_of_a_component_with_its_gain() -> None:
    """In the shared form a component is s E b a."""
    case = cases.start("adapad", radius=0.5)
    spread(case)
    layer = factors(case)[0]
    with torch.no_grad():
        layer.fixed.copy_(torch.tensor([1.0, 0.0, RESERVE, 0.0]))
        layer.learned.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
        layer.lora_E[1] = 3.0
        before = [torch.outer(layer.lora_B[:, j], layer.lora_A[j]) for j in range(4)]
        project_(layer, 0.5)
        for j, gain in enumerate((1.0, 3.0, RESERVE, 0.0)):
            now = torch.outer(layer.lora_B[:, j], layer.lora_A[j])
            size = float(layer.scale * gain * before[j].norm())
            assert size > 0.5 or j > 1
            share = min(1.0, 0.5 / size) if size else 1.0
            torch.testing.assert_close(now, share * before[j])


def test_each_signal_chooses_its_own_modules() -> None:
    chosen = {}
    for signal in ("both", "importance", "uncertainty", "random"):
        case = cases.start("adapad", steps=60, signal=signal, share=0.1)
        case.take(6)
        kept = case.rule.kept.state
        if signal in ("importance", "uncertainty"):
            assert bool((kept[signal] > 0).all())
        case.take(54)
        chosen[signal] = tuple(case.rule.ranks)
        assert sum(case.rule.ranks) == 24
    assert len(set(chosen.values())) >= 3
    assert chosen["random"] not in [chosen[s] for s in ("both", "importance", "uncertainty")]


def test_scores_are_of_gradients_that_are_not_clipped() -> None:
    found = []
    for bound in (None, 1e-3):
        case = cases.start("adapad", clip_norm=bound)
        spread(case)
        case.take(1)
        found.append(case.rule.kept.state["importance"])
    assert bool((found[0] > 0).all())
    assert torch.equal(*found)


def test_sensitivity_is_the_mean_of_weight_times_gradient() -> None:
    case = exact()
    case.rule.backward(batch(case), 0)
    for layer, seen in zip(factors(case), case.rule.sensitivity(), strict=True):
        parts = [
            (layer.lora_A[:2] * layer.lora_A.grad[:2]).abs().reshape(-1),
            (layer.lora_B[:, :2] * layer.lora_B.grad[:, :2]).abs().reshape(-1),
        ]
        assert float(seen.detach()) == pytest.approx(float(torch.cat(parts).mean().detach()))
