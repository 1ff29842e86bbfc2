"""The loss of a text that follows another: nats of its own tokens alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from levelfield.bench.encode import Row
from levelfield.bench.example_batches import Item
from levelfield.bench.sources import IGNORED


def item(place: int, before: Sequence[int], answer: Sequence[int], length: int) -> Item:
    """A sequence whose end is the answer: what stands before it is cut at its beginning."""
    kept = list(answer[: length - 1])
    ids = [*before[-(length - len(kept)) :], *kept]
    span = {"first": len(ids) - len(kept), "end": len(ids), "weight": np.float32(len(kept))}
    return Item(place, (Row.of(ids),), span)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed over every sequence, [b].

    Args:
        logits: [b, t, vocabulary].
        targets: [b, t]: the token after each place, or -100.
    """
    flat = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(targets.shape).sum(dim=1)


def next_tokens(ids: Tensor, targets: Mapping[str, Any]) -> Tensor:
    """The token after each place, [b, t - 1], where it belongs to the answer; else -100."""
    place = ids.new_ones(ids.shape).cumsum(dim=1)[:, :-1]  # of the next token, from 1
    inside = (place >= targets["first"][:, None]) & (place < targets["end"][:, None])
    return ids[:, 1:].masked_fill(~inside, IGNORED)
