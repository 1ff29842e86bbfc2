"""The accounts of a run as pandas frames: who got what, what was spent, what failed, what is out.

Same rules as `tables.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from levelfield.bench.spec import ROLES, TrialRecord
from levelfield.reports.eligible import dig
from levelfield.reports.frames import frame
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, short
from levelfield.reports.view import Method, View, statuses

if TYPE_CHECKING:
    from pandas import DataFrame

BUDGET = (
    "method",
    "tuning_trials",
    "ok",
    "diverged",
    "undertrained",
    "broken",
    "finals",
    "sweeps",
    "transfers",
    "timings",
    "tokens",
    "passes",
    "device_s",
    "joules",
    "retries",
)


def budget(view: View) -> DataFrame:
    """What each method spent. Every tuning trial counts, however it ended."""
    devices = {record.device for method in view.methods for record in method.records}
    crowded = int(view.manifest.get("slots") or 1) > len(devices)
    return frame(BUDGET, [_spent(method, crowded) for method in view.methods])


def _spent(method: Method, crowded: bool) -> dict[str, Any]:
    """Args:
    crowded: several trials shared a device, whose counter then holds the energy of all of them.
    """
    counts = statuses(method.tune)
    records = method.records
    joules = [record.joules for record in records]
    return {
        "method": clean(method.name),
        "tuning_trials": len(method.tune),
        "ok": counts["ok"],
        "diverged": counts["diverged"],
        "undertrained": counts["undertrained"],
        "broken": len(method.tune) - sum(counts[s] for s in ("ok", "diverged", "undertrained")),
        "finals": len(method.final),
        "sweeps": len(method.sweep),
        "transfers": len(method.transfer),
        "timings": len(method.timing),
        "tokens": sum(record.tokens for record in records),
        "passes": math.fsum(record.passes for record in records),
        "device_s": math.fsum(_wall_s(record) for record in records),
        "joules": Missing("this device does not count them")
        if not joules or None in joules
        else Missing("trials shared the device, whose energy cannot be told apart")
        if crowded
        else math.fsum(j for j in joules if j is not None),
        "retries": sum(record.retries for record in records),
    }


def _wall_s(record: TrialRecord) -> float:
    parts = (record.wall_s.get(name) for name in ("setup", "warmup", "step", "eval"))
    return math.fsum(part for part in parts if isinstance(part, int | float))


SETTINGS = (
    "method",
    "implementation",
    "roles",
    "fallback_roles",
    "weight_decay_roles",
    "schedule",
    "passes",
    "refreshes",
    "cannot",
    "source",
    "digest",
)


def settings(view: View) -> DataFrame:
    """How each method is run: which parameters it takes, which the fallback takes, its schedule."""
    decayed = view.setting("decay_roles", default=())
    rows = []
    for method in view.methods:
        spec = method.spec
        absent = Missing("the manifest has no spec of it")
        taken = tuple(spec.get("roles") or ())
        rows.append(
            {
                "method": clean(method.name),
                "implementation": clean(spec["implementation"])
                if spec.get("implementation")
                else absent,
                "roles": " ".join(map(clean, taken)) or absent,
                "fallback_roles": " ".join(r for r in ROLES if r not in taken) if taken else absent,
                "weight_decay_roles": " ".join(map(clean, decayed)),
                "schedule": clean(spec["schedule"]) if spec.get("schedule") else absent,
                "passes": spec.get("passes", absent),
                "refreshes": clean(spec.get("refreshes") or ""),
                "cannot": " ".join(map(clean, spec.get("cannot") or ())),
                "source": method.origin,
                "digest": clean(method.digest[:12]),
            }
        )
    return frame(SETTINGS, rows)


EXCLUDED = ("phase", "method", "number", "seed", "status", "reason")


def excluded(view: View) -> DataFrame:
    """Records that take no part, each with its reason."""
    return frame(EXCLUDED, [_line(item.record, item.reason) for item in view.excluded])


def failures(view: View) -> DataFrame:
    """Every record that did not end `ok`, each with its reason."""
    return frame(
        EXCLUDED,
        [
            _line(record, record.reason or "no reason given")
            for method in view.methods
            for record in method.records
            if record.status != "ok"
        ],
    )


def _line(record: TrialRecord, reason: str) -> dict[str, Any]:
    return {
        "phase": record.phase,
        "method": clean(record.optimizer),
        "number": record.trial,
        "seed": record.seed,
        "status": record.status,
        "reason": clean(reason),
    }


UNRANKED = ("method", "reason")


def unranked(view: View) -> DataFrame:
    """Methods without a place, each with its reason."""
    rows = [
        {"method": clean(method.name), "reason": clean(method.unranked)}
        for method in view.methods
        if method.unranked is not None
    ]
    return frame(UNRANKED, rows)


CHECKS = ("check", "result", "detail")
RESULTS = {"fair": "yes", "unfair": "NO", "warning": "note", "unknown": "not known"}


def checks(view: View) -> DataFrame:
    """Whether the field was level, as `levelfield audit` derives it again from the records.

    The tuner is not replayed here: that takes the libraries which proposed the points.
    """
    from levelfield.bench.audit import audit
    from levelfield.bench.store import Run

    run = Run(view.path, view.manifest, view.records)
    return frame(
        CHECKS,
        [
            {
                "check": finding.name,
                "result": RESULTS[finding.outcome],
                "detail": clean(finding.detail),
            }
            for finding in audit(run, replay=False)
        ],
    )


FACTS = ("key", "value")


def facts(data: Mapping[str, Any], prefix: str = "") -> list[dict[str, Any]]:
    """Nested plain data as rows of dotted keys."""
    rows: list[dict[str, Any]] = []
    for key, value in data.items():
        name = f"{prefix}{clean(key)}"
        if isinstance(value, Mapping):
            rows += facts(value, f"{name}.")
        elif value is None:
            rows.append({"key": name, "value": Missing("null in the manifest")})
        else:
            rows.append({"key": name, "value": short(value)})
    return rows


def protocol(view: View) -> DataFrame:
    """Every setting of the protocol, as it was run."""
    return frame(FACTS, facts(dig(view.manifest, "protocol", default={})))


PROVENANCE = (
    "run_id",
    "created_utc",
    "levelfield_version",
    "engine_version",
    "schema",
    "seed",
    "final_seeds",
    "slots",
    "protocol_origin",
    "protocol_digest",
    "data",
    "environment",
)


def provenance(view: View) -> DataFrame:
    """What the run was made with."""
    absent = Missing("not in the manifest")
    rows: list[dict[str, Any]] = []
    for key in PROVENANCE:
        value = view.manifest.get(key)
        rows += facts({key: value}) if value is not None else [{"key": key, "value": absent}]
    return frame(FACTS, rows)
