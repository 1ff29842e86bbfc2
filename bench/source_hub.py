"""Text from the Hugging Face hub: `hf:ID?config=en&split=train&column=text&limit=10000`.

A set is streamed once, as far as the limit, and what was read is kept in the user's cache: every
trial of a run, and every run without a network, then reads the same documents.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from levelfield.bench import documents
from levelfield.bench.documents import Source, Text
from levelfield.bench.errors import named
from levelfield.bench.spec import BenchError

OPTIONS = ("config", "split", "column", "limit", "revision")
LIMIT = 10_000
"""Documents read where no limit is given: a set may be larger than any disk."""


def read(rest: str) -> Source:
    """The texts of what `hf:` names, from the cache or the hub.

    Raises:
        BenchError: no such set, a gated one, no network, no such column; each with what to do.
    """
    name, found = documents.options(rest, OPTIONS)
    if not name:
        raise BenchError("hf: names no set", "accepted: hf:allenai/c4?config=en")
    wanted = {
        "id": name,
        "config": found.get("config"),
        "split": found.get("split", "train"),
        "revision": found.get("revision"),
        "column": found.get("column", "text"),
        "limit": documents.limit_of(found, LIMIT),
    }
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]
    path = documents.cache() / "hub" / f"{key}.jsonl.gz"
    if not path.is_file():
        _fetch(wanted, path)
    return Source(
        texts=_cached(path, name),
        licence=f"that of {name} on the hub: see its page",
        notes={"hub": wanted},
        stamp=documents.stamp(path),
    )


def _cached(path: Path, name: str) -> Iterator[Text]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                yield from documents.pieces(f"{name}:{number}", json.loads(line))
    except (OSError, EOFError, ValueError) as error:
        raise BenchError(
            f"the cached copy of {name} is broken: {error}", f"remove {path}"
        ) from None


def _fetch(wanted: Mapping[str, Any], path: Path) -> None:
    """Write the texts to the cache, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with gzip.open(part, "wt", encoding="utf-8", newline="\n") as stream:
            for text in _stream(wanted):
                stream.write(json.dumps(text) + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _stream(wanted: Mapping[str, Any]) -> Iterator[str]:
    name, column = wanted["id"], wanted["column"]
    for row in rows(wanted, "data.source=file:PATH"):
        if column not in row:
            raise BenchError(
                f"{name} has no column {column!r}",
                f"it has {', '.join(row)}; accepted: ?column=NAME",
            )
        if not isinstance(row[column], str | None):
            raise BenchError(f"{name}: column {column!r} is no text", "accepted: ?column=NAME")
        yield row[column] or ""


def rows(wanted: Mapping[str, Any], local: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a set of the hub, up to a limit.

    Args:
        wanted: `id`, `config`, `split`, `revision`, `limit`.
        local: what a user may give instead, for the hint.

    Raises:
        BenchError: whatever the hub raises, in one line.
    """
    try:
        import datasets

        found = datasets.load_dataset(
            wanted["id"],
            wanted["config"],
            split=wanted["split"],
            revision=wanted["revision"],
            streaming=not offline(),  # offline, what an earlier download left on disk
        )
        yield from itertools.islice(found, wanted["limit"])
    except BenchError:
        raise
    except Exception as error:
        raise explain(error, f"hub set {wanted['id']!r}", local) from error


def offline() -> bool:
    """Whether the environment forbids the network."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def explain(error: BaseException, what: str, local: str) -> BenchError:
    """What a hub library raised, in one line with what to do.

    Args:
        error: as raised.
        what: was asked for.
        local: the setting that names a local copy instead.
    """
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    kinds = {kind.__name__ for item in chain for kind in type(item).__mro__}
    words = " ".join(str(item) for item in chain).lower()
    line = named(error)
    if "GatedRepoError" in kinds or re.search(r"\bgated\b", words):
        return BenchError(
            f"{what} is gated",
            f"accept its terms on its page and set HF_TOKEN; or a local copy: {local}",
        )
    lost = {"ConnectionError", "ConnectError", "OfflineModeIsEnabled", "LocalEntryNotFoundError"}
    lost |= {"TimeoutError", "Timeout", "TimeoutException"}
    if offline() and (kinds & lost or "offline" in words):
        return BenchError(
            f"{what} is not in the cache and HF_HUB_OFFLINE forbids to get it",
            f"unset HF_HUB_OFFLINE, or name a local copy: {local}",
        )
    missing = {"DatasetNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"}
    if kinds & missing:
        return BenchError(
            f"{what} is not on the hub: {line}",
            f"check the name and the revision; a private one needs HF_TOKEN; or {local}",
        )
    if kinds & lost or "couldn't connect" in words or "connect to" in words:
        return BenchError(
            f"the hub cannot be reached for {what}: {line}",
            f"check the network, or name a local copy: {local}",
        )
    return BenchError(f"{what} cannot be read: {line}", f"or name a local copy: {local}")
