"""Formulas of claimed state bytes that several methods share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelfield.bench.spec import ParamInfo, StateBytes


def owners(params: Sequence[ParamInfo]) -> Iterator[ParamInfo]:
    """The parameters that own their tensor: one that shares another's costs nothing."""
    return (param for param in params if param.tied_to is None)


def copies(count: int) -> StateBytes:
    """`count` tensors of each parameter's shape and dtype."""

    def claim(params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float) -> int:
        return count * sum(param.nbytes for param in owners(params))

    return claim
