"""One mechanism finds specs, protocols, metrics and sections.

Three origins: a file in the owner's folder, an entry point, `path/to/file.py:NAME` on the command
line. A name is listed without importing the file; a broken plug-in breaks nothing else.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from levelfield.bench.digest import did_you_mean, sha256
from levelfield.bench.errors import first_line
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.spec import BenchError, Metric, OptimizerSpec, Protocol, Section

T = TypeVar("T")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that can be loaded: its name, where it comes from, what its source says of it."""

    name: str
    origin: str
    reference: str
    """What a trial's process loads it by: a name, or an absolute `file.py:NAME`."""
    path: Path | None = None
    target: str = ""
    literals: Mapping[str, Any] | None = None
    """Literal keywords of the record, read from the source; None for a plug-in (not loaded)."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A record in hand, with the file that it came from."""

    value: T
    entry: Entry
    path: Path
    parts: tuple[Loaded[T], ...] = ()
    """What a record was mixed from; empty for one that a file holds."""


class Registry(Generic[T]):
    """Finds the records of one kind.

    Args:
        kind: the word used in messages, also the attribute's name in upper case.
        record: the class that a loaded value must have.
        files: where they lie under the project's root: `folder/*.py`, or one file with several.
        attribute: name of the record in its module.
    """

    def __init__(self, kind: str, record: type[T], files: str, attribute: str) -> None:
        self.kind, self.record, self.files, self.attribute = kind, record, files, attribute
        self.group = f"levelfield.{kind}s"

    def entries(self) -> dict[str, Entry]:
        """Every name with its origin; nothing is imported.

        Raises:
            BenchError: two origins claim one name.
        """
        found: dict[str, Entry] = {}
        for entry in (*self._files(), *self._entry_points()):
            other = found.setdefault(entry.name, entry)
            if other is not entry:
                raise BenchError(
                    f"two {self.kind}s are named {entry.name!r}: {other.origin} and {entry.origin}",
                    "rename or uninstall one of them",
                )
        return found

    def _files(self) -> list[Entry]:
        entries = []
        for path in sorted(ROOT.glob(self.files)):
            file = path.relative_to(ROOT)
            module = ".".join(("levelfield", *file.with_suffix("").parts))
            if path.stem.startswith("_"):
                continue
            records: Sequence[tuple[str, Mapping[str, Any] | None]]
            try:
                records = _literals_of(path, self.record.__name__, path.stat().st_mtime_ns)
            except (SyntaxError, ValueError):  # listed all the same: loading it tells the reason
                records = [(self.attribute, None)]
            for attribute, literals in records:
                name = str((literals or {}).get("name", path.stem))
                entries.append(
                    Entry(
                        name=name,
                        origin=str(file),
                        reference=name,
                        path=path,
                        target=f"{module}:{attribute}",
                        literals=literals,
                    )
                )
        return entries

    def _entry_points(self) -> list[Entry]:
        return [
            Entry(
                name=point.name,
                origin=f"{point.dist.name if point.dist else 'unknown'} ({point.value})",
                reference=point.name,
                target=point.value,
            )
            for point in importlib.metadata.entry_points(group=self.group)
        ]

    def load(self, reference: str) -> Loaded[T]:
        """Load by name, dashes for underscores too, or by `path/to/file.py:NAME`.

        Raises:
            BenchError: unknown name (did-you-mean), a file that is not there or fails on import,
                a record of another kind.
        """
        if ".py" in reference:
            return self._from_file(reference)
        entries = self.entries()
        # Names are those of files, with underscores; papers and people write dashes.
        found = entries.get(reference) or entries.get(reference.replace("-", "_"))
        if found is None:
            raise BenchError(f"unknown {self.kind} {reference!r}", did_you_mean(reference, entries))
        return self._from_entry(found)

    def _from_entry(self, entry: Entry) -> Loaded[T]:
        module_name, _, attribute = entry.target.partition(":")
        module = self._import(lambda: importlib.import_module(module_name), entry.origin)
        return self._take(module, attribute or self.attribute, entry)

    def load_all(self) -> list[Loaded[T]]:
        """Everything that loads, by name. A broken plug-in is left out: see `broken`."""
        return [
            item for item in map(self._try, self.entries().values()) if isinstance(item, Loaded)
        ]

    def broken(self) -> dict[str, str]:
        """Names that do not load, each with its reason."""
        tried = {name: self._try(entry) for name, entry in self.entries().items()}
        return {name: str(item) for name, item in tried.items() if isinstance(item, BenchError)}

    def _try(self, entry: Entry) -> Loaded[T] | BenchError:
        try:
            return self._from_entry(entry)
        except BenchError as error:
            return error

    def _from_file(self, reference: str) -> Loaded[T]:
        file, _, attribute = reference.rpartition(":")
        if not file.endswith(".py"):  # no attribute; a colon may be part of the path
            file, attribute = reference, ""
        path = Path(os.path.realpath(os.path.expanduser(file)))
        if path.suffix != ".py" or not os.path.isfile(path):
            raise BenchError(
                f"no {self.kind} file {file!r}", f"accepted: path/to/file.py:{self.attribute}"
            )
        attribute = attribute or self.attribute
        module = self._import(lambda: _module_from(path), str(path))
        entry = Entry(
            name="", origin=str(path), reference=f"{path}:{attribute}", path=path, target=attribute
        )
        loaded = self._take(module, attribute, entry)
        name = str(getattr(loaded.value, "name", path.stem))
        clash = self.entries().get(name)
        if clash is not None and (clash.path is None or clash.path.resolve() != path):
            raise BenchError(
                f"two {self.kind}s are named {name!r}: {clash.origin} and {path}",
                "give yours another name",
            )
        return loaded

    def _import(self, load: Any, origin: str) -> ModuleType:
        try:
            with quiet_imports():
                module: ModuleType = load()
        except BenchError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in may raise anything at all
            line = f"{type(error).__name__}: {first_line(error)}"
            raise BenchError(
                f"{self.kind} from {origin} fails on import: {line}",
                "mend the file, or leave it out",
            ) from error
        return module

    def _take(self, module: ModuleType, attribute: str, entry: Entry) -> Loaded[T]:
        value = getattr(module, attribute, None)
        if isinstance(value, tuple):
            value = next((item for item in value if getattr(item, "name", "") == entry.name), None)
        if not isinstance(value, self.record):
            given = "is not there" if value is None else f"is a {type(value).__name__}"
            raise BenchError(
                f"{entry.origin}: {attribute} {given}", f"accepted: a {self.record.__name__}"
            )
        return Loaded(value, entry, Path(str(module.__file__)))


@lru_cache(maxsize=1000)
def _literals_of(
    path: Path, record: str, modified_ns: int
) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """`read_literals`, once for every state of a file: each load by name looks at all files."""
    return tuple(read_literals(path, record))


def read_literals(path: Path, record: str) -> list[tuple[str, dict[str, Any]]]:
    """Attribute and literal keywords of every `ATTRIBUTE = Record(...)`, or of every `Record(...)`
    in `ATTRIBUTE = (..., ...)`, at the top level of a source file that is not imported.

    Raises:
        SyntaxError, ValueError: not Python.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        calls = value.elts if isinstance(value, ast.Tuple) else [value]
        for target in targets:
            for call in calls:
                if not isinstance(call, ast.Call) or not isinstance(target, ast.Name):
                    continue
                if record in (getattr(call.func, "id", ""), getattr(call.func, "attr", "")):
                    found.append((target.id, _literals(call)))
    return found


def _literals(call: ast.Call) -> dict[str, Any]:
    found = {}
    for keyword in call.keywords:
        try:
            found[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            continue
    return found


def _module_from(path: Path) -> ModuleType:
    # Two files of one stem are kept apart by their path, an edited file from what it was by its
    # text; the module must be importable by name in case its classes are pickled.
    name = f"levelfield_file_{path.stem}_{sha256([str(path), sha256(path.read_bytes())])[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    source = importlib.util.spec_from_file_location(name, path)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module
    try:
        source.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def lacking(modules: Iterable[str]) -> list[str]:
    """Those of the modules that are not installed; none of them is imported for it."""
    return [name for name in modules if not _importable(name)]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def whole_model(entries: Mapping[str, Entry]) -> list[str]:
    """The names of methods that train all of any model: neither adapters nor for certain tasks.

    It goes by what their sources say; a plug-in counts as one.
    """
    return [
        name
        for name, entry in sorted(entries.items())
        if not {"inner", "tasks"} & set(entry.literals or {})
    ]


OPTIMIZERS = Registry("optimizer", OptimizerSpec, "optimizers/*.py", "SPEC")
PROTOCOLS = Registry("protocol", Protocol, "protocols/*.py", "PROTOCOL")
METRICS = Registry("metric", Metric, "bench/metrics.py", "METRIC")
SECTIONS = Registry("section", Section, "reports/sections/*.py", "SECTION")
