"""Where an adapter's ranks went: module names into layers and kinds, means over the finals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.bench.spec import TrialRecord
from levelfield.reports.view import Method

_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class RankMap:
    """Mean ranks of one method: kinds of module by layers."""

    kinds: tuple[str, ...]
    layers: tuple[int, ...]
    ranks: Mapping[tuple[str, int], float]

    @property
    def uniform(self) -> bool:
        """Whether every module has the same: nothing was chosen."""
        return len({round(value, 9) for value in self.ranks.values()}) <= 1


def place(module: str) -> tuple[str, int]:
    """`bert.encoder.layer.3.attention.self.query` -> its kind within a layer, and the layer."""
    found = _LAYER.search(module)
    if found is None:
        return module, 0
    return module[found.end() :], int(found[1])


def of_record(record: TrialRecord) -> dict[tuple[str, int], int]:
    """Ranks by kind and layer."""
    ranks = record.adapter.get("ranks") or {}
    return {place(name): int(rank) for name, rank in ranks.items()}


def of_method(method: Method) -> RankMap | None:
    """Means over the method's good finals; None for a method without ranks."""
    seen = [found for record in method.good if (found := of_record(record))]
    if not seen:
        return None
    cells = list(dict.fromkeys(cell for found in seen for cell in found))
    kinds = tuple(dict.fromkeys(kind for kind, _ in cells))
    layers = tuple(sorted({layer for _, layer in cells}))
    means = {cell: sum(found.get(cell, 0) for found in seen) / len(seen) for cell in cells}
    return RankMap(kinds, layers, means)


def late_share(found: RankMap) -> float | None:
    """Share of all ranks in the last third of the layers; with even ranks it is that third."""
    total = sum(found.ranks.values())
    if not total or len(found.layers) < 3:
        return None
    late = set(found.layers[-(len(found.layers) // 3) :])
    return sum(rank for (_, layer), rank in found.ranks.items() if layer in late) / total
