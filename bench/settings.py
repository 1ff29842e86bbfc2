"""`--set name=value`: any field of a protocol, changed as data and checked on the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.bench.digest import did_you_mean, from_plain, to_plain
from levelfield.bench.spec import BenchError, Protocol


def apply_settings(protocol: Protocol, settings: Sequence[str]) -> Protocol:
    """Change protocol fields by `dotted.name=value`.

    Raises:
        BenchError: no `=`, an unknown field (did-you-mean), a value of another type.
    """
    data = to_plain(protocol)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BenchError(f"--set {setting!r} has no '='", "accepted: --set budget.trials=12")
        if name in ("name", "summary", "note"):
            raise BenchError(f"--set {name}: a protocol's texts are fixed", "write a protocol file")
        *parents, last = name.split(".")
        place = data
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            known = [key for key in _dotted(data) if key not in ("name", "summary", "note")]
            raise BenchError(f"unknown protocol field {name!r}", did_you_mean(name, known))
        if isinstance(place[last], dict):
            inside = ", ".join(f"{name}.{key}" for key in place[last])
            raise BenchError(f"{name} is a group of fields", f"accepted: {inside}")
        place[last] = _parse(text, place[last])
    return from_plain(Protocol, data)


def _dotted(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in data.items():
        names += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return names


def _parse(text: str, old: Any) -> Any:
    """A value as typed on the command line: text where the field holds text, else JSON or text."""
    if isinstance(old, list):
        return [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(old, str):
        return text
    if text.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text.lower())
    try:
        return json.loads(text)
    except ValueError:
        return text
