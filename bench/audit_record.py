"""Rules on the lines themselves: unedited, of one making, never telling what they cannot know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from levelfield.bench.audit_case import WHOLE, Case, Finding, label, ruled
from levelfield.bench.digest import protocol_digest, sha256, to_plain
from levelfield.bench.spec import ENGINE_VERSION, SCHEMA
from levelfield.bench.store import RECORDS, chain_breaks
from levelfield.bench.verdict import verdict

POSITIVE = (
    *("tokens_per_s", "joules", "parameters", "wall_s.setup"),
    *(f"peak_bytes.{name}" for name in ("weights", "total", "allocated", "reserved", "rss")),
    "peak_bytes.nvml",
)
"""Measurements that are never 0: one that is was not taken, and ought to be None."""


def schema(case: Case) -> Iterator[Finding]:
    """Manifest and records are written the same way, by this run."""
    manifest = case.manifest
    unfair = [
        f"{label(record)}: {name} is {value}, the manifest has {due}"
        for record in case.run.records
        for name, value, due in (
            ("schema", record.schema, manifest["schema"]),
            ("run_id", record.run_id, manifest["run_id"]),
            ("protocol", record.protocol, case.protocol.name),
        )
        if value != due
    ]
    if not 1 <= manifest["schema"] <= SCHEMA:
        unfair.insert(0, f"the manifest has schema {manifest['schema']}")
    yield from ruled("schema", f"schema {manifest['schema']} throughout", unfair, case.run.notes)


def chain(case: Case) -> Iterator[Finding]:
    """Every line carries the digest of the line before it."""
    path, count = case.run.path / RECORDS, len(case.run.records)
    if not path.is_file():
        unknown = [f"there is no {RECORDS}"] if count else []
        yield from ruled("chain", "no record yet", unknown=unknown)
        return
    # A torn last line is no record; it is told as such.
    unfair = [text for text in chain_breaks(path) if not text.startswith(f"line {count + 1} ")]
    sealed = case.manifest.get("sealed") or {}
    lines = path.read_bytes().splitlines(keepends=True)
    vouched = sealed.get("records")
    if isinstance(vouched, int) and 0 < vouched <= len(lines):
        if sha256(lines[vouched - 1]) != sealed.get("tail_sha256"):
            unfair.append(f"line {vouched} is not the one that the run ended with")
    elif vouched:
        unfair.append(f"{len(lines)} lines where the run ended with {vouched}")
    fair = f"{count} lines follow from each other"
    if vouched != len(lines):
        fair += "; the last one has none to vouch for it"
    yield from ruled("chain", fair, unfair)


def digests(case: Case) -> Iterator[Finding]:
    """One protocol, one data set, one version of every method's code."""
    manifest, records = case.manifest, case.run.records
    for name, due in (
        ("protocol", manifest["protocol_digest"]),
        ("data", manifest["data"]["digest"]),
    ):
        unfair = [
            f"{label(record)} has digest {str(found)[:16]}"
            for record in records
            if (found := getattr(record, f"{name}_digest")) != due
        ]
        unknown = []
        if name == "protocol" and manifest["engine_version"] != ENGINE_VERSION:
            unknown = [f"made by engine {manifest['engine_version']}, this is {ENGINE_VERSION}"]
        elif name == "protocol" and protocol_digest(case.protocol) != due:
            alike = _names(manifest["protocol"]) == _names(to_plain(case.protocol))
            text = f"the manifest's protocol does not have its digest {due[:16]}"
            (unfair if alike else unknown).append(text)
        yield from ruled(name, f"digest {due[:16]} throughout", unfair, unknown=unknown)
    stale: dict[str, int] = {}
    for record in records:
        if record.optimizer in case.specs and not case.is_current(record):
            stale[record.optimizer] = stale.get(record.optimizer, 0) + 1
    warnings = [f"{n} records of {name} were made by other code" for name, n in stale.items()]
    fair = "every record was made by the code that the manifest names"
    yield from ruled("code", fair, warnings=warnings)


def measured(case: Case) -> Iterator[Finding]:
    """What was not measured is blank, never 0, and a blank that has a reason is blank."""
    unfair = []
    for record in case.records:
        data = to_plain(record)
        unfair += [f"{label(record)}: {name} is 0" for name in POSITIVE if _at(data, name) == 0]
        if 0 in (record.wall_s.get("windows") or ()):
            unfair.append(f"{label(record)}: a window took 0 s")
        unfair += [
            f"{label(record)}: {name} is {value} and said to be missing"
            for name in record.missing
            if (value := _at(data, name)) not in (None, {}, [])
        ]
    yield from ruled("measured", "no blank is shown as a number", unfair)


def status(case: Case) -> Iterator[Finding]:
    """Good, barely trained or diverged is what the curve of a whole trial says."""
    unfair = []
    for record in case.records:
        losses = [point[2] for point in record.curve]
        ended = record.selection_loss is not None and (
            record.phase not in ("final", "transfer") or record.report_loss is not None
        )
        if record.phase in ("timing", "calibrate") or record.status not in (*WHOLE, "diverged"):
            continue
        if record.status in WHOLE and not (losses and ended):
            unfair.append(f"{label(record)} is {record.status} and has no final loss")
        elif losses and ended:
            scored = bool(case.protocol.task.metric)
            said, _ = verdict(record.curve, record.train_loss, scored)
            if said != record.status:
                unfair.append(f"{label(record)} is {record.status}, its curve says {said}")
    yield from ruled("status", "every verdict follows from its curve", unfair)


def _at(data: Mapping[str, Any], dotted: str) -> Any:
    value: Any = data
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _names(data: Any) -> Any:
    return {k: _names(v) for k, v in data.items()} if isinstance(data, Mapping) else None
