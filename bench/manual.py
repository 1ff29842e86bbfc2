"""The built-in English corpus: the language manual that every CPython carries.

`pydoc_data.topics` holds the text behind `help("topics")`: some 500 KB of edited English that
needs no download. Its wording differs from release to release, so the corpus is only what they
share: `data/python_manual.txt` lists, in order, the hash of each paragraph that occurs in all
the releases it was made from, and `documents` reads exactly those paragraphs from the running
interpreter. Equal hashes mean equal text, so the corpus has one digest everywhere.

Paragraphs are compared, and given out, as one line each with every run of blanks made one space
and the rules drawn under headings and around tables left out: releases wrap lines and draw rules
to different lengths. Nothing else of the text is changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from levelfield.bench.spec import BenchError

INDEX = Path(__file__).parent / "data" / "python_manual.txt"
"""The committed list of topics, their slices and the hashes of their paragraphs."""

SHARES: Mapping[str, float] = {"train": 0.80, "control": 0.04, "selection": 0.08, "report": 0.08}
"""The slices and about what share of the bytes each has. A topic is whole in one slice."""

MIN_WORDS = 3
"""Paragraphs of fewer words (bare headings, single names) are left out."""

_ACCEPTED = "CPython 3.11 to 3.14 with its whole standard library is accepted"
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
_RULE = re.compile(r"[-=*~^+|#_\"]{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The shared paragraphs of one topic, a line each, with a blank line between two."""

    name: str
    slice: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic as the committed list has it: the hashes of its paragraphs, in order."""

    name: str
    slice: str
    hashes: tuple[str, ...]


def normalise(paragraph: str) -> str:
    """Puts a paragraph on one line, single-spaced, without the rules that decorate it."""
    return " ".join(word for word in paragraph.split() if not _RULE.fullmatch(word))


def paragraphs(text: str) -> list[str]:
    """Splits a topic's text at its blank lines into normalised paragraphs, the empty left out."""
    return [line for part in _BLANK_LINES.split(text) if (line := normalise(part))]


def paragraph_hash(paragraph: str) -> str:
    """Returns the first 16 hex digits of the sha256 of a normalised paragraph."""
    return hashlib.sha256(paragraph.encode()).hexdigest()[:16]


def parse_index(text: str) -> tuple[Topic, ...]:
    """Reads the list: `## comment`, `# topic slice`, then that topic's hashes, one a line."""
    heads: list[tuple[str, str]] = []
    hashes: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("##") or not line:
            continue
        if line.startswith("# "):
            name, _, part = line[2:].rpartition(" ")
            heads.append((name, part))
            hashes.append([])
        else:
            hashes[-1].append(line)
    return tuple(
        Topic(name=name, slice=part, hashes=tuple(own))
        for (name, part), own in zip(heads, hashes, strict=True)
    )


def format_index(topics: Iterable[Topic], comment: Iterable[str] = ()) -> str:
    """Writes what `parse_index` reads."""
    lines = [f"## {line}".rstrip() for line in comment]
    for topic in topics:
        lines += [f"# {topic.name} {topic.slice}", *topic.hashes]
    return "\n".join(lines) + "\n"


def documents(topics: Mapping[str, str] | None = None) -> tuple[Document, ...]:
    """Reads the corpus, one document a topic, in the order of the committed list.

    Args:
        topics: The manual as topic -> text; the running interpreter's own if not given.

    Raises:
        BenchError: The manual is absent, or paragraphs of the list are not in it.
    """
    source = _own_topics() if topics is None else topics
    return assemble(parse_index(INDEX.read_text(encoding="utf-8")), source)


def assemble(index: Iterable[Topic], topics: Mapping[str, str]) -> tuple[Document, ...]:
    """Builds the documents of a list; a paragraph may stand in any topic of the manual.

    Raises:
        BenchError: Paragraphs of the list are not in the manual.
    """
    known = {paragraph_hash(p): p for text in topics.values() for p in paragraphs(text)}
    wanted = tuple(index)
    missing = [(t.name, h) for t in wanted for h in t.hashes if h not in known]
    if missing:
        total = sum(len(topic.hashes) for topic in wanted)
        name, digest = missing[0]
        raise BenchError(
            f"the manual of Python {platform.python_version()} lacks {len(missing)} of the "
            f"{total} paragraphs of the built-in corpus, first {digest} of topic '{name}'",
            _ACCEPTED,
        )
    return tuple(
        Document(name=t.name, slice=t.slice, text="\n\n".join(known[h] for h in t.hashes))
        for t in wanted
    )


def corpus_sha256(corpus: Iterable[Document]) -> str:
    """Returns the sha256 of the documents as canonical JSON: [[name, slice, text], ...]."""
    rows = [[doc.name, doc.slice, doc.text] for doc in corpus]
    canonical = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def slice_bytes(corpus: Iterable[Document]) -> dict[str, int]:
    """Returns the UTF-8 bytes of the texts of each slice."""
    sizes = dict.fromkeys(SHARES, 0)
    for doc in corpus:
        sizes[doc.slice] += len(doc.text.encode())
    return sizes


def _own_topics() -> Mapping[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BenchError(
            f"Python {platform.python_version()} here has no manual text: {error}", _ACCEPTED
        ) from error
    return topics
