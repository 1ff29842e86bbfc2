"""Who may import whom, read from the sources; and what stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "optimizers", "protocols", "reports")
PACKAGED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py")))
)
OTHERS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tests", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)

BENCH = "levelfield.bench."
OURS: dict[str, tuple[str, ...]] = {
    "__init__.py": (BENCH + "api", "levelfield.reports"),
    "cli.py": ("levelfield", "levelfield.bench", "levelfield.reports"),
    "bench": ("levelfield.bench",),
    "optimizers": (BENCH + "spec", BENCH + "space", BENCH + "stepper", "levelfield.optimizers._"),
    "protocols": (BENCH + "spec", "levelfield.protocols._"),
    "reports": (
        "levelfield.reports",
        *(BENCH + part for part in ("spec", "metrics", "stats", "store", "registry", "audit")),
        # What a comparison says, as pure functions of records.
        *(BENCH + part for part in ("samples", "inference", "power", "merit", "robustness")),
        *(BENCH + part for part in ("frontier", "speedup", "memory")),
    ),
}
"""What each part may import of levelfield. A name that ends in `_` stands for every such module."""

FOREIGN: dict[str, tuple[str, ...]] = {
    "__init__.py": (),
    "optimizers": (
        *("torch", "pytorch_optimizer", "bitsandbytes", "torchao"),
        *("galore_torch", "apollo_torch", "peft"),
    ),
    "protocols": (),
    "reports": ("jinja2", "markupsafe", "matplotlib", "numpy", "pandas", "scipy"),
}
"""What each part may import beyond the standard library; a part that is absent is free."""

STDLIB_ONLY = ("bench/spec.py", "bench/space.py")
HEAVY = ("torch", "transformers", "optuna", "pandas", "matplotlib")


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    at_import: bool
    """Runs when the file is imported: neither in a function nor for type checkers only."""


def imports(source: str) -> Iterator[Import]:
    """Every module that a source names in an import statement."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield Import(inner if _is_module(inner) else module, node.lineno, at_import)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, False)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, at_import)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, at_import)

    return visit(ast.parse(source), True)


def _is_module(name: str) -> bool:
    first, *rest = name.split(".")
    if first != "levelfield" or not rest:
        return False
    path = ROOT.joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _allowed(module: str, names: tuple[str, ...]) -> bool:
    for name in names:
        # The bare package is no prefix: it would allow everything in it.
        below = name != "levelfield" and module.startswith(name + ".")
        if module == name or below or (name.endswith("_") and module.startswith(name)):
            return True
    return False


def violations(file: str, source: str) -> list[str]:
    """What is wrong with the imports of a source that would lie at `file`."""
    part = PurePosixPath(file).parts[0]
    found = []
    for item in imports(source):
        top = item.module.split(".")[0]
        if item.module.startswith("."):
            reason = "relative"
        elif top in (*FOLDERS, "cli"):
            reason = "a second copy: name it levelfield." + item.module
        elif top == "levelfield":
            if part not in OURS or _allowed(item.module, OURS[part]):
                continue
            reason = f"{part} may import {', '.join(OURS[part])}"
        elif top in sys.stdlib_module_names:
            continue
        elif file in STDLIB_ONLY:
            if not item.at_import:
                continue
            reason = "only the standard library here"
        elif part not in FOREIGN or top in FOREIGN[part]:
            continue
        else:
            reason = f"{part} may import {', '.join(FOREIGN[part]) or 'the standard library'}"
        found.append(f"{file}:{item.line}: {item.module}: {reason}")
    return found


@pytest.mark.parametrize("file", [*PACKAGED, *OTHERS])
def test_imports_keep_to_their_layer(file: str) -> None:
    assert violations(file, (ROOT / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("bench/train.py", "from levelfield.optimizers import lion"),
        ("bench/train.py", "from levelfield import reports"),
        ("bench/train.py", "def f():\n    import levelfield.protocols.quick"),
        ("bench/train.py", "from . import spec"),
        ("bench/spec.py", "import torch"),
        ("bench/space.py", "if True:\n    import optuna"),
        ("optimizers/lion.py", "from levelfield.bench import tune"),
        ("optimizers/lion.py", "from levelfield.optimizers.adamw import AdamW"),
        ("optimizers/lion.py", "import levelfield"),
        ("optimizers/lion.py", "import optuna"),
        ("protocols/quick.py", "from levelfield.bench import stepper"),
        ("protocols/quick.py", "import torch"),
        ("reports/page.py", "from levelfield.bench.train import run_trial"),
        ("reports/page.py", "import torch"),
        ("reports/sections/curves.py", "import optuna"),
        ("cli.py", "from levelfield.optimizers.lion import SPEC"),
        ("__init__.py", "import pandas"),
        ("tests/test_x.py", "import bench.spec"),
        ("tests/test_x.py", "from optimizers import lion"),
        ("scripts/x.py", "import cli"),
    ],
)
def test_a_breach_is_seen(file: str, source: str) -> None:
    assert len(violations(file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("bench/space.py", "def f():\n    import optuna"),
        ("bench/spec.py", "if TYPE_CHECKING:\n    import torch"),
        ("bench/train.py", "import torch\nfrom levelfield.bench import spec"),
        ("optimizers/lion.py", "import torch\nfrom levelfield.bench import space"),
        ("optimizers/lion.py", "from levelfield.optimizers import _ops"),
        ("cli.py", "import levelfield\nfrom levelfield import reports\nimport typer"),
        ("tests/test_x.py", "from levelfield.optimizers import lion"),
    ],
)
def test_what_is_allowed_passes(file: str, source: str) -> None:
    assert violations(file, source) == []


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = {part.removesuffix(".py") for file in PACKAGED for part in file.split("/")}
    assert names & sys.stdlib_module_names == set()


@pytest.mark.parametrize(
    "arguments",
    [None, ["--help"], ["list"], ["list", "optimizers"], ["list", "protocols"]],
    ids=lambda arguments: "import" if arguments is None else " ".join(arguments),
)
def test_looking_around_is_light(arguments: list[str] | None) -> None:
    """`import levelfield`, the help and the lists bring none of the heavy libraries."""
    code = f"""
import json, sys
import levelfield
assert levelfield.__version__
arguments = {arguments!r}
status = 0
if arguments is not None:
    from levelfield.cli import main
    sys.argv = ["levelfield", *arguments]
    try:
        status = main() or 0
    except SystemExit as end:
        status = end.code or 0
print(json.dumps([status, sorted(set({HEAVY!r}) & set(sys.modules))]))
"""
    # Bare `levelfield list` may ask for what is to be listed (exit 2), lightly.
    accepted = (0, 2) if arguments == ["list"] else (0,)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    status, heavy = json.loads(done.stdout.splitlines()[-1])
    assert status in accepted, done.stdout + done.stderr
    assert heavy == []


def test_the_public_names_are_told() -> None:
    import levelfield

    assert set(levelfield.__all__) <= set(dir(levelfield))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        levelfield.nonsense  # noqa: B018 - reading it is the test
