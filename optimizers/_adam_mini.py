"""The blocks of Adam-mini, for every method that has one second moment a block."""

from __future__ import annotations

from levelfield.bench.spec import ParamInfo

VALUE_BLOCKS = ("row", "head", "whole")
VALUE_MODULES = ("v_proj", "wv", "value")
"""Names of the modules that hold a value projection."""


def count_blocks(info: ParamInfo, value_blocks: str) -> int:
    """Blocks of a parameter, each of numel / blocks consecutive elements; 0 if it is empty."""
    if info.numel == 0:
        return 0
    module, _, own = f".{info.name}".rpartition(".")
    if info.role == "vector" or len(info.shape) < 2:
        return info.numel if own == "bias" else 1
    rows = info.shape[0]
    if info.role != "matrix":
        return rows
    if module.rpartition(".")[2] in VALUE_MODULES and value_blocks != "head":
        return rows if value_blocks == "row" else 1
    if info.heads is not None and rows % info.heads == 0:
        return info.heads
    return rows
