"""The Python side of the command: `levelfield.run` and `levelfield.load`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from levelfield.bench import study
from levelfield.bench.campaign import Campaign, Watcher
from levelfield.bench.launch import grouped
from levelfield.bench.provenance import cores
from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import BenchError, Phase, Protocol, TrialRecord
from levelfield.bench.store import Run, RunWriter, load_run
from levelfield.bench.train_request import Progress, TrialRequest


class Silent:
    """A watcher that shows nothing."""

    def phase(self, name: Phase, cells: int, done: int) -> None:
        pass

    def started(self, request: TrialRequest) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def finished(self, record: TrialRecord, fresh: bool) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def load(path: Path | str) -> Run:
    """Read a run: its manifest, its records, and what was odd about its files."""
    return load_run(path)


def run(
    protocol: str | Protocol = "quick",
    optimizers: Sequence[str] = (),
    *,
    settings: Sequence[str] = (),
    seed: int = 0,
    seeds: int | None = None,
    slots: int | None = None,
    device: str = "cpu",
    out: Path | str = "runs",
    tuned_from: Path | str | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Tune, train and time methods under a protocol; returns the finished run.

    Scripts need the usual `if __name__ == "__main__":`, since every trial runs in a process of
    its own.

    Args:
        protocol: a name, a `file.py:PROTOCOL`, or a `Protocol`.
        optimizers: names or `file.py:SPEC`; none means the protocol's own list.
        settings: changed protocol fields, such as `budget.trials=12`; marks the run modified.
        seed: of the whole run.
        seeds: final seeds a method (default: the protocol's).
        slots: trials at once (default: cores // threads, or the number of GPUs).
        device: `cpu`, `cuda` (all of them) or `cuda:0`.
        out: parent folder of the run's folder.
        tuned_from: another run, whose best points are trained here too, without tuning.

    Raises:
        BenchError: a mistake in what was asked for.
    """
    protocol, methods, origin = resolve(protocol, optimizers, settings)
    if protocol.variants:
        raise BenchError(
            f"{protocol.name} is a family of {len(protocol.variants)} protocols",
            "levelfield.bench.family.run_family runs it",
        )
    devices, slots = places(device, slots, protocol.threads, protocol.engine.processes)
    writer = study.new_run(
        protocol,
        methods,
        out=Path(out),
        transfer=None if tuned_from is None else study.transfer_from(Path(tuned_from), methods),
        seed=checked_seed(seed),
        final_seeds=protocol.budget.seeds if seeds is None else seeds,
        slots=slots,
        device=device,
        modified=settings,
        origin=origin,
    )
    return train(writer, protocol, methods, devices, slots, watcher)


def resolve(
    protocol: str | Protocol, optimizers: Sequence[str], settings: Sequence[str]
) -> tuple[Protocol, tuple[study.Method, ...], str]:
    """The protocol with its changes, the methods, and where the protocol came from.

    Raises:
        BenchError: a name or a setting that is not known.
    """
    origin = "given as a record"
    if isinstance(protocol, str):
        loaded = PROTOCOLS.load(protocol)
        protocol, origin = loaded.value, loaded.entry.origin
    protocol = apply_settings(protocol, settings)
    methods = study.load_methods(tuple(optimizers) or protocol.methods)
    if not methods:
        raise BenchError(f"protocol {protocol.name} names no methods", "name some with -o")
    return protocol, methods, origin


def shortcuts(
    protocol: str,
    settings: Sequence[str],
    *,
    files: bool = False,
    model: str | None = None,
    processes: int | None = None,
) -> list[str]:
    """The settings that options of the command stand for, and then those that were given.

    Args:
        files: the protocol's own settings for local files.
        model: `model.source`; a path is made absolute, since a run may be resumed elsewhere.
        processes: `engine.processes`.

    Raises:
        BenchError: an unknown protocol, or one that names no files.
    """
    found: list[str] = []
    if files:
        record = PROTOCOLS.load(protocol).value
        if not record.files:
            raise BenchError(
                f"--files: {record.name} names no local files",
                "accepted: --set data.source=file:PATH",
            )
        found += record.files
    if model is not None:
        head, colon, rest = model.partition(":")
        path = Path(head).expanduser()
        if path.exists():
            model = f"{path.resolve()}{colon}{rest}"
        found.append(f"model.source={model}")
    if processes is not None:
        found.append(f"engine.processes={processes}")
    return [*found, *settings]


def resume(
    path: Path | str,
    *,
    rerun_stale: bool = False,
    slots: int | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Finish exactly the missing cells of a run; everything else comes from its manifest.

    Raises:
        BenchError: no such run, in use, or made by other code (see `rerun_stale`).
    """
    return _reopen(Path(path), (), None, rerun_stale, slots, watcher)


def extend(
    path: Path | str,
    optimizers: Sequence[str] = (),
    *,
    seeds: int | None = None,
    slots: int | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Add methods, or final seeds, to a run without training anything again."""
    return _reopen(Path(path), optimizers, seeds, False, slots, watcher)


def _reopen(
    path: Path,
    optimizers: Sequence[str],
    seeds: int | None,
    rerun_stale: bool,
    slots: int | None,
    watcher: Watcher | None,
) -> Run:
    writer, _ = study.reopen(path)
    with writer:  # from here on nobody else changes the manifest
        manifest = writer.manifest
        study.check_untouched(writer, manifest)
        protocol = study.manifest_protocol(manifest)
        study.check_fresh(manifest, protocol)
        methods = study.current_methods(manifest, rerun_stale)
        added = study.load_methods(optimizers)
        study.check_budget(protocol, manifest["final_seeds"] if seeds is None else seeds)
        wanted = manifest["slots"] if slots is None else slots
        processes = protocol.engine.processes
        devices, slots = places(manifest["device"], wanted, protocol.threads, processes)
        if rerun_stale:
            study.refresh_methods(writer, methods)
        if added or seeds is not None:
            study.with_methods(writer, manifest, added, seeds)
        _train(writer, protocol, (*methods, *added), devices, slots, watcher or Silent())
    return load_run(path)


def train(
    writer: RunWriter,
    protocol: Protocol,
    methods: Sequence[study.Method],
    devices: Sequence[str],
    slots: int,
    watcher: Watcher | None,
) -> Run:
    """Train whatever a run has no record of, and read the run back."""
    with writer:
        _train(writer, protocol, methods, devices, slots, watcher or Silent())
    return load_run(writer.path)


def _train(
    writer: RunWriter,
    protocol: Protocol,
    methods: Sequence[study.Method],
    devices: Sequence[str],
    slots: int,
    watcher: Watcher,
) -> None:
    from levelfield.bench.execute import LocalExecutor

    for note in writer.notes:
        watcher.note(note)
    study.open_session(writer, ",".join(devices))
    executor = LocalExecutor(slots, devices, protocol.threads)
    try:
        Campaign(writer, protocol, methods, executor, watcher).run()
    finally:
        executor.close()
        study.seal(writer)


def places(
    device: str, slots: int | None, threads: int, processes: int = 1
) -> tuple[tuple[str, ...], int]:
    """The devices that slots run on, and how many slots.

    Args:
        device, slots: as for `run`.
        threads: CPU threads a process.
        processes: of a trial; each takes a GPU of its own.

    Raises:
        BenchError: an unknown device, one that is not there, or no slots.
    """
    kind, _, index = device.partition(":")
    known = kind == "cuda" or device == "cpu"
    if not known or (index and not index.isdigit()):
        raise BenchError(f"unknown device {device!r}", "accepted: cpu, cuda, cuda:0, cuda:1, ...")
    if threads < 1:
        raise BenchError(f"threads = {threads}", "accepted: 1 or more")
    if slots is not None and slots < 1:
        raise BenchError(f"--slots {slots}", "accepted: 1 or more")
    if kind == "cpu":
        return ("cpu",), slots or max(1, cores() // (threads * processes))
    from levelfield.bench.execute import cuda_devices

    found = cuda_devices()
    chosen = (device,) if index else found
    if not chosen or any(name not in found for name in chosen):
        have = ", ".join(found) or "no CUDA device"
        raise BenchError(f"device {device!r} is not there", f"this machine has {have}; or cpu")
    chosen = grouped(chosen, processes)
    return chosen, slots or len(chosen)


def checked_seed(seed: int) -> int:
    """A run seed in range."""
    if not 0 <= seed < study.MOST_SEEDS:
        raise BenchError(f"--seed {seed}", f"accepted: 0 to {study.MOST_SEEDS - 1}")
    return seed
