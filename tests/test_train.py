"""One trial: verdicts, clocks, points, precision, what a method is told and what it tells."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from levelfield.bench import sources, train
from levelfield.bench.digest import canonical_json, derive_seed
from levelfield.bench.schedules import lr_factor
from levelfield.bench.spec import Model, Phase, Protocol, Schedule, TrialRecord
from levelfield.bench.store import comparable
from levelfield.bench.tasks import Reading
from levelfield.bench.train_request import Progress
from levelfield.bench.verdict import verdict
from levelfield.tests import small

TOKENS = small.PROTOCOL.tokens_per_step


@pytest.fixture(scope="module")
def plain() -> TrialRecord:
    """A final trial of gradient descent."""
    return small.train(small.plugin("odd:PLAIN"), phase="final", seed=3)


def same(one: TrialRecord, other: TrialRecord, *ignored: str) -> bool:
    a, b = comparable(one), comparable(other)
    return [name for name in a if a[name] != b[name] and name not in ignored] == []


# --- a record that is whole -------------------------------------------------------------------


def test_losses_and_points_of_a_final(plain: TrialRecord) -> None:
    assert (plain.status, plain.reason) == ("ok", None)
    assert (plain.steps, plain.tokens, plain.passes) == (16, 16 * TOKENS, 16.0)
    assert [point[0] for point in plain.curve] == [step * TOKENS for step in (0, 5, 10, 15, 16)]
    assert plain.initial_loss == plain.curve[0][2]
    assert plain.initial_loss == pytest.approx(math.log(256), abs=0.1)
    assert plain.selection_loss is not None
    assert plain.report_loss is not None
    assert plain.selection_loss < 0.95 * plain.initial_loss
    assert [step for step, _ in plain.train_loss] == list(range(16))
    assert plain.max_grad_norm is not None
    assert plain.max_grad_norm > 0
    assert plain.spikes is None  # too few steps for a trend
    assert plain.state_bytes == plain.claimed_state_bytes == 0


def test_only_finals_read_the_report_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    sequences = sources.Corpus.sequences

    def watched(
        self: sources.Corpus, name: str, length: int, limit: int | None = None
    ) -> sources.Tokens:
        read.append(name)
        return sequences(self, name, length, limit)

    monkeypatch.setattr(sources.Corpus, "sequences", watched)
    record = small.train(small.plugin("odd:PLAIN"), phase="tune")
    assert record.report_loss is None
    assert record.missing["report_loss"] == "only final trials read the report slice"
    assert set(read) == {"selection"}
    read.clear()
    small.train(small.plugin("odd:PLAIN"), phase="timing")
    assert read == []
    small.train(small.plugin("odd:OBSERVING"), phase="final")
    assert set(read) == {"selection", "control", "report"}


def test_the_last_evaluation_is_of_the_whole_slice(plain: TrialRecord) -> None:
    # The last point of the curve is on eight sequences, the loss that ranks on all of them.
    assert plain.selection_loss != plain.curve[-1][2]
    whole = small.changed(evaluation=replace(small.PROTOCOL.evaluation, sequences=10**6))
    record = small.train(small.plugin("odd:PLAIN"), whole, phase="final", seed=3)
    assert record.selection_loss == record.curve[-1][2] == plain.selection_loss


def test_json_of_a_record_holds_no_nan(plain: TrialRecord) -> None:
    for record in (plain, small.train(small.plugin("faulty:NAN_LATE"))):
        text = canonical_json(record)
        assert "NaN" not in text
        assert "Infinity" not in text
        assert json.loads(text)["optimizer"] == record.optimizer


# --- clocks -----------------------------------------------------------------------------------


def test_seconds_are_split_and_add_up() -> None:
    record = small.train(small.plugin("odd:SLOW"), small.changed(steps=12))
    parts = {name: record.wall_s[name] for name in ("setup", "warmup", "step", "eval")}
    assert all(seconds > 0 for seconds in parts.values())
    # Two steps are accounted, three more are warm-up, seven are timed; each sleeps 30 ms.
    assert 0.09 <= parts["warmup"] < 0.21
    assert 0.21 <= parts["step"] < 1.0
    assert record.tokens_per_s == pytest.approx(7 * TOKENS / parts["step"])
    seconds = [point[1] for point in record.curve]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert seconds[-1] == pytest.approx(parts["warmup"] + parts["step"])


@pytest.mark.parametrize("steps", [1, 4, 5, 6])
def test_a_short_trial_has_no_timed_step_and_says_so(steps: int) -> None:
    protocol = small.changed(steps=steps, schedule=Schedule(warmup=0.0))
    for phase in ("tune", "timing"):
        record = small.train(small.plugin("odd:PLAIN"), protocol, phase=phase)
        assert record.steps == steps
        assert (record.tokens_per_s is not None) == (steps > train.UNTIMED_STEPS)
        assert ("windows" in record.wall_s) == (phase == "timing" and steps > train.UNTIMED_STEPS)


@pytest.mark.parametrize("phase", ["tune", "timing"])
def test_a_loss_that_is_not_finite_ends_a_trial_of_every_phase(phase: Phase) -> None:
    record = small.train(small.plugin("faulty:NAN_FIRST"), small.changed(steps=8), phase=phase)
    assert record.status == "diverged"
    assert (record.reason or "").startswith("training loss is nan at step ")


def test_a_window_of_the_timing_phase() -> None:
    record = small.train(small.plugin("odd:SLOW"), phase="timing")
    assert record.status == "ok"
    assert record.steps == train.UNTIMED_STEPS + 4
    (window,) = record.wall_s["windows"]
    assert 0.03 <= window < 0.2
    assert record.tokens_per_s == pytest.approx(TOKENS / window)
    assert record.selection_loss is None
    assert record.missing["selection_loss"] == "the timing phase evaluates nothing"
    assert record.curve == []
    assert "total" not in record.peak_bytes


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "status", "reason"),
    [
        ([5.0, 4.0, 3.0], "ok", None),
        ([5.0, 3.0, 3.5], "ok", None),
        ([5.0, 3.0, 3.51], "diverged", "minimum 3.000 + 0.5"),
        ([5.0, 6.0, 5.01], "diverged", "above the initial"),
        ([5.0, 5.0, 5.0], "undertrained", "0.95"),
        ([5.0, 4.5, 4.76], "undertrained", "0.95"),
        ([5.0, 4.5, 4.75], "ok", None),
    ],
)
def test_verdict(losses: Sequence[float], status: str, reason: str | None) -> None:
    curve = [[float(tokens), 0.0, loss] for tokens, loss in enumerate(losses)]
    found, why = verdict(curve, (), False)
    assert found == status
    assert why is None if reason is None else reason in (why or "")


# --- what a seed decides ----------------------------------------------------------------------


def test_a_trial_repeats_here_and_in_another_process(plain: TrialRecord) -> None:
    again = small.train(small.plugin("odd:PLAIN"), phase="final", seed=3)
    assert same(plain, again)
    (away,) = small.execute([small.request(small.plugin("odd:PLAIN"), phase="final", seed=3)])
    assert same(plain, away)


def test_what_a_method_draws_from_global_generators_repeats() -> None:
    asked = [small.request(small.plugin("odd:GAMBLING"), seed=seed) for seed in (0, 1)]
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    here = [small.train(small.plugin("odd:GAMBLING"), seed=seed) for seed in (0, 1)]
    away = small.execute(asked)
    assert all(same(one, other) for one, other in zip(here, away, strict=True))
    assert here[0].selection_loss != small.train(small.plugin("odd:PLAIN")).selection_loss


def test_seeds_of_steps_are_distinct() -> None:
    seeds = {train.derive_seed_fast(seed, step) for seed in range(50) for step in range(200)}
    assert len(seeds) == 50 * 200
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_dropout_is_the_same_for_methods_that_draw(dropout: float) -> None:
    protocol = small.changed(model=replace(small.PROTOCOL.model, dropout=dropout))
    plain = small.train(small.plugin("odd:PLAIN"), protocol)
    noisy = small.train(small.plugin("odd:NOISY"), protocol)
    assert same(plain, noisy, "optimizer")


# --- schedules --------------------------------------------------------------------------------


def test_the_trace_of_the_protocols_schedule(plain: TrialRecord) -> None:
    expected = [[s, round(lr_factor(small.PROTOCOL.schedule, s, 16), 9)] for s in range(16)]
    assert plain.lr_trace == expected
    assert expected[-1] == [15, 0.1]
    assert max(factor for _, factor in expected) == 1.0


def test_a_constant_schedule_warms_up_and_stays() -> None:
    record = small.train(small.plugin("odd:CONSTANT"))
    assert record.lr_trace == [[0, 0.5], *([step, 1.0] for step in range(1, 16))]


def test_an_own_schedule_gets_one_throughout() -> None:
    record = small.train(small.plugin("odd:OWN"))
    assert record.lr_trace == [[step, 1.0] for step in range(16)]


def test_a_long_trace_is_thinned_and_keeps_first_peak_and_last() -> None:
    protocol = small.changed(steps=1000)
    trial = train.Trial(small.request(small.plugin("odd:PLAIN"), protocol), lambda progress: None)
    trial.load()
    trial.step = 1000
    trace = trial._lr_trace()
    assert len(trace) <= 44
    assert trace[0] == [0, 0.01]
    assert [99, 1.0] in trace
    assert trace[-1] == [999, 0.1]


# --- what a method gets and tells -------------------------------------------------------------


def test_passes_are_counted_by_the_harness() -> None:
    record = small.train(small.plugin("odd:TWO_PASSES"), phase="final")
    assert record.status == "ok"
    assert (record.steps, record.passes) == (16, 32.0)
    assert record.max_grad_norm is None
    assert record.tokens == 16 * TOKENS


def test_an_observer_is_told_the_control_loss_after_every_evaluation() -> None:
    protocol = small.changed(evaluation=replace(small.PROTOCOL.evaluation, every=4))
    record = small.train(small.plugin("odd:OBSERVING"), protocol)
    told = record.series["control"]
    assert [step for step, _ in told] == [0, 4, 8, 12, 16]
    assert all(loss != point[2] for (_, loss), point in zip(told, record.curve, strict=True))
    assert told[-1][1] < told[0][1]
    assert record.series["empty"] == []
    assert record.refreshes == 6
    # Five control evaluations of a forward pass each, a third of a whole one.
    sequences = min(protocol.evaluation.sequences, 64)
    forward = sequences * protocol.data.sequence / TOKENS / 3
    assert record.passes == pytest.approx(16 + 5 * forward)


def test_a_controller_is_timed_to_the_end_with_what_it_reads() -> None:
    """One window of its first steps would say nothing of what it does later on."""
    protocol = small.changed(evaluation=replace(small.PROTOCOL.evaluation, every=4))
    record = small.train(small.plugin("odd:OBSERVING"), protocol, phase="timing")
    assert record.status == "ok"
    assert record.steps == 16
    assert [step for step, _ in record.series["control"]] == [0, 8, 12, 16]
    plain = small.train(small.plugin("odd:TWO_PASSES"), protocol, phase="timing")
    assert plain.steps <= 16


def test_a_method_that_does_not_observe_costs_no_control_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    kept = train.Trial._read

    def watched(self: train.Trial, name: str, limit: int | None) -> Reading:
        read.append(name)
        return kept(self, name, limit)

    monkeypatch.setattr(train.Trial, "_read", watched)
    assert small.train(small.plugin("odd:TWO_PASSES")).refreshes is None
    assert set(read) == {"selection"}


def test_other_roles_go_to_the_fallback_in_the_same_step() -> None:
    record = small.train(small.plugin("odd:MATRICES"))
    assert record.status == "ok"
    # Two moments of everything but the matrices: 256 x 16 twice and three norms of 16.
    assert record.state_bytes == record.claimed_state_bytes == 2 * 4 * (2 * 256 * 16 + 3 * 16)


def test_progress_tells_the_pace() -> None:
    told: list[Progress] = []
    train.run_trial(small.request(small.plugin("odd:SLOW"), small.changed(steps=40)), told.append)
    assert told
    assert [item.step for item in told] == sorted({item.step for item in told})
    assert all(item.steps == 40 and math.isfinite(item.loss) for item in told)
    # A step takes 30 ms and a little.
    assert all(TOKENS / 0.2 < item.tokens_per_s < TOKENS / 0.03 for item in told)


# --- precision, clipping, threads -------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp32+bf16"])
def test_precision(plain: TrialRecord, precision: str) -> None:
    protocol = small.changed(precision=precision)
    asked = {"phase": "final", "seed": 3, "lr": 1e-2}
    record = small.train("adamw", protocol, **asked)
    assert record.status == "ok"
    full = small.train("adamw", small.PROTOCOL, **asked)
    assert record.selection_loss == pytest.approx(full.selection_loss, rel=0.1)
    assert record.selection_loss != full.selection_loss
    assert record.batches_sha256 == full.batches_sha256
    assert full.state_bytes is not None
    half = 2 if precision == "bf16" else 1
    assert record.state_bytes == full.state_bytes // half
    assert record.peak_bytes["state"] is not None
    assert (record.weights_sha256 == full.weights_sha256) == (precision != "bf16")
    assert same(record, small.train("adamw", protocol, **asked))


def test_a_method_that_cannot_is_unsupported_and_never_tried() -> None:
    record = small.train(small.plugin("faulty:NO_BF16"), small.changed(precision="bf16"))
    assert (record.status, record.steps) == ("unsupported", 0)
    assert record.reason == "no_bf16 declares that it cannot train bf16 weights"
    assert small.train(small.plugin("faulty:NO_BF16")).status == "error"


def test_clipping() -> None:
    def train_with(clip: float | None, lr: float) -> TrialRecord:
        return small.train(small.plugin("odd:PLAIN"), small.changed(clip_norm=clip), lr=lr)

    free, tight = train_with(None, 0.01), train_with(1e-3, 0.01)
    assert free.max_grad_norm is not None
    assert tight.max_grad_norm is not None
    # The norm before clipping is told; clipped to a thousandth, nothing moves.
    assert tight.max_grad_norm > 0.1
    assert tight.initial_loss == free.initial_loss
    assert tight.selection_loss == pytest.approx(tight.initial_loss, abs=0.02)
    assert train_with(10.0 * free.max_grad_norm, 0.01).selection_loss == pytest.approx(
        free.selection_loss, abs=1e-5
    )


def test_threads_are_the_protocols() -> None:
    before = torch.get_num_threads()
    try:
        two = small.train(small.plugin("odd:PLAIN"), small.changed(threads=2))
        assert torch.get_num_threads() == 2
        one = small.train(small.plugin("odd:PLAIN"), small.changed(threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert two.selection_loss == pytest.approx(one.selection_loss, abs=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_tables_are_one_parameter(tied: bool) -> None:
    protocol = small.changed(model=replace(small.PROTOCOL.model, tied=tied))
    record = small.train("adamw", protocol, lr=1e-2)
    assert record.status == "ok"
    table = 256 * 16
    assert record.parameters == 4 * 16 * 16 + 3 * 16 * 24 + 3 * 16 + table * (1 if tied else 2)
    assert record.state_bytes == record.claimed_state_bytes == 8 * record.parameters


# --- mistakes in the protocol -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        (small.changed(model=Model(hidden=16, heads=3)), "does not divide"),
        (small.changed(model=Model(family="gtp")), "unknown model family"),
        (small.changed(steps=2), "warm-up"),
    ],
)
def test_a_mistake_is_a_record_with_its_reason(protocol: Protocol, reason: str) -> None:
    record = small.train(small.plugin("odd:PLAIN"), protocol)
    assert (record.status, record.steps, record.selection_loss) == ("error", 0, None)
    assert reason in (record.reason or "")
    assert record.missing["state_bytes"] == "no step was taken"


def test_code_or_data_that_changed_under_way_is_refused() -> None:
    asked = small.request(small.plugin("odd:PLAIN"))
    for stamped, reason in (
        (replace(asked, spec_digest="0" * 64), "code changed while the run was under way"),
        (replace(asked, data_digest="0" * 64), "data changed while the run was under way"),
    ):
        record = train.run_trial(stamped, lambda progress: None)
        assert record.status == "error"
        assert reason in (record.reason or "")


def test_streams_of_a_seed_are_apart() -> None:
    seeds = [derive_seed(name, 3) for name in ("weights", "batches", "method", "torch", "numpy")]
    assert len(set(seeds)) == len(seeds)
