"""Classification and regression: losses from the logits, batches, scores, checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor, nn

from levelfield.bench import encode, model_source, models
from levelfield.bench.example_batches import EVAL_BATCH
from levelfield.bench.labelled import Classification
from levelfield.bench.spec import BenchError, Model
from levelfield.tests import finetune_cases as cases
from levelfield.tests import local_data, small
from levelfield.tests.finetune_cases import CPU


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("labelled")


@pytest.fixture(scope="module")
def bert(place: Path) -> Model:
    return cases.bert(place / "bert")


class Known(nn.Module):
    """Logits that follow from the ids alone, and a `loss` that a library has added a penalty to."""

    def __init__(self, classes: int, penalty: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, classes))
        self.penalty = penalty
        self.seen: list[set[str]] = []

    def forward(self, **inputs: Tensor) -> Any:
        self.seen.append(set(inputs))
        size = (inputs["input_ids"] * inputs["attention_mask"]).sum(dim=1).double() / 1000
        logits = (size[:, None] * self.weight.double()).to(self.weight.dtype)
        return SimpleNamespace(logits=logits, loss=logits.sum() * 0 + self.penalty)


# --- the loss ----------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_of_the_logits(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place))
    batch, model = cases.batch(found), Known(3)
    sums = (batch.inputs["input_ids"] * batch.inputs["attention_mask"]).sum(dim=1).numpy() / 1000
    logits = sums[:, None] * np.linspace(-1, 1, 3)
    labels = batch.targets["label"].numpy()
    expected = -log_softmax(logits, axis=1)[np.arange(4), labels].mean()
    assert float(found.loss(model, batch).detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_penalty_in_the_models_own_loss_never_enters(kind: str, place: Path) -> None:
    source = cases.pairs(place) if kind == "classification" else cases.scored(place)
    found = cases.task(kind, source)
    batch = cases.batch(found)
    told = []
    for penalty in (0.0, 1e6):
        model = Known(3 if kind == "classification" else 1, penalty)
        loss = found.loss(model, batch)
        loss.backward()
        assert model.weight.grad is not None
        told.append((float(loss.detach()), model.weight.grad.tolist()))
    assert told[0] == told[1]


def test_a_regression_is_scaled_to_the_range_of_the_training_scores(place: Path) -> None:
    found = cases.task("regression", cases.scored(place))
    scores = [item.label for item in found.examples.slices["train"]]
    assert found.range == (min(scores), max(scores)) == (2.0, 9.0)
    batch, model = cases.batch(found), Known(1)
    targets = batch.targets["score"].double().numpy()
    assert targets.min() >= 0
    assert targets.max() <= 1
    sums = (batch.inputs["input_ids"] * batch.inputs["attention_mask"]).sum(dim=1).numpy() / 1000
    expected = np.mean((-sums - targets) ** 2)  # the one weight is -1
    assert float(found.loss(model, batch).detach()) == pytest.approx(expected, rel=1e-5)
    item, example = found.encoded("report")[0], found.examples.slices["report"][0]
    assert float(item.targets["score"]) == pytest.approx((example.label - 2) / 7, rel=1e-6)


def test_a_batch_is_the_mean_of_its_examples_apart(place: Path, bert: Model) -> None:
    found = cases.task("classification", cases.pairs(place), bert)
    model = found.build_model(0).eval()
    items = found.encoded("train")[:5]
    lengths = {len(item.rows[0].ids) for item in items}
    assert len(lengths) > 1  # there is padding
    with torch.no_grad():
        whole = found.loss(model, found.to_device(found.collate(items), CPU))
        apart = [found.loss(model, found.to_device(found.collate([item]), CPU)) for item in items]
    assert float(whole) == pytest.approx(float(torch.stack(apart).mean()), rel=1e-5)


def test_parts_of_a_batch_sum_to_it(place: Path, bert: Model) -> None:
    found = cases.task("classification", cases.pairs(place), bert, batch=7)
    model, batch = found.build_model(0).eval(), found.batches(0).next()
    parts = found.split(batch, 3)
    assert [len(part.targets["label"]) for part, _ in parts] == [3, 2, 2]
    assert sum(share for _, share in parts) == pytest.approx(1.0)
    with torch.no_grad():
        whole = found.loss(model, found.to_device(batch, CPU))
        summed = sum(share * found.loss(model, found.to_device(part, CPU)) for part, share in parts)
    assert float(summed) == pytest.approx(float(whole), rel=1e-5)


def test_autocast_gives_a_loss_in_full_precision(place: Path, bert: Model) -> None:
    protocol = cases.protocol("classification", cases.pairs(place), bert)
    found = Classification(replace(protocol, precision="fp32+bf16"), "cpu")
    plain = Classification(protocol, "cpu")
    model, batch = found.build_model(0).eval(), cases.batch(found)
    loss, exact = found.loss(model, batch), plain.loss(model, batch)
    assert loss.dtype == torch.float32
    assert float(loss.detach()) != float(exact.detach())
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.02)


# --- labels of the model's own ------------------------------------------------------------------


def test_labels_are_drawn_from_the_models_softmax() -> None:
    found = Classification(cases.protocol("classification", "file:none"), "cpu")
    logits = torch.tensor([[0.0, 1.0, 2.5]]).expand(20_000, 3)
    batch = SimpleNamespace(targets={})
    drawn = found.drawn(logits, batch, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    shares = np.bincount(drawn["label"].numpy(), minlength=3) / 20_000
    expected = np.exp([0.0, 1.0, 2.5]) / np.exp([0.0, 1.0, 2.5]).sum()
    assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / 20_000)


def test_scores_are_drawn_from_the_normal_of_the_squared_error(place: Path) -> None:
    found = cases.task("regression", cases.scored(place))
    outputs = torch.full((20_000,), 3.0)
    drawn = found.drawn(outputs, None, torch.Generator().manual_seed(0))["score"]
    assert float(drawn.mean()) == pytest.approx(3.0, abs=0.02)
    assert float(drawn.var()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_sampled_loss_ignores_the_batchs_labels(kind: str, place: Path, bert: Model) -> None:
    source = cases.pairs(place) if kind == "classification" else cases.scored(place)
    found = cases.task(kind, source, bert)
    model, batch = found.build_model(0).eval(), cases.batch(found)
    name = "label" if kind == "classification" else "score"
    other = replace(batch, targets={**batch.targets, name: batch.targets[name].flip(0)})

    def sampled(given: Any) -> float:
        generator = torch.Generator().manual_seed(1)
        return float(found.sampled_loss(model, given, generator).detach())

    assert sampled(batch) == sampled(other)
    assert sampled(batch) != float(found.loss(model, batch).detach())


# --- batches -----------------------------------------------------------------------------------


def test_every_example_comes_once_before_any_comes_again(place: Path) -> None:
    found = cases.task("classification", cases.classes(place), batch=10)
    count = len(found.encoded("train"))
    order, seen = found.batches(5), []
    found.collate = lambda items: seen.extend(item.place for item in items)
    order._collate = found.collate
    while len(seen) < 2 * count:
        order.next()
    assert sorted(seen[:count]) == sorted(seen[count : 2 * count]) == list(range(count))
    assert seen[:count] != seen[count : 2 * count]


def test_the_order_follows_from_the_seed_alone(place: Path) -> None:
    found = cases.task("classification", cases.classes(place))
    one, two, other = found.batches(1), found.batches(1), found.batches(2)
    one.next()
    two.skip(1)
    other.next()
    assert one.sha256 == two.sha256 != other.sha256
    assert np.array_equal(one.next().inputs["input_ids"], two.next().inputs["input_ids"])


def test_batches_are_padded_to_a_multiple_of_eight_and_no_further(place: Path) -> None:
    found = cases.task("classification", cases.classes(place), sequence=30)
    items = sorted(found.encoded("train"), key=lambda item: len(item.rows[0].ids))
    longest = max(len(item.rows[0].ids) for item in items[:4])
    batch = found.collate(items[:4])
    assert batch.inputs["input_ids"].shape == (4, -(-longest // 8) * 8)
    assert found.collate(items[-4:]).inputs["input_ids"].shape == (4, 30)
    mask = batch.inputs["attention_mask"]
    assert mask.sum(axis=1).tolist() == [len(item.rows[0].ids) for item in items[:4]]
    assert (batch.inputs["input_ids"][mask == 0] == found.pad).all()


def test_the_longer_text_of_a_pair_is_cut_first(place: Path, bert: Model) -> None:
    made = encode.open_tokenizer(cases.protocol("classification", "", bert).data, bert.source, list)
    short, long = "cat dog", " ".join(["owl"] * 40)
    for pair in ((short, long), (long, short)):
        (row,) = encode.rows(made, [pair], 16)
        text = made.decode(row.ids)
        assert len(row.ids) == 16
        assert text.count("cat dog") == 1
        assert text.count("owl") == 16 - 3 - 2
        assert row.types.tolist() == sorted(row.types.tolist())


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_tokenizer_of_a_language_model_sets_a_pair_apart(tokenizer: str, place: Path) -> None:
    found = cases.task("classification", cases.pairs(place), tokenizer=tokenizer)
    made = found.tokenizer
    between = "\n" if tokenizer == "bytes" else made.eos_token
    (row,) = encode.rows(made, [("red cat", "blue dog")], 64)
    assert made.decode(row.ids) == f"red cat{between}blue dog"
    first = len(made("red cat")["input_ids"])
    assert row.types.tolist() == [0] * (first + 1) + [1] * (len(row.ids) - first - 1)


@pytest.mark.parametrize("types", [1, 2])
def test_only_a_model_that_tells_texts_apart_is_given_their_types(types: int, place: Path) -> None:
    model = cases.bert(place / f"types{types}", type_vocab_size=types)
    found = cases.task("classification", cases.pairs(place), model)
    batch = cases.batch(found)
    assert ("token_type_ids" in batch.inputs) == (types == 2)
    found.loss(found.build_model(0), batch)
    if types == 2:
        assert batch.inputs["token_type_ids"].max() == 1


def test_a_family_is_given_no_types(place: Path) -> None:
    model = Known(3)
    found = cases.task("classification", cases.pairs(place))
    found.loss(model, cases.batch(found))
    assert model.seen == [{"input_ids", "attention_mask"}]


# --- evaluation --------------------------------------------------------------------------------


def test_scores_are_those_of_answers_one_by_one(place: Path, bert: Model) -> None:
    found = cases.task("classification", cases.pairs(place, 400), bert)
    model = found.build_model(1)
    slices = found.examples.slices["report"]
    assert len(slices) > EVAL_BATCH  # more than one batch, so the order is put back
    reading = found.evaluate(model, "report", None, CPU)
    assert model.training
    model.eval()
    said, losses = [], []
    with torch.no_grad():
        for item, example in zip(found.encoded("report"), slices, strict=True):
            batch = found.to_device(found.collate([item]), CPU)
            said.append(int(model(**batch.inputs).logits.argmax()))
            losses.append(float(found.loss(model, batch)))
            assert item.targets["label"] == example.label
    labels = [item.label for item in slices]
    assert reading.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert reading.scores["accuracy"] == pytest.approx(np.mean(np.equal(said, labels)))
    assert reading.scores["matthews"] == pytest.approx(matthews_corrcoef(labels, said))
    assert reading.scores["f1"] == pytest.approx(f1_score(labels, said, average="macro"))


def test_correlations_are_of_the_raw_predictions(place: Path, bert: Model) -> None:
    found = cases.task("regression", cases.scored(place, 300), bert)
    model = found.build_model(1)
    reading = found.evaluate(model, "selection", None, CPU)
    model.eval()
    with torch.no_grad():
        said = [
            float(model(**found.to_device(found.collate([item]), CPU).inputs).logits)
            for item in found.encoded("selection")
        ]
    labels = [item.label for item in found.examples.slices["selection"]]
    assert reading.scores["pearson"] == pytest.approx(pearsonr(labels, said).statistic, abs=1e-4)
    assert reading.scores["spearman"] == pytest.approx(spearmanr(labels, said).statistic, abs=1e-3)


def test_a_limit_reads_so_many_spread_evenly(place: Path) -> None:
    found = cases.task("classification", cases.classes(place, 400))
    total = len(found.examples.slices["selection"])
    assert found.size("selection", None) == total
    assert found.size("selection", 5) == 5
    read: list[int] = []
    found.read = lambda model, items, device: (
        read.extend(item.place for item in items) or 0.5,
        [0] * len(items),
    )
    found.evaluate(nn.Module(), "selection", 5, CPU)
    assert read == np.linspace(0, total - 1, 5).astype(int).tolist()


def test_fewer_held_out_examples_change_the_digest(place: Path) -> None:
    source = cases.classes(place, 400)
    whole = cases.task("classification", source)
    few = cases.task("classification", source, heldout_examples=10)
    assert few.facts["used_examples"]["selection"] == 10
    assert few.facts["used_examples"]["train"] == whole.facts["used_examples"]["train"]
    assert few.facts["digest"] != whole.facts["digest"]
    longer = cases.task("classification", source, tokenizer="bpe:300")
    assert longer.facts["digest"] != whole.facts["digest"]
    assert cases.task("classification", source).facts == whole.facts


def test_facts_tell_what_one_answer_to_all_scores(place: Path) -> None:
    found = cases.task("classification", cases.classes(place, 400))
    labels = [item.label for item in found.examples.slices["report"]]
    share = np.mean(labels)
    told = found.facts["constant_scores"]
    assert told["accuracy"] == pytest.approx(max(share, 1 - share))
    assert told["matthews"] == 0
    assert told["f1"] == pytest.approx(2 * share / (1 + share))


def test_a_loss_that_is_not_finite_has_no_scores(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place))
    model = Known(3)
    nn.init.constant_(model.weight, float("nan"))
    reading = found.evaluate(model, "selection", None, CPU)
    assert np.isnan(reading.loss)
    assert all(np.isnan(value) for value in reading.scores.values())
    assert model.training


# --- models ------------------------------------------------------------------------------------


def test_a_head_is_made_from_the_seed_and_the_body_is_the_sources(place: Path, bert: Model) -> None:
    found = cases.task("classification", cases.pairs(place), bert)
    one, two, other = (models.parameters(found.build_model(seed)) for seed in (1, 1, 2))
    assert models.weights_sha256(one) == models.weights_sha256(two)
    changed = [a.info.name for a, b in zip(one, other, strict=True) if not a.tensor.equal(b.tensor)]
    assert changed == ["classifier.weight"]
    assert next(p for p in one if p.info.name == "classifier.weight").info.role == "head"
    assert next(p for p in one if p.info.name == "classifier.weight").info.shape == (3, 16)


def test_a_family_of_language_models_gets_a_head(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place))
    found.check()
    model = found.build_model(0)
    roles = {p.info.name: p.info.role for p in models.parameters(model)}
    assert roles["score.weight"] == "head"
    assert not any("lm_head" in name for name in roles)
    assert found.vocabulary == 256


def test_sizes_alone_read_no_weights(place: Path, bert: Model) -> None:
    found = cases.task("classification", cases.pairs(place), bert)
    with torch.device("meta"):
        model = found.build_model(0)
    assert all(parameter.is_meta for parameter in model.parameters())


# --- what is refused ---------------------------------------------------------------------------


def refused(found: Any, *words: str) -> None:
    with pytest.raises(BenchError) as told:
        found.check()
    line = str(told.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_a_sequence_beyond_the_models_positions(place: Path, bert: Model) -> None:
    cases.task("classification", cases.pairs(place), bert, sequence=64).check()
    found = cases.task("classification", cases.pairs(place), bert, sequence=65)
    refused(found, "data.sequence=65", "64 positions")


def test_a_score_that_the_task_does_not_have(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place), metric="acuracy")
    refused(found, "task.metric='acuracy'", "did you mean", "accuracy")


def test_labels_out_of_range(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place))
    first, *rest = found.examples.slices["selection"]
    found.examples.slices["selection"] = (replace(first, label=3), *rest)
    refused(found, "selection: label 3", "accepted: 0 to 2")


def test_scores_that_do_not_vary(place: Path) -> None:
    rows = [{"text": text, "label": 1.5} for text in cases.sentences(80)]
    source = cases.written(place / "flat.jsonl", rows)
    refused(cases.task("regression", source), "all training scores are 1.5")


def test_a_model_without_a_head_for_the_task(place: Path) -> None:
    from transformers import CodeGenConfig

    folder = place / "codegen"
    CodeGenConfig(vocab_size=300, n_embd=16, n_layer=1, n_head=2).save_pretrained(str(folder))
    cases.wordpiece(cases.sentences(20), 200).save_pretrained(str(folder))
    found = cases.task("classification", cases.pairs(place), Model(source=str(folder)))
    refused(found, "a codegen model has no head for classification")


def test_a_tokenizer_with_more_ids_than_the_model_has_rows(place: Path, bert: Model) -> None:
    big = cases.wordpiece([f"w{n} x{n}" for n in range(400)], 900)
    big.save_pretrained(str(place / "big"))
    found = cases.task("classification", cases.pairs(place), bert, tokenizer=str(place / "big"))
    refused(found, "rows, and the tokenizer", "data.tokenizer=model")


def test_a_model_that_brings_no_tokenizer(place: Path) -> None:
    found = cases.task("classification", cases.pairs(place), tokenizer="model")
    refused(found, "data.tokenizer=model", "none brings none", "bpe:4096")


def test_a_missing_slice_is_told(place: Path) -> None:
    source = cases.pairs(place, 3)
    refused(cases.task("classification", source), "none is left for train")


# --- whole trials ------------------------------------------------------------------------------


def test_a_trial_keeps_scores_after_the_last_step_and_at_the_best_epoch(
    place: Path, bert: Model
) -> None:
    protocol = cases.protocol("classification", cases.classes(place), bert, metric="accuracy")
    record = small.train("adamw", protocol, phase="final", lr=1e-3)
    assert record.status in ("ok", "undertrained"), record.reason
    assert set(record.scores) == {"selection", "report", "best_selection", "best_report"}
    assert record.selection_loss == pytest.approx(
        100 * (1 - record.scores["selection"]["accuracy"])
    )
    assert record.report_loss == pytest.approx(100 * (1 - record.scores["report"]["accuracy"]))
    assert [point[0] for point in record.score_curve] == [0, 4 * 128, 8 * 128]
    assert record.scores["best_selection"]["accuracy"] == max(p[1] for p in record.score_curve[1:])
    assert record.batches_sha256 is not None


@pytest.mark.parametrize("method", ["adamw", "sophia"])
def test_a_trial_learns_which_sentences_have_a_cat(method: str, place: Path) -> None:
    protocol = small.changed(
        cases.protocol(
            "classification", cases.classes(place, 400), metric="accuracy", batch=32, sequence=64
        ),
        steps=60,
    )
    rate = 1e-2 if method == "adamw" else 3e-3
    record = small.train(method, protocol, phase="final", lr=rate)
    assert record.status == "ok", record.reason
    share = np.mean(["cat" in text for text in cases.sentences(400)])
    assert record.scores["report"]["accuracy"] > max(share, 1 - share) + 0.05


def test_a_head_of_another_width_is_made_afresh_and_the_body_is_kept(
    place: Path, bert: Model
) -> None:
    """Weights that a task of two labels left start a task of three, and a regression."""
    folder = place / "two_labels"
    left = model_source.load_model(bert, "classification", 0, {"num_labels": 2})
    left.save_pretrained(str(folder))  # type: ignore[operator]
    source = replace(bert, source=str(folder))
    body = {name: value for name, value in left.state_dict().items() if "classifier" not in name}
    for labels in (1, 3):
        settings = {"num_labels": labels}
        heads = []
        for seed in (0, 0, 1):
            made = model_source.load_model(source, "classification", seed, settings).state_dict()
            assert all(torch.equal(made[name], value) for name, value in body.items())
            heads.append(made["classifier.weight"])
        assert heads[0].shape == (labels, 16)
        assert torch.equal(heads[0], heads[1])
        assert not torch.equal(heads[0], heads[2])
    same = model_source.load_model(source, "classification", 5, {"num_labels": 2}).state_dict()
    assert torch.equal(same["classifier.weight"], left.state_dict()["classifier.weight"])


def test_the_tokenizer_is_left_with_the_weights(place: Path, bert: Model) -> None:
    from transformers import AutoTokenizer

    for number, model in enumerate((bert, cases.TINY)):
        found = cases.task("classification", cases.pairs(place), model)
        found.encoded("train")
        folder = place / f"left{number}"
        folder.mkdir()
        found.write_tokenizer(folder)
        again = AutoTokenizer.from_pretrained(str(folder))
        long = " ".join(cases.WORDS * 4)
        assert again(long, long)["input_ids"] == found.tokenizer(long, long)["input_ids"]
        assert len(again(long)["input_ids"]) > 32  # uncut


@pytest.mark.slow
@local_data.needed
def test_fine_tuning_beats_the_frozen_encoder_on_sst2() -> None:
    """A logistic regression on the frozen encoder reaches 73.6 %."""
    protocol = cases.protocol(
        "classification",
        "file:sst2/train.tsv.gz?layout=sst2",
        Model(source="pypi:minilm"),
        metric="accuracy",
        heldout="file:sst2/dev.tsv?layout=sst2",
        sequence=64,
        batch=8,
        examples=1024,
        heldout_examples=200,
    )
    protocol = small.changed(protocol, steps=128)
    protocol = replace(protocol, evaluation=replace(protocol.evaluation, every=128))
    record = small.train("adamw", protocol, phase="final", lr=1e-4)
    assert record.status == "ok", record.reason
    right = (record.scores["report"]["accuracy"] + record.scores["selection"]["accuracy"]) / 2
    assert right > 0.76  # of 400 sentences
