"""Finding records: in the folders without importing, by entry point, by file; broken ones told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelfield.bench import registry
from levelfield.bench.registry import METRICS, OPTIMIZERS, PROTOCOLS, SECTIONS, Registry
from levelfield.bench.spec import BenchError, OptimizerSpec

ALL = {"optimizer": OPTIMIZERS, "protocol": PROTOCOLS, "metric": METRICS, "section": SECTIONS}
NEEDED = {
    "optimizer": {"name", "family", "summary", "paper"},
    "protocol": {"name", "summary"},
    "metric": {"name", "unit", "lower_is_better", "summary"},
    "section": {"name", "title", "order", "summary"},
}
"""What the lists show, read without importing: literals in every source."""

BUILT_IN = [(kind, name) for kind, item in ALL.items() for name in item.entries()]

SPEC = """
from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec

SPEC = OptimizerSpec(
    name={name!r},
    family="test",
    summary="a method of a test",
    paper="none",
    build="nowhere:build",
    space={{"lr": space.log(1e-4, 1e-1, default=1e-3)}},
    state_bytes=lambda params, hparams, progress: 0,
)
"""


def write(path: Path, name: str, extra: str = "") -> Path:
    """A file with a method of this name."""
    path.write_text(SPEC.format(name=name) + extra, encoding="utf-8")
    return path


@pytest.fixture
def modules() -> Any:
    """Modules that a test imports are forgotten after it."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("levelfield_file_", "plugin_")):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: None) -> Callable[..., Path]:
    """Install a made-up distribution with entry points, as pip would."""

    def install(distribution: str, group: str, points: dict[str, str], **files: str) -> Path:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        for stem, text in files.items():
            (site / f"{stem}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        return site

    return install


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: None) -> Path:
    """An empty project root: only what a test writes below `optimizers/` is found."""
    (tmp_path / "root" / "optimizers").mkdir(parents=True)
    monkeypatch.setattr(registry, "ROOT", tmp_path / "root")
    return tmp_path / "root" / "optimizers"


def one_line(error: BenchError) -> str:
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


# --- the folders -------------------------------------------------------------------------------


def test_listing_imports_nothing() -> None:
    code = """
import json, sys
from levelfield.bench.registry import METRICS, OPTIMIZERS, PROTOCOLS, SECTIONS
names = {r.kind: sorted(r.entries()) for r in (OPTIMIZERS, PROTOCOLS, METRICS, SECTIONS)}
print(json.dumps([names, sorted(sys.modules)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    names, loaded = json.loads(done.stdout)
    assert names == {kind: sorted(item.entries()) for kind, item in ALL.items()}
    assert {"adamw", "lion"} <= set(names["optimizer"])
    assert {"quick", "smoke"} <= set(names["protocol"])
    parts = ("levelfield.optimizers", "levelfield.protocols", "levelfield.reports", "torch")
    assert [name for name in loaded if name.startswith(parts)] == []
    assert "levelfield.bench.metrics" not in loaded


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_what_is_listed_is_what_is_loaded(kind: str, name: str) -> None:
    entry = ALL[kind].entries()[name]
    loaded = ALL[kind].load(name)
    assert isinstance(loaded.value, ALL[kind].record)
    assert loaded.value.name == name
    assert loaded.entry == entry
    assert entry.reference == name
    assert entry.path is not None
    assert loaded.path.samefile(entry.path)
    assert (registry.ROOT / entry.origin).samefile(entry.path)
    assert entry.literals is not None
    assert entry.literals.keys() >= NEEDED[kind], f"{entry.origin}: not literal"
    for field in NEEDED[kind]:
        assert getattr(loaded.value, field) == entry.literals[field]


@pytest.mark.parametrize("kind", ["optimizer", "protocol", "section"])
def test_a_file_is_named_like_its_record(kind: str) -> None:
    entries = ALL[kind].entries()
    folder = registry.ROOT / Path(ALL[kind].files).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert {entry.path.stem for entry in entries.values() if entry.path} == files
    if kind == "optimizer":
        assert set(entries) == files


def test_all_built_in_records_load() -> None:
    for item in ALL.values():
        assert {loaded.value.name for loaded in item.load_all()} == set(item.entries())
        assert item.broken() == {}


def test_an_unknown_name_is_told_with_its_neighbours() -> None:
    with pytest.raises(BenchError, match=r"unknown optimizer 'adamv' \(did you mean .*adamw"):
        OPTIMIZERS.load("adamv")
    with pytest.raises(BenchError, match=r"unknown protocol 'qqq' \(accepted: aa_pipeline, "):
        PROTOCOLS.load("qqq")
    with pytest.raises(BenchError, match="unknown optimizer ''"):
        OPTIMIZERS.load("")


def test_helpers_and_files_without_a_record_are_not_listed(folder: Path) -> None:
    write(folder / "_helper.py", "helper")
    write(folder / "mine.py", "mine")
    (folder / "empty.py").write_text("")
    assert list(OPTIMIZERS.entries()) == ["mine"]


def test_a_file_that_changed_is_read_again(folder: Path) -> None:
    file = write(folder / "mine.py", "mine")
    assert list(OPTIMIZERS.entries()) == ["mine"]
    write(file, "other")
    os.utime(file, ns=(1, 1))
    assert list(OPTIMIZERS.entries()) == ["other"]


def test_literals_are_found_in_every_way_to_write_them(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        textwrap.dedent(
            """
            A = OptimizerSpec(name="a", space={[]: 1}, **more, family="f" "g")
            B: OptimizerSpec = spec.OptimizerSpec(name="b", summary=compute())
            C = (OptimizerSpec(name="c1"), OptimizerSpec(name="c2"), Other(name="c3"))
            D = Other(name="d")
            E = x.y = OptimizerSpec(name="e")
            F: OptimizerSpec
            def f():
                G = OptimizerSpec(name="g")
            """
        )
    )
    assert registry.read_literals(file, "OptimizerSpec") == [
        ("A", {"name": "a", "family": "fg"}),
        ("B", {"name": "b"}),
        ("C", {"name": "c1"}),
        ("C", {"name": "c2"}),
        ("E", {"name": "e"}),
    ]


@pytest.mark.parametrize("text", [b"def f(:\n", b"\xff\xfe", b"x = '\x00'\n", b"if 1:\nx\n"])
def test_a_file_that_is_not_python_breaks_nothing_else(folder: Path, text: bytes) -> None:
    (folder / "bad.py").write_bytes(text)
    file = write(folder.parent.parent / "other.py", "other")
    entry = OPTIMIZERS.entries()["bad"]
    assert entry.literals is None
    assert OPTIMIZERS.load(f"{file}:SPEC").value.name == "other"
    # Here `levelfield.optimizers.bad` is not there; what is wrong inside is tested below.
    assert "fails on import" in OPTIMIZERS.broken()["bad"]
    assert OPTIMIZERS.load_all() == []


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mine.py", "with space.py", "with:colon.py", "a:b:c d.py", "dots.v1.py", "ü-ñ.py"]
)
@pytest.mark.parametrize("suffix", ["", ":", ":SPEC"])
def test_a_file_is_loaded_wherever_it_lies(
    tmp_path: Path, modules: None, name: str, suffix: str
) -> None:
    file = write(tmp_path / name, "mine")
    loaded = OPTIMIZERS.load(f"{file}{suffix}")
    assert loaded.value.name == "mine"
    assert loaded.path == file
    assert loaded.entry.origin == str(file)
    # What a trial's process is given finds the same record from any folder.
    assert loaded.entry.reference == f"{file}:SPEC"
    assert OPTIMIZERS.load(loaded.entry.reference).value is loaded.value


def test_another_attribute_is_asked_for_by_its_name(tmp_path: Path, modules: None) -> None:
    text = SPEC.format(name="second").replace("SPEC = ", "SECOND = ")
    file = write(tmp_path / "x.py", "first", text)
    assert OPTIMIZERS.load(f"{file}:SECOND").value.name == "second"
    assert OPTIMIZERS.load(str(file)).value.name == "first"


def test_a_path_is_relative_to_the_working_folder_or_to_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: None
) -> None:
    file = write(tmp_path / "x.py", "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for reference in ("x.py", "./x.py:SPEC", "~/x.py"):
        assert OPTIMIZERS.load(reference).entry.reference == f"{file}:SPEC"


def test_two_files_of_one_stem_are_two_modules(tmp_path: Path, modules: None) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = write(tmp_path / name / "x.py", name)
        assert OPTIMIZERS.load(f"{file}:SPEC").value.name == name


@pytest.mark.parametrize(
    "reference",
    [
        "nothing.py",
        "nothing.py:SPEC",
        "~nobody-of-this-name/x.py",
        "folder.py",
        "folder.py:SPEC",
        "text.py.txt",
        "x" * 5000 + ".py",
        "file.txt/x.py",
    ],
)
def test_a_file_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "file.txt").touch()
    write(tmp_path / "text.py.txt", "text")
    with pytest.raises(BenchError, match=r"^no optimizer file '.*\(accepted: path/to/file") as e:
        OPTIMIZERS.load(reference)
    one_line(e.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        ("raise ValueError", "ValueError: no message"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("def f(:", "SyntaxError: "),
        ("x = 1\n    y = 2", "IndentationError: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("assert False, 'no'", "AssertionError: no"),
        ("from levelfield.bench.spec import nonsense", "ImportError: cannot import name"),
    ],
)
def test_a_file_that_fails_on_import_is_told_in_one_line(
    tmp_path: Path, modules: None, text: str, reason: str
) -> None:
    file = tmp_path / "x.py"
    file.write_text(text)
    for _ in range(2):  # no half-imported module is found the second time
        with pytest.raises(BenchError) as caught:
            OPTIMIZERS.load(f"{file}:SPEC")
        assert f"optimizer from {file} fails on import: {reason}" in one_line(caught.value)


def test_a_mistake_in_a_spec_is_told_as_such(tmp_path: Path, modules: None) -> None:
    file = write(tmp_path / "x.py", "mine")
    file.write_text(file.read_text().replace('"lr":', '"rate":'))
    with pytest.raises(BenchError, match="its scale dimension 'lr' is not in its space"):
        OPTIMIZERS.load(f"{file}:SPEC")


@pytest.mark.parametrize(
    ("attribute", "given"),
    [("NOTHING", "is not there"), ("TEXT", "is a str"), ("OptimizerSpec", "is a type")],
)
def test_an_attribute_of_another_type_is_told(
    tmp_path: Path, modules: None, attribute: str, given: str
) -> None:
    file = write(tmp_path / "x.py", "mine", "TEXT = 'text'\n")
    with pytest.raises(BenchError) as caught:
        OPTIMIZERS.load(f"{file}:{attribute}")
    expected = f"{file}: {attribute} {given} (accepted: a OptimizerSpec)"
    assert one_line(caught.value) == expected


def test_a_record_of_another_kind_is_told(tmp_path: Path, modules: None) -> None:
    file = write(tmp_path / "x.py", "mine")
    with pytest.raises(BenchError, match=r"SPEC is a OptimizerSpec \(accepted: a Protocol\)"):
        PROTOCOLS.load(f"{file}:SPEC")


def test_a_name_that_is_taken_is_told_with_both_origins(tmp_path: Path, modules: None) -> None:
    file = write(tmp_path / "x.py", "adamw")
    with pytest.raises(BenchError, match="two optimizers are named 'adamw'") as caught:
        OPTIMIZERS.load(f"{file}:SPEC")
    assert "optimizers/adamw.py" in one_line(caught.value)
    assert str(file) in str(caught.value)


def test_a_built_in_file_is_no_clash_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: None
) -> None:
    file = registry.ROOT / "optimizers" / "signsgd.py"
    (tmp_path / "link").symlink_to(registry.ROOT, target_is_directory=True)
    for root in (registry.ROOT, tmp_path / "link"):
        monkeypatch.setattr(registry, "ROOT", root)
        for path in (file, tmp_path / "link" / "optimizers" / "signsgd.py"):
            assert OPTIMIZERS.load(str(path)).value.name == "signsgd"


# --- entry points ------------------------------------------------------------------------------


def test_a_plug_in_is_listed_without_loading_and_loads(install: Callable[..., Path]) -> None:
    site = install(
        "goodplug",
        "levelfield.optimizers",
        {"theirs": "plugin_good:SPEC", "same": "plugin_good"},
        plugin_good=SPEC.format(name="theirs"),
    )
    entry = OPTIMIZERS.entries()["theirs"]
    assert entry.literals is None
    assert entry.path is None
    assert entry.origin == "goodplug (plugin_good:SPEC)"
    assert "plugin_good" not in sys.modules
    loaded = OPTIMIZERS.load("theirs")
    assert loaded.value.name == "theirs"
    assert loaded.path == site / "plugin_good.py"
    assert loaded.entry.reference == "theirs"
    assert OPTIMIZERS.load("same").value is loaded.value  # the attribute may be left out
    assert "theirs" in {item.value.name for item in OPTIMIZERS.load_all()}


@pytest.mark.parametrize("kind", ["protocol", "metric", "section"])
def test_every_kind_has_its_entry_points(install: Callable[..., Path], kind: str) -> None:
    item: Registry[Any] = ALL[kind]
    text = {
        "protocol": "Protocol(name='theirs', summary='s')",
        "metric": "Metric(name='theirs', unit='1', lower_is_better=True, summary='s', compute=len)",
        "section": "Section(name='theirs', title='t', order=1, summary='s', render=len)",
    }[kind]
    record = item.record.__name__
    source = f"from levelfield.bench.spec import {record}\n{item.attribute} = {text}\n"
    install("otherplug", f"levelfield.{kind}s", {"theirs": "plugin_other"}, plugin_other=source)
    assert item.load("theirs").value.name == "theirs"
    assert "theirs" not in OPTIMIZERS.entries()


@pytest.mark.parametrize(
    ("target", "text", "reason"),
    [
        ("plugin_bad:SPEC", "raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("plugin_bad:SPEC", "import nothing_of_this_name", "ModuleNotFoundError"),
        ("plugin_bad:SPEC", "def f(:", "SyntaxError"),
        ("plugin_bad:SPEC", "raise SystemExit", "SystemExit"),
        ("plugin_bad:SPEC", "", "SPEC is not there"),
        ("plugin_bad:SPEC", "SPEC = 3", "SPEC is a int"),
        ("plugin_gone:SPEC", "", "ModuleNotFoundError"),
        (":SPEC", "", "ValueError: Empty module name"),
    ],
)
def test_a_broken_plug_in_breaks_nothing_else(
    install: Callable[..., Path], target: str, text: str, reason: str
) -> None:
    names = set(OPTIMIZERS.entries())
    install("badplug", "levelfield.optimizers", {"bad": target}, plugin_bad=text)
    assert set(OPTIMIZERS.entries()) == {*names, "bad"}
    assert OPTIMIZERS.load("adamw").value.name == "adamw"
    assert {item.value.name for item in OPTIMIZERS.load_all()} == names
    broken = OPTIMIZERS.broken()
    assert broken.keys() == {"bad"}
    assert reason in broken["bad"]
    assert "badplug" in broken["bad"]
    with pytest.raises(BenchError) as caught:
        OPTIMIZERS.load("bad")
    assert one_line(caught.value) == broken["bad"]


def test_two_plug_ins_of_one_name_are_told_with_both_origins(install: Callable[..., Path]) -> None:
    for number in (1, 2):
        text = SPEC.format(name="twice")
        files = {f"plugin_{number}": text}
        target = f"plugin_{number}:SPEC"
        install(f"plug{number}", "levelfield.optimizers", {"twice": target}, **files)
    with pytest.raises(BenchError, match="two optimizers are named 'twice'") as caught:
        OPTIMIZERS.entries()
    text = one_line(caught.value)
    assert "plug1 (plugin_1:SPEC)" in text
    assert "plug2 (plugin_2:SPEC)" in text


def test_a_plug_in_with_the_name_of_a_built_in_is_told(install: Callable[..., Path]) -> None:
    install("lionplug", "levelfield.optimizers", {"lion": "plugin_lion:SPEC"})
    with pytest.raises(BenchError) as caught:
        OPTIMIZERS.load("lion")
    text = one_line(caught.value)
    assert "two optimizers are named 'lion': optimizers/lion.py and lionplug" in text


def test_a_file_with_the_name_of_a_plug_in_is_told(
    install: Callable[..., Path], tmp_path: Path
) -> None:
    install("goodplug", "levelfield.optimizers", {"theirs": "plugin_good:SPEC"})
    file = write(tmp_path / "x.py", "theirs")
    with pytest.raises(BenchError, match=r"two optimizers are named 'theirs': goodplug \("):
        OPTIMIZERS.load(str(file))


def test_a_distribution_found_twice_is_one(install: Callable[..., Path], tmp_path: Path) -> None:
    site = install("goodplug", "levelfield.optimizers", {"theirs": "plugin_good:SPEC"})
    sys.path.append(str(site))
    try:
        assert OPTIMIZERS.entries()["theirs"].origin == "goodplug (plugin_good:SPEC)"
    finally:
        sys.path.remove(str(site))


def test_a_method_of_a_file_is_built_in_another_process(tmp_path: Path) -> None:
    """The reference in a request is all that a trial's process gets."""
    file = write(tmp_path / "far away.py", "mine")
    reference = OPTIMIZERS.load(str(file)).entry.reference
    code = "import sys\nfrom levelfield.bench.registry import OPTIMIZERS as o\n"
    code += "print(o.load(sys.argv[1]).value.name)"
    done = subprocess.run(
        [sys.executable, "-c", code, reference],
        cwd=os.sep,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "mine\n"


def test_the_record_classes_are_those_of_the_registries() -> None:
    assert OPTIMIZERS.record is OptimizerSpec
    assert {item.group for item in ALL.values()} == {
        "levelfield.optimizers",
        "levelfield.protocols",
        "levelfield.metrics",
        "levelfield.sections",
    }
