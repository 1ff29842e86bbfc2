"""The texts of multiple choice: questions with lettered options, exemplars, options shuffled."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from levelfield.bench.examples import Example

LETTERS = string.ascii_uppercase
ASK = "Answer:"


def asked(item: Example) -> str:
    """The question, its options behind their letters, and where the letter is to come."""
    lines = [f"{LETTERS[place]}. {option}" for place, option in enumerate(item.options)]
    return "\n".join([item.texts[0], *lines, ASK])


def solved(train: Sequence[Example], shots: int) -> Mapping[str, str]:
    """Exemplars by group: the first of the training slice, of the whole of it under ""."""
    by_group: dict[str, list[Example]] = {"": list(train[:shots])}
    for item in train:
        inside = by_group.setdefault(item.group, [])
        if item.group and len(inside) < shots:
            inside.append(item)
    return {
        group: "".join(f"{asked(item)} {LETTERS[int(item.label or 0)]}\n\n" for item in items)
        for group, items in by_group.items()
    }


def shuffled(item: Example) -> Example:
    """The same item with its options in an order that its own text decides."""
    text = "\x1f".join((*item.texts, *sorted(item.options)))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(item.options))
    options = tuple(item.options[place] for place in order)
    return replace(item, options=options, label=int(np.argmax(order == item.label)))
