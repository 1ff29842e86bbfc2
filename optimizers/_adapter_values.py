"""What an adapter's hyper-parameters may be: told in a line before a layer is put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from levelfield.bench.spec import BenchError
from levelfield.optimizers._adapter import check_rank

RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "alpha": ("a number above 0", lambda x: x > 0),
    "dropout": ("a number from 0, below 1", lambda x: 0 <= x < 1),
    "interval": ("a share of the horizon above 0, at most 0.5", lambda x: 0 < x <= 0.5),
    "share": ("a share of the components to come, above 0, at most 1", lambda x: 0 < x <= 1),
    "stagger": ("a share of the horizon from 0, below 1", lambda x: 0 <= x < 1),
    "radius": ("null, or a number above 0", lambda x: x > 0),
    "score_beta": ("a number between 0 and 1", lambda x: 0 < x < 1),
    "score_beta1": ("a number from 0, below 1", lambda x: 0 <= x < 1),
    "score_beta2": ("a number from 0, below 1", lambda x: 0 <= x < 1),
    "penalty": ("a number from 0", lambda x: x >= 0),
    "start": ("a share of the horizon from 0, below 1", lambda x: 0 <= x < 1),
    "settle": ("a share of the horizon from 0, below 1", lambda x: 0 <= x < 1),
    "every": ("a share of the horizon above 0, at most 1", lambda x: 0 < x <= 1),
    "sparsity": ("a number from 0", lambda x: x >= 0),
    "l1": ("a number from 0", lambda x: x >= 0),
    "temperature": ("a number above 0", lambda x: x > 0),
    "smooth": ("a number from 0", lambda x: x >= 0),
    "dual_rate": ("a number from 0", lambda x: x >= 0),
}
"""Numbers by name: what is accepted, in words and as a test."""
WHOLE = ("rank", "init_rank", "cap")
"""Whole numbers from 1."""
NULLABLE = ("radius",)


def check_values(hparams: Mapping[str, Any]) -> None:
    """Refuse what no adapter can take.

    Raises:
        BenchError: a number out of its range, or no number at all.
    """
    for name in WHOLE:
        if name in hparams:
            check_rank(hparams[name], name)
    for name, (accepted, holds) in RANGES.items():
        if name not in hparams or (hparams[name] is None and name in NULLABLE):
            continue
        value = hparams[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not holds(value):
            raise BenchError(f"{name}={value!r}", f"accepted: {accepted}")
