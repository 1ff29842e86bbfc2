"""From pre-training to another task: kept weights, zero steps, fine-tuning, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import kendalltau

from levelfield.bench import study
from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import BenchError, Budget, Data, Protocol, Task, Tuner
from levelfield.bench.store import load_run
from levelfield.reports import page
from levelfield.reports import view as views
from levelfield.reports.sections import downstream
from levelfield.tests import small


def questions(path: Path) -> Path:
    """Forty questions of four options."""
    folder = path / "mmlu"
    folder.mkdir()
    lines = [
        f"what is {n} and {k},{n + k},{n + k + 1},{n + k + 2},{n + k + 3},A"
        for n in range(20)
        for k in range(10)
    ]
    for number in range(10):
        part = lines[20 * number : 20 * number + 20]
        (folder / f"sums{number}_test.csv").write_text("\n".join(part) + "\n")
    return folder


def choices(folder: Path, source: str, **more: object) -> Protocol:
    """Multiple choice by letters, of weights that a run left."""
    protocol = Protocol(
        name="letters",
        summary="which letter",
        ranked=False,
        task=Task(kind="multiple_choice", metric="accuracy"),
        data=Data(source=f"file:{folder}?layout=mmlu", tokenizer="model", sequence=96, batch=4),
        budget=Budget(steps=0, trials=1, seeds=1),
        tuner=Tuner(reserve=0),
    )
    return apply_settings(protocol, [f"model.source={source}"])


def test_weights_that_a_run_kept_are_read_elsewhere_and_told_beside_its_loss(
    tmp_path: Path,
) -> None:
    """Pre-train two methods, read the weights of each without a step, and look at the page."""
    asked = apply_settings(
        small.PROTOCOL,
        ["engine.save_final=true", "budget.seeds=1", "budget.trials=1", "model.positions=128"],
    )
    first = small.run(tmp_path, ["adamw", "lion"], asked)
    folder = questions(tmp_path)
    finals = [record for record in first.records if record.phase == "final"]
    assert {record.optimizer for record in finals} == {"adamw", "lion"}
    for record in finals:
        source = f"{first.path}:{record.optimizer}:{record.seed}"
        run = small.run(tmp_path, ["adamw"], choices(folder, source))
        (read,) = (item for item in run.records if item.phase == "final")
        assert (read.status, read.steps, read.tokens) == ("ok", 0, 0)
        assert read.weights_sha256 == record.final_sha256
        assert read.state_bytes is None
        assert 0 <= read.scores["report"]["accuracy"] <= 1
        assert not [item for item in run.records if item.phase == "timing"]
        assert page.write(run).is_file()
    view = views.build(load_run(first.path))
    found = list(downstream.scores(view))
    assert {item.method for item in found} == {"adamw", "lion"}
    block = downstream.render(view)
    assert block is not None
    rows = block.tables[0].frame.to_dict("records")
    losses = {record.optimizer: record.report_loss for record in finals}
    assert {row["method"]: row["loss"] for row in rows} == pytest.approx(losses)
    assert "an order needs those of 3 methods" in block.parts[-1].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([0.9, 0.8, 0.7, 0.6, 0.5], "the order survives"),
        ([0.5, 0.6, 0.7, 0.8, 0.9], "the order turns round"),
        ([0.7, 0.5, 0.9, 0.6, 0.8], "cannot be told"),
        ([0.5] * 5, "all score alike"),
    ],
)
def test_one_verdict_on_the_order(scores: list[float], words: str) -> None:
    losses = [1.0, 1.1, 1.2, 1.3, 1.4]
    rows = [
        {"protocol": "p", "trained_by": "adamw", "method": f"m{n}", "loss": loss, "score": score}
        for n, (loss, score) in enumerate(zip(losses, scores, strict=True))
    ]
    (told,) = downstream.verdicts(rows)
    assert words in told
    if "tau" in told:
        tau = kendalltau([-loss for loss in losses], scores).statistic
        assert f"{tau:.2f}".replace("-", "−") in told


def test_no_steps_leave_nothing_to_tune_and_need_a_model() -> None:
    protocol = PROTOCOLS.load("mmlu-zero-shot").value
    study.check_budget(protocol, 1)
    for setting, line in (
        ("budget.trials=2", "leaves nothing to tune"),
        ("model.source=", "reads a model as it comes"),
    ):
        with pytest.raises(BenchError, match=line):
            study.check_budget(apply_settings(protocol, [setting]), 1)


def test_a_broken_neighbour_costs_nothing(tmp_path: Path) -> None:
    asked = apply_settings(small.PROTOCOL, ["budget.seeds=1", "budget.trials=1"])
    run = small.run(tmp_path, ["adamw"], asked)
    for name, text in (("torn", "{"), ("other", json.dumps({"protocol": {"model": None}}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    assert downstream.render(views.build(run)) is None
