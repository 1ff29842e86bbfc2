"""Makes `bench/data/python_manual.txt` from the manuals of several CPython releases.

Usage:
    python scripts/build_manual_index.py [--check] LABEL=TOPICS_PY ...

Each LABEL=TOPICS_PY names a release, such as 3.14.10, and its `pydoc_data/topics.py`, which is
run as Python to read it. A paragraph is kept if it is in all of them. Names, order and text of
the topics come from the first file, so give the newest release first. With --check the committed
list is left as it is and only compared.
"""

from __future__ import annotations

import argparse
import hashlib
import runpy
import sys
from collections.abc import Mapping, Sequence

from levelfield.bench import manual

SLACK = 1.02
"""How far over its share a slice other than train may be filled."""

LARGEST = 0.5
"""The most of a slice other than train that one topic may be, so that no topic rules it."""


def common_paragraphs(manuals: Sequence[Mapping[str, str]]) -> set[str]:
    """Returns the paragraphs, short ones too, that are in all the manuals."""
    return set.intersection(*(_all_paragraphs(topics) for topics in manuals))


def allot(topics: Mapping[str, str], keep: set[str]) -> dict[str, list[str]]:
    """Gives each kept paragraph to the first topic, by name, that has it."""
    left = set(keep)
    own: dict[str, list[str]] = {}
    for name in sorted(topics):
        for paragraph in manual.paragraphs(topics[name]):
            if paragraph in left:
                left.remove(paragraph)
                own.setdefault(name, []).append(paragraph)
    return own


def assign(own: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Assigns whole topics to slices.

    Topics come in the order of the sha256 of their names. Each goes to the slice that is the
    least filled for its share among those it fits into, and to train if it fits into no other.
    """
    sizes = {name: len("\n\n".join(parts).encode()) for name, parts in own.items()}
    total = sum(sizes.values())
    filled = dict.fromkeys(manual.SHARES, 0)
    slices: dict[str, str] = {}
    for name in sorted(own, key=lambda n: hashlib.sha256(n.encode()).hexdigest()):
        fits = ["train"] + [
            part
            for part, share in manual.SHARES.items()
            if part != "train"
            and sizes[name] <= share * total * LARGEST
            and filled[part] + sizes[name] <= share * total * SLACK
        ]
        slices[name] = min(fits, key=lambda part: filled[part] / manual.SHARES[part])
        filled[slices[name]] += sizes[name]
    return slices


def main() -> int:
    """Prints the figures and writes the list, or compares it; 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    parser.add_argument("manuals", nargs="+", metavar="LABEL=TOPICS_PY")
    args = parser.parse_args()
    labels, paths = zip(*(pair.split("=", 1) for pair in args.manuals), strict=True)
    manuals = [runpy.run_path(path)["topics"] for path in paths]
    common = common_paragraphs(manuals)
    keep = {p for p in common if len(p.split()) >= manual.MIN_WORDS}
    own = allot(manuals[0], keep)
    slices = assign(own)
    index = [
        manual.Topic(name=name, slice=slices[name], hashes=tuple(map(manual.paragraph_hash, parts)))
        for name, parts in own.items()
    ]
    corpus = manual.assemble(index, manuals[0])
    text = manual.format_index(index, _comment(labels, index, corpus))
    print(
        f"{'manual':10} {'paragraphs':>10} {'bytes':>8} {'common':>7} {'bytes':>8}  corpus sha256"
    )
    for label, topics in zip(labels, manuals, strict=True):
        every = _all_paragraphs(topics)
        digest = manual.corpus_sha256(manual.assemble(index, topics))
        print(
            f"{label:10} {len(every):10} {_bytes(every):8} {len(every & keep):7} "
            f"{_bytes(every & keep):8}  {digest}"
        )
    short = common - keep
    print(f"left out, under {manual.MIN_WORDS} words: {len(short)} common, {_bytes(short)} bytes")
    total = sum(manual.slice_bytes(corpus).values())
    print(f"corpus: {len(index)} topics, {len(keep)} paragraphs, {total} bytes")
    for part, size in manual.slice_bytes(corpus).items():
        count = sum(1 for topic in index if topic.slice == part)
        print(f"  {part:10} {count:3} topics {size:8} bytes {size / total:7.2%}")
    if args.check:
        same = manual.parse_index(manual.INDEX.read_text(encoding="utf-8")) == tuple(index)
        print("the committed list is the same" if same else "the committed list differs")
        return 0 if same else 1
    manual.INDEX.write_text(text, encoding="utf-8")
    print(f"wrote {manual.INDEX}")
    return 0


def _all_paragraphs(topics: Mapping[str, str]) -> set[str]:
    return {p for text in topics.values() for p in manual.paragraphs(text)}


def _bytes(paragraphs: set[str]) -> int:
    return sum(len(p.encode()) for p in paragraphs)


def _comment(
    labels: Sequence[str], index: Sequence[manual.Topic], corpus: Sequence[manual.Document]
) -> list[str]:
    return [
        "The paragraphs of the built-in corpus: those of pydoc_data.topics that are the same in",
        "CPython " + ", ".join(sorted(labels, key=_version)) + ".",
        "Made by scripts/build_manual_index.py; not edited by hand.",
        "A line '# topic slice' begins a topic; then the first 16 hex digits of the sha256 of each",
        "of its paragraphs, put on one line as bench/manual.py does. A paragraph of several topics",
        f"belongs to the first by name; those under {manual.MIN_WORDS} words are left out.",
        f"{len(index)} topics, {sum(len(t.hashes) for t in index)} paragraphs, "
        f"{sum(manual.slice_bytes(corpus).values())} bytes of text.",
    ]


def _version(label: str) -> tuple[int, ...]:
    return tuple(map(int, label.split(".")))


if __name__ == "__main__":
    sys.exit(main())
