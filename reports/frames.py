"""Rows into pandas frames whose empty cells say why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levelfield.reports.blocks import MISSING
from levelfield.reports.measure import Measured, Missing

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a frame: each `Missing` becomes an empty cell and a reason in the last column."""
    from pandas import DataFrame

    plain = []
    for row in rows:
        why = [
            f"{key}: {value.reason.replace(' | ', ' / ')}"
            for key, value in row.items()
            if isinstance(value, Missing)
        ]
        known = {k: None if isinstance(v, Missing) else v for k, v in row.items()}
        plain.append({**known, MISSING: " | ".join(why) or None})
    return DataFrame(plain, columns=[*columns, MISSING]).convert_dtypes()


def finite_or(value: float | None, reason: str) -> Measured:
    """The value, or a reason in the place of None and infinities."""
    return value if value is not None and math.isfinite(value) else Missing(reason)


def per_parameter(amount: Measured, parameters: Measured) -> Measured:
    """Bytes a trainable parameter."""
    if isinstance(amount, Missing):
        return amount
    return parameters if isinstance(parameters, Missing) else amount / parameters
