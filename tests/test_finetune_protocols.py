"""The fine-tuning protocols: their recipes, their local files, the start of their rates, and the
table of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import t as student

from levelfield.bench.registry import OPTIMIZERS, PROTOCOLS
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import Protocol, TrialRecord, Tuner
from levelfield.bench.store import Run
from levelfield.bench.study import check_budget
from levelfield.bench.tasks import open_task
from levelfield.bench.tune import TuningStudy, started
from levelfield.reports import view
from levelfield.reports.sections import scores as section
from levelfield.tests import local_data, report_records

GLUE = {
    # training examples, batch, metric; the sizes and metrics of the GLUE paper's tables.
    "cola": (8551, 32, "matthews"),
    "sst2": (67349, 16, "accuracy"),
    "mrpc": (3668, 16, "accuracy"),
    "stsb": (5749, 16, "pearson"),
    "qqp": (363846, 16, "accuracy"),
    "mnli": (392702, 16, "accuracy"),
    "qnli": (104743, 16, "accuracy"),
    "rte": (2490, 16, "accuracy"),
}
TWINS = ("glue_cpu_sentiment", "glue_cpu_intensity", "glue_cpu_nli", "qa_cpu", "mc_cpu")
ALL = (*(f"glue_{name}" for name in GLUE), "squad_v1", "squad_v2", "mmlu", *TWINS)


def named(name: str) -> Protocol:
    return PROTOCOLS.load(name).value


# --- recipes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(GLUE))
def test_glue_is_thirty_epochs_with_an_evaluation_an_epoch(name: str) -> None:
    protocol, (count, batch, metric) = named(f"glue_{name}"), GLUE[name]
    control = min(512, math.ceil(count / 20))
    epoch = (count - control) / batch
    assert protocol.data.batch == batch
    assert protocol.task.metric == metric
    assert protocol.budget.steps == pytest.approx(30 * epoch, rel=0.005)
    assert protocol.budget.steps == 30 * protocol.evaluation.every
    assert f"config={name}&split=train" in protocol.data.source
    matched = "_matched" if name == "mnli" else ""
    assert f"config={name}&split=validation{matched}&" in protocol.data.heldout
    assert protocol.model.source == "FacebookAI/roberta-base"
    assert {item.method for item in protocol.published} <= {"adamw", "galore", "lora"}


@pytest.mark.parametrize("name", ALL)
def test_a_protocol_is_whole(name: str) -> None:
    protocol = named(name)
    check_budget(protocol, protocol.budget.seeds)
    assert PROTOCOLS.load(name.replace("_", "-")).value is protocol
    assert protocol.task.metric in open_task(protocol, "cpu").SCORES  # type: ignore[attr-defined]
    assert protocol.methods[0] == protocol.claims == protocol.reference
    assert protocol.margin_nats == 0.3
    assert protocol.data.tokenizer == "model"
    assert set(protocol.methods) <= set(OPTIMIZERS.entries())
    words = f"{protocol.budget.steps:,} steps"
    assert words in protocol.summary


@pytest.mark.parametrize("name", ALL)
def test_local_files_are_used_or_their_lack_is_told(name: str) -> None:
    protocol = named(name)
    if name in TWINS:
        assert protocol.data.source.startswith("pypi:")
        assert protocol.model.source == "pypi:minilm"
    elif protocol.files:
        changed = apply_settings(protocol, protocol.files)
        assert changed.data.source.startswith("file:")
        assert changed.model.source == "pypi:minilm"
        assert changed.data.heldout.startswith("file:") or not changed.data.heldout
    else:
        assert "--files" in protocol.note


@local_data.needed
@pytest.mark.parametrize(
    ("name", "train", "held"),
    [
        ("glue_cola", 8551, 1043),
        ("glue_mrpc", 4076, 1725),
        ("glue_stsb", 5749, 1500),
        ("glue_rte", 2490, 277),
        ("glue_qnli", 5463, 0),
        ("squad_v1", 1190, 0),
        ("mmlu", 1529, 14042),
    ],
)
def test_local_files_hold_what_they_should(name: str, train: int, held: int) -> None:
    protocol = named(name)
    found = open_task(apply_settings(protocol, protocol.files), "cpu")
    found.check_examples = lambda item: None  # type: ignore[attr-defined]
    slices = found.examples.slices  # type: ignore[attr-defined]
    counts = {key: len(items) for key, items in slices.items()}
    capped = protocol.data.heldout_examples
    if held and not capped:
        total = counts["selection"] + counts["report"]
        assert 0.97 * held <= total <= held
        assert counts["selection"] == pytest.approx(counts["report"], abs=2)
    if not held:
        held_out = counts["selection"] + counts["report"] + counts["control"]
        assert counts["train"] + held_out == pytest.approx(train, rel=0.02)
    else:
        known = min(train, protocol.data.examples or train)
        assert 0.9 * known <= counts["train"] <= known


# --- where rates start ---------------------------------------------------------------------------


def test_a_start_moves_the_scale_of_methods_that_train_the_whole_model() -> None:
    spec = OPTIMIZERS.load("adamw").value
    moved = started(spec, 0.03)
    before, after = spec.space["lr"], moved.space["lr"]
    assert after.default == pytest.approx(before.default * 0.03)
    assert after.high / after.low == pytest.approx(before.high / before.low)
    assert moved.space["beta2"] == spec.space["beta2"]
    assert started(spec, 1.0) is spec
    adapter = replace(spec, name="adapted", adapter="somewhere:adapter", inner="adamw")
    assert started(adapter, 0.03) is adapter


def test_a_start_stays_inside_the_bounds() -> None:
    spec = OPTIMIZERS.load("adamw").value
    narrow = replace(spec.space["lr"], low=2e-4, high=1e-2, bounds=(1e-4, 1.0))
    moved = started(replace(spec, space={**spec.space, "lr": narrow}), 0.03).space["lr"]
    assert (moved.low, moved.default) == (1e-4, 1e-4)
    assert moved.high == pytest.approx(3e-4)


@pytest.mark.parametrize("kind", ["bracket", "sobol", "tpe", "random"])
def test_a_study_begins_at_the_start(kind: str) -> None:
    spec = OPTIMIZERS.load("adamw").value
    study = TuningStudy(spec, Tuner(kind=kind, start=0.03), 4, 0)  # type: ignore[arg-type]
    first = study.ask()[0]
    assert first.hparams["lr"] == pytest.approx(3e-5)
    if kind != "bracket":
        return
    rates = [first.hparams["lr"]]
    losses = {3e-5: 30.0, 9.48683e-5: 20.0, 3e-4: 25.0}
    for number in range(3):
        loss = losses[float(f"{rates[-1]:.6g}")]
        study.tell(number, report_records.record("adamw", phase="tune", selection_loss=loss))
        rates.append(study.ask()[0].hparams["lr"])
    assert rates[1:3] == pytest.approx([9.48683e-5, 3e-4])
    assert 9.48683e-5 / 10**0.51 < rates[3] < 9.48683e-5 * 10**0.51


# --- the table of scores -------------------------------------------------------------------------


def scored(
    name: str, values: Sequence[tuple[float, float]], digest: str, one_study: bool
) -> list[TrialRecord]:
    """Finals with these accuracies: (after the last step, at the best epoch)."""
    return [
        report_records.record(
            name,
            digest,
            trial=number,
            study=0 if one_study else number // 2,
            seed=seed,
            report_loss=100 * (1 - last),
            scores={
                "selection": {"accuracy": 0.5},
                "report": {"f1": last / 2, "accuracy": last, "cross_entropy": 0.6},
                "best_report": {"accuracy": best},
            },
            score_curve=[[0, 0.25], [100, 0.7]],
        )
        for number, (seed, (last, best)) in enumerate(zip((1, 2, 3, 4), values, strict=True))
    ]


def shown(path: Path, *, one_study: bool, metric: str = "accuracy") -> view.View:
    fakes = {name: report_records.FAKES[name] for name in ("adamw", "lion")}
    manifest = report_records.manifest(fakes)
    manifest["protocol"]["task"]["metric"] = metric
    manifest["data"]["constant_scores"] = {"accuracy": 0.52}
    records = [
        *scored("adamw", [(0.8, 0.81), (0.82, 0.84), (0.7, 0.9), (0.74, 0.75)], f"{0:064x}",
                one_study),
        *scored("lion", [(0.6, 0.6)] * 4, f"{1:064x}", one_study),
    ]  # fmt: skip
    return view.build(Run(path, manifest, tuple(records), ()))


def test_scores_of_one_study_are_over_seeds(tmp_path: Path) -> None:
    table = section.scores(shown(tmp_path, one_study=True))
    row = table[(table.score == "accuracy") & (table.method == "adamw")].iloc[0]
    values = [0.8, 0.82, 0.7, 0.74]
    mean = sum(values) / 4
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 3)
    half = student.ppf(0.975, 3) * spread / 2
    assert row.last_step == pytest.approx(mean)
    assert (row.last_step_low, row.last_step_high) == pytest.approx((mean - half, mean + half))
    assert row.best_epoch == pytest.approx((0.81 + 0.84 + 0.9 + 0.75) / 4)
    assert (row.constant, row.seeds, row.studies) == (0.52, 4, 1)


def test_scores_of_several_studies_are_over_their_means(tmp_path: Path) -> None:
    table = section.scores(shown(tmp_path, one_study=False))
    row = table[(table.score == "accuracy") & (table.method == "adamw")].iloc[0]
    half = student.ppf(0.975, 1) * (0.81 - 0.72) / math.sqrt(2) / math.sqrt(2)
    assert row.last_step == pytest.approx(0.765)
    assert row.last_step_high - row.last_step == pytest.approx(half)


def test_the_metric_comes_first_and_the_loss_is_no_score(tmp_path: Path) -> None:
    block = section.render(shown(tmp_path, one_study=True))
    assert block is not None
    (table,) = block.tables
    assert [column.key for column in table.columns] == ["method", "accuracy", "f1"]
    assert list(dict.fromkeys(table.frame.score)) == ["accuracy", "f1"]
    first, *_, last = table.rows
    assert first[0].text == "adamw"  # the least error
    assert first[1].text == "0.7650 ± 0.0876"
    assert first[1].sub.startswith("best 0.8250 ± ")
    assert first[2].sub == ""  # no such score at the best epoch
    assert [cell.text for cell in last] == ["without looking", "0.5200", "–"]
    words = " ".join(part.text for part in block.parts if hasattr(part, "kind"))
    assert "Before any step accuracy is 0.2500" in words
    assert "nats" not in words


def test_a_task_without_scores_has_no_table(tmp_path: Path) -> None:
    assert section.render(view.build(report_records.run(tmp_path))) is None
