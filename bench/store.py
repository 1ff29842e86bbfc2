"""Runs on disk: append-only records in a hash chain, a manifest, a lock.

`runs/<utc>-<protocol>-<6 hex>/` holds `manifest.json`, `records.jsonl`, `running/` (a marker per
trial under way) and derived files. A record is on disk, flushed and synced, before the next thing
happens. Only the process that holds the lock writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from levelfield.bench.digest import canonical_json, coerce, sha256, to_plain
from levelfield.bench.spec import SCHEMA, BenchError, TrialRecord

MANIFEST, RECORDS, TORN, LOCK, RUNNING = (
    "manifest.json",
    "records.jsonl",
    "records.torn",
    ".lock",
    "running",
)

_FIELDS = {f.name for f in fields(TrialRecord)}
_HINTS = typing.get_type_hints(TrialRecord)
_CONTAINERS: dict[Any, type] = {Mapping: dict, Sequence: list, tuple: list}
# Not part of what makes two records equal: clocks, the chain, and how often a trial was retried.
_VOLATILE = ("run_id", "wall_s", "tokens_per_s", "joules", "retries", "previous_sha256")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from disk."""

    path: Path
    manifest: Mapping[str, Any]
    records: tuple[TrialRecord, ...]
    notes: tuple[str, ...] = ()
    """What was odd about the files, in words."""


def load_run(path: Path | str) -> Run:
    """Read a run without changing it.

    Raises:
        BenchError: no such run, a bad line in the middle of the records, a schema from the future.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    records, torn = read_records(folder / RECORDS)
    notes = [] if torn is None else [f"the last line of {RECORDS} is torn and was left out"]
    aside = folder / TORN
    if aside.is_file():
        lines = aside.read_bytes().count(b"\n")
        notes.append(f"{lines} torn line(s) lie in {TORN}")
    return Run(folder, manifest, records, tuple(notes))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The run's manifest as a dict."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BenchError(
            f"no run at {folder}", f"accepted: a folder that holds {MANIFEST}"
        ) from None
    except OSError as error:
        raise BenchError(f"cannot read {folder / MANIFEST}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{folder / MANIFEST} is not JSON: {error}", "restore the file") from None
    if not isinstance(manifest, dict):
        raise BenchError(f"{folder / MANIFEST} is not a JSON object", "restore the file")
    _check_schema(manifest, str(folder))
    _check_manifest(folder, manifest)
    return manifest


def _check_schema(data: Mapping[str, Any], where: str) -> None:
    schema = data.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise BenchError(f"{where} has schema {schema}", f"this version reads up to {SCHEMA}")


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("protocol", "data", "environment", "horizons", "studies"), dict),
    **dict.fromkeys(("freeze", "transfer", "sealed"), (dict, type(None))),
    **dict.fromkeys(("methods", "interruptions", "sessions", "modified"), list),
    **dict.fromkeys(("run_id", "device", "created_utc", "protocol_digest"), str),
    **dict.fromkeys(("seed", "final_seeds", "slots"), int),
}


def _check_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest whose parts are not what they should be; parts may be absent."""
    wrong = [
        key
        for key, kind in _KINDS.items()
        if key in manifest and not isinstance(manifest[key], kind)
    ]
    wrong += [
        "methods"
        for entry in manifest.get("methods") or ()
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str)
    ][:1]
    if wrong:
        raise BenchError(
            f"{folder / MANIFEST}: {', '.join(dict.fromkeys(wrong))} cannot be read",
            "restore the file",
        )


def read_records(path: Path) -> tuple[tuple[TrialRecord, ...], str | None]:
    """All records of a file, and its torn last line if there is one.

    A last line without a line end was being written when the process died: the trial behind it
    counts as interrupted. Anything else that cannot be read is corruption.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return (), None
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from None
    torn = lines.pop().decode("utf-8", errors="replace") or None
    records = [_parse(line, number, path) for number, line in enumerate(lines, 1)]
    return tuple(records), torn


def _parse(line: bytes, number: int, path: Path) -> TrialRecord:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        data = None
    if not isinstance(data, dict):
        raise BenchError(f"{path}, line {number} is not a record", "restore the line")
    _check_schema(data, f"{path}, line {number}")
    try:
        known = {key: value for key, value in data.items() if key in _FIELDS}
        for key, value in known.items():  # only looked at: a line must come back as it was written
            kind = _CONTAINERS.get(typing.get_origin(_HINTS[key]))
            if kind is None:
                coerce(value, _HINTS[key], key)
            elif not isinstance(value, kind):
                raise BenchError(f"{key} = {value!r:.40} is no {kind.__name__}")
        return TrialRecord(**{**known, "tuned": tuple(known["tuned"])})
    except BenchError as error:
        raise BenchError(f"{path}, line {number}: {error}", "restore the line") from None
    except (TypeError, KeyError) as error:
        raise BenchError(
            f"{path}, line {number} lacks a field: {error}", "restore the line"
        ) from None


def comparable(record: TrialRecord) -> dict[str, Any]:
    """The fields by which two records of one cell are equal: all but clocks, chain and retries."""
    data: dict[str, Any] = to_plain(record)
    for name in _VOLATILE:
        data.pop(name)
    # Which of several equal devices a slot had is chance; what kind of device it was is not.
    data["device"] = data["device"].partition(":")[0]
    # What else runs on the device decides these.
    shared = ("reserved_bytes", "alloc_retries", "ooms")
    data["series"] = {key: value for key, value in data["series"].items() if key not in shared}
    data["curve"] = [[tokens, loss] for tokens, _, loss in data["curve"]]
    data["peak_bytes"] = {
        key: value for key, value in data["peak_bytes"].items() if key not in ("rss", "nvml")
    }
    return data


def equal_records(one: Iterable[TrialRecord], other: Iterable[TrialRecord]) -> list[str]:
    """Differences between two sets of records, in words; an empty list means equal."""
    a = {record.key: comparable(record) for record in one}
    b = {record.key: comparable(record) for record in other}
    differences = [f"{key} only in the first" for key in a.keys() - b.keys()]
    differences += [f"{key} only in the second" for key in b.keys() - a.keys()]
    for key in a.keys() & b.keys():
        names = [name for name in a[key] if a[key][name] != b[key][name]]
        if names:
            differences.append(f"{key} differs in {', '.join(names)}")
    return sorted(differences)


def write_atomic(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise BenchError(
            f"cannot write {path}: {error.strerror}", "free or choose a disk"
        ) from None


class RunWriter:
    """The one writer of a run. Use as a context manager: it holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.records: list[TrialRecord] = []
        self._lock: int | None = None
        self._tail: str | None = None

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunWriter:
        """A new run folder with its manifest.

        Raises:
            BenchError: the folder cannot be made.
        """
        try:
            (path / RUNNING).mkdir(parents=True)
        except OSError as error:
            raise BenchError(
                f"cannot make the run folder {path}: {error.strerror}",
                "choose a writable folder with --out",
            ) from None
        write_atomic(path / MANIFEST, json.dumps(to_plain(manifest), indent=1) + "\n")
        return cls(path)

    def __enter__(self) -> RunWriter:
        import fcntl

        try:
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BenchError(f"cannot open {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 100, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            self._lock = None
            raise BenchError(
                f"{self.path} is in use by another levelfield (process {owner})",
                "wait for it or stop it; one coordinator writes a run",
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            self._recover()
        except BaseException as error:
            self.__exit__(None, None, None)  # a lock that is held by nobody would stay
            if isinstance(error, OSError):
                raise BenchError(f"cannot write {self.path}: {error.strerror}") from None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _recover(self) -> None:
        """Move a torn last line aside, and learn the end of the chain."""
        path = self.path / RECORDS
        records, torn = read_records(path)
        if torn is not None:
            with open(self.path / TORN, "a", encoding="utf-8") as file:
                file.write(torn + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self.notes.append(f"a torn last line of {path.name} was moved to {TORN}")
        self.records = list(records)
        # Of the line as it lies there: written anew it may differ, and the chain would break.
        lines = path.read_bytes().splitlines(keepends=True) if records else [b""]
        self._tail = sha256(lines[-1]) if records else None

    @property
    def tail(self) -> str | None:
        """Digest of the last line; None of an empty file."""
        return self._tail

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    def update_manifest(self, **changes: Any) -> None:
        """Rewrite the manifest, whole or not at all, with some keys changed."""
        data = {**self.manifest, **to_plain(changes)}
        write_atomic(self.path / MANIFEST, json.dumps(data, indent=1) + "\n")

    def append(self, record: TrialRecord) -> TrialRecord:
        """Add a record to the chain: on disk when this returns.

        Raises:
            BenchError: the disk is full or gone; the file then ends where it ended before.
        """
        chained = replace(record, previous_sha256=self._tail)
        line = _line(chained)
        path = self.path / RECORDS
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unwritable(path, error) from None
        try:
            end = os.fstat(file).st_size
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(file, view) :]
                os.fsync(file)
            except OSError as error:
                os.ftruncate(file, end)
                raise self._unwritable(path, error) from None
        finally:
            os.close(file)
        self._tail = sha256(line)
        self.records.append(chained)
        return chained

    def _unwritable(self, path: Path, error: OSError) -> BenchError:
        return BenchError(
            f"cannot write {path}: {error.strerror}",
            f"free the disk, then `levelfield run --resume {self.path}`; "
            f"{len(self.records)} records are safe",
        )

    # Markers of trials under way: what is left of them tells which trials were interrupted.

    def mark(self, key: str) -> None:
        """Note that a trial starts."""
        try:
            (self.path / RUNNING).mkdir(exist_ok=True)
            (self.path / RUNNING / key).touch()
        except OSError as error:
            raise self._unwritable(self.path / RUNNING / key, error) from None

    def unmark(self, key: str) -> None:
        """Note that a trial has its record."""
        (self.path / RUNNING / key).unlink(missing_ok=True)

    def interrupted(self) -> tuple[str, ...]:
        """Keys of trials that started and left no record."""
        folder = self.path / RUNNING
        return tuple(sorted(item.name for item in folder.iterdir())) if folder.is_dir() else ()


def chain_breaks(path: Path) -> Iterator[str]:
    """Lines whose `previous_sha256` is not the digest of the line before, in words."""
    previous = None
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            linked = json.loads(line)["previous_sha256"] == previous
        except (ValueError, TypeError, KeyError):
            linked = False
        if not linked:
            yield f"line {number} does not follow from line {number - 1}"
        previous = sha256(line)


def _line(record: TrialRecord) -> bytes:
    return canonical_json(record).encode() + b"\n"
