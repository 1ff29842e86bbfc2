"""The memory planner: three routes side by side, what fits, one line for every mistake."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from levelfield.bench import architecture, memory, simulate
from levelfield.bench.memory import GB, GIB, Plan, Row, capacity, margin
from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.bench.spec import BenchError
from levelfield.cli import app
from levelfield.reports import memory as report

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 88,
    "vocab_size": 256,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "small.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def importable() -> list[str]:
    return [
        name
        for name in whole_model(OPTIMIZERS.entries())
        if all(importlib.util.find_spec(m) for m in OPTIMIZERS.load(name).value.requires)
    ]


@pytest.fixture(scope="module")
def everything(model: str) -> Plan:
    """Every method, planned for a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that methods are borrowed from
        return memory.plan(model, importable(), batch=4, sequence=32, routes=("simulated",))


@pytest.fixture(scope="module")
def here(model: str) -> Plan:
    """Three routes on this machine, and two devices."""
    return memory.plan(
        model,
        ["adamw", "adafrugal_rho", "lomo"],
        batch=4,
        sequence=32,
        precision="fp32",
        target="cpu",
        routes=memory.ROUTES,
        gpus=("24GiB", "80GB"),
    )


def row(plan: Plan, method: str) -> Row:
    (found,) = (row for row in plan.rows if row.method == method)
    return found


# --- routes -----------------------------------------------------------------------------------


def test_formula_and_simulation_hold_the_same_bytes_of_state(everything: Plan) -> None:
    seen = [row for row in everything.rows if row.simulated is not None]
    assert len(seen) >= 30
    for item in seen:
        assert item.simulated is not None
        assert item.simulated.state == item.formula.state, item.method
        assert item.simulated.weights == item.formula.weights, item.method
        assert item.simulated.gradients >= item.formula.gradients, item.method
        assert item.simulated.pass_peak >= item.formula.weights + item.simulated.activations
        if item.simulated.total is not None:
            assert item.simulated.total >= item.formula.total, item.method
            assert sum(item.simulated.kinds.values()) == item.simulated.total
    for item in everything.rows:
        if item.simulated is None:
            assert item.reasons["simulated"]
        elif item.simulated.total is None:
            assert item.simulated.temporary is None
            assert item.reasons["simulated.temporary"]


def test_the_three_routes_agree_on_a_cpu(here: Plan) -> None:
    for item in here.rows:
        assert item.simulated is not None
        assert item.measured is not None
        assert item.measured.device == "cpu"
        assert item.measured.state == item.simulated.state == item.formula.state
        assert item.measured.pass_peak == pytest.approx(item.simulated.pass_peak, rel=0.02)
        assert item.measured.update_peak == pytest.approx(item.simulated.update_peak, rel=0.02)
        assert item.measured.total == max(item.measured.pass_peak, item.measured.update_peak)


def test_state_that_falls_is_planned_at_its_most(here: Plan) -> None:
    claims = row(here, "adafrugal_rho").formula
    assert claims.state_end < claims.state == claims.state_start
    steady = row(here, "adamw").formula
    assert steady.state_start == steady.state == steady.state_end == 2 * steady.gradients
    assert any("adafrugal_rho: state" in line for line in report.remarks(here))


def test_a_method_that_uses_gradients_at_once_holds_one(here: Plan) -> None:
    largest = 4 * 32 * 256
    assert row(here, "lomo").formula.gradients == largest
    seen = row(here, "lomo").simulated
    assert seen is not None
    assert largest <= seen.gradients < row(here, "adamw").formula.gradients


def test_what_a_method_cannot_do_is_told_and_not_tried(model: str) -> None:
    found = memory.plan(model, ["lomo"], sequence=16, accumulation=2, target="cpu")
    (only,) = found.rows
    assert only.simulated is None
    assert only.measured is None
    assert only.reasons["simulated"] == "lomo cannot accumulate gradients: it declares so"


def test_a_method_that_fails_costs_no_other(model: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    source = (Path(OPTIMIZERS.load("signsgd").path or "")).read_text(encoding="utf-8")
    path.write_text(
        source.replace('name="signsgd"', 'name="broken"').replace(
            "    @torch.no_grad()\n    def step(",
            "    @torch.no_grad()\n    def step(self, closure=None):\n"
            "        raise RuntimeError('no such kernel')\n\n    def other(",
        ),
        encoding="utf-8",
    )
    found = memory.plan(model, [f"{path}:SPEC", "adamw"], sequence=16, routes=("simulated",))
    assert found.rows[0].simulated is None
    assert "RuntimeError: no such kernel" in found.rows[0].reasons["simulated"]
    assert found.rows[1].simulated is not None


def test_only_the_formula_simulates_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr(simulate, "take_steps", refuse)
    found = memory.plan(model, ["adamw"], routes=("formula",), gpus=("2GiB",))
    assert found.rows[0].simulated is None
    assert found.rows[0].reasons == {}
    assert found.rows[0].fits[0].fits is None
    assert found.rows[0].fits[0].least


def test_a_model_too_large_for_this_machine_is_not_measured() -> None:
    found = memory.plan("7b", ["sgd"], routes=("formula", "measured"), sequence=8)
    assert found.rows[0].measured is None
    assert "do not fit" in found.rows[0].reasons["measured"]
    assert found.rows[0].simulated is None  # it was not asked for


def test_the_published_sizes() -> None:
    """Parameters of GaLore's configs, and AdamW's state in both conventions of the papers."""
    for name, millions in (("llama-60m", 58.07), ("llama-130m", 134.11), ("llama-7b", 6738.42)):
        found = memory.plan(name, ["adamw"], routes=("formula",), precision="fp32")
        assert round(found.parameters / 1e6, 2) == millions
        assert found.rows[0].formula.state == 8 * found.parameters
    assert found.rows[0].formula.state / GIB == pytest.approx(50.2, abs=0.05)


# --- what fits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24GB", 24 * GB), ("0.5gib", GIB // 2), (" 80 GB ", 80 * GB)],
)
def test_sizes_of_devices(text: str, size: int) -> None:
    assert capacity(text) == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("80", "has no unit"),
        ("0GiB", "no device's memory"),
        ("0.0GB", "no device's memory"),
        ("24TiB", "has the unit 'TiB'"),
        ("24G", "has the unit 'G'"),
        ("-4GiB", "is no size"),
        ("nan", "is no size"),
        ("", "is no size"),
        ("9999999999GiB", "no device's memory"),
    ],
)
def test_sizes_that_are_none(text: str, said: str) -> None:
    with pytest.raises(BenchError, match=said) as caught:
        capacity(text)
    assert "24GiB" in str(caught.value)


def test_a_margin_is_kept_free(model: str) -> None:
    (first,) = memory.plan(model, ["sgd"], sequence=16, routes=("simulated",)).rows
    assert first.simulated is not None
    peak = first.simulated.total
    assert peak is not None
    need = (peak + margin(peak)) / GIB
    sizes = (f"{need * 0.999:.9f}GiB", f"{need * 1.001:.9f}GiB")
    (again,) = memory.plan(model, ["sgd"], sequence=16, routes=("simulated",), gpus=sizes).rows
    assert [fit.fits for fit in again.fits] == [False, True]
    assert margin(0) == memory.MARGIN_BYTES
    assert margin(100 * GIB) == memory.MARGIN_BYTES + 5 * GIB


def test_what_is_known_only_in_part_is_at_least_that() -> None:
    claims = memory.Formula(
        weights=2 * GIB, gradients=GIB, state_start=GIB, state=GIB, state_end=GIB
    )
    large, small = (
        memory._fit("9GiB", 9 * GIB, claims, None),
        memory._fit("5GiB", 5 * GIB, claims, None),
    )
    assert (large.fits, small.fits) == (None, False)
    assert large.least
    assert small.least


# --- models -----------------------------------------------------------------------------------


def write(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    return str(path)


def test_a_model_by_name_by_file_and_by_folder(tmp_path: Path) -> None:
    assert architecture.resolve("60m").name == architecture.resolve("llama-60m").name
    folder = tmp_path / "mine"
    folder.mkdir()
    file = write(folder / "config.json")
    one, other = architecture.resolve(file), architecture.resolve(str(folder))
    assert (one.name, other.name, one.vocabulary) == ("config", "mine", 256)
    with pytest.raises(BenchError, match="llama-7b"):
        architecture.resolve("8b")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=32"),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 3},
            "num_key_value_heads=3 does not divide num_attention_heads=4",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads=0 does not divide"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"model_type": None}, "no model_type"),
        ({"model_type": "llamma"}, "transformers makes no causal model"),
        ({"max_position_embeddings": 8}, "--seq up to 8"),
    ],
)
def test_configs_that_make_no_model(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError) as caught:
        memory.plan(write(tmp_path / "m.json", **changes), ["sgd"], sequence=16)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_and_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for name, said in (
        ("", "has no config.json"),
        ("torn.json", "cannot read"),
        ("list.json", "holds a list"),
        ("absent.json", "there is no file or folder"),
    ):
        with pytest.raises(BenchError, match=said):
            architecture.resolve(str(tmp_path / name) if name else str(tmp_path))


# --- the command ------------------------------------------------------------------------------


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["memory", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "8b"],
        ["--model", "7b", "--gpu", "0GiB"],
        ["--model", "7b", "--gpu", "80"],
        ["--model", "7b", "--batch", "0"],
        ["--model", "7b", "--seq", "-1"],
        ["--model", "7b", "--accumulation", "0"],
        ["--model", "7b", "--precision", "fp16"],
        ["--model", "7b", "--route", "guessed"],
        ["--model", "7b", "--device", "tpu"],
        ["--model", "7b", "-o", "nothing_like_this"],
        ["--model", "/nowhere/at/all"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("levelfield: ")


def test_the_command_prints_a_table_and_writes_files(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("--model", model, "-o", "adamw", "-o", "foam", "--seq", "16", "--gpu", "24GiB",
                "--gpu", "8GB", "--out", str(out), "--route", "simulated")  # fmt: skip
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert "foam fits 24GiB: yes, 8GB: yes (peak " in text
    assert " + 1 GiB margin, simulated)" in text
    assert "8GB is 7.45 GiB (2^30 bytes)" in text
    assert "1 KiB is 2^10 bytes" in text
    assert memory.OUTSIDE in text
    assert sorted(path.name for path in out.iterdir()) == [
        "memory.csv",
        "memory.html",
        "memory.svg",
    ]
    ET.parse(out / "memory.svg")
    rows = (out / "memory.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 2 * 2
    assert rows[0].startswith("method,route,device,weights_bytes,")
    page = (out / "memory.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "≥" in page


def test_the_command_speaks_json(model: str) -> None:
    done = call("--model", model, "-o", "sgd", "--seq", "16", "--gpu", "24GiB", "--json",
                "--device", "cpu", "--precision", "fp32")  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)["data"]
    (only,) = data["methods"]
    assert only["simulated"]["total"] == max(
        only["simulated"]["pass_peak"], only["simulated"]["update_peak"]
    )
    assert only["measured"]["device"] == "cpu"
    assert only["fits"][0]["fits"] is True
    assert only["fits"][0]["margin"] > GIB
    assert only["formula"]["state_end"] == only["formula"]["state"]
    assert data["process_peak_bytes"] > 0


def test_names_from_outside_are_escaped(here: Plan) -> None:
    from dataclasses import replace

    hostile = replace(here, model="<script>x</script>", rows=here.rows)
    data = report.table(hostile)
    page = report.page(hostile, data, report.figure(hostile))
    assert "<script>" not in page


def test_a_figure_shows_every_method_and_every_device_in_reach(here: Plan) -> None:
    drawn = report.figure(here)
    for item in here.rows:
        assert item.method in drawn
    assert "24GiB" not in drawn  # a thousand times the largest bar
    assert "measured" in drawn


# --- large models -----------------------------------------------------------------------------

SEVEN = ("adamw", "foam", "frugal", "galore", "apollo_mini", "muon", "adamw_8bit")


def run_apart(code: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


PLAN = """
import dataclasses, json
from levelfield.bench import memory
found = memory.plan("7b", {methods!r}, routes=({route!r},), gpus=("24GiB",))
print(json.dumps(dataclasses.asdict(found)))
"""


@pytest.mark.slow
def test_the_formula_at_seven_billion_takes_seconds() -> None:
    start = time.perf_counter()
    found = run_apart(PLAN.format(methods=SEVEN, route="formula"))
    assert time.perf_counter() - start < 15
    assert found["process_peak_bytes"] < GIB


@pytest.mark.slow
def test_seven_billion_parameters_are_simulated_within_a_minute_and_a_gibibyte() -> None:
    methods = [name for name in SEVEN if name in importable()]
    found = run_apart(PLAN.format(methods=methods, route="simulated"))
    assert found["process_peak_bytes"] < GIB
    for item in found["rows"]:
        assert item["simulated"]["wall_s"] < 60, item["method"]
        assert item["simulated"]["state"] == item["formula"]["state"]
        assert item["simulated"]["update_peak"] is not None


def test_the_papers_figures_come_by_one_command() -> None:
    done = CliRunner().invoke(app, ["memory", "--published", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)["data"]
    assert len(data["cells"]) == 53
    cell = data["cells"][1]
    assert (cell["printed"], cell["comes_out_as"]) == ("1.00", "state, fp32, GiB")
    for wrong in (["memory"], ["memory", "--published", "--model", "7b"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
