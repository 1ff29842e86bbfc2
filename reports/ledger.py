"""The accounts of a run as pandas frames: who got what, what was spent, what failed, what is out.

Same rules as `tables.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from levelfield.bench.spec import ROLES, TrialRecord
from levelfield.reports.eligible import dig
from levelfield.reports.frames import frame
from levelfield.reports.measure import Missing
from levelfield.reports.text import clean, plural, short
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
    return frame(BUDGET, [_spent(method) for method in view.methods])


def _spent(method: Method) -> dict[str, Any]:
    counts = statuses(method.tune)
    records = (*method.tune, *method.final, *method.sweep, *method.transfer, *method.timing)
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
            for record in (*method.tune, *method.final, *method.timing)
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


def checks(view: View) -> DataFrame:
    """Whether the field was level: read off the records, not assumed."""
    final = [record for method in view.methods for record in method.final]
    some = [method for method in view.methods if method.final]
    trained = [r for r in final if r.status in ("ok", "undertrained")]
    rows = [
        _same_per_seed("same initial weights for a seed", trained, lambda r: r.weights_sha256),
        _same_per_seed("same batches, same order, for a seed", trained, lambda r: r.batches_sha256),
        _same("same tokens in every final", {r.tokens for r in trained}),
        _same("same steps in every final", {r.steps for r in trained}),
        _same_trials(view),
        _same("same final seeds", {tuple(sorted({r.seed for r in m.final})) for m in some}),
        _same("same parameter count", {r.parameters for r in trained}),
        _same("same device", {r.device for r in final}),
        _disjoint(view),
    ]
    return frame(CHECKS, rows)


def _verdict(check: str, passed: bool | None, detail: str) -> dict[str, Any]:
    result = "not recorded" if passed is None else "yes" if passed else "NO"
    return {"check": check, "result": result, "detail": clean(detail)}


def _same(check: str, values: set[Any]) -> dict[str, Any]:
    if not values or values == {None}:
        return _verdict(check, None, "no finals to compare")
    shown = sorted({short(value) for value in values})
    return _verdict(check, len(values) == 1, ", ".join(shown[:6]) or "none")


def _same_trials(view: View) -> dict[str, Any]:
    name = "same number of tuning trials"
    planned = view.setting("budget", "trials")
    short = [m for m in view.methods if isinstance(planned, int) and len(m.tune) < planned]
    if short and not any(method.final for method in view.methods):
        return _verdict(name, None, f"tuning is under way: {plural(len(short), 'method')} to go")
    return _same(name, {len(method.tune) for method in view.methods if method.tune})


def _same_per_seed(
    check: str, records: Iterable[TrialRecord], read: Callable[[TrialRecord], str | None]
) -> dict[str, Any]:
    hashes: dict[int, set[str | None]] = {}
    for record in records:
        hashes.setdefault(record.seed, set()).add(read(record))
    if not hashes or any(None in found for found in hashes.values()):
        return _verdict(check, None, "not every final has the hash")
    odd = sorted(seed for seed, found in hashes.items() if len(found) > 1)
    if odd:
        return _verdict(check, False, f"differs at seed {', '.join(map(str, odd))}")
    shown = ", ".join(f"{seed}: {str(next(iter(h)))[:8]}" for seed, h in sorted(hashes.items()))
    return _verdict(check, True, f"{plural(len(hashes), 'seed')} ({shown})")


def _disjoint(view: View) -> dict[str, Any]:
    tuned = {record.seed for method in view.methods for record in method.tune}
    final = {record.seed for method in view.methods for record in method.final}
    name = "final seeds were never tuned on"
    if not tuned or not final:
        return _verdict(name, None, "no tuning trials or no finals")
    shared = sorted(tuned & final)
    return _verdict(name, not shared, f"shared: {shared}" if shared else "no seed in common")


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
