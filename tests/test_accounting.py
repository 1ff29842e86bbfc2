"""Bytes by kind: of a tensor, of a step, of a method."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from levelfield.bench import train
from levelfield.bench.accounting import account
from levelfield.bench.meter import (
    FakeMeter,
    HostMeter,
    StorageTracker,
    build_meter,
    state_bytes,
    state_tensors,
)
from levelfield.bench.spec import ParamInfo, TrialRecord
from levelfield.bench.stepper import GradientStepper, Parameter, StepBatch, Stepper
from levelfield.tests import small

KINDS = ("weights", "gradients", "state", "activations", "temporary")
Peaks = dict[str, int | None]


# --- the tracker ------------------------------------------------------------------------------


def test_a_storage_counts_once_however_many_views_it_has() -> None:
    with StorageTracker() as tracker:
        whole = torch.zeros(100)
        views = [whole[:10], whole.view(10, 10).t(), whole.detach()]
        assert tracker.live_bytes == tracker.peak_bytes == 400
        del whole
        assert tracker.live_bytes == 400
        del views
        assert tracker.live_bytes == 0
    assert tracker.peak_bytes == 400


def test_memory_that_is_let_go_leaves_and_the_peak_stays() -> None:
    with StorageTracker() as tracker:
        for _ in range(5):
            torch.zeros(1000)
        assert (tracker.live_bytes, tracker.peak_bytes) == (0, 4000)
        kept = [torch.zeros(500), torch.zeros(700)]
        assert (tracker.live_bytes, tracker.peak_bytes) == (4800, 4800)
        assert sorted(tracker.peak_sizes.values()) == [2000, 2800]
        del kept[0]
        assert (tracker.live_bytes, tracker.peak_bytes) == (2800, 4800)
        tracker.restart_peak()
        assert tracker.peak_bytes == 2800


def test_roots_are_alive_from_the_start_and_shared_ones_count_once() -> None:
    weight = nn.Parameter(torch.zeros(10, 10))
    with StorageTracker([weight, weight.view(100), torch.zeros(5)]) as tracker:
        weight.detach().mul_(2)
        assert tracker.live_bytes in (400, 420)
        gc.collect()
        assert tracker.live_bytes == 400


def test_memory_given_out_again_is_another_storage() -> None:
    with StorageTracker() as tracker:
        numbers = set()
        for _ in range(20):
            tensor = torch.zeros(1000)
            numbers.add(tracker.number(tensor))
            assert tracker.number(tensor[3:]) == tracker.number(tensor)
        assert len(numbers) == 20


def test_a_storage_that_grows_is_counted_at_its_size() -> None:
    with StorageTracker() as tracker:
        tensor = torch.zeros(10)
        tensor.resize_(1000)
        assert tracker.live_bytes == 4000


def test_what_autograd_keeps_is_alive_until_backward() -> None:
    weight = nn.Parameter(torch.ones(100))
    with StorageTracker([weight]) as tracker:
        loss = (weight.exp() * 2).sum()
        kept = tracker.live_bytes
        assert kept >= 400 + 400  # the weight, and exp's output that its backward needs
        loss.backward()
        del loss
        assert tracker.live_bytes == 800  # the weight and its gradient


# --- what is state ----------------------------------------------------------------------------


class Holder(torch.optim.Optimizer):
    """Keeps tensors wherever methods keep them."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        super().__init__([{"params": list(params), "basis": torch.zeros(3)}], {"lr": 0.1})
        for param in params:
            self.state[param] = {
                "step": torch.zeros(()),
                "moment": torch.zeros_like(param),
                "nested": {"list": [torch.zeros(2), (torch.zeros(4),)]},
                "projector": SimpleNamespace(matrix=torch.zeros(5, 2), owner=param, name="p"),
                "again": param.detach(),
            }
        shared = torch.zeros(6)
        self.state[params[0]].update(one=shared, other=shared.view(2, 3))
        self.state_holders = [{"table": torch.zeros(8)}]


def test_state_is_found_wherever_it_is_and_counted_once() -> None:
    param = nn.Parameter(torch.zeros(7))
    holder = Holder([param])
    del holder.state[param]["again"]
    # moment, list, tuple, projector, the shared one once, the group's basis, the holder's table
    assert state_bytes([holder]) == 4 * (7 + 2 + 4 + 10 + 6 + 3 + 8)
    assert all(tensor is not param for tensor in state_tensors([holder]))
    assert state_bytes([holder, holder]) == state_bytes([holder])


def test_a_plain_optimizer_has_no_state_before_its_first_step() -> None:
    params = [nn.Parameter(torch.zeros(3, 4))]
    optimizer = torch.optim.AdamW(params)
    assert state_bytes([optimizer]) == 0
    params[0].grad = torch.ones(3, 4)
    optimizer.step()
    assert state_bytes([optimizer]) == 2 * 4 * 12  # the step counter is 0-dim


# --- a step by kind ---------------------------------------------------------------------------


class Linear(nn.Module):
    """One matrix, a vector and a buffer."""

    buffer: Tensor

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((rows, columns), 0.01))
        self.bias = nn.Parameter(torch.zeros(rows))
        self.register_buffer("buffer", torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        return ((x * self.buffer) @ self.weight.t() + self.bias).square().mean()


def parameters(model: nn.Module) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(ParamInfo(name=name, shape=tuple(tensor.shape), role="matrix"), tensor)
        for name, tensor in model.named_parameters()
    )


def steps(
    model: nn.Module, stepper: Stepper, samples: int, columns: int, count: int = 2
) -> Iterator[Peaks]:
    """The peaks of one accounted step after the other."""
    for _ in range(count):
        peaks: Peaks = {}
        x = torch.ones(samples, columns)
        with account(parameters(model), model, stepper, peaks) as phase:
            stepper.step(StepBatch([lambda x=x: model(x)], samples, phase), 1.0)
        yield peaks


def adamw(model: nn.Module) -> GradientStepper:
    return GradientStepper(
        [torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)], clip_norm=1.0
    )


WEIGHTS = 4 * (40 * 50 + 40 + 50)
TRAINED = 4 * (40 * 50 + 40)


def test_kinds_of_a_step_whose_peak_is_in_the_update() -> None:
    model = Linear(40, 50)
    first, second = steps(model, adamw(model), samples=1, columns=50)
    for peaks in (first, second):
        assert peaks["weights"] == WEIGHTS
        assert peaks["gradients"] == TRAINED
        assert peaks["state"] is not None
        assert peaks["temporary"] is not None
        assert peaks["activations"] == 0
        assert sum(peaks[kind] or 0 for kind in KINDS) == peaks["total"] == peaks["update_peak"]
        assert 0 < (peaks["pass_peak"] or 0) < (peaks["update_peak"] or 0)
    # Step counters of torch's AdamW are 0-dim tensors of four bytes.
    assert second["state"] == 2 * TRAINED + 8
    # The step makes square roots of the matrix; the norm and the clipping some scalars.
    assert 4 * 2000 <= (second["temporary"] or 0) <= 2 * 4 * 2000 + 1000


def test_kinds_of_a_step_whose_peak_is_in_the_pass() -> None:
    model = Linear(40, 50)
    first, second = steps(model, adamw(model), samples=2000, columns=50)
    for peaks, state in ((first, 0), (second, 2 * TRAINED + 8)):
        assert peaks["weights"] == WEIGHTS
        assert peaks["state"] == state
        assert peaks["temporary"] == 0
        assert (peaks["activations"] or 0) >= 4 * 2000 * 50
        assert sum(peaks[kind] or 0 for kind in KINDS) == peaks["total"] == peaks["pass_peak"]
        assert (peaks["update_peak"] or 0) < (peaks["pass_peak"] or 0)


def test_only_a_higher_peak_replaces_the_one_before() -> None:
    model = Linear(40, 50)
    stepper = adamw(model)
    peaks: Peaks = {}
    totals = []
    for samples in (10, 500, 10):
        x = torch.ones(samples, 50)
        with account(parameters(model), model, stepper, peaks) as phase:
            stepper.step(StepBatch([lambda x=x: model(x)], samples, phase), 1.0)
        totals.append(peaks["total"])
    assert totals[0] < totals[1] == totals[2]
    assert sum(peaks[kind] or 0 for kind in KINDS) == peaks["total"]


def test_tied_weights_count_once() -> None:
    model = Linear(40, 50)
    model.other = model.weight
    model.alias = nn.Parameter(model.weight.detach())
    (peaks,) = steps(model, adamw(model), samples=1, columns=50, count=1)
    assert peaks["weights"] == WEIGHTS


def test_an_error_inside_leaves_no_hook_and_no_mode() -> None:
    model = Linear(4, 5)
    peaks: Peaks = {}
    with (
        pytest.raises(RuntimeError, match="broken"),
        account(parameters(model), model, adamw(model), peaks),
    ):
        raise RuntimeError("broken")
    assert peaks == {}
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Replacing(torch.optim.Optimizer):
    """Makes its state anew in every step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for param in self.param_groups[0]["params"]:
            moment = self.state[param].get("moment", torch.zeros_like(param))
            self.state[param]["moment"] = moment * 0.9 + param.grad


def test_state_that_is_replaced_is_state_before_and_after() -> None:
    model = Linear(40, 50)
    stepper = GradientStepper([Replacing(model.parameters())], clip_norm=None)
    *_, last = steps(model, stepper, samples=1, columns=50, count=3)
    # The old moments, and the new one of the matrix while it is made.
    assert (last["state"] or 0) >= TRAINED + 4 * 2000
    assert sum(last[kind] or 0 for kind in KINDS) == last["total"]


# --- a trial ----------------------------------------------------------------------------------


def kinds(record: TrialRecord) -> dict[str, int]:
    return {kind: record.peak_bytes[kind] or 0 for kind in KINDS}


@pytest.fixture(scope="module")
def adam() -> TrialRecord:
    return small.train("adamw", lr=1e-2)


def test_kinds_of_a_trial_add_up(adam: TrialRecord) -> None:
    assert adam.parameters is not None
    assert adam.state_bytes == 8 * adam.parameters
    found = kinds(adam)
    assert sum(found.values()) == adam.peak_bytes["total"]
    assert found["activations"] > 0
    # A rotary table of 4 frequencies, twice, lies in buffers.
    assert found["weights"] == 4 * adam.parameters + 2 * 4 * 4
    # Fourteen parameters at most have a step counter of four bytes.
    assert 0 <= found["state"] - adam.state_bytes <= 4 * 14


def test_two_trials_have_equal_bytes(adam: TrialRecord) -> None:
    away = small.execute([small.request("adamw", lr=1e-2)])[0]
    for record in (small.train("adamw", lr=1e-2), away):
        assert kinds(record) == kinds(adam)
        for total in ("total", "pass_peak", "update_peak"):
            assert record.peak_bytes[total] == adam.peak_bytes[total]


def test_a_large_temporary_of_the_update_is_seen() -> None:
    plain = small.train(small.plugin("odd:PLAIN"))
    hungry = small.train(small.plugin("odd:HUNGRY"))
    assert hungry.peak_bytes["pass_peak"] == plain.peak_bytes["pass_peak"]
    assert hungry.peak_bytes["update_peak"] == hungry.peak_bytes["total"]
    # Beside it the tokens of the batch and some scalars.
    assert 0 <= kinds(hungry)["temporary"] - 4 * 500_000 < 1000
    assert kinds(hungry)["gradients"] == 4 * (hungry.parameters or 0)
    assert kinds(plain)["temporary"] == 0
    assert hungry.state_bytes == plain.state_bytes == 0


def test_half_the_precision_is_half_the_bytes() -> None:
    whole = small.train(small.plugin("odd:HUNGRY"))
    half = small.train(small.plugin("odd:HUNGRY"), small.changed(precision="bf16"))
    assert kinds(half)["gradients"] * 2 == kinds(whole)["gradients"]
    # The rotary table in the buffers is made at full precision.
    assert kinds(half)["weights"] in range(kinds(whole)["weights"] // 2, kinds(whole)["weights"])


def test_tied_tables_of_a_trial_count_once(adam: TrialRecord) -> None:
    model = replace(small.PROTOCOL.model, tied=True)
    tied = small.train("adamw", small.changed(model=model), lr=1e-2)
    assert kinds(adam)["weights"] - kinds(tied)["weights"] == 4 * 256 * 16
    assert (adam.state_bytes or 0) - (tied.state_bytes or 0) == 8 * 256 * 16


def test_a_failure_in_an_accounted_step_is_a_record_with_what_is_known() -> None:
    record = small.train(small.plugin("faulty:RAISES_AT_ONCE"))
    assert (record.status, record.steps) == ("error", 0)
    assert record.weights_sha256 is not None
    assert "total" not in record.peak_bytes


# --- meters -----------------------------------------------------------------------------------


def test_a_host_tells_what_it_has_and_why_not_the_rest() -> None:
    meter = build_meter(torch.device("cpu"))
    assert isinstance(meter, HostMeter)
    before = meter.now_s()
    block = torch.ones(8_000_000)
    peaks = meter.peaks()
    assert (peaks["rss"] or 0) >= 0
    blank = {f"peak_bytes.{k}" for k, v in peaks.items() if v is None}
    assert meter.joules() is None
    assert {*blank, "joules"} == set(meter.reasons())
    assert meter.held() == {}
    for told in (meter.watch, meter.resume, meter.pause, meter.stop):
        told()
    assert meter.joules() is None
    assert meter.now_s() > before
    del block


def test_a_fake_meter_tells_what_it_was_given() -> None:
    meter = FakeMeter([1.0, 2.5], {"reserved": 7, "nvml": None})
    assert [meter.now_s(), meter.now_s()] == [1.0, 2.5]
    assert meter.peaks() == {"reserved": 7, "nvml": None}
    assert list(meter.reasons()) == ["peak_bytes.nvml"]


# --- what a trial asks of a meter -------------------------------------------------------------


class Allocator:
    """Holds a little more at every look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> dict[str, int]:
        self.looks += 1
        return {"allocated_bytes": 100 + self.looks, "reserved_bytes": 512, "alloc_retries": 3}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeMeter:
    """A device in the place of the CPU's meter."""
    meter = FakeMeter(itertools.count(), {"reserved": 512, "nvml": None}, Allocator())
    monkeypatch.setattr(train, "build_meter", lambda device: meter)
    return meter


@pytest.mark.usefixtures("device")
def test_a_device_is_sampled_at_evaluations_refreshes_and_the_end() -> None:
    record = small.train("frugal", small.changed(steps=32), refresh_fraction=0.125)
    assert record.status == "ok"
    held = {name: [step for step, _ in points] for name, points in record.series.items()}
    # The accounted steps, every fifth one, those that begin with a selection, the end.
    selections = [step + 1 for step, _ in record.series["rho"]][1:]
    assert len(selections) == 7
    wanted = sorted({0, 1, 2, *range(5, 33, 5), *selections, 32})
    assert set(wanted) <= set(held["allocated_bytes"]) <= {*wanted, 3}
    assert held["reserved_bytes"] == held["alloc_retries"] == held["allocated_bytes"]
    values = [value for _, value in record.series["allocated_bytes"]]
    assert values == sorted(values)
    assert {value for _, value in record.series["alloc_retries"]} == {3}
    assert (record.peak_bytes["reserved"], record.missing["peak_bytes.nvml"]) == (512, "fake")


@pytest.mark.usefixtures("device")
def test_refreshes_in_every_step_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "MAX_POINTS", 4)
    record = small.train("frugal", small.changed(steps=32), refresh_fraction=0.04)
    steps = [step for step, _ in record.series["allocated_bytes"]]
    assert len(record.series["rho"]) > 20
    assert set(steps) <= {0, 1, 2, *range(5, 33, 5), 32, 10, 13, 18, 23, 28}
    assert len(steps) < 16


def test_a_cpu_records_no_allocator(adam: TrialRecord) -> None:
    assert not {"allocated_bytes", "reserved_bytes", "alloc_retries", "ooms"} & set(adam.series)
    frugal = small.train("frugal")
    assert set(frugal.series) == {"rho", "state_bytes"}


def test_energy_counts_in_timed_steps_and_memory_is_watched_throughout(device: FakeMeter) -> None:
    record = small.train("adamw", lr=1e-2)
    # Timed: steps 5 to 16 in stretches that end at the evaluations; the first ends the warm-up.
    assert device.told == ["watch", "pause", *["resume", "pause"] * 3, "stop"]
    assert record.tokens_per_s is not None


def test_nothing_is_watched_while_steps_are_timed(device: FakeMeter) -> None:
    record = small.train("adamw", phase="timing", lr=1e-2)
    assert record.status == "ok"
    assert device.told == ["resume", "pause", "stop"]
    assert [step for step, _ in record.series["allocated_bytes"]] == [record.steps]
    device.told.clear()
    short = small.changed(steps=4, schedule=replace(small.PROTOCOL.schedule, warmup=0.25))
    record = small.train("adamw", short, phase="timing", lr=1e-2)
    assert (record.status, record.tokens_per_s) == ("ok", None)
    assert device.told == ["pause", "stop"]


def test_a_trial_that_fails_still_says_what_was_held(device: FakeMeter) -> None:
    record = small.train(small.plugin("faulty:RAISES_AT_ONCE"))
    assert record.status == "error"
    assert device.told == ["watch", "stop"]
    assert [step for step, _ in record.series["alloc_retries"]] == [0]
