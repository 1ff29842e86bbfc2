"""A run, read once: what is ranked, what is not and why. All that a section shows is read off it.

The rules that decide a ranking live here, in `eligible.py`, and in `bench.samples` and
`bench.inference`, and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from levelfield.bench import inference, stats
from levelfield.bench.samples import sample, study_means
from levelfield.bench.spec import TrialRecord
from levelfield.reports.eligible import Excluded, dig, select
from levelfield.reports.text import clean, plural

MEASURED = frozenset({"ok", "undertrained"})
"""Statuses whose loss was measured over the whole horizon. Leaving out an undertrained seed would
flatter its method, so it stays in; a diverged one has no loss worth the name."""

EXERCISED = 5
"""Refreshes below which a mechanism was not put to the test."""


class RunLike(Protocol):
    """What a report needs of a run; `bench.store.Run` is one."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def records(self) -> tuple[TrialRecord, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One method's records of this run, by phase and number, and what they amount to."""

    name: str
    index: int
    """Position in the manifest: fixes its colour."""
    spec: Mapping[str, Any]
    origin: str
    digest: str
    tune: tuple[TrialRecord, ...]
    final: tuple[TrialRecord, ...]
    timing: tuple[TrialRecord, ...]
    sweep: tuple[TrialRecord, ...] = ()
    transfer: tuple[TrialRecord, ...] = ()
    calibrate: tuple[TrialRecord, ...] = ()
    censored: Mapping[str, str] = field(default_factory=dict)
    """The scale -> side, where most studies end at an edge of it with the reserve spent. Other
    dimensions, and single studies, lie in an outer tenth by chance alone too often."""
    unranked: str | None = None
    """Why it has no place, or None."""
    rank: int | None = None

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All of them, whatever the phase."""
        parts = (self.calibrate, self.tune, self.final, self.transfer, self.sweep, self.timing)
        return tuple(record for part in parts for record in part)

    @property
    def good(self) -> tuple[TrialRecord, ...]:
        """Final records with a measured report loss."""
        return tuple(record for record in self.final if measured(record))

    @property
    def losses(self) -> dict[int, float]:
        """seed -> report loss, nats a token, of the good finals."""
        return {r.seed: r.report_loss for r in self.good if r.report_loss is not None}

    @property
    def study_values(self) -> dict[int, float]:
        """study -> mean report loss of its good finals: the values that are compared."""
        return {m.study: m.value for m in study_means(self.final) if m.value is not None}

    @property
    def units(self) -> list[float]:
        """What the interval is over: studies where there are two or more, else seeds."""
        values = list(self.study_values.values())
        return values if len(values) > 1 else list(self.losses.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % t interval of the mean over studies; over seeds, at these hyper-parameters, where
        there is a single study."""
        return stats.t_interval(self.units)

    @property
    def median(self) -> float | None:
        """Median report loss over every final; a failed one counts as worse than any number."""
        failed = [math.inf] * (len(self.final) - len(self.good))
        return stats.median([*self.losses.values(), *failed])

    @property
    def best(self) -> TrialRecord | None:
        """The first study's tuning trial with the lowest selection loss."""
        return stats.best(self.first_study, lambda record: record.selection_loss)

    @property
    def first_study(self) -> tuple[TrialRecord, ...]:
        """Tuning trials of the study whose point is timed and swept."""
        return tuple(record for record in self.tune if record.study == 0)

    @property
    def scale(self) -> str:
        """Name of the dimension that the tuner brackets."""
        return str(self.spec.get("scale") or "lr")

    @property
    def hparams(self) -> Mapping[str, Any]:
        """The values of the first study's finals, or of its best trial before there are finals."""
        if self.final:
            return self.final[0].hparams
        return self.best.hparams if self.best else {}

    @property
    def tuned(self) -> tuple[str, ...]:
        """Names of the searched dimensions."""
        for record in (*self.final, *self.tune):
            return record.tuned
        return tuple(self.spec.get("space") or ())


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Everything that a page needs, decided."""

    path: Path
    manifest: Mapping[str, Any]
    methods: tuple[Method, ...]
    """Sorted by median report loss; those without one last."""
    excluded: tuple[Excluded, ...]
    records: tuple[TrialRecord, ...]
    """Every record of the run, excluded ones too."""
    notes: tuple[str, ...]
    family: inference.Family
    """Every comparison of rankable methods, and what may be said of it."""
    ranked: bool

    def setting(self, *keys: str, default: Any = None) -> Any:
        """A value of the manifest's protocol, or `default` where an older run lacks it."""
        return dig(self.manifest, "protocol", *keys, default=default)

    @property
    def reference(self) -> str:
        """The method whose step time is 1 and whose loss is the target."""
        return str(self.setting("reference", default="adamw"))

    @property
    def baseline(self) -> str:
        """The method that claims are made against; the reference if that one did not run."""
        claims = str(self.setting("claims", default=""))
        return claims if any(m.name == claims for m in self.methods) else self.reference

    @property
    def tuned(self) -> bool:
        """Whether anything was searched: one trial a study is where tuning would start."""
        trials = self.setting("budget", "trials")
        return trials != 1 or any(len(method.first_study) > 1 for method in self.methods)

    @property
    def pairs(self) -> tuple[inference.Comparison, ...]:
        """Every pair of rankable methods, Holm-adjusted together."""
        return self.family.pairs if self.ranked else ()

    def winner(self, a: str, b: str) -> str | None:
        """Which of two methods is shown to be better, or None."""
        pair = self.pair(a, b)
        return None if pair is None else self.family.verdict(pair)[0]

    def method(self, name: str) -> Method | None:
        """A method by name."""
        return next((method for method in self.methods if method.name == name), None)

    @property
    def contenders(self) -> tuple[Method, ...]:
        """Methods with a place, best first."""
        placed = [method for method in self.methods if method.rank is not None]
        return tuple(sorted(placed, key=lambda method: method.rank or 0))

    def pair(self, a: str, b: str) -> inference.Comparison | None:
        """The comparison of two methods, turned so that it reads a - b.

        Against the baseline it is one of the claims, which are corrected among themselves.
        """
        claims = self.family.claims if self.ranked and self.baseline in (a, b) else ()
        for pair in (*claims, *self.pairs):
            if (pair.a, pair.b) == (a, b):
                return pair
            if (pair.a, pair.b) == (b, a):
                return pair.turned()
        return None


def measured(record: TrialRecord) -> bool:
    """Whether a final record carries a report loss that counts."""
    return record.status in MEASURED and stats.finite(record.report_loss)


def build(run: RunLike) -> View:
    """Decide who takes part, who is ranked and where."""
    manifest, notes = run.manifest, list(run.notes)
    for key in ("protocol", "methods", "data", "environment"):
        if not manifest.get(key):
            notes.append(f"the manifest has no {key!r}: what depends on it is left blank")
    kept, excluded = select(run.records, manifest, notes)
    methods = [_method(name, index, manifest, kept) for index, name in enumerate(_names(run))]
    most = max((len(method.tune) for method in methods), default=0)
    ranked = dig(manifest, "protocol", "ranked", default=True) is True
    sizes = manifest.get("sizes") or {}
    methods = [
        replace(m, unranked=no_size(sizes.get(m.name)) or unranked_reason(m, ranked, most))
        for m in methods
    ]
    able = sorted((m for m in methods if m.unranked is None), key=_order)
    compared = _compare(able, manifest)
    placed = [
        replace(
            method,
            rank=compared.ranks.get(method.name) if ranked else None,
            unranked=method.unranked or compared.unranked.get(method.name),
        )
        for method in methods
    ]
    return View(
        path=run.path,
        manifest=manifest,
        methods=tuple(sorted(placed, key=_order)),
        excluded=tuple(excluded),
        records=run.records,
        notes=tuple(clean(note) for note in notes),
        family=compared,
        ranked=ranked,
    )


def _compare(able: Iterable[Method], manifest: Mapping[str, Any]) -> inference.Family:
    """Compare the methods that may have a place, study by study."""
    methods = list(able)
    studies = int(dig(manifest, "protocol", "budget", "studies", default=1))
    names = {method.name for method in methods}
    claims = dig(manifest, "protocol", "claims", default=None)
    reference = dig(manifest, "protocol", "reference", default="adamw")
    return inference.family(
        [sample(m.name, m.final, studies, bool(m.censored)) for m in methods],
        alpha=float(dig(manifest, "protocol", "alpha", default=0.05)),
        reference=claims if claims in names else reference,
    )


def no_size(chosen: Mapping[str, Any] | None) -> str | None:
    """Why a method trained nothing under a memory budget; None if it did, or there is none."""
    if chosen is None or chosen.get("size") is not None:
        return None
    return f"no size fits the memory budget: {clean(str(chosen.get('reason') or 'unknown'))}"


def unranked_reason(method: Method, ranked: bool, most_tuned: int) -> str | None:
    """Why a method gets no place; None if it may be ranked."""
    if not ranked:
        return "this protocol ranks nothing"
    if not method.final:
        statuses = sorted({record.status for record in method.tune})
        if not statuses:
            return "no records"
        if method.best is None:
            return f"no good tuning trial ({', '.join(statuses)}), so no finals"
        return "no final records yet"
    if len(method.losses) < 2:
        return (
            f"{len(method.losses)} good of {plural(len(method.final), 'final seed')}: "
            "no interval, no place"
        )
    if len(method.tune) < most_tuned:
        return f"tuned with {len(method.tune)} trials where another method had {most_tuned}"
    return _not_exercised(method)


def _not_exercised(method: Method) -> str | None:
    what = method.spec.get("refreshes")
    if not what:
        return None
    counts = [record.refreshes for record in method.good]
    known = [number for number in counts if number is not None]
    if len(known) < len(counts):
        return f"its refreshes ({clean(what)}) were not counted"
    if min(known) < EXERCISED:
        return f"not exercised: {min(known)} of at least {EXERCISED} refreshes ({clean(what)})"
    return None


def _names(run: RunLike) -> list[str]:
    named = [str(method.get("name")) for method in run.manifest.get("methods") or ()]
    return list(dict.fromkeys(named or sorted({r.optimizer for r in run.records})))


def _method(
    name: str, index: int, manifest: Mapping[str, Any], records: Iterable[TrialRecord]
) -> Method:
    entry: Mapping[str, Any] = next(
        (m for m in manifest.get("methods") or () if str(m.get("name")) == name), {}
    )
    mine = sorted((r for r in records if r.optimizer == name), key=lambda r: (r.trial, r.seed))
    return Method(
        name=name,
        index=index,
        spec=entry.get("spec") or {},
        origin=clean(entry.get("origin") or "unknown"),
        digest=str(entry.get("digest") or ""),
        tune=tuple(r for r in mine if r.phase == "tune"),
        final=tuple(r for r in mine if r.phase == "final"),
        timing=tuple(r for r in mine if r.phase == "timing"),
        sweep=tuple(r for r in mine if r.phase == "sweep"),
        transfer=tuple(r for r in mine if r.phase == "transfer"),
        calibrate=tuple(r for r in mine if r.phase == "calibrate"),
        censored=_censored(name, manifest),
    )


def _censored(name: str, manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Edges that the reserve did not clear, of the first study that has any."""
    if not dig(manifest, "protocol", "tuner", "reserve", default=0):
        return {}  # without a reserve nothing was tried beyond: edges are shown, not judged
    found = [
        facts.get("edges") or {}
        for key, facts in (manifest.get("studies") or {}).items()
        if key.rpartition("#")[0] == name
    ]
    named = (entry for entry in manifest.get("methods") or () if entry.get("name") == name)
    scale = str(dig(next(named, {}), "spec", "scale", default="lr"))
    stuck = [edges[scale] for edges in found if scale in edges]
    return {scale: stuck[0]} if 2 * len(stuck) > len(found) else {}


def _order(method: Method) -> tuple[float, int]:
    middle = method.median
    return (math.inf if middle is None else middle, method.index)


def statuses(records: Iterable[TrialRecord]) -> Counter[str]:
    """How often each status occurs."""
    return Counter(record.status for record in records)
