"""What is installed: one top-level name, every file that is needed, pins that fit the ranges."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOOL = PROJECT["tool"]["setuptools"]
FOLDERS = ("bench", "optimizers", "protocols", "reports")
SKIPPED = {".git", ".venv", "runs", "build", "dist", ".importroot"}


def requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_folder_with_code_is_a_package_that_is_installed() -> None:
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    declared = {name: TOOL["package-dir"][name] for name in TOOL["packages"]}
    assert set(declared.values()) == {".", *folders}
    for name, folder in declared.items():
        expected = "levelfield" if folder == "." else "levelfield." + folder.replace("/", ".")
        assert name == expected
        assert (ROOT / folder / "__init__.py").is_file(), folder


def test_every_pin_fits_its_range_and_every_dependency_is_pinned() -> None:
    pinned = pins()
    assert pinned["torch"] == "2.13.0"
    for requirement in requirements():
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"
    assert all(re.fullmatch(r"[0-9a-z.]+", version) for version in pinned.values())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without history, caches and build outputs: building in it litters nothing."""
    target = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(
        ROOT,
        target,
        ignore=lambda _, names: {n for n in names if n in SKIPPED or n.endswith(("cache", "info"))},
    )
    return target


@pytest.fixture(scope="module")
def wheel(copy: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--no-build-isolation", "-w", str(copy.parent), str(copy)],
        check=True,
        timeout=300,
    )
    (path,) = copy.parent.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_has_one_name_and_every_file(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    version = PROJECT["project"]["version"]
    assert {n.split("/")[0] for n in names} == {"levelfield", f"levelfield-{version}.dist-info"}

    expected = {path.name for path in ROOT.glob("*.py")} | {"py.typed"}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(path.relative_to(ROOT).as_posix())
    inside = {n.removeprefix("levelfield/") for n in names if n.startswith("levelfield/")}
    assert inside == expected
    assert f"levelfield-{version}.dist-info/licenses/LICENSE" in names


def test_wheel_declares_the_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    info = f"levelfield-{PROJECT['project']['version']}.dist-info"
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert entry_points.split() == ["[console_scripts]", "levelfield", "=", "levelfield.cli:main"]
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_wheel_works_where_the_checkout_is_not(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import levelfield; print(levelfield.__file__, levelfield.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    file, version = done.stdout.split()
    assert Path(file) == tmp_path / "levelfield" / "__init__.py"
    assert version == PROJECT["project"]["version"]


def test_an_uninstalled_checkout_still_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    namespace = runpy.run_path(str(ROOT / "__init__.py"), run_name="levelfield_copy")
    assert namespace["__getattr__"]("__version__") == "0+unknown"


def test_an_old_python_is_told_in_one_line(copy: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    done = _make(copy, "setup", f"PYTHON={old}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("Python 3.9.2 is too old: Python >= 3.11")
    gone = _make(copy, "setup", "PYTHON=/nowhere/python3")
    assert gone.stderr.splitlines()[0].startswith("no /nowhere/python3: Python >= 3.11")
    assert not (copy / ".venv").exists()


def test_make_help_tells_every_target(copy: Path) -> None:
    told = [line.split()[0] for line in _make(copy, "help").stdout.splitlines()]
    assert told == ["help", "setup", "demo", "test", "lint", "type", "smoke", "report", "clean"]


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_optimizer_in_the_readme_works(tmp_path: Path) -> None:
    """The README's own method: loads as a file, learns, and claims the state that it has."""
    import torch

    from levelfield.bench.registry import OPTIMIZERS
    from levelfield.bench.spec import ParamInfo
    from levelfield.bench.stepper import BuildContext, GradientStepper, Parameter, StepBatch

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (source,) = (block for block in _python_blocks(readme) if "SPEC = " in block)
    file = tmp_path / "mysign.py"
    file.write_text(source, encoding="utf-8")
    spec = OPTIMIZERS.load(f"{file}:SPEC").value
    assert spec.name == file.stem

    model = torch.nn.Linear(3, 2)
    params = tuple(
        Parameter(
            ParamInfo(name=name, shape=tuple(p.shape), role="matrix" if p.ndim > 1 else "vector"), p
        )
        for name, p in model.named_parameters()
    )
    context = BuildContext(
        params=params,
        model=model,
        total_steps=50,
        warmup_steps=0,
        tokens_per_step=1,
        device_type="cpu",
        generator=torch.Generator(),
    )
    hparams = spec.defaults()
    assert callable(spec.build)
    optimizer = spec.build(context, hparams)
    stepper = GradientStepper([optimizer], clip_norm=None)
    inputs = torch.eye(3)
    losses = [
        float(stepper.step(StepBatch([lambda: model(inputs).square().mean()], 1), 10.0).loss)
        for _ in range(50)
    ]
    assert losses[-1] < 0.5 * losses[0]
    held = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.ndim)
    assert spec.state_bytes([p.info for p in params], hparams, 1.0) == held


def _python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", markdown, flags=re.DOTALL | re.MULTILINE)
