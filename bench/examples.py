"""Labelled examples for fine-tuning: read, made unique, and given to four slices.

No text stands in two slices, nor does a group (an article, a subject, the evidence of several
claims). What is held out follows from the hash of the group alone; the seed only chooses which
training examples a limit keeps.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from levelfield.bench import (
    documents,
    example_classes,
    example_layouts,
    example_reading,
    example_source,
)
from levelfield.bench.documents import SLICES
from levelfield.bench.example_reading import Draft
from levelfield.bench.example_reading import Example as Example
from levelfield.bench.spec import BenchError

SHARES: Mapping[str, float] = {"control": 0.02, "selection": 0.09, "report": 0.09}
"""Of all examples, where nothing is held out by the set itself; the others are for training."""
CONTROL_SHARE = 0.05
"""Of the training examples, where something is."""
CONTROL_MOST = 512


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples by slice."""

    slices: Mapping[str, tuple[Example, ...]]
    """train, control, selection, report; each in the order of its source."""
    labels: tuple[str, ...]
    """Names of the classes in order of their index; () for scores, options and answers."""
    facts: Mapping[str, Any]
    """For the manifest: source, licence, counts, what was dropped or repaired, digest."""


def load(
    kind: str, source: str, heldout: str = "", seed: int = 0, limit: int | None = None
) -> Examples:
    """The examples that a source names.

    Args:
        kind: classification, regression, extractive_qa or multiple_choice.
        source: of the training examples; of all, if nothing is held out.
        heldout: a source of the same form, for `selection` and `report`, half each.
        seed: chooses what a limit keeps.
        limit: most training examples.

    Raises:
        BenchError: a source that cannot be read or is laid out otherwise, a label that is none, or
            a slice without an example.
    """
    example_layouts.check_kind(kind)
    if limit is not None and limit < 1:
        raise BenchError(f"a limit of {limit} examples", "accepted: a whole number above 0")
    return _load(kind, source, heldout, seed, limit)


@lru_cache(maxsize=4)
def _load(kind: str, source: str, heldout: str, seed: int, limit: int | None) -> Examples:
    facts: dict[str, Any] = {"kind": kind, "source": source}
    licences: list[str] = []
    given, words = _drafts(kind, source, facts, licences)
    names: tuple[str, ...] = ()
    if kind == "classification":
        names = words or example_classes.classes(given)
    found = _unique(given, names, facts)
    if heldout:
        facts["heldout"] = heldout
        tested = _unique(_drafts(kind, heldout, facts, licences)[0], names, facts)
        seen = {_text_key(item) for item in tested}
        kept = [item for item in found if _text_key(item) not in seen]
        facts["dropped_from_train_as_held_out"] = len(found) - len(kept)
        share = min(CONTROL_SHARE, CONTROL_MOST / max(len(kept), 1))
        slices = _carve(kept, {"control": share}, "train")
        slices |= _carve(tested, {"selection": 0.5}, "report")
        facts["dropped_from_control"] = max(len(slices["control"]) - CONTROL_MOST, 0)
        slices["control"] = slices["control"][:CONTROL_MOST]
    else:
        slices = _carve(found, SHARES, "train")
    bare = [name for name in SLICES if not slices.get(name)]
    if bare:
        raise BenchError(
            f"{source} has {len(found)} examples"
            + (f", {heldout} {len(tested)}" if heldout else "")
            + f": none is left for {', '.join(bare)}",
            "an example, and a group of them, is whole in one slice",
        )
    if limit is not None and limit < len(slices["train"]):
        slices["train"] = _limited(slices["train"], seed, limit)
        facts["limit"] = limit
    ordered = {name: slices[name] for name in SLICES}
    facts |= {
        "licence": "; ".join(dict.fromkeys(licences)),
        "examples": {name: len(items) for name, items in ordered.items()},
        "groups": {name: len({_group(item) for item in items}) for name, items in ordered.items()},
        **_described(kind, ordered, names),
        "digest": _digest(ordered),
    }
    return Examples(ordered, names, facts)


def _drafts(
    kind: str, source: str, facts: dict[str, Any], licences: list[str]
) -> tuple[list[Draft], tuple[str, ...]]:
    """What a source holds, and the words for its classes, if it names them."""
    found: list[Draft] = []
    words: set[tuple[str, ...]] = set()
    for part in example_source.parts(kind, source):
        counts: Counter[str] = Counter()
        found += example_reading.drafts(kind, part.rows, part.layout, counts)
        licences.append(part.licence)
        words.add(part.layout.labels)
        read = {**part.notes, **{key: value for key, value in counts.items() if value}}
        facts.setdefault("read", {})[part.source] = read
    if len(words) > 1 and kind == "classification":
        told = " and ".join(",".join(item) or "none" for item in sorted(words))
        raise BenchError(f"{source}: parts name their classes {told}", "accepted: the same in all")
    if not found:
        raise BenchError(f"{source} holds no example that can be used", _dropped(facts, source))
    return found, words.pop()


def _dropped(facts: Mapping[str, Any], source: str) -> str:
    counts = Counter[str]()
    for read in facts["read"].values():
        counts.update({key: value for key, value in read.items() if isinstance(value, int)})
    return ", ".join(f"{key}: {value}" for key, value in counts.items())


def _unique(drafts: Iterable[Draft], names: Sequence[str], facts: dict[str, Any]) -> list[Example]:
    found: dict[str, Example] = {}
    count = 0
    for draft in drafts:
        item = example_classes.made(draft, names)
        count += 1
        found.setdefault(item.key, item)
    facts["duplicates"] = facts.get("duplicates", 0) + count - len(found)
    return list(found.values())


# --- slices -------------------------------------------------------------------------------------


def _text_key(item: Example) -> str:
    """The same for the same texts, whatever their label and spacing."""
    return documents.fingerprint("\x1f".join(chain(item.texts, sorted(item.options))))


def _group(item: Example) -> str:
    return item.group or documents.fingerprint("\x1f".join(item.texts))


def _carve(
    items: Sequence[Example], shares: Mapping[str, float], rest: str
) -> dict[str, tuple[Example, ...]]:
    """Groups in order of their hash, to each slice until it has its share; the others to `rest`.

    What stands in two groups belongs to the first.
    """
    first: dict[str, str] = {}
    groups = [first.setdefault(_text_key(item), _group(item)) for item in items]
    sizes = Counter(groups)
    pending = sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest(), reverse=True)
    slice_of: dict[str, str] = {}
    for name, share in shares.items():
        count = 0
        while pending and count < share * len(items):
            group = pending.pop()
            slice_of[group] = name
            count += sizes[group]
    found: dict[str, list[Example]] = {name: [] for name in (*shares, rest)}
    for item, group in zip(items, groups, strict=True):
        found[slice_of.get(group, rest)].append(item)
    return {name: tuple(inside) for name, inside in found.items()}


def _limited(items: Sequence[Example], seed: int, limit: int) -> tuple[Example, ...]:
    """So many, chosen by the hash of seed and key, in their order."""
    chosen = sorted(items, key=lambda item: hashlib.sha256(f"{seed}:{item.key}".encode()).digest())
    keys = {item.key for item in chosen[:limit]}
    return tuple(item for item in items if item.key in keys)


# --- facts --------------------------------------------------------------------------------------


def _described(
    kind: str, slices: Mapping[str, Sequence[Example]], names: Sequence[str]
) -> dict[str, Any]:
    """What labels there are, in every slice."""
    if kind == "classification":
        counts = {key: Counter(item.label for item in items) for key, items in slices.items()}
        return {
            "classes": {
                key: {name: count[place] for place, name in enumerate(names)}
                for key, count in counts.items()
            }
        }
    if kind == "regression":
        return {"scores": {key: _spread(items) for key, items in slices.items()}}
    if kind == "extractive_qa":
        return {
            "without_answer": {
                key: sum(not item.answers for item in items) for key, items in slices.items()
            }
        }
    # Where the right option stands: a set whose place tells the answer is no test.
    return {
        "right_places": {
            key: _counted(item.label for item in items) for key, items in slices.items()
        },
        "options": _counted(len(item.options) for item in chain(*slices.values())),
    }


def _spread(items: Sequence[Example]) -> dict[str, float]:
    scores = [item.label for item in items if item.label is not None]
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    found = {"mean": mean, "deviation": deviation, "least": min(scores), "most": max(scores)}
    return {name: round(value, 6) for name, value in found.items()}


def _counted(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def _digest(slices: Mapping[str, Sequence[Example]]) -> str:
    digest = hashlib.sha256()
    for name, items in slices.items():
        digest.update(f"{name} {len(items)}\n".encode())
        for item in items:
            digest.update(f"{item.key} {item.group!r}\n".encode())
    return digest.hexdigest()
