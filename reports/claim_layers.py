"""Where an adapter's ranks lie, read off the names of its modules."""

from __future__ import annotations

import re
from collections.abc import Mapping

LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.(.+)$")
"""`encoder.layer.11.output.dense`, `model.layers.3.mlp.up_proj`, `transformer.h.0.mlp.c_fc`."""

FEED_FORWARD = re.compile(
    r"(?:^|\.)(?:mlp|ffn|feed_forward|intermediate|fc\d?|lin\d|gate_proj|up_proj|down_proj)(?:\.|$)"
    r"|^output(?:\.|$)"
)
"""Within a layer; BERT's second feed-forward matrix is the layer's own `output`, while that of its
attention is `attention.output`."""


def gathered(ranks: Mapping[str, float]) -> tuple[float, float] | None:
    """Mean rank of (the last half of the layers - the first, feed-forward modules - the others).

    The middle layer of an odd number belongs to neither half. None where modules have no layer in
    their name, there is one layer only, or no module of one kind.
    """
    placed = [
        (int(found[1]), bool(FEED_FORWARD.search(found[2])), float(rank))
        for name, rank in ranks.items()
        if (found := LAYER.search(name))
    ]
    layers = sorted({layer for layer, _, _ in placed})
    if len(layers) < 2:
        return None
    half = len(layers) // 2
    first, last = set(layers[:half]), set(layers[-half:])
    groups = (
        [rank for layer, _, rank in placed if layer in last],
        [rank for layer, _, rank in placed if layer in first],
        [rank for _, forward, rank in placed if forward],
        [rank for _, forward, rank in placed if not forward],
    )
    if not all(groups):
        return None
    means = [sum(group) / len(group) for group in groups]
    return means[0] - means[1], means[2] - means[3]
