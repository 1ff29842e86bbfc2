"""Trials over several processes: what is learned is what one process learns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest
import torch

from levelfield.bench import api, checkpoint, launch, train
from levelfield.bench.group import Group
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import BenchError, Engine, Evaluation, Protocol, TrialRecord
from levelfield.bench.store import comparable
from levelfield.bench.train_request import Progress, failed_record
from levelfield.tests import small
from levelfield.tests.coordinator import Coordinator

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
STEPS = 12
PROTOCOL = small.changed(steps=STEPS, evaluation=Evaluation(every=4, sequences=8))
KINDS = ("ddp", "fsdp2")
FEW = {"ddp": ("adamw", "frugal"), "fsdp2": ("adamw", "schedulefree_adamw")}
NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found through /proc"
)


def over_two(parallel: Any, protocol: Protocol = PROTOCOL, **engine: Any) -> Protocol:
    return replace(protocol, engine=Engine(processes=2, parallel=parallel, **engine))


# --- two processes, forked: what they learn ---------------------------------------------------


def in_pairs(work: Callable[..., Any], *given: Any, limit_s: float = 600.0) -> list[Any]:
    """What `work(group of a process, *given)` returns in each of two processes.

    `given` begins with the kind of group.
    """
    fork = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [fork.Pipe(duplex=False) for _ in range(2)]
    pair = [
        fork.Process(target=_one_of_two, args=(rank, port, pipes[rank][1], work, given))
        for rank in range(2)
    ]
    for process, (_, write) in zip(pair, pipes, strict=True):
        process.start()
        write.close()
    try:
        end_s = time.monotonic() + limit_s
        found = []
        for read, _ in pipes:
            assert read.poll(max(0.0, end_s - time.monotonic())), "the two did not come to an end"
            found.append(read.recv())
    finally:
        for process in pair:
            process.kill()
            process.join()
    return found


def _one_of_two(rank: int, port: int, write: Any, work: Callable[..., Any], given: Any) -> None:
    from torch.distributed import init_process_group

    from levelfield.bench.distributed import open_group

    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", RANK=str(rank)
    )
    init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    group = open_group(Engine(processes=2, parallel=given[0]), torch.device("cpu"))
    with torch.compiler.set_stance("force_eager"):
        write.send(work(group, *given))
    time.sleep(60.0)  # the other one may still need this one: both are ended together


Learned = tuple[TrialRecord, list[float], torch.Tensor]


def learned(name: str, protocol: Protocol, group: Group | None = None, **hparams: Any) -> Learned:
    """Record, training losses and final weights of a trial."""
    request = small.request(name, protocol, phase="final", **hparams)
    trial = train.Trial(request, lambda progress: None, group)
    with torch.compiler.set_stance("force_eager"):
        status, reason = trial.run()
        trial.collect()
    whole = [trial.group.whole(param.tensor.detach()).reshape(-1) for param in trial.params]
    return trial.record(status, reason), trial.losses.tolist(), torch.cat(whole)


def all_learned(group: Group, parallel: str, names: Sequence[str]) -> Mapping[str, Any]:
    found = {}
    for name in names:
        try:
            record, losses, weights = learned(name, over_two(parallel), group)
        except Exception as error:
            return {**found, name: repr(error)}  # the other may wait now: nothing goes on
        found[name] = record, losses, weights.numpy()
    return found


def able(parallel: str) -> list[str]:
    """Methods that say of themselves that they can."""
    words = {"distributed", *(("sharding",) if parallel == "fsdp2" else ())}
    return [
        item.value.name
        for item in OPTIMIZERS.load_all()
        if item.value.adapter is None
        and "causal_lm" in (item.value.tasks or ("causal_lm",))
        and not words & set(item.value.cannot)
    ]


def check_equal(parallel: str, names: Sequence[str]) -> None:
    pair = in_pairs(all_learned, parallel, names)
    for name in names:
        mine, others = (found.get(name) for found in pair)
        failed = [why for why in (mine, others) if isinstance(why, str)]
        assert not failed, f"{name}: {failed}"
        record, losses, weights = mine
        # Sums are taken part by part, as one process takes them that gathers two parts: rounding
        # that a method blows up (eigenvectors of equal eigenvalues) is the same in both.
        alone, alone_losses, alone_weights = learned(
            name, replace(PROTOCOL, engine=Engine(accumulation=2))
        )
        assert losses == pytest.approx(alone_losses, rel=1e-5), name
        assert torch.dist(torch.from_numpy(weights), alone_weights) <= 1e-4 * alone_weights.norm()
        assert (weights == others[2]).all(), name
        assert record.batches_sha256 == alone.batches_sha256 == others[0].batches_sha256
        assert record.weights_sha256 == alone.weights_sha256
        assert record.status == alone.status
        assert record.passes == alone.passes
        assert record.tokens == alone.tokens
        assert record.selection_loss == pytest.approx(alone.selection_loss, rel=1e-5)
        assert record.report_loss == pytest.approx(alone.report_loss, rel=1e-5)
        assert record.max_grad_norm == pytest.approx(alone.max_grad_norm, rel=1e-3)
        check_measured(parallel, record, alone)


def check_measured(parallel: str, record: TrialRecord, alone: TrialRecord) -> None:
    """Bytes are those of a process; what is not measured is None, with a reason."""
    assert record.state_bytes is not None
    assert alone.state_bytes is not None
    assert "one of 2 processes" in record.missing["peak_bytes.others"]
    assert record.joules is None
    assert record.missing["joules"]
    if parallel == "ddp":
        assert record.state_bytes == pytest.approx(alone.state_bytes, rel=0.01)
        assert record.peak_bytes["state"] is not None
        return
    assert record.state_bytes < alone.state_bytes or alone.state_bytes == 0
    assert record.peak_bytes.get("total") is None
    assert record.host_reads is None
    for name in ("peak_bytes.total", "peak_bytes.state", "host_reads"):
        assert "not tracked" in record.missing[name]


@pytest.mark.parametrize("parallel", KINDS)
def test_two_processes_learn_what_one_learns(parallel: str) -> None:
    check_equal(parallel, FEW[parallel])


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_so_does_every_method_that_does_not_decline(parallel: str) -> None:
    names = [name for name in able(parallel) if lacking_nothing(name)]
    assert len(names) > 20
    check_equal(parallel, names)


def lacking_nothing(name: str) -> bool:
    from levelfield.bench.registry import lacking

    return not lacking(OPTIMIZERS.load(name).value.requires)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lomo", "adalomo", "sophia"])
def test_what_is_declined_would_learn_something_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "distributed" in OPTIMIZERS.load(name).value.cannot
    monkeypatch.setattr(train, "_unsupported", lambda spec, protocol: None)
    mine, _ = in_pairs(all_learned, "ddp", [name])
    _, _, weights = learned(name, PROTOCOL)
    assert torch.dist(torch.from_numpy(mine[name][2]), weights) > 3e-5 * weights.norm()


def test_a_part_of_the_batch_and_its_weight() -> None:
    """The mean over the processes of their weighted sums is the batch's mean."""
    from levelfield.bench.distributed import Ddp

    parts = [("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.4)]
    values = {"a": 1.0, "b": 5.0, "c": 7.0, "d": -3.0}
    sums = []
    for rank in range(2):
        group = Ddp.__new__(Ddp)
        group.rank, group.size = rank, 2
        mine = group.own(parts)
        assert [part for part, _ in mine] == [["a", "b"], ["c", "d"]][rank]
        sums.append(sum(values[part] * weight for part, weight in mine))
    assert sum(sums) / 2 == pytest.approx(sum(values[part] * weight for part, weight in parts))


# --- components -------------------------------------------------------------------------------

EXACT = {"mode": "exact", "growth": False, "stagger": 0.0, "cap": 4, "rank": 4, "lr": 5e-2}
"""Four components in each module from the start, and no reserve."""
GROWING = {"mode": "exact", "interval": 0.15, "share": 0.5, "lr": 5e-2}
"""Ranks that grow, each module with a reserve: passes of unequal number on the two."""


def components_learned(group: Group, parallel: str, hparams: Mapping[str, Any]) -> Any:
    record, losses, weights = learned("adapad", over_two(parallel, TWENTY), group, **hparams)
    return record, losses, weights.numpy()


TWENTY = small.changed(PROTOCOL, steps=20)


@pytest.mark.parametrize("hparams", [EXACT, GROWING], ids=["fixed", "growing"])
def test_components_that_are_shared_out_are_those_of_one_process(
    hparams: Mapping[str, Any],
) -> None:
    mine, other = in_pairs(components_learned, "components", hparams)
    alone, alone_losses, alone_weights = learned("adapad", TWENTY, **hparams)
    record, losses, weights = mine
    assert record.status == alone.status
    assert losses == pytest.approx(alone_losses, rel=1e-6)
    assert torch.dist(torch.from_numpy(weights), alone_weights) <= 1e-6 * alone_weights.norm()
    assert (weights == other[2]).all()
    assert record.passes == alone.passes
    assert record.adapter == alone.adapter
    assert record.max_grad_norm == pytest.approx(alone.max_grad_norm, rel=1e-5)
    assert record.batches_sha256 == alone.batches_sha256
    if hparams is GROWING:
        assert len(alone.series["total_rank"]) > 2
    else:
        assert alone.passes == 4 * 20


def test_whoever_has_no_components_to_share_out_says_so() -> None:
    for name, hparams in (("adamw", {}), ("lora", {}), ("adapad", {"mode": "prefix"})):
        group: Any = AloneInComponents()
        record = train.run_trial(
            small.request(name, over_two("components"), **hparams), lambda progress: None, group
        )
        assert record.status == "error"
        assert record.reason is not None
        assert "engine.parallel=ddp" in record.reason


class AloneInComponents:
    """A group that gets as far as sharing out."""

    def __new__(cls) -> Any:
        from levelfield.bench.distributed import Components

        group = Components.__new__(Components)
        group.rank, group.size, group.cuts, group.missing = 0, 2, 1, {}
        return group


# --- checkpoints and kept weights of a group --------------------------------------------------


class Interrupted(BaseException):
    """Not an error of the trial: its processes are gone."""


def gone_on(group: Group, parallel: str, names: Sequence[str], folder: str) -> Any:
    """Each method straight, and stopped at its checkpoint and gone on."""
    engine = {"checkpoint_tokens": 5 * PROTOCOL.tokens_per_step, "save_final": True}
    protocol = over_two(parallel, **engine)
    save = checkpoint.save

    def and_vanish(trial: Any, path: Path) -> None:
        save(trial, path)
        raise Interrupted

    found = {}
    for name in names:
        request = small.request(name, protocol, phase="final")
        ways = [replace(request, folder=f"{folder}/{way}") for way in ("straight", "resumed")]
        straight = train.run_trial(ways[0], lambda progress: None, group)
        checkpoint.save = and_vanish
        with contextlib.suppress(Interrupted):
            train.run_trial(ways[1], lambda progress: None, group)
        checkpoint.save = save
        torch.distributed.barrier()  # the first process writes the file
        found[name] = straight, train.run_trial(ways[1], lambda progress: None, group)
    return found


def known(sizes: Mapping[str, int | None]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size is not None}


@pytest.mark.parametrize("parallel", KINDS)
def test_a_group_goes_on_from_a_checkpoint(parallel: str, tmp_path: Path) -> None:
    names = {"ddp": ("galore",), "fsdp2": ("adamw", "soap")}[parallel]
    for found in in_pairs(gone_on, parallel, names, str(tmp_path)):
        for straight, resumed in found.values():
            assert straight.steps == STEPS, straight.reason
            one, other = comparable(resumed), comparable(straight)
            # gloo's thread frees its buffers when it gets there: a few bytes in the peak.
            peaks, others = one.pop("peak_bytes"), other.pop("peak_bytes")
            assert known(peaks) == pytest.approx(known(others), rel=0.01)
            for kind in ("weights", "gradients", "state"):
                assert peaks.get(kind) == others.get(kind)
            assert one == other
            assert len(straight.final_sha256 or "") == 64
    from safetensors.torch import load_file

    for name in names:
        kept = sorted(tmp_path.glob(f"*/*/final-{name}-0-0/model.safetensors"))
        assert len(kept) == 2
        one, other = (load_file(path) for path in kept)
        assert {key: value.shape for key, value in one.items()} == shapes()
        assert all(torch.equal(one[key], other[key]) for key in one)


def shapes() -> dict[str, Any]:
    trial = train.Trial(small.request("adamw", PROTOCOL), lambda progress: None)
    trial.load()
    trial.setup()
    return {param.info.name: torch.Size(param.info.shape) for param in trial.params}


# --- places -----------------------------------------------------------------------------------

GPUS = tuple(f"cuda:{index}" for index in range(5))


def test_a_slot_takes_a_gpu_a_process() -> None:
    assert launch.grouped(GPUS, 1) == GPUS
    assert launch.grouped(GPUS, 2) == ("cuda:0,cuda:1", "cuda:2,cuda:3")
    assert launch.grouped(GPUS, 5) == (",".join(GPUS),)
    assert launch.grouped(("cpu",), 4) == ("cpu",)
    with pytest.raises(BenchError, match=r"engine\.processes=6.*at least 6 GPUs"):
        launch.grouped(GPUS, 6)


def test_places_of_trials_over_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from levelfield.bench import execute

    monkeypatch.setattr(execute, "cuda_devices", lambda: GPUS)
    monkeypatch.setattr(api, "cores", lambda: 12)
    assert api.places("cuda", None, 1, 2) == (("cuda:0,cuda:1", "cuda:2,cuda:3"), 2)
    assert api.places("cuda", 1, 1, 2) == (("cuda:0,cuda:1", "cuda:2,cuda:3"), 1)
    assert api.places("cuda", None, 1) == (GPUS, 5)
    assert api.places("cpu", None, 2, 3) == (("cpu",), 2)
    assert api.places("cpu", None, 4, 4) == (("cpu",), 1)
    with pytest.raises(BenchError, match="at least 2 GPUs"):
        api.places("cuda:1", None, 1, 2)


# --- the desk: who is heard -------------------------------------------------------------------


class Ended:
    """A launcher whose processes can be said to have ended."""

    def __init__(self) -> None:
        self.ended_read, self.ended_write = os.pipe()
        self.died, self.error = (0, 0), None


Script = Sequence[Any]
"""What a member sends; a number is the seconds that it waits, None that it vanishes."""


def at_the_desk(
    tmp_path: Path, *scripts: Script, died: tuple[int, int] = (0, 0)
) -> tuple[TrialRecord, list[Progress], list[Any]]:
    """Members that follow scripts: the record, what was reported, and what each was told last."""
    request = small.request("adamw", over_two("ddp"))
    launcher, told, reported = Ended(), [None] * len(scripts), []
    launcher.died = died

    def follow(rank: int, script: Script) -> None:
        connection = Client(str(tmp_path / "d" / "socket"), "AF_UNIX")
        assert connection.recv() == request
        for item in script:
            if isinstance(item, float):
                time.sleep(item)
            elif item is None:
                connection.close()
                return
            else:
                connection.send((rank, item))
        told[rank] = connection.recv()

    (tmp_path / "d").mkdir()
    with Listener(str(tmp_path / "d" / "socket"), "AF_UNIX", backlog=2) as listener:
        threads = [
            threading.Thread(target=follow, args=(rank, script))
            for rank, script in enumerate(scripts)
        ]
        for thread in threads:
            thread.start()
        if died != (0, 0):
            ending = threading.Timer(0.6, os.close, [launcher.ended_write])
            ending.start()
        desk: Any = launch._Desk(listener, launcher, request, reported.append)  # type: ignore[arg-type]
        record = desk.record()
        for thread in threads:
            thread.join()
    assert not (tmp_path / "d").exists()
    return record, reported, told


def ended(status: Any) -> TrialRecord:
    return failed_record(small.request("adamw"), status, f"it is {status}")


def test_the_first_process_tells(tmp_path: Path) -> None:
    progress = Progress(key="k", step=1, steps=2, loss=1.0, tokens_per_s=1.0)
    record, reported, told = at_the_desk(
        tmp_path, [progress, 0.2, ended("ok")], [ended("undertrained")]
    )
    assert (record.status, reported, told) == ("ok", [progress], [launch.DONE] * 2)


def test_another_one_tells_what_broke(tmp_path: Path) -> None:
    record, _, told = at_the_desk(tmp_path, [], [ended("oom")])
    assert (record.status, told) == ("oom", [launch.DONE] * 2)


@pytest.mark.parametrize("later_s", [0.2, -0.2])
def test_one_that_vanished_is_the_reason(tmp_path: Path, later_s: float) -> None:
    """Whatever the others say about it, before or after it is noticed."""
    record, _, _ = at_the_desk(
        tmp_path,
        [max(0.0, later_s), ended("error")],
        [max(0.0, -later_s), None],
        died=(1, -signal.SIGKILL),
    )
    assert record.status == "killed"
    assert record.reason is not None
    assert record.reason.startswith("process 1 of 2: ended from outside by SIGKILL")


# --- launched ---------------------------------------------------------------------------------


def test_launched_by_the_executor() -> None:
    """And one that declines is told so, without a launch."""
    protocol = over_two("ddp", small.changed(PROTOCOL, trial_timeout_s=240.0))
    record, declined = small.execute(
        [small.request(name, protocol, phase="final") for name in ("adamw", "lomo")]
    )
    assert (declined.status, declined.reason) == (
        "unsupported",
        "lomo declares that it cannot share a batch between processes",
    )
    _, losses, _ = learned("adamw", PROTOCOL)
    assert record.status in ("ok", "undertrained"), record.reason
    assert [loss for _, loss in record.train_loss] == pytest.approx(losses, rel=1e-5)
    assert record.device == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "status", "reason"),
    [
        ("FAILS", "error", "RuntimeError: it broke in process 1 (failing.py:"),
        ("HUNGRY", "oom", "MemoryError"),
        ("KILLED", "killed", "process 1 of 2: ended from outside by SIGKILL"),
        ("HANGS", "timeout", "longer than trial_timeout_s"),
    ],
)
def test_one_process_of_two_fails(method: str, status: str, reason: str) -> None:
    protocol = over_two("ddp", small.changed(PROTOCOL, trial_timeout_s=90.0))
    (record,) = small.execute([small.request(small.plugin(f"failing:{method}"), protocol)])
    assert record.status == status
    assert record.reason is not None
    assert record.reason.startswith(reason)


RUN = small.changed(
    PROTOCOL, trials=1, seeds=1, trial_timeout_s=120.0, timing=replace(PROTOCOL.timing, windows=1)
)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_whole_runs(parallel: str, tmp_path: Path) -> None:
    settings = ["engine.processes=2", f"engine.parallel={parallel}"]
    alone = small.run(tmp_path / "alone", ["adamw", "lomo"], RUN)
    run = small.run(tmp_path / "two", ["adamw", "lomo"], RUN, settings=settings)
    assert [record.key for record in run.records] == [
        record.key for record in alone.records if record.phase == "tune" or "lomo" not in record.key
    ]
    one = {record.key: record for record in alone.records}
    for record in run.records:
        if record.optimizer == "lomo":
            assert record.status == "unsupported"
            continue
        assert record.status == one[record.key].status, record.reason
        assert record.batches_sha256 == one[record.key].batches_sha256
        for name in ("selection_loss", "report_loss"):
            mine, its = getattr(record, name), getattr(one[record.key], name)
            assert (mine is None) == (its is None)
            assert mine is None or mine == pytest.approx(its, rel=1e-5)


COORDINATOR = """
import sys
from levelfield.bench import api
from levelfield.tests import small
from levelfield.tests.test_distributed import over_two
protocol = over_two("ddp", small.changed(steps=100_000, trials=1, trial_timeout_s=600.0))
api.run(protocol, ["adamw"], out=sys.argv[1], slots=1)
"""


@pytest.mark.slow
@NEEDS_PROC
def test_nothing_outlives_a_killed_coordinator(
    start: Callable[..., Coordinator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tempfile.mkdtemp(prefix="lf")  # a socket's path must be
    monkeypatch.setenv("TMPDIR", short)
    coordinator = start(COORDINATOR, str(tmp_path))
    # Itself, the resource tracker, the fork server, the trial, and the two that train.
    coordinator.wait_for(lambda: len(coordinator.pids()) >= 6, limit_s=90.0)
    time.sleep(12.0)
    assert len(coordinator.pids()) >= 6
    os.kill(coordinator.process.pid, signal.SIGKILL)
    assert coordinator.ended()
    assert coordinator.process.communicate() == ("", "")
    assert list(Path(short).glob("levelfield-*")) == []
