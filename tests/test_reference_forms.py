"""What may be written for a method, and an ablation in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from levelfield.bench import api, study
from levelfield.bench.check import Bench
from levelfield.bench.reference import load_spec
from levelfield.bench.spec import BenchError
from levelfield.tests import small


def test_a_changed_value_is_fixed_and_named() -> None:
    loaded = load_spec("foam(residual=false, beta2=0.95,level=3)")
    spec = loaded.value
    assert spec.name == "foam(residual=false,beta2=0.95,level=3)"
    assert loaded.entry.reference == spec.name
    assert spec.fixed["residual"] is False
    assert spec.fixed["level"] == 3
    assert "level" not in spec.space
    assert set(spec.defaults()) == set(load_spec("foam").value.defaults())


def test_a_changed_value_reaches_the_method() -> None:
    plain = Bench(
        load_spec("adamw(beta1=0.5)").value, load_spec("adamw(beta1=0.5)").value.defaults()
    )
    hand = Bench(load_spec("adamw").value, {**load_spec("adamw").value.defaults(), "beta1": 0.5})
    other = Bench(load_spec("adamw").value, load_spec("adamw").value.defaults())
    losses = [bench.take(4) for bench in (plain, hand, other)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_forms_nest() -> None:
    inside = load_spec("mix(matrix=muon(momentum=0.9,nesterov=false),vector=lion)").value
    assert inside.fixed["matrix.momentum"] == 0.9
    assert inside.fixed["matrix.nesterov"] is False
    outside = load_spec("mix(matrix=muon,vector=lion)(matrix.momentum=0.9)").value
    assert outside.fixed["matrix.momentum"] == 0.9
    assert load_spec("foam(level=3)(alpha=0.5)").value.fixed["alpha"] == 0.5


def test_digests_tell_values_apart() -> None:
    digests = {study.load_method(f"foam(level={level})").digest for level in (1, 2)}
    assert len({*digests, study.load_method("foam").digest}) == 3


def test_from_a_file(tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "optimizers" / "lion.py"
    copy = tmp_path / "cub.py"
    copy.write_text(source.read_text(encoding="utf-8").replace('name="lion"', 'name="cub"'))
    loaded = load_spec(f"{copy}:SPEC(beta1=0.8)")
    assert loaded.value.name == "cub(beta1=0.8)"
    assert load_spec(loaded.entry.reference).value.fixed["beta1"] == 0.8


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("foam()", "changes nothing"),
        ("foam(level)", "'level' changes nothing"),
        ("foam(level=1,level=2)", "'level' is given twice"),
        ("foam(=1)", "'=1' changes nothing"),
        ("foam(beta2=nan)", "nan is no value"),
        ("foam(beta2=null)", "of another kind"),
        ("foam(levle=1)", "did you mean level"),
        ("foam(lr=0.1)", "'lr' is what tuning moves in foam"),
        ("foam(level=2.5)", "of another kind"),
        ("foam(residual=1)", "of another kind"),
        ("foma(level=1)", "did you mean foam"),
        ("foam level=1)", "a bracket is not opened"),
    ],
)
def test_a_slip_gets_one_line(reference: str, words: str) -> None:
    with pytest.raises(BenchError, match=words.replace("(", r"\(")):
        load_spec(reference)


def test_a_word_may_stand_for_a_number() -> None:
    assert study.load_method("foam(level=row)").spec.fixed["level"] == "row"


@pytest.mark.parametrize(
    "reference",
    ["foam(level=-1)", "foam(level=abc)", "frugal(rho=2.0)", "adamw(beta1=-5.0)",
     "mix(matrix=foam(level=-1),vector=lion)"],
)  # fmt: skip
def test_values_that_a_method_refuses_are_told_before_any_trial(reference: str) -> None:
    with pytest.raises(BenchError, match=r"cannot take a step|accepted"):
        study.load_method(reference)


def test_an_ablation_runs(tmp_path: Path) -> None:
    changed = "lion(beta1=0.5)"
    done = api.run(small.changed(trials=2, seeds=1), ["lion", changed], out=tmp_path, slots=1)
    assert {record.optimizer for record in done.records} == {"lion", changed}
    assert all(record.status in ("ok", "undertrained") for record in done.records)
