"""What a user may write for a method: a name, a file, a mix, or a method with values changed.

    foam                                   by name
    path/to/file.py:SPEC                   from a file
    mix(matrix=muon,embed=adafactor)       one method a role (`bench.mix`)
    foam(residual=false,beta2=0.95)        with hyper-parameters of one's own: an ablation in a line
    lora(inner=muon)                       an adapter whose parameters another method trains

A changed value is fixed: a dimension that is named is tuned no more. The forms nest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levelfield.bench import mix
from levelfield.bench.digest import did_you_mean
from levelfield.bench.registry import OPTIMIZERS, Entry, Loaded
from levelfield.bench.spec import GIVEN_TO_INNER, BenchError, OptimizerSpec

FORM = "NAME(key=value,key=value), the keys as `levelfield show NAME` lists them"


def load_spec(reference: str) -> Loaded[OptimizerSpec]:
    """A method by any of the forms.

    Raises:
        BenchError: unknown, broken, or not of one of the forms.
    """
    head, inside = _call(reference)
    if inside is None:
        return OPTIMIZERS.load(reference)
    if head == "mix":
        return mix.mixed({r: load_spec(part) for r, part in mix.parse(reference, inside).items()})
    return _changed(load_spec(head), parse(reference, inside))


def _call(reference: str) -> tuple[str, list[str] | None]:
    """`head(a,b)` -> head and its parts, cut at commas that are in no bracket of their own; the
    reference itself and None where it is no such form."""
    text = reference.strip()
    if not text.endswith(")") or text.startswith("("):
        return text, None
    depth, start = 0, None
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            start = index
            break
    if start is None:
        raise BenchError(f"{reference}: a bracket is not opened", f"accepted: {FORM}")
    return text[:start].strip(), _split(text[start + 1 : -1])


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def parse(reference: str, inside: list[str]) -> dict[str, Any]:
    """Key -> value: a number, true, false, null, or else a text.

    Raises:
        BenchError: a part without `=`, a key twice, nothing at all.
    """
    found: dict[str, Any] = {}
    for part in inside:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise BenchError(f"{reference}: {part!r} changes nothing", f"accepted: {FORM}")
        if key in found:
            raise BenchError(f"{reference}: {key!r} is given twice", f"accepted: {FORM}")
        found[key] = _value(value)
    if not found:
        raise BenchError(f"{reference} changes nothing", f"accepted: {FORM}")
    return found


def _value(text: str) -> Any:
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise BenchError(
            f"{text} is no value", "accepted: a finite number, true, false, null, a word"
        )
    if text in ("true", "false", "null"):
        return json.loads(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _changed(loaded: Loaded[OptimizerSpec], values: Mapping[str, Any]) -> Loaded[OptimizerSpec]:
    """The same method with these values, fixed.

    Raises:
        BenchError: a key that it does not have, a value of another kind, its scale.
    """
    spec, below = loaded.value, None
    own = dict(values)
    if "inner" in values and spec.inner is not None:
        below = load_spec(str(own.pop("inner")))
        spec = _trained_by(spec, below)
    defaults = spec.defaults()
    for key, value in own.items():
        if key not in defaults:
            raise BenchError(f"{spec.name} has no {key!r}", did_you_mean(key, defaults))
        if key == spec.scale:
            raise BenchError(
                f"{key!r} is what tuning moves in {spec.name}",
                "accepted: any other of its hyper-parameters",
            )
        if not _alike(value, defaults[key]):
            raise BenchError(
                f"{spec.name}: {key}={_shown(value)} is of another kind",
                f"its default is {_shown(defaults[key])}",
            )
    shown = ",".join(f"{key}={_shown(value)}" for key, value in own.items())
    named, asked = shown, shown
    if below is not None:
        named = ",".join(part for part in (f"inner={below.value.name}", shown) if part)
        asked = ",".join(part for part in (f"inner={below.entry.reference}", shown) if part)
    name = f"{spec.name}({named})"
    changed = replace(
        spec,
        name=name,
        summary=f"{spec.summary}; with {named.replace(',', ', ')}",
        space={key: dim for key, dim in spec.space.items() if key not in own},
        fixed={**spec.fixed, **own},
        passes=_passes(spec, own),
    )
    origin, inner = loaded.entry.origin, loaded.entry.reference
    entry = Entry(name=name, origin=f"{origin}, with {named}", reference=f"{inner}({asked})")
    parts = (loaded,) if below is None else (loaded, below)
    return Loaded(changed, entry, loaded.path, parts)


def _passes(spec: OptimizerSpec, values: Mapping[str, Any]) -> float:
    """Passes a step with these values; those of the method under an adapter count as before."""
    if spec.passes_at is None:
        return spec.passes
    defaults = spec.defaults()
    try:
        return spec.passes * spec.passes_at({**defaults, **values}) / spec.passes_at(defaults)
    except (ArithmeticError, TypeError, ValueError):
        return spec.passes  # values that the method will refuse


def _trained_by(spec: OptimizerSpec, below: Loaded[OptimizerSpec]) -> OptimizerSpec:
    """An adapter with another method under it. What tuning moves is then that method's scale, from
    its own default.

    Raises:
        BenchError: the other method is an adapter itself.
    """
    inner = below.value
    if inner.adapter is not None or inner.inner is not None:
        raise BenchError(
            f"{spec.name}(inner={inner.name}): {inner.name} is an adapter itself",
            "accepted: a method that trains all of a model, such as adamw or muon",
        )
    if inner.tasks:
        raise BenchError(
            f"{spec.name}(inner={inner.name}): {inner.name} trains {', '.join(inner.tasks)} alone",
            "accepted: a method that trains all of a model, such as adamw or muon",
        )
    dims = {key: dim for key, dim in spec.space.items() if key != spec.scale}
    own = {inner.scale, *(set(GIVEN_TO_INNER) & _asked(below.entry.reference))}
    return replace(
        spec,
        space={inner.scale: inner.space[inner.scale], **dims},
        scale=inner.scale,
        fixed={key: value for key, value in spec.fixed.items() if key not in own},
        inner=below.entry.reference,
        passes=spec.passes * inner.passes,
        schedule=spec.schedule if inner.schedule == "protocol" else inner.schedule,
        refreshes=spec.refreshes or inner.refreshes,
        requires=tuple(dict.fromkeys((*spec.requires, *inner.requires))),
    )


def _asked(reference: str) -> set[str]:
    """The values that a reference sets; none of a name, a file or a mix."""
    head, inside = _call(reference)
    return set() if inside is None or head == "mix" else {*parse(reference, inside), *_asked(head)}


def _alike(value: Any, default: Any) -> bool:
    """Whether a value can stand for the default. A word may stand for a number (a level of `row`):
    whether the method knows it is found by trying it out."""
    if default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(value, str):
        return True
    if isinstance(default, float):
        return isinstance(value, (int, float))
    return isinstance(value, type(default))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
