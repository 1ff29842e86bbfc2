"""The published sizes by name: `llama-60m` to `llama-7b`, as the C4 protocols train them.

Sizes are those of the shipped configs of GaLore (github.com/jiaweizzhao/GaLore, `configs/`), which
APOLLO, Fira, FOAM and the FRUGAL line use too; the 3B is APOLLO's. GaLore's Table 5 prints 32
layers for the 1B, its config has 24, and only 24 give the published 1.34 billion parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.bench.spec import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A named architecture: its sizes and the rows of its embedding."""

    name: str
    model: Model
    vocabulary: int = 32_000


def _llama(name: str, hidden: int, layers: int, heads: int, intermediate: int) -> Shape:
    return Shape(
        name=f"llama-{name}",
        model=Model(hidden=hidden, layers=layers, heads=heads, intermediate=intermediate),
    )


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _llama("60m", 512, 8, 8, 1376),
        _llama("130m", 768, 12, 12, 2048),
        _llama("350m", 1024, 24, 16, 2736),
        _llama("1b", 2048, 24, 32, 5461),
        _llama("3b", 2560, 32, 32, 6848),
        _llama("7b", 4096, 32, 32, 11_008),
    )
}
