"""How a step is carried out changes nothing that is learned; models of one's own; kept weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from levelfield.bench import audit, memory, model_source, models, plan, study, tasks
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import BenchError, Model, Protocol, TrialRecord
from levelfield.tests import small

DEVICE = torch.device("cpu")
MINE = """
import torch
from types import SimpleNamespace

class Mine(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, 16)
        self.out = torch.nn.Linear(16, vocabulary)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.out(self.embed(input_ids)))

def build(vocabulary, positions):
    return Mine(vocabulary)

def nothing(vocabulary, positions):
    return None

def broken(vocabulary, positions):
    raise ValueError("no such thing\\nat all")
"""


def changed(*settings: str, protocol: Protocol = small.PROTOCOL) -> Protocol:
    return apply_settings(protocol, settings)


def trained(protocol: Protocol, method: str = "adamw") -> TrialRecord:
    record = small.train(method, protocol)
    assert record.status in ("ok", "undertrained"), record.reason
    return record


def losses(record: TrialRecord) -> list[float]:
    return [loss for _, loss in record.train_loss] + [point[2] for point in record.curve]


# --- how a step is carried out -----------------------------------------------------------------


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("method", ["adamw", "sophia", "adafrugal"])
def test_a_batch_in_parts_is_the_batch(method: str, packing: bool) -> None:
    """Rows differ in how much of them is padding: parts count by what is predicted in them."""
    whole = changed(f"data.packing={packing}")
    parts = changed(f"data.packing={packing}", "engine.accumulation=4")
    one, other = trained(whole, method), trained(parts, method)
    assert other.batches_sha256 == one.batches_sha256
    assert losses(other) == pytest.approx(losses(one), rel=2e-3 if method == "sophia" else 1e-4)


def test_a_method_that_cannot_gather_gradients_says_so() -> None:
    record = small.train("lomo", changed("engine.accumulation=2"))
    assert record.status == "unsupported"
    assert "lomo declares that it cannot gather gradients" in (record.reason or "")


def test_recomputed_activations_are_the_same() -> None:
    plain, again = trained(changed()), trained(changed("engine.activation_checkpointing=true"))
    assert losses(again) == losses(plain)
    assert again.peak_bytes["activations"] != plain.peak_bytes["activations"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what torch's compiler warns of is not ours
def test_a_compiled_model_learns_the_same_and_its_compilation_is_told_apart() -> None:
    plain, compiled = trained(changed()), trained(changed("engine.compile=true"))
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert compiled.wall_s["compile"] > 0
    assert "compile" not in plain.wall_s
    assert compiled.peak_bytes.get("total") is None
    assert "compiled" in compiled.missing["peak_bytes.total"]


def test_a_rate_that_is_not_the_schedules_stops_the_trial(tmp_path: Path) -> None:
    """The schedule is compared with what is really set: here the method halves it."""
    path = tmp_path / "halves.py"
    path.write_text(
        "import torch\n"
        "from dataclasses import replace\n"
        "from levelfield.optimizers import lion\n"
        "class Halves(lion.Lion):\n"
        "    def step(self, closure=None):\n"
        "        for group in self.param_groups:\n"
        "            group['lr'] *= 0.5\n"
        "        return super().step(closure)\n"
        "def build(ctx, hparams):\n"
        "    made = lion.build(ctx, hparams)\n"
        "    made.__class__ = Halves\n"
        "    return made\n"
        "SPEC = replace(lion.SPEC, name='halves', build=build)\n"
    )
    record = small.train(f"{path}:SPEC")
    assert record.status == "error"
    assert "the learning rate of step 0 is" in (record.reason or "")


def test_the_last_evaluation_reads_at_most_what_it_may() -> None:
    whole, some = trained(changed()), trained(changed("evaluation.most=4"))
    task = tasks.open_task(changed(), "cpu")
    assert task.size("selection", None) > 4
    assert some.weights_sha256 == whole.weights_sha256
    assert losses(some) == losses(whole)
    assert some.selection_loss != whole.selection_loss


# --- models of one's own -----------------------------------------------------------------------


def test_a_function_of_ones_own_makes_the_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    record = trained(changed(f"model.source={path}:build"))
    assert record.parameters == 256 * 16 + 256 * 16 + 256


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nothing", "gives a NoneType"),
        ("broken", "fails: ValueError: no such thing"),
        ("biuld", "has no function 'biuld' (did you mean build?"),
    ],
)
def test_a_function_that_makes_no_model_is_told_in_a_line(
    tmp_path: Path, name: str, line: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    with pytest.raises(BenchError) as caught:
        models.build_model(Model(source=f"{path}:{name}"), 256, 16, 0)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def folder(path: Path, **sizes: Any) -> Path:
    """A tiny LLaMA as transformers saves one."""
    config = Model(**{"hidden": 16, "layers": 1, "heads": 2, "intermediate": 24, **sizes})
    models.build_model(config, 256, 32, 7).save_pretrained(path)  # type: ignore[operator]
    return path


def test_a_folder_brings_its_weights(tmp_path: Path) -> None:
    source = str(folder(tmp_path / "kept"))
    one, other = (models.build_model(Model(source=source), 256, 16, seed) for seed in (0, 1))
    again = models.build_model(Model(hidden=16, layers=1, heads=2, intermediate=24), 256, 32, 7)
    for loaded in (one, other):
        for mine, due in zip(loaded.parameters(), again.parameters(), strict=True):
            assert torch.equal(mine, due)
    bare = models.build_model(Model(source=source, pretrained=False), 256, 16, 0)
    assert not torch.equal(next(bare.parameters()), next(one.parameters()))


@pytest.mark.parametrize(
    ("model", "vocabulary", "sequence", "line"),
    [
        ({}, 300, 16, "has 256 rows, and the tokenizer 300 ids"),
        ({}, 256, 64, "takes 32 positions"),
        ({"vocabulary": 200}, 256, 16, "model.vocabulary=200, and the tokenizer has 256 ids"),
        ({"positions": 8}, 256, 16, "model.positions=8, and sequences have 16 tokens"),
    ],
)
def test_sizes_that_do_not_fit_are_told(
    tmp_path: Path, model: dict[str, Any], vocabulary: int, sequence: int, line: str
) -> None:
    config = Model(**model) if model else Model(source=str(folder(tmp_path / "kept")))
    with pytest.raises(BenchError) as caught:
        models.build_model(config, vocabulary, sequence, 0)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("./nowhere", "there is no such folder"),
        ("empty", "no config.json in it"),
        ("pypi:nothing", "nothing"),
    ],
)
def test_a_source_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchError) as caught:
        model_source.located(source)
    assert line in str(caught.value)


# --- weights that a run keeps ------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_final_weights_and_tokenizer_come_back(tmp_path: Path, tokenizer: str) -> None:
    asked = changed(
        f"data.tokenizer={tokenizer}", "engine.save_final=true", "budget.seeds=1", "budget.trials=1"
    )
    run = small.run(tmp_path, ["adamw"], asked)
    (final,) = (record for record in run.records if record.phase == "final")
    assert final.final_sha256 is not None
    assert [item.final_sha256 for item in run.records if item.phase != "final"] == [
        None for item in run.records if item.phase != "final"
    ]
    source = f"{run.path}:adamw:{final.seed}"
    from_run = changed(f"model.source={source}", "data.tokenizer=model")
    task = tasks.open_task(from_run, "cpu")
    model = task.build_model(0)
    assert models.weights_sha256(models.parameters(model)) == final.final_sha256
    reading = task.evaluate(model, "report", None, DEVICE)
    assert reading.loss == pytest.approx(final.report_loss, rel=1e-6)
    where, local = model_source.located(source)
    assert local
    origin = json.loads((Path(where) / "levelfield.json").read_text())
    assert (origin["method"], origin["seed"]) == ("adamw", final.seed)
    with pytest.raises(BenchError, match="it has adamw:"):
        model_source.located(f"{run.path}:lion:{final.seed}")


def test_shards_of_a_batch_weigh_what_they_predict() -> None:
    protocol = replace(small.PROTOCOL, data=replace(small.PROTOCOL.data, packing=False))
    task = tasks.open_task(protocol, "cpu")
    batch = task.batches(0).next()
    model = task.build_model(0)
    whole = task.loss(model, task.to_device(batch, DEVICE)).detach()
    parts = sum(
        task.loss(model, task.to_device(part, DEVICE)).detach() * weight
        for part, weight in task.split(batch, 4)
    )
    assert float(parts) == pytest.approx(float(whole), rel=1e-6)


# --- adapters that do not go with the model ------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("lora(target=nothing)", "nothing"),
        ("adapad(budget=1)", "budget"),
        ("increlora(budget=1)", "budget"),
        ("adalora(rank=0)", "rank"),
    ],
)
def test_adapters_are_refused_before_any_trial(tmp_path: Path, method: str, line: str) -> None:
    with pytest.raises(BenchError) as caught:
        small.run(tmp_path, [method])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_not_there_is_told() -> None:
    with pytest.raises(BenchError, match="there is no run nowhere"):
        model_source.located("nowhere:adamw:1")


def test_plans_count_what_an_adapter_trains() -> None:
    methods = study.load_methods(["lora(rank=1)", "adamw"])
    told = plan.plan(small.PROTOCOL, methods, seed=0, final_seeds=1, slots=1, device="cpu")
    lora, adamw = (row["state_bytes"] for row in told["methods"])
    # Seven matrices of a layer: 4 of 16 x 16, 3 of 16 x 24; two moments of 4 bytes.
    assert lora == 2 * 4 * (4 * 32 + 3 * 40)
    assert adamw > 10 * lora
    # Frozen weights have no gradient: 2 forward, 2 back to the inputs, 2 for what is trained.
    whole, own = told["parameters"], lora // 8
    flops = {row["method"]: row["flops"] / row["tokens"] for row in told["methods"]}
    assert flops["adamw"] == pytest.approx(6 * whole)
    assert flops["lora(rank=1)"] == pytest.approx(4 * whole + 2 * own)
    with pytest.raises(BenchError, match="depends on its model and task"):
        memory.plan("60m", ["lora"])


def test_a_run_of_adapters_beside_full_training_is_fair(tmp_path: Path) -> None:
    """Both start from the same model, and the tuner starts an adapter at its own default."""
    asked = changed("tuner.start=0.1", "budget.seeds=1", "budget.trials=1")
    run = small.run(tmp_path, ["adamw", "lora(rank=1)"], asked)
    starts = {record.weights_sha256 for record in run.records if record.phase == "final"}
    assert len(starts) == 1
    first = {r.optimizer: r.hparams["lr"] for r in run.records if r.phase == "tune"}
    assert first == {"adamw": 1e-4, "lora(rank=1)": 5e-4}
    unfair = [item for item in audit.audit(run) if item.outcome == "unfair"]
    assert unfair == []
