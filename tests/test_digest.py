"""Fingerprints that change exactly when numbers may; data that is checked; seeds that last."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from levelfield.bench import digest
from levelfield.bench.digest import (
    canonical_json,
    derive_seed,
    did_you_mean,
    from_plain,
    protocol_digest,
    sha256,
    source_digest,
    to_plain,
)
from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import (
    BenchError,
    Budget,
    Data,
    Engine,
    Evaluation,
    Fallback,
    Model,
    Protocol,
    Published,
    Schedule,
    Task,
    Timing,
    Tuner,
    Variant,
)

PROTOCOL = Protocol(name="p", summary="s")


@dataclass(frozen=True)
class Inner:
    value: int


@dataclass(frozen=True)
class Outer:
    inner: Inner


# --- canonical JSON ----------------------------------------------------------------------------


def test_the_same_data_gives_the_same_bytes() -> None:
    one = {"b": (1, 2.5), "a": {"y": None, "x": True}}
    other = {"a": {"x": True, "y": None}, "b": [1, 2.5]}
    assert canonical_json(one) == canonical_json(other)
    assert canonical_json(one) == '{"a":{"x":true,"y":null},"b":[1,2.5]}'
    assert canonical_json({"c", "a", "b"}) == '["a","b","c"]'
    assert canonical_json("é\n") == '"\\u00e9\\n"'
    assert sha256(one) == sha256(other)
    assert sha256(one) == sha256(canonical_json(one).encode())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_json_has_no_word_for_is_null(odd: float) -> None:
    assert canonical_json({"a": [odd, 1.0]}) == '{"a":[null,1.0]}'


def test_records_become_plain_data_in_depth() -> None:
    plain = to_plain(PROTOCOL)
    assert plain["timing"] == {"windows": 5, "steps": 20}
    assert plain["decay_roles"] == ["matrix", "embed", "head"]
    assert set(plain) == {f.name for f in fields(Protocol)}


@pytest.mark.parametrize("value", [object(), 1j, b"bytes", Protocol])
def test_what_has_no_place_in_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="has no place in JSON"):
        to_plain({"a": [value]})


# --- plain data back into records --------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PROTOCOLS.entries()))
def test_a_protocol_comes_back_from_its_data(name: str) -> None:
    protocol = PROTOCOLS.load(name).value
    assert from_plain(Protocol, to_plain(protocol)) == protocol


def test_a_family_comes_back_from_its_data() -> None:
    family = replace(PROTOCOL, variants=SAME["variants"])
    assert from_plain(Protocol, to_plain(family)) == family


def test_an_int_passes_for_a_float_and_a_list_for_a_tuple() -> None:
    data = {**to_plain(PROTOCOL), "clip_norm": 2, "decay_roles": ["embed"]}
    found = from_plain(Protocol, data)
    assert found.clip_norm == 2.0
    assert isinstance(found.clip_norm, float)
    assert found.decay_roles == ("embed",)
    assert from_plain(Protocol, {**data, "clip_norm": None}).clip_norm is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 1}, "unknown field 'stepz'"),
        ({"budget": {"stepz": 1}}, r"unknown field 'budget.stepz' \(did you mean .*budget.steps"),
        ({"budget": {"steps": 1.5}}, r"budget.steps = 1.5 is not .* \(accepted: a int\)"),
        ({"budget": {"steps": True}}, "budget.steps = True is not"),
        ({"budget": {"steps": "4"}}, "budget.steps = '4' is not"),
        ({"budget": {"steps": None}}, "budget.steps = None is not"),
        ({"budget": 4}, "budget = 4 is not"),
        ({"fallback": {"lr": True}}, "fallback.lr = True is not"),
        ({"fallback": {"lr": float("nan")}}, "fallback.lr = nan is not"),
        ({"fallback": {"lr": 10**400}}, "fallback.lr = 1000"),
        ({"clip_norm": "1"}, "clip_norm = '1' is not"),
        ({"ranked": 1}, r"ranked = 1 is not .*a bool"),
        ({"summary": 1}, r"summary = 1 is not .*a str"),
        ({"precision": "fp16"}, r"precision = 'fp16' \(accepted: fp32, bf16, fp32\+bf16, fp64\)"),
        ({"schedule": {"shape": "step"}}, "schedule.shape = 'step'"),
        ({"decay_roles": ["matrix", "bias"]}, "decay_roles = 'bias'"),
        ({"decay_roles": "matrix"}, "decay_roles = 'matrix' is not"),
        ({"methods": [1]}, "methods = 1 is not"),
        ({"variants": [{"name": "a"}]}, "field 'variants.settings' is missing"),
        ({"variants": ["a"]}, "variants = 'a' is not"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        from_plain(Protocol, {**to_plain(PROTOCOL), **change})
    assert "\n" not in str(caught.value)


def test_a_missing_field_is_named_by_its_path() -> None:
    with pytest.raises(BenchError, match="field 'summary' is missing"):
        from_plain(Protocol, {"name": "p"})
    with pytest.raises(BenchError, match=r"field 'inner\.value' is missing"):
        from_plain(Outer, {"inner": {}})


def test_a_hint_names_the_nearest_or_the_first() -> None:
    assert did_you_mean("adamv", ["lion", "adamw"]) == "did you mean adamw?"
    assert did_you_mean("zzz", ["b", "a"], prefix="x.") == "accepted: x.a, x.b"
    many = did_you_mean("zzz", [f"{n:02}" for n in range(30)])
    assert many.startswith("accepted: 00, 01, ")
    assert many.endswith("19 ...")


# --- seeds -------------------------------------------------------------------------------------


def test_seeds_are_for_ever() -> None:
    """Pinned: another rule would make every old run another run."""
    assert derive_seed("tune", 0, "adamw") == 6033584002203469221
    assert derive_seed() == 2858069222894195974
    assert derive_seed(1, 2.5, None, "a") == 4545833018106779046


def test_seeds_depend_on_every_part_and_its_place() -> None:
    parts = [(), (0,), (1,), ("0",), (0, 1), (1, 0), ("tune", 0), ("tune", 1), ("a", "bc")]
    found = {derive_seed(*part) for part in [*parts, ("ab", "c"), (None,)]}
    assert len(found) == len(parts) + 2
    assert all(0 <= seed < 2**63 for seed in found)


# --- the digest of a protocol ------------------------------------------------------------------

SAME: dict[str, Any] = {
    "summary": "other",
    "note": "other",
    "ranked": False,
    "reference": "lion",
    "methods": ("lion",),
    "claims": "lion",
    "alpha": 0.5,
    "margin_nats": 0.5,
    "targets": (0.1,),
    "paired": False,
    "files": ("data.source=file:x",),
    "published": (Published(method="lion", value=1.0, unit="perplexity", source="x"),),
    "axis": "tokens",
    "variants": (Variant(name="a", settings=("model.hidden=48",)),),
}
SAME_BUDGET = {
    "trials": 99,
    "studies": 9,
    "seeds": 99,
    "sweep": 9,
    "sweep_seeds": 9,
    "trial_timeout_s": 1.0,
}
SAME_ENGINE = {"checkpoint_tokens": 1, "save_final": True}
OTHER: dict[str, Any] = {
    "name": "other",
    "version": 2,
    "precision": "bf16",
    "clip_norm": None,
    "decay_roles": ("matrix",),
    "threads": 2,
    "sizes": (Variant(name="a", settings=("model.hidden=48",)),),
}
GROUPS: dict[str, Any] = {
    "task": Task(kind="regression", metric="pearson", shots=1),
    "model": Model(
        family="gpt2",
        source="x",
        pretrained=False,
        hidden=1,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=2,
        intermediate=1,
        vocabulary=9,
        positions=9,
        tied=True,
        dropout=0.5,
    ),
    "data": Data(
        source="x",
        tokenizer="x",
        heldout="x",
        examples=1,
        heldout_examples=1,
        sequence=1,
        batch=1,
        packing=False,
        seed=1,
    ),
    "budget": Budget(steps=1, unit="tokens", amount=1.0, memory_gib=1.0),
    "schedule": Schedule(shape="wsd", warmup=0.5, floor=0.5, decay=0.5, cycles=2),
    "fallback": Fallback(lr=1.0, beta1=0.5, beta2=0.5, eps=1.0, weight_decay=1.0),
    "tuner": Tuner(
        start=0.5,
        kind="tpe",
        factor=2.0,
        decades=2.0,
        generation=1,
        reserve=1,
        resolution=0.1,
    ),
    "evaluation": Evaluation(every=1, sequences=1, most=1, legacy_batch=1),
    "timing": Timing(windows=1, steps=1),
    "engine": Engine(
        accumulation=2,
        activation_checkpointing=True,
        compile=True,
        processes=2,
        parallel="fsdp2",
    ),
}


LEFT_OUT = {("budget", name) for name in SAME_BUDGET} | {("engine", name) for name in SAME_ENGINE}


def test_every_field_of_a_protocol_is_in_the_digest_or_left_out_on_purpose() -> None:
    assert {*SAME, *OTHER, *GROUPS} == {f.name for f in fields(Protocol)}
    assert {*SAME_BUDGET, "steps", "unit", "amount", "memory_gib"} == {
        f.name for f in fields(Budget)
    }


@pytest.mark.parametrize("name", SAME)
def test_texts_do_not_change_a_trial(name: str) -> None:
    changed = replace(PROTOCOL, **{name: SAME[name]})
    assert changed != PROTOCOL
    assert protocol_digest(changed) == protocol_digest(PROTOCOL)


@pytest.mark.parametrize(("group", "name"), sorted(LEFT_OUT))
def test_how_many_trials_are_run_and_kept_does_not_change_a_trial(group: str, name: str) -> None:
    value = {**SAME_BUDGET, **SAME_ENGINE}[name]
    changed = replace(PROTOCOL, **{group: replace(getattr(PROTOCOL, group), **{name: value})})
    assert changed != PROTOCOL
    assert protocol_digest(changed) == protocol_digest(PROTOCOL)


@pytest.mark.parametrize("name", OTHER)
def test_a_field_that_changes_a_trial_changes_the_digest(name: str) -> None:
    changed = replace(PROTOCOL, **{name: OTHER[name]})
    assert changed != PROTOCOL
    assert protocol_digest(changed) != protocol_digest(PROTOCOL)


@pytest.mark.parametrize(
    ("group", "field"),
    [
        (group, f.name)
        for group, other in GROUPS.items()
        for f in fields(other)
        if (group, f.name) not in LEFT_OUT
    ],
)
def test_a_field_of_a_group_that_changes_a_trial_changes_the_digest(group: str, field: str) -> None:
    value = getattr(GROUPS[group], field)
    assert value != getattr(getattr(PROTOCOL, group), field)
    changed = replace(PROTOCOL, **{group: replace(getattr(PROTOCOL, group), **{field: value})})
    assert protocol_digest(changed) != protocol_digest(PROTOCOL)


def test_the_engine_is_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = protocol_digest(PROTOCOL)
    monkeypatch.setattr(digest, "ENGINE_VERSION", digest.ENGINE_VERSION + 1)
    assert protocol_digest(PROTOCOL) != before


# --- the digest of a method --------------------------------------------------------------------

METHOD = '''"""A method."""

from levelfield.optimizers import _ops
from levelfield.optimizers._claims import copies


class Step:
    """A class."""

    size = 3
    """An attribute."""

    def go(self, x: float) -> float:
        """A function."""
        return x * 2.0  # twice
'''


@pytest.fixture
def optimizers(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder of methods, with one more, in the place of the real one."""
    folder = tmp_path / "optimizers"
    shutil.copytree(root / "optimizers", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mine.py").write_text(METHOD)
    monkeypatch.setattr(digest, "__file__", str(tmp_path / "bench" / "digest.py"))
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A method."""\n', ""),
        ("A method.", "Another text."),
        ('    """A class."""\n', ""),
        ("A function.", "Other\n\n        words."),
        ('    """An attribute."""\n', ""),
        ("  # twice", ""),
        ("# twice", "# three times"),
        ("x * 2.0", "(x\n            * 2.0)"),
        ("x * 2.0", "x*2.0"),
        ("\n\nclass", "\nclass"),
        ("from levelfield.optimizers import _ops", "from levelfield.optimizers import (_ops)"),
    ],
)
def test_texts_and_layout_of_a_method_do_not_count(optimizers: Path, old: str, new: str) -> None:
    before = source_digest(optimizers / "mine.py")
    edit(optimizers / "mine.py", old, new)
    assert source_digest(optimizers / "mine.py") == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0", "2.5"),
        ("2.0", "2"),
        ("size = 3", "size = 4"),
        ("def go", "def run"),
        ("return x * 2.0", "x += 1\n        return x * 2.0"),
        ("from levelfield.optimizers._claims import copies\n", ""),
    ],
)
def test_code_of_a_method_counts(optimizers: Path, old: str, new: str) -> None:
    before = source_digest(optimizers / "mine.py")
    edit(optimizers / "mine.py", old, new)
    assert source_digest(optimizers / "mine.py") != before


@pytest.mark.parametrize("shared", ["_ops", "_claims"])
def test_code_that_a_method_imports_counts(optimizers: Path, shared: str) -> None:
    mine, file = optimizers / "mine.py", optimizers / f"{shared}.py"
    before = source_digest(mine)
    file.write_text(f'"""Other words."""\n# and a comment\n{file.read_text()}')
    assert source_digest(mine) == before
    file.write_text(file.read_text() + "\nMORE = 1\n")
    assert source_digest(mine) != before


def test_code_that_an_import_imports_counts(optimizers: Path) -> None:
    mine = optimizers / "mine.py"
    (optimizers / "_deep.py").write_text("from levelfield.optimizers import _ops, _deep\nD = 1\n")
    edit(optimizers / "_claims.py", "import annotations\n", "import annotations\n\nimport _deep\n")
    before = source_digest(mine)
    edit(optimizers / "_deep.py", "D = 1", "D = 2")
    assert source_digest(mine) != before


def test_code_that_a_method_does_not_import_does_not_count(optimizers: Path) -> None:
    before = source_digest(optimizers / "mine.py")
    (optimizers / "lion.py").write_text("X = 1\n")
    (optimizers / "_other.py").write_text("X = 1\n")
    assert source_digest(optimizers / "mine.py") == before


def test_where_a_method_lies_does_not_count(optimizers: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(METHOD)
    assert source_digest(elsewhere) == source_digest(optimizers / "mine.py")


def test_the_version_of_a_library_counts(optimizers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = optimizers / "mine.py"
    alone, torch = source_digest(mine), source_digest(mine, ["torch"])
    assert alone != torch
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    assert source_digest(mine, ["torch"]) != torch
    assert source_digest(mine) == alone


def test_a_library_that_is_not_there_is_told(optimizers: Path) -> None:
    with pytest.raises(BenchError, match="borrows from 'nothing-of-this-name', which is not"):
        source_digest(optimizers / "mine.py", ["nothing-of-this-name"])


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("budget.trials=12", lambda p: p.budget.trials, 12),
        ("fallback.lr=2e-3", lambda p: p.fallback.lr, 2e-3),
        ("fallback.lr=1", lambda p: p.fallback.lr, 1.0),
        ("clip_norm=none", lambda p: p.clip_norm, None),
        ("clip_norm=None", lambda p: p.clip_norm, None),
        ("clip_norm=null", lambda p: p.clip_norm, None),
        ("clip_norm=0.5", lambda p: p.clip_norm, 0.5),
        ("ranked=False", lambda p: p.ranked, False),
        ("model.tied=true", lambda p: p.model.tied, True),
        ("precision=fp32+bf16", lambda p: p.precision, "fp32+bf16"),
        ("schedule.shape=wsd", lambda p: p.schedule.shape, "wsd"),
        ("decay_roles=matrix,head", lambda p: p.decay_roles, ("matrix", "head")),
        ("decay_roles=", lambda p: p.decay_roles, ()),
        ("methods=lion", lambda p: p.methods, ("lion",)),
        ("data.source=a=b", lambda p: p.data.source, "a=b"),
    ],
)
def test_a_setting_changes_one_field(
    setting: str, read: Callable[[Protocol], Any], value: Any
) -> None:
    changed = apply_settings(PROTOCOL, [setting])
    assert read(changed) == value
    assert type(read(changed)) is type(value)
    before, after = to_plain(PROTOCOL), to_plain(changed)
    differing = [name for name in before if before[name] != after[name]]
    assert differing == [setting.split("=")[0].split(".")[0]]


def test_the_last_setting_of_a_field_wins_and_none_changes_nothing() -> None:
    assert apply_settings(PROTOCOL, ["threads=2", "threads=3"]).threads == 3
    assert apply_settings(PROTOCOL, []) == PROTOCOL


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("budget.trials", r"--set 'budget.trials' has no '=' \(accepted: --set budget.trials=12"),
        ("", "--set '' has no '='"),
        ("=5", "unknown protocol field ''"),
        (
            "budget.trails=5",
            r"unknown protocol field 'budget.trails' \(did you mean .*budget.trial",
        ),
        ("trials=5", r"unknown protocol field 'trials'.*budget.trials"),
        ("budget.trials.x=5", "unknown protocol field 'budget.trials.x'"),
        ("nothing.at.all=5", "unknown protocol field 'nothing.at.all'"),
        ("budget=5", r"budget is a group of fields \(accepted: budget.steps, "),
        ("name=x", "a protocol's texts are fixed"),
        ("budget.trials=x", "budget.trials = 'x' is not"),
        ("budget.trials=", "budget.trials = '' is not"),
        ("budget.trials=1.5", "budget.trials = 1.5 is not"),
        ("budget.trials=true", "budget.trials = True is not"),
        ("budget.trials=none", "budget.trials = None is not"),
        ("fallback.lr=NaN", "fallback.lr = nan is not"),
        ("fallback.lr=nan", "fallback.lr = 'nan' is not"),
        ("fallback.lr=Infinity", "fallback.lr = inf is not"),
        ("fallback.lr=1e999", "fallback.lr = inf is not"),
        ("fallback.lr=[1]", r"fallback.lr = \[1\] is not"),
        ("ranked=yes", "ranked = 'yes' is not"),
        ("ranked=1", "ranked = 1 is not"),
        ("decay_roles=bias", "decay_roles = 'bias'"),
        ("precision=fp16", "precision = 'fp16'"),
    ],
)
def test_a_bad_setting_is_told(setting: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        apply_settings(PROTOCOL, [setting])
    assert "\n" not in str(caught.value)
