"""Which records of a run take part, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.bench.spec import TrialRecord
from levelfield.reports.text import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """A record that takes no part, with its reason."""

    record: TrialRecord
    reason: str


def select(
    records: Sequence[TrialRecord], manifest: Mapping[str, Any], notes: list[str]
) -> tuple[list[TrialRecord], list[Excluded]]:
    """Split records into those that count and those that do not, each with its reason."""
    listed = {str(m.get("name")): m for m in manifest.get("methods") or ()}
    kept: dict[tuple[str, str, int, int], TrialRecord] = {}
    excluded: list[Excluded] = []
    undigested = 0
    for record in records:
        reason = _stale(record, manifest, listed.get(record.optimizer, {}))
        if listed and record.optimizer not in listed:
            reason = "its method is not in the manifest"
        if reason:
            excluded.append(Excluded(record=record, reason=reason))
            continue
        undigested += None in (record.spec_digest, record.protocol_digest, record.data_digest)
        if record.key in kept:
            reason = "superseded: a later line has the same phase, method, number and seed"
            excluded.append(Excluded(record=kept[record.key], reason=reason))
        kept[record.key] = record
    if undigested:
        notes.append(f"{plural(undigested, 'record')} without a digest: staleness not checked")
    return list(kept.values()), excluded


def _stale(
    record: TrialRecord, manifest: Mapping[str, Any], method: Mapping[str, Any]
) -> str | None:
    for what, mine, current in (
        ("method's source", record.spec_digest, method.get("digest")),
        ("protocol", record.protocol_digest, manifest.get("protocol_digest")),
        ("data", record.data_digest, dig(manifest, "data", "digest")),
    ):
        if mine is not None and current is not None and mine != current:
            return f"stale: the {what} has changed since ({mine[:8]}, now {str(current)[:8]})"
    return None


def dig(data: Any, *keys: str, default: Any = None) -> Any:
    """A nested value of plain data; `default` where any level is absent or null."""
    for key in keys:
        if not isinstance(data, Mapping) or data.get(key) is None:
            return default
        data = data[key]
    return data
