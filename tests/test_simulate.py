"""Fake steps against real ones, byte by byte, and both against the allocator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from levelfield.bench import allocator, models, simulate
from levelfield.bench.accounting import STRETCHES
from levelfield.bench.architecture import Architecture, of_config, of_shape
from levelfield.bench.build import claimed_state_bytes
from levelfield.bench.meter import SCRATCH, Ledger, StorageTracker
from levelfield.bench.registry import OPTIMIZERS, PROTOCOLS, whole_model
from levelfield.bench.shapes import SHAPES, Shape
from levelfield.bench.simulate import Seen, Simulator, Workload
from levelfield.bench.spec import Model, OptimizerSpec
from levelfield.tests import small

TOLERANCE = 0.02
"""Largest distance to the allocator's peaks, as a share."""


def quick(**fields: Any) -> Workload:
    """The model and the batch of `quick`."""
    protocol = PROTOCOLS.load("quick").value
    shape = Shape(name="quick", model=protocol.model, vocabulary=256)
    load = Workload(
        architecture=of_shape(shape),
        batch=protocol.data.batch,
        sequence=protocol.data.sequence,
        precision="fp32",
        target="cpu",
    )
    return replace(load, **fields)


def tiny(**fields: Any) -> Workload:
    """Smaller still, for what does not depend on size."""
    shape = Shape(name="tiny", model=Model(hidden=16, layers=2, heads=2, intermediate=24))
    named = {"architecture": of_shape(replace(shape, vocabulary=64)), "batch": 2, "sequence": 16}
    return quick(**{**named, **fields})


def load_spec(name: str) -> OptimizerSpec:
    return small.available(name)


def fake(spec: OptimizerSpec, load: Workload) -> Seen:
    return Simulator(load, simulate.build_meta(load)).run(spec, spec.defaults())


def real(spec: OptimizerSpec, load: Workload) -> Seen:
    model = simulate.build(load)
    return simulate.take_steps(spec, spec.defaults(), load, model, simulate.real_tokens)


def same(one: Seen, other: Seen) -> None:
    """Equal to the byte: peaks, kinds at the peaks, the most of each kind, state."""
    for name in STRETCHES:
        assert one.stretches[name] == other.stretches[name], name
    assert one.state_bytes == other.state_bytes
    assert one.host_reads == other.host_reads


# --- every method -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", whole_model(OPTIMIZERS.entries()))
def test_a_fake_step_is_a_real_one_without_the_memory(name: str) -> None:
    spec, load = load_spec(name), quick()
    simulated = fake(spec, load)
    seen, peaks = allocator.measure(spec, spec.defaults(), load, torch.device("cpu"))
    if simulated.host_reads == seen.host_reads:
        same(simulated, seen)
    else:  # it goes by what it reads, and a fake tensor has nothing to read
        assert spec.requires
        assert simulated.state_bytes == seen.state_bytes
    infos = tuple(param.info for param in models.parameters(simulate.build_meta(load)))
    claims = [
        claimed_state_bytes(spec, load.protocol(), infos, spec.defaults(), point / 20)
        for point in range(21)
    ]
    assert simulated.state_bytes[0] == claims[0]
    assert max(simulated.state_bytes) == max(claims)
    for stretch in STRETCHES:
        counted = simulated.stretches[stretch].total
        if stretch == "update" and (simulated.compiled or simulated.libraries):
            assert peaks[stretch] >= counted  # what a library takes inside is not seen
        else:
            assert peaks[stretch] == pytest.approx(counted, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "foam", "galore", "muon", "adafactor", "lomo"])
def test_sixty_million_parameters(name: str) -> None:
    load = quick(architecture=of_shape(SHAPES["llama-60m"]), batch=1, sequence=128)
    spec = load_spec(name)
    seen, peaks = allocator.measure(spec, spec.defaults(), load, torch.device("cpu"))
    same(fake(spec, load), seen)
    for stretch in STRETCHES:
        assert peaks[stretch] == pytest.approx(seen.stretches[stretch].total, rel=TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adamw", "foam", "muon"])
def test_a_cuda_device_takes_what_is_simulated(name: str) -> None:
    load = quick(target="cuda", precision="bf16", batch=64)
    spec = load_spec(name)
    _, peaks = allocator.measure(spec, spec.defaults(), load, torch.device("cuda"))
    simulated = fake(spec, load)
    for stretch in STRETCHES:
        assert peaks[stretch] == pytest.approx(simulated.stretches[stretch].total, rel=TOLERANCE)


# --- ways of training, families of models -----------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp32+bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_ways_of_training(precision: Any, checkpointing: bool, accumulation: int) -> None:
    load = tiny(precision=precision, checkpointing=checkpointing, accumulation=accumulation)
    spec = load_spec("muon")
    same(fake(spec, load), real(spec, load))


def test_checkpointing_and_precision_and_accumulation_cost_what_they_should() -> None:
    spec, load = load_spec("adamw"), quick()

    def activations(**fields: Any) -> int:
        return fake(spec, replace(load, **fields)).stretches["pass"].most["activations"]

    whole = activations()
    assert activations(checkpointing=True) < 0.8 * whole
    assert 0.4 * whole < activations(precision="bf16") < 0.8 * whole
    assert whole < activations(batch=2 * load.batch) < 2.2 * whole
    # Only the tokens of the other parts, and the head's gradient that is alive by then.
    assert whole <= activations(accumulation=4) < 1.2 * whole


SMALL = {"num_hidden_layers": 2, "vocab_size": 96, "num_attention_heads": 4, "hidden_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48},
    "qwen3": {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 16},
}


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_other_families_of_models(kind: str) -> None:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    built = of_config(kind, {"model_type": kind, **CONFIGS[kind], **ends}, kind)
    load = tiny(architecture=built)
    for name in ("adamw", "foam"):
        same(fake(load_spec(name), load), real(load_spec(name), load))


class Odd(nn.Module):
    """A frozen table, a parameter without elements, a tied pair, two buffers on one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.table.weight.requires_grad_(False)
        self.inner = nn.Linear(16, 16, bias=False)
        self.again = self.inner
        self.empty = nn.Parameter(torch.zeros(0, 16))
        self.head = nn.Linear(16, 64, bias=False)
        whole = torch.ones(32)
        self.register_buffer("scale", whole[:16])
        self.register_buffer("shift", whole[8:24])

    def forward(self, input_ids: Tensor) -> Any:
        hidden = self.table(input_ids) * self.scale + self.shift
        hidden = self.again(self.inner(hidden).relu()) + self.empty.sum()

        class Output:
            logits = self.head(hidden)

        return Output


def test_frozen_empty_and_tied_parameters_cost_what_they_cost() -> None:
    odd = Architecture(name="odd", vocabulary=64, build=lambda sequence: Odd())
    load, spec = tiny(architecture=odd), load_spec("adamw")
    simulated = fake(spec, load)
    same(simulated, real(spec, load))
    trained = 4 * (16 * 16 + 16 * 64)
    update = simulated.stretches["update"]
    assert update.most["gradients"] == trained
    assert simulated.state_bytes == (2 * trained,) * simulate.STEPS
    assert update.most["weights"] == trained + 4 * (64 * 16 + 32)  # the table, the whole buffer
    assert simulated.stretches["pass"].most["state"] >= 2 * trained  # there from the second step on


def test_tied_weights_have_one_state() -> None:
    shape = Shape(
        name="tied", model=Model(hidden=16, layers=1, heads=2, intermediate=24, tied=True)
    )
    apart = replace(shape, model=replace(shape.model, tied=False))
    spec = load_spec("adamw")
    tied, free = (
        fake(spec, tiny(architecture=of_shape(replace(one, vocabulary=64))))
        for one in (shape, apart)
    )
    assert free.state_bytes[0] - tied.state_bytes[0] == 2 * 4 * 64 * 16
    weights = [seen.stretches["update"].most["weights"] for seen in (tied, free)]
    assert weights[1] - weights[0] == 4 * 64 * 16


# --- the target -------------------------------------------------------------------------------


def test_newton_schulz_runs_in_the_dtype_of_the_target() -> None:
    spec = load_spec("muon")
    cpu, cuda = (
        fake(spec, quick(target=target)).stretches["update"].most["temporary"]
        for target in ("cpu", "cuda")
    )
    assert cuda < 0.8 * cpu


def test_torch_groups_parameters_on_the_target_as_it_would() -> None:
    spec = load_spec("adafactor")
    cpu, cuda = (
        fake(spec, quick(target=target)).stretches["update"].most["temporary"]
        for target in ("cpu", "cuda")
    )
    assert cuda > 1.5 * cpu  # every parameter's intermediates at once


# --- what is left as it was -------------------------------------------------------------------


def test_nothing_is_left_behind_and_simulations_repeat() -> None:
    from torch.utils import _foreach_utils
    from transformers.utils import import_utils

    known, seen, compiled = (
        list(_foreach_utils._foreach_supported_types),
        import_utils.is_fake_tensor,
        torch.compile,
    )
    load = tiny()
    simulator = Simulator(load, simulate.build_meta(load))
    spec, other = load_spec("adamw"), load_spec("lomo")
    first = simulator.run(spec, spec.defaults())
    simulator.run(other, other.defaults())
    same(simulator.run(spec, spec.defaults()), first)
    assert _foreach_utils._foreach_supported_types == known
    assert import_utils.is_fake_tensor is seen
    assert torch.compile is compiled
    assert not any(param._post_accumulate_grad_hooks for param in simulator.model.parameters())
    assert all(param.grad is None for param in simulator.model.parameters())


def test_a_step_shows_what_a_method_does_once_a_period() -> None:
    for name in whole_model(OPTIMIZERS.entries()):
        spec = OPTIMIZERS.load(name).value
        steps = simulate.horizon(spec, spec.defaults())
        switches = spec.switches(spec.defaults(), simulate.HORIZON)
        early = [s for s in spec.switches(spec.defaults(), steps) if 0 < s < simulate.STEPS]
        assert early or steps == simulate.HORIZON
        if steps == simulate.HORIZON and switches and not early:
            # A period that is a number of steps, not a share of the run.
            assert all(s >= simulate.STEPS for s in spec.switches(spec.defaults(), 40))


# --- the tracker's additions ------------------------------------------------------------------


def test_the_most_of_a_kind_and_the_peak_are_read_off_a_ledger() -> None:
    ledger = Ledger({0: 100}, [(1, 50), (2, 30), (1, 0), (3, 40), (0, 0)], 2, 180)
    assert ledger.peak_sizes() == {0: 100, 1: 50, 2: 30}
    assert ledger.most({0: "weights", 1: "state"}, "rest") == {
        "weights": 100,
        "state": 50,
        "rest": 70,
    }


def test_what_a_decomposition_takes_inside_counts() -> None:
    matrix = torch.randn(30, 20)
    with StorageTracker([matrix]) as tracker:
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    parts = 4 * (30 * 20 + 30 * 20 + 20 + 20 * 20)
    assert tracker.live_bytes == parts
    assert tracker.peak_bytes == parts + SCRATCH[torch.ops.aten._linalg_svd.default](matrix)
    del u, s, v


def test_a_host_read_of_a_fake_tensor_gets_a_constant_of_its_kind() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), StorageTracker(scalar=1.0) as tracker:
        assert float(torch.ones(())) == 1.0
        assert int(torch.ones((), dtype=torch.int64)) == 1
        assert bool(torch.ones((), dtype=torch.bool)) is True
    assert tracker.host_reads == 3


def test_the_allocators_events_are_replayed_by_stretch() -> None:
    mark = allocator.MARK
    events = [(5, "[memory]", -30), (1, "[memory]", 100), (2, mark + "pass", 0)]
    events += [(3, "[memory]", 30), (6, mark + "update", 0), (7, "[memory]", 10)]
    assert allocator.replay(events) == {"pass": 130, "update": 110}
