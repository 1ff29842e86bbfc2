"""Families: one question at several sizes, horizons or batches, each tuned by itself.

A family is a folder with `family.json` and one run a variant below it; a resume goes through them
in order and finishes what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from levelfield.bench import api, fitting, provenance, study
from levelfield.bench.campaign import Watcher
from levelfield.bench.digest import sha256, to_plain
from levelfield.bench.schedules import check_schedule
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import SCHEMA, BenchError, Protocol
from levelfield.bench.store import MANIFEST, Run, load_run, write_atomic

FAMILY = "family.json"


@dataclass(frozen=True, slots=True)
class Family:
    """The runs of a family, in the order of its variants; those not begun are absent."""

    path: Path
    data: dict[str, Any]
    runs: tuple[tuple[str, Run], ...]


def members(protocol: Protocol) -> tuple[tuple[str, Protocol], ...]:
    """Every variant as a protocol of its own.

    Raises:
        BenchError: no variants, two of one name, or a setting that does not exist.
    """
    names = [variant.name for variant in protocol.variants]
    if not names:
        raise BenchError(f"{protocol.name} has no variants", "`levelfield run` runs it as it is")
    if len(set(names)) < len(names):
        raise BenchError(f"{protocol.name} names a variant twice", f"it has {', '.join(names)}")
    single = replace(protocol, variants=(), axis="")
    return tuple(
        (
            variant.name,
            replace(
                apply_settings(single, variant.settings), name=f"{protocol.name}-{variant.name}"
            ),
        )
        for variant in protocol.variants
    )


def run_family(
    protocol: Protocol,
    methods: Sequence[study.Method],
    *,
    origin: str,
    settings: Sequence[str] = (),
    seed: int = 0,
    seeds: int | None = None,
    slots: int | None = None,
    device: str = "cpu",
    out: Path = Path("runs"),
    watcher: Watcher | None = None,
) -> Family:
    """Run every variant; arguments as for `levelfield.run`.

    Raises:
        BenchError: a mistake in what was asked for, found before anything is trained.
    """
    parts = members(protocol)
    own = {item.partition("=")[0] for variant in protocol.variants for item in variant.settings}
    if clash := sorted(own & {setting.partition("=")[0] for setting in settings}):
        raise BenchError(
            f"--set {clash[0]}: every member of {protocol.name} sets it itself",
            f"members: {', '.join(variant.name for variant in protocol.variants)}",
        )
    finals = protocol.budget.seeds if seeds is None else seeds
    for _, part in parts:
        check_schedule(part)
        study.check_budget(part, finals)
        fitting.check_sizes(part)
    api.places(device, slots, protocol.threads, protocol.engine.processes)
    created = datetime.now(UTC)
    tag = sha256([protocol.name, created.isoformat()])[:6]
    name = f"{created:%Y%m%dT%H%M%SZ}-{protocol.name}-{tag}"
    path = out / name
    data = {
        "schema": SCHEMA,
        "family_id": name,
        "created_utc": created.isoformat(timespec="seconds"),
        "command": provenance.command(),
        "protocol": protocol,
        "protocol_origin": origin,
        "modified": list(settings),
        "methods": [study.method_data(method)["reference"] for method in methods],
        "seed": api.checked_seed(seed),
        "final_seeds": finals,
        "slots": slots,
        "device": device,
    }
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise BenchError(
            f"cannot make the folder {path}: {error.strerror}", "choose another with --out"
        ) from None
    write_atomic(path / FAMILY, json.dumps(to_plain(data), indent=1) + "\n")
    return _finish(path, protocol, methods, watcher)


def resume_family(
    path: Path,
    *,
    rerun_stale: bool = False,
    slots: int | None = None,
    watcher: Watcher | None = None,
) -> Family:
    """Finish exactly what a family lacks.

    Raises:
        BenchError: no family there, or one made by other code.
    """
    data = _read(path)
    protocol = study.manifest_protocol(data)
    methods = study.load_methods(data["methods"])
    return _finish(path, protocol, methods, watcher, rerun_stale=rerun_stale, slots=slots)


def is_family(path: Path) -> bool:
    """Whether a folder holds a family."""
    return (path / FAMILY).is_file()


def load_family(path: Path) -> Family:
    """Read a family and its runs."""
    data = _read(path)
    found = [
        (name, load_run(path / name))
        for name, _ in members(study.manifest_protocol(data))
        if (path / name / MANIFEST).is_file()
    ]
    return Family(path, data, tuple(found))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads((path / FAMILY).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise BenchError(f"no family at {path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema", 0) > SCHEMA:
        raise BenchError(f"{path / FAMILY} is not of this version", f"it reads up to {SCHEMA}")
    return data


def _finish(
    path: Path,
    protocol: Protocol,
    methods: Sequence[study.Method],
    watcher: Watcher | None,
    *,
    rerun_stale: bool = False,
    slots: int | None = None,
) -> Family:
    data = _read(path)
    wanted = data["slots"] if slots is None else slots
    processes = protocol.engine.processes
    devices, slots = api.places(data["device"], wanted, protocol.threads, processes)
    for name, part in members(protocol):
        if watcher is not None:
            watcher.note(f"{protocol.name}: {name}")
        if (path / name / MANIFEST).is_file():
            with _note_what_does_not_fit(watcher):
                api.resume(path / name, rerun_stale=rerun_stale, slots=slots, watcher=watcher)
            continue
        writer = study.new_run(
            part,
            methods,
            out=path,
            seed=data["seed"],
            final_seeds=data["final_seeds"],
            slots=slots,
            device=data["device"],
            modified=data["modified"],
            origin=data["protocol_origin"],
            folder=path / name,
        )
        with _note_what_does_not_fit(watcher):
            api.train(writer, part, methods, devices, slots, watcher)
    return load_family(path)


@contextmanager
def _note_what_does_not_fit(watcher: Watcher | None) -> Iterator[None]:
    """A limit that nothing fits is a result of its member; the others go on."""
    try:
        yield
    except fitting.NothingFits as error:
        if watcher is not None:
            watcher.note(str(error))
