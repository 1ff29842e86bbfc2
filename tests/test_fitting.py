"""Budgets in GiB: who trains which size, and that the comparison stays fair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from levelfield.bench import api, audit, verify
from levelfield.bench.campaign import exit_code
from levelfield.bench.family import members
from levelfield.bench.fitting import GIB, Fitter, check_sizes, own_protocol
from levelfield.bench.registry import OPTIMIZERS, PROTOCOLS
from levelfield.bench.spec import BenchError, Protocol, Variant
from levelfield.reports import family as family_page
from levelfield.reports import view
from levelfield.tests import small

SIZES = (
    Variant(name="narrow", settings=("model.hidden=16", "model.intermediate=24")),
    Variant(name="wide", settings=("model.hidden=32", "model.intermediate=48")),
)


def limited(limit_bytes: float) -> Protocol:
    budget = replace(small.PROTOCOL.budget, memory_gib=limit_bytes / GIB, trials=2, seeds=2)
    return replace(small.PROTOCOL, budget=budget, sizes=SIZES)


def peaks(name: str) -> list[int]:
    fitter = Fitter(limited(1.0), "cpu")
    found = [fitter.peak(OPTIMIZERS.load(name).value, size)[0] for size in SIZES]
    assert all(peak is not None for peak in found)
    return [peak or 0 for peak in found]


def test_the_largest_size_that_fits_is_taken() -> None:
    narrow, wide = peaks("adamw")
    assert narrow < wide
    spec = OPTIMIZERS.load("adamw").value
    for limit, size in (
        (wide, "wide"),
        (wide - 1, "narrow"),
        (narrow, "narrow"),
        (narrow - 1, None),
    ):
        chosen = Fitter(limited(limit), "cpu").choose(spec)
        assert chosen["size"] == size
    assert f"{narrow:,} bytes" in chosen["reason"]


def test_memory_buys_size_and_all_the_rest_is_equal(tmp_path: Path) -> None:
    """signsgd has no state and affords the wide model; adamw the narrow one; shampoo none."""
    limit = peaks("adamw")[1] - 1
    assert peaks("signsgd")[1] <= limit
    assert peaks("shampoo")[0] > peaks("adamw")[0]
    limit = max(peaks("signsgd")[1], peaks("adamw")[0])
    run = api.run(limited(limit), ["adamw", "signsgd"], out=tmp_path, slots=1)
    sizes = {name: item["size"] for name, item in run.manifest["sizes"].items()}
    assert sizes == {"adamw": "narrow", "signsgd": "wide"}
    parameters = {r.optimizer: r.parameters for r in run.records}
    assert (parameters["signsgd"] or 0) > (parameters["adamw"] or 0)
    assert len({r.tokens for r in run.records if r.phase == "final"}) == 1
    assert audit.is_fair(audit.audit(run))
    plan = verify.prepare(run, sample=2, seed=0, slots=1)
    assert all(item.holds for item in verify.verify(plan, lambda item: None))
    # The accounted peak of a real trial is the simulated one's.
    for record in run.records:
        if record.phase == "final":
            peak = run.manifest["sizes"][record.optimizer]["peak_bytes"]
            assert record.peak_bytes["total"] == pytest.approx(peak, rel=0.02)
    own = own_protocol(limited(limit), run.manifest, "signsgd")
    assert (own.model.hidden, own.budget.steps) == (32, 16)


def test_a_method_that_fits_nowhere_is_out_and_says_so(tmp_path: Path) -> None:
    limit = peaks("adamw")[0]
    assert peaks("shampoo")[0] > limit
    run = api.run(limited(limit), ["adamw", "shampoo"], out=tmp_path, slots=1)
    assert {record.optimizer for record in run.records} == {"adamw"}
    assert exit_code(run.records, run.manifest) == 0
    assert audit.is_fair(audit.audit(run))
    found = view.build(run).method("shampoo")
    assert found is not None
    assert "no size fits the memory budget" in (found.unranked or "")
    with pytest.raises(BenchError, match="no method fits"):
        api.run(limited(1000.0), ["adamw"], out=tmp_path, slots=1)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (replace(limited(1e6), sizes=()), "no sizes"),
        (replace(limited(1e6), sizes=SIZES[:1] * 2), "names a size twice"),
        (limited(-1.0), "budget.memory_gib"),
        (replace(limited(1e6), sizes=(Variant(name="a", settings=("model.hiden=2",)),)), "hiden"),
    ],
)
def test_a_slip_in_the_sizes_is_told(protocol: Protocol, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        check_sizes(protocol)


def test_the_shipped_protocol_gives_its_methods_different_models() -> None:
    protocol = PROTOCOLS.load("iso_memory").value
    _, tight = members(protocol)[0]
    fitter = Fitter(tight, "cpu")
    chosen = {
        name: fitter.choose(OPTIMIZERS.load(name).value)["size"]
        for name in ("adamw_split", "signsgd")
    }
    assert chosen == {"adamw_split": "h24", "signsgd": "h32"}


def test_a_limit_that_nothing_fits_does_not_end_a_family(tmp_path: Path) -> None:
    from levelfield.bench.family import run_family
    from levelfield.bench.study import load_methods

    protocol = replace(
        limited(peaks("adamw")[0]),
        axis="memory",
        variants=(
            Variant(name="none", settings=("budget.memory_gib=0.00000001",)),
            Variant(name="some", settings=()),
        ),
    )
    found = run_family(protocol, load_methods(["adamw"]), origin="test", out=tmp_path, slots=1)
    records = {name: len(run.records) for name, run in found.runs}
    assert records["none"] == 0
    assert records["some"] > 0
    page = family_page.write(found)
    assert "no size fits the memory budget" in page.read_text(encoding="utf-8")


def test_a_setting_that_every_member_sets_itself_is_refused(tmp_path: Path) -> None:
    from levelfield.bench.family import run_family

    protocol = replace(limited(1e6), variants=(Variant(name="a", settings=("budget.steps=9",)),))
    with pytest.raises(BenchError, match=r"--set budget\.steps: every member"):
        run_family(protocol, [], origin="test", settings=["budget.steps=3"], out=tmp_path)
