"""Trials that go on from a checkpoint: as if they had never stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench import api, checkpoint, train
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import Data, Engine, Evaluation, Protocol, TrialRecord
from levelfield.bench.store import comparable, equal_records
from levelfield.bench.train import run_trial
from levelfield.bench.train_request import TrialRequest, checkpoint_path
from levelfield.tests import small
from levelfield.tests.coordinator import Coordinator

STEPS, KEPT_AT = 12, 5
TOKENS = small.PROTOCOL.tokens_per_step
PROTOCOL = small.changed(
    steps=STEPS,
    evaluation=Evaluation(every=4, sequences=8),
    engine=Engine(checkpoint_tokens=KEPT_AT * TOKENS, save_final=True),
)
CPU = torch.device("cpu")
WHOLE_MODEL = [
    item.value.name
    for item in OPTIMIZERS.load_all()
    if item.value.adapter is None and "causal_lm" in (item.value.tasks or ("causal_lm",))
]
FEW = ("adafrugal", "adamw", "foam", "galore", "schedulefree_adamw", "soap", "sophia")
"""Of different kinds: controllers, generators, series, separate weights; the others are slow."""


class Interrupted(BaseException):
    """Not an error of the trial: its process is gone."""


def asked(name: str, folder: Path, protocol: Protocol = PROTOCOL, **hparams: Any) -> TrialRequest:
    small.available(name)
    request = small.request(name, protocol, phase="final", **hparams)
    return replace(request, folder=str(folder))


def trained(request: TrialRequest) -> TrialRecord:
    return run_trial(request, lambda progress: None)


def stop_after(request: TrialRequest, monkeypatch: pytest.MonkeyPatch, saves: int = 1) -> Path:
    """Train until so many checkpoints are written, then vanish; returns the last one's path."""
    save, left = checkpoint.save, [saves]

    def and_vanish(trial: Any, path: Path) -> None:
        save(trial, path)
        left[0] -= 1
        if not left[0]:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", and_vanish)
        with pytest.raises(Interrupted):
            trained(request)
    path = checkpoint_path(request)
    assert path is not None
    assert path.is_file()
    return path


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of every step that is really taken from here on."""
    taken: list[int] = []
    one_step = train.Trial.one_step

    def noted(trial: train.Trial, *args: Any) -> None:
        taken.append(trial.step)
        one_step(trial, *args)

    monkeypatch.setattr(train.Trial, "one_step", noted)
    return taken


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in WHOLE_MODEL],
)
def test_every_method_goes_on_as_if_it_had_never_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_taken: list[int]
) -> None:
    with torch.compiler.set_stance("force_eager"):
        straight = trained(asked(name, tmp_path / "straight"))
        assert straight.steps == STEPS, straight.reason
        request = asked(name, tmp_path / "resumed")
        stop_after(request, monkeypatch)
        steps_taken.clear()
        resumed = trained(request)
    assert steps_taken == [*range(KEPT_AT, STEPS)]
    assert comparable(resumed) == comparable(straight)
    assert resumed.final_sha256 == straight.final_sha256
    assert len(straight.final_sha256 or "") == 64


def test_the_rates_after_a_resume_are_those_of_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rates: list[float] = []
    step = torch.optim.AdamW.step

    def noted(optimizer: Any, *args: Any) -> Any:
        set_rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *args)

    schedule = replace(PROTOCOL.schedule, warmup=0.25)
    protocol = replace(PROTOCOL, schedule=schedule)
    request = asked("adamw", tmp_path, protocol, lr=0.5)
    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    stop_after(request, monkeypatch, saves=2)
    assert len(set_rates) == 2 * KEPT_AT
    resumed = trained(request)
    assert len(set_rates) == STEPS
    points = dict(resumed.lr_trace)
    assert [rate / 0.5 for rate in set_rates] == pytest.approx([points[k] for k in range(STEPS)])
    warm = 3
    assert points[0] == pytest.approx(1 / warm)
    assert max(points.values()) == points[warm - 1] == 1.0
    assert points[STEPS - 1] == pytest.approx(schedule.floor)


def test_controllers_go_on_with_what_they_have_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A period that grows whenever the control loss stalls, and it always does: it grows at the
    evaluations before the checkpoint and after it."""
    stalls = {"tau_low": 10.0, "refresh_fraction": 0.09, "max_fraction": 0.9}
    straight = trained(asked("adafrugal_t", tmp_path / "straight", **stalls))
    request = asked("adafrugal_t", tmp_path / "resumed", **stalls)
    stop_after(request, monkeypatch)
    resumed = trained(request)
    assert comparable(resumed) == comparable(straight)
    grown = [step for step, _ in straight.series["T"][1:]]
    assert min(grown) < KEPT_AT < max(grown), straight.series
    assert straight.refreshes


def test_the_global_generators_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that draws from Python's, NumPy's and torch's own."""
    name = small.plugin("odd:GAMBLING")
    straight = trained(asked(name, tmp_path / "straight"))
    request = asked(name, tmp_path / "resumed")
    stop_after(request, monkeypatch)
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    resumed = trained(request)
    assert comparable(resumed) == comparable(straight)


def test_what_a_method_counts_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its state_dict has nothing of it."""
    name = small.plugin("counting:SPEC")
    straight = trained(asked(name, tmp_path / "straight"))
    request = asked(name, tmp_path / "resumed")
    stop_after(request, monkeypatch)
    resumed = trained(request)
    assert comparable(resumed) == comparable(straight)
    assert straight.refreshes == STEPS
    assert [step for step, _ in straight.series["control"]] == [0, 4, 8, 12]


@pytest.mark.parametrize("damage", ["empty", "half", "nearly whole", "other bytes", "half a part"])
def test_a_torn_checkpoint_is_ignored(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_taken: list[int]
) -> None:
    straight = trained(asked("adamw", tmp_path / "straight"))
    request = asked("adamw", tmp_path / "resumed")
    path = stop_after(request, monkeypatch)
    written = path.read_bytes()
    part = path.with_name(f"{path.stem}.4711.part")
    if damage == "half a part":  # the file itself is gone, what its successor began is there
        path.unlink()
        part.write_bytes(written[: len(written) // 2])
    else:
        torn = {"empty": b"", "half": written[: len(written) // 2], "nearly whole": written[:-1]}
        path.write_bytes(torn.get(damage, b"\x80\x04no pickle" * 99))
    steps_taken.clear()
    again = trained(request)
    assert steps_taken == [*range(STEPS)]
    assert comparable(again) == comparable(straight)
    assert not part.exists()


def test_a_checkpoint_is_that_of_its_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked("adamw", tmp_path)
    path = stop_after(request, monkeypatch)
    assert checkpoint.load(request, CPU) is not None
    # What is kept, and how often, is no part of what is learned.
    longer = replace(PROTOCOL, engine=Engine(checkpoint_tokens=TOKENS))
    assert checkpoint.load(replace(request, protocol=longer), CPU) is not None
    fewer = small.changed(PROTOCOL, steps=STEPS - 1)
    others = [
        replace(request, hparams={**request.hparams, "lr": 0.5}),
        replace(request, spec_digest="other"),
        replace(request, protocol_digest="other"),
        replace(request, data_digest="other"),
        replace(request, protocol=fewer),
    ]
    assert [checkpoint.load(other, CPU) for other in others] == [None] * len(others)
    later = replace(request, seed=request.seed + 1)
    assert checkpoint_path(later) != path
    path.rename(checkpoint_path(later) or "")
    assert checkpoint.load(later, CPU) is None


def test_timed_trials_keep_no_checkpoint(tmp_path: Path) -> None:
    request = asked("adamw", tmp_path)
    for phase in ("timing", "calibrate"):
        assert checkpoint_path(replace(request, phase=phase)) is None
    assert checkpoint_path(replace(request, folder=None)) is None


# --- killed -----------------------------------------------------------------------------------

KILLED = ("adamw", "adafrugal", "galore", "soap", "schedulefree_adamw")
LONG = small.changed(
    steps=240,
    trials=1,
    seeds=1,
    trial_timeout_s=300.0,
    data=Data(sequence=32, batch=8),
    timing=replace(small.PROTOCOL.timing, windows=1),
    evaluation=Evaluation(every=40, sequences=8),
    engine=Engine(checkpoint_tokens=20 * 8 * 32, save_final=True),
)
COORDINATOR = f"""
import sys
from levelfield.bench import api
from levelfield.tests.test_checkpoint import LONG
api.run(LONG, sys.argv[2:], out=sys.argv[1], slots={len(KILLED)})
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="found through /proc")
def test_killed_in_the_middle_and_resumed(
    start: Callable[..., Coordinator], tmp_path: Path
) -> None:
    straight = small.run(tmp_path / "straight", KILLED, LONG, slots=len(KILLED))
    (tmp_path / "killed").mkdir()
    coordinator = start(COORDINATOR, str(tmp_path / "killed"), *KILLED)
    coordinator.out = tmp_path / "killed"

    def kept() -> list[str]:
        folder = coordinator.folder
        return sorted(path.stem for path in folder.glob("checkpoints/final-*.pt")) if folder else []

    coordinator.wait_for(lambda: len(kept()) == len(KILLED), limit_s=120.0)
    os.killpg(coordinator.process.pid, signal.SIGKILL)
    assert coordinator.ended()
    interrupted = coordinator.running()
    assert sorted(kept()) == sorted(interrupted), "all were to be in the middle"
    assert coordinator.folder is not None
    resumed = api.resume(coordinator.folder)
    assert equal_records(straight.records, resumed.records) == []
    finals = [record for record in resumed.records if record.phase == "final"]
    assert {record.optimizer for record in finals} == set(KILLED)
    for record in finals:
        assert record.steps == 240
        assert record.retries == 1
        assert len(record.final_sha256 or "") == 64
    assert kept() == []
