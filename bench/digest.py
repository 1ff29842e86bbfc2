"""Fingerprints and seeds: what makes two runs comparable, and what makes one reproducible."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from levelfield.bench.spec import ENGINE_VERSION, BenchError, Protocol

T = TypeVar("T")


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, no NaN: the same data gives the same bytes everywhere."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(value: Any) -> str:
    """Hex digest of bytes as they are, of anything else in canonical JSON."""
    data = value if isinstance(value, bytes) else canonical_json(value).encode()
    return hashlib.sha256(data).hexdigest()


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as plain JSON data; a non-finite float becomes None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [to_plain(item) for item in items]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def from_plain(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from plain data, checking names and types.

    Raises:
        BenchError: an unknown or missing field, or a value of another type, named by its dotted
            path.
    """
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in data:
        if name not in fields:
            raise BenchError(
                f"unknown field {where + name!r}", did_you_mean(name, fields, prefix=where)
            )
    for name, item in fields.items():
        if name not in data and item.default is item.default_factory is dataclasses.MISSING:
            raise BenchError(f"field {where + name!r} is missing", "it has no default")
    return kind(
        **{name: coerce(item, hints[name], f"{where}{name}") for name, item in data.items()}
    )


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as the annotated type `hint`; an int passes for a float, a list for a tuple."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        raise BenchError(f"{where} = {value!r}", f"accepted: {', '.join(map(str, args))}")
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return coerce(value, next(arg for arg in args if arg is not type(None)), where)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(coerce(item, args[0], where) for item in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return from_plain(hint, value, where + ".")
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:  # an int may be beyond every float
            return float(value)
    elif hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    elif (hint in (str, bool) and isinstance(value, hint)) or hint is Any:
        return value
    name = getattr(hint, "__name__", str(hint))
    raise BenchError(f"{where} = {value!r} is not of the right type", f"accepted: a {name}")


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint that names the nearest known names, or the first twenty."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(prefix + item for item in near) + "?"
    more = " ..." if len(names) > 20 else ""
    return "accepted: " + ", ".join(prefix + item for item in names[:20]) + more


def derive_seed(*parts: Any) -> int:
    """A seed in [0, 2^63) that depends on every part and on nothing else."""
    return int.from_bytes(hashlib.sha256(canonical_json(parts).encode()).digest()[:8], "big") >> 1


JUDGED = (
    *("summary", "note", "methods", "ranked", "reference", "claims", "alpha", "margin_nats"),
    *("targets", "paired", "axis", "variants", "files", "published"),
)
"""Protocol fields that say how results are read, not how a trial runs."""


def protocol_digest(protocol: Protocol) -> str:
    """Everything that changes a number: all fields but the texts, and the engine's version."""
    data = to_plain(protocol)
    for judged in JUDGED:
        data.pop(judged)
    # Neither how many trials and seeds are run nor their time limit changes what one trial is.
    budget = protocol.budget
    kept = ("steps", "unit", "amount", "memory_gib")
    data["budget"] = {name: getattr(budget, name) for name in kept}
    # Nor does it matter what is kept of a trial.
    for unseen in ("checkpoint_tokens", "save_final"):
        data["engine"].pop(unseen)
    return sha256({"protocol": data, "engine": ENGINE_VERSION})


def source_digest(path: Path, libraries: Iterable[str] = ()) -> str:
    """Digest of a method: its code without docstrings and comments, the `optimizers` modules that
    it imports, and the versions of the libraries that it borrows from.

    Raises:
        BenchError: a library that is not installed.
    """
    parts: dict[str, str] = {}
    pending = [path]
    while pending:
        current = pending.pop()
        if str(current) in parts:
            continue
        tree = ast.parse(current.read_text(encoding="utf-8"))
        parts[str(current)] = _shape(_without_docstrings(tree))
        pending.extend(_sibling_modules(tree))
    versions = {}
    for name in sorted(libraries):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise BenchError(
                f"{path.name} borrows from {name!r}, which is not installed",
                "`implementation` is `own`, or begins with a distribution's name",
            ) from None
    return sha256({"code": sorted(parts.values()), "versions": versions})


def _shape(node: Any) -> Any:
    """A syntax tree as plain text; fields that are empty are left out, since Python's versions
    differ in which of those there are."""
    if isinstance(node, ast.AST):
        fields = {
            name: _shape(value)
            for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("ctx", "kind", "type_comment")
        }
        return f"{type(node).__name__}({fields})"
    if isinstance(node, list):
        return f"[{', '.join(map(_shape, node))}]"
    return repr(node)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [
                item
                for item in node.body
                if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ]
    return tree


def _sibling_modules(tree: ast.Module) -> list[Path]:
    folder = Path(__file__).parent.parent / "optimizers"
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    stems = [name.removeprefix("levelfield.optimizers.") for name in names]
    return [folder / f"{stem}.py" for stem in stems if (folder / f"{stem}.py").is_file()]
