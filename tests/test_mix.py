"""Mixes: one method a role."""

from __future__ import annotations

from pathlib import Path

import pytest

from levelfield.bench import api, mix, study
from levelfield.bench.build import claimed_state_bytes
from levelfield.bench.check import Bench
from levelfield.bench.meter import state_bytes
from levelfield.bench.reference import load_spec
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import BenchError
from levelfield.tests import small

FULL = "mix(matrix=muon,embed=adafactor,head=adamw,vector=signsgd)"


@pytest.mark.parametrize("name", ["adamw", "lion", "signsgd", "adamw_split", "adafactor"])
def test_a_mix_of_one_is_that_one(name: str) -> None:
    spec = OPTIMIZERS.load(name).value
    whole = load_spec(f"mix(matrix={name},embed={name},head={name},vector={name})").value
    scale, multiplier = 1.7, 2.5 if "embed_multiplier" in spec.space else 1.0
    own = {**spec.defaults(), spec.scale: spec.defaults()[spec.scale] * scale}
    if "embed_multiplier" in spec.space:
        own["embed_multiplier"] = multiplier
    mixed = {**whole.defaults(), mix.SCALE: scale, "embed_multiplier": multiplier}
    assert Bench(spec, own).take(12) == Bench(whole, mixed).take(12)


def test_a_part_alone_leaves_the_rest_to_the_fallback() -> None:
    alone, muon = load_spec("mix(matrix=muon)").value, OPTIMIZERS.load("muon").value
    assert alone.roles == muon.roles
    assert Bench(alone, alone.defaults()).take(8) == Bench(muon, muon.defaults()).take(8)


def test_bytes_are_the_sum_of_the_parts() -> None:
    spec = load_spec(FULL).value
    bench = Bench(spec, spec.defaults())
    bench.take(4)
    infos = tuple(param.info for param in bench.params)
    expected = 0
    for role, name in (("matrix", "muon"), ("embed", "adafactor"), ("head", "adamw")):
        part = OPTIMIZERS.load(name).value
        mine = tuple(info for info in infos if info.role == role)
        expected += part.state_bytes(mine, part.defaults(), 1.0)
    assert spec.state_bytes(infos, spec.defaults(), 1.0) == expected
    claimed = claimed_state_bytes(spec, small.PROTOCOL, infos, spec.defaults(), 1.0)
    assert state_bytes(bench.stepper.optimizers) == claimed == expected


def test_every_parameter_is_held_once() -> None:
    bench = Bench(load_spec(FULL).value, load_spec(FULL).value.defaults())
    held = [id(p) for o in bench.stepper.optimizers for g in o.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(param.tensor) for param in bench.params)


def test_order_and_spaces_do_not_make_another_method() -> None:
    one = study.load_method("mix(matrix=muon,vector=lion)")
    other = study.load_method("mix( vector = lion , matrix = muon )")
    assert (one.name, one.digest) == (other.name, other.digest)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mix()", "mixes nothing"),
        ("mix(matrix)", "'matrix' is no part of a mix"),
        ("mix(bias=lion)", "'bias=lion' is no part of a mix"),
        ("mix(matrix=lion,matrix=muon)", "'matrix=muon' is no part of a mix"),
        ("mix(embed=muon)", "muon does not take embed parameters"),
        ("mix(matrix=adamv)", "did you mean adamw"),
    ],
)
def test_a_wrong_mix_is_told(reference: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        load_spec(reference)


def test_a_method_that_drives_its_own_step_is_refused() -> None:
    spec = load_spec("mix(matrix=lomo,embed=lomo,head=lomo,vector=lomo)").value
    with pytest.raises(BenchError, match="drives its own step"):
        Bench(spec, spec.defaults())


def test_a_mix_runs_like_any_other_method(tmp_path: Path) -> None:
    run = api.run(small.changed(trials=2, seeds=1), [FULL], out=tmp_path, slots=1)
    assert {record.status for record in run.records} <= {"ok", "undertrained"}
    assert {record.optimizer for record in run.records} == {FULL}
    assert api.resume(run.path).records == run.records
