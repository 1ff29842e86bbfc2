"""Multiple choice: letters, texts, shuffled options, exemplars, and encoders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import binom
from torch import Tensor, nn

from levelfield.bench import encode
from levelfield.bench.choice_prompts import asked, shuffled
from levelfield.bench.example_reading import Example
from levelfield.bench.spec import BenchError, Model
from levelfield.tests import finetune_cases as cases
from levelfield.tests import local_data, small
from levelfield.tests.finetune_cases import CPU


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("choice")


@pytest.fixture(scope="module")
def bert(place: Path) -> Model:
    return cases.bert(place / "bert")


ITEM = Example("", ("which?",), 2, ("red", "green", "blue", "grey"), (), "")


# --- prompts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400"])
def test_the_prompt_ends_where_the_letter_comes(tokenizer: str, place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), tokenizer=tokenizer, sequence=128)
    found.check()
    (item,) = found.items([ITEM])
    text = found.tokenizer.decode(item.rows[0].ids)
    assert text.rstrip() == "which?\nA. red\nB. green\nC. blue\nD. grey\nAnswer:"
    assert item.targets == {"label": 2, "options": 4, "last": len(item.rows[0].ids) - 1}
    whole = [found.tokenizer(f"{asked(ITEM)} {letter}")["input_ids"] for letter in "ABCD"]
    assert [[*item.rows[0].ids, letter] for letter in found.letters] == whole


def test_a_long_prompt_loses_its_beginning(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), sequence=40)
    (item,) = found.items([ITEM])
    assert len(item.rows[0].ids) == 40
    assert found.tokenizer.decode(item.rows[0].ids).endswith("D. grey\nAnswer: ")


@pytest.mark.parametrize("shots", [0, 2])
def test_exemplars_are_of_the_questions_group(shots: int, place: Path) -> None:
    rows = [
        {
            "question": f"q{n}",
            "choices": ["x", "y"],
            "answer": n % 2,
            "topic": f"t{n % 40}",
        }
        for n in range(400)
    ]
    source = cases.written(place / "groups.jsonl", rows) + "?group=topic"
    found = cases.task("multiple_choice", source, sequence=256, shots=shots)
    train = found.examples.slices["train"]
    of_group = [item for item in train if item.group == train[0].group][:2]
    for group, solved in ((train[0].group, of_group), ("elsewhere", list(train[:2]))):
        (item,) = found.items([replace(ITEM, group=group)])
        text = found.tokenizer.decode(item.rows[0].ids)
        expected = [f"{asked(one)} {'AB'[one.label]}\n\n" for one in solved] if shots else []
        assert text.rstrip() == "".join(expected) + asked(ITEM)


# --- loss and scores ----------------------------------------------------------------------------


def test_the_loss_is_over_the_letters_where_the_answer_comes(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), sequence=128)
    model, batch = found.build_model(0).eval(), cases.batch(found)
    assert set(batch.inputs) == {"input_ids"}
    with torch.no_grad():
        logits = model(**batch.inputs).logits.double().numpy()
        loss = float(found.loss(model, batch))
    nats = [
        -log_softmax(logits[row, last, [ord(letter) for letter in "ABCD"]])[label]
        for row, (last, label) in enumerate(
            zip(batch.targets["last"].tolist(), batch.targets["label"].tolist(), strict=True)
        )
    ]
    assert len(set(batch.targets["last"].tolist())) > 1
    assert loss == pytest.approx(np.mean(nats), rel=1e-5)


def test_padding_does_not_reach_the_letters(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), sequence=128)
    model = found.build_model(0).eval()
    items = found.encoded("train")[:4]
    with torch.no_grad():
        whole = found.loss(model, found.to_device(found.collate(items), CPU))
        apart = [found.loss(model, found.to_device(found.collate([item]), CPU)) for item in items]
    assert float(whole) == pytest.approx(float(torch.stack(apart).mean()), rel=1e-5)


def test_an_option_that_an_item_lacks_is_never_chosen(place: Path) -> None:
    rows = [
        {"question": text, "choices": ["x", "y", "z"][: 2 + n % 2], "answer": 0}
        for n, text in enumerate(cases.sentences(80))
    ]
    source = cases.written(place / "uneven.jsonl", rows)
    found = cases.task("multiple_choice", source, sequence=128)
    assert found.most == 3

    class Last(nn.Module):
        """Likes C best, whatever is asked."""

        def forward(self, input_ids: Tensor) -> Any:
            logits = torch.zeros(*input_ids.shape, 256)
            logits[..., ord("C")], logits[..., ord("B")] = 9.0, 5.0
            return SimpleNamespace(logits=logits)

    items = found.encoded("train")[:8]
    batch = found.to_device(found.collate(items), CPU)
    outputs = found.outputs(Last(), batch)
    expected = [item.targets["options"] - 1 for item in items]
    assert found.answers(outputs, items) == expected
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        drawn = found.drawn(outputs, batch, generator)["label"]
        assert bool((drawn < batch.targets["options"]).all())
    assert found.facts["constant_scores"]["accuracy"] == pytest.approx(
        np.mean([1 / len(item.options) for item in found.examples.slices["report"]])
    )


def test_the_likeliest_text_is_weighed_by_its_bytes(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), sequence=64)
    model = found.build_model(0)
    model.lm_head.weight.data.mul_(10)
    items = found.examples.slices["report"]
    model.eval()
    right = []
    for item in items:
        before, each = f"{item.texts[0]}\nAnswer:".encode(), []
        for option in item.options:
            after = f" {option}".encode()
            ids = (before + after)[-64:]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([list(ids)])).logits[0].double().numpy()
            places = range(len(ids) - len(after), len(ids))
            nats = -sum(log_softmax(logits[at - 1])[ids[at]] for at in places)
            each.append(nats / len(option.encode()))
        right.append(int(np.argmin(each)) == item.label)
    model.train()
    reading = found.evaluate(model, "report", None, CPU)
    assert reading.scores["accuracy_norm"] == pytest.approx(np.mean(right))


def test_scores_that_cost_more_are_read_on_whole_slices(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place), sequence=128)
    model = found.build_model(0)
    assert set(found.evaluate(model, "selection", 4, CPU).scores) == {"accuracy"}
    whole = found.evaluate(model, "selection", None, CPU)
    assert set(whole.scores) == set(found.SCORES)
    asked_for = cases.task(
        "multiple_choice", cases.choices(place), sequence=128, metric="accuracy_norm"
    )
    assert "accuracy_norm" in asked_for.evaluate(model, "selection", 4, CPU).scores


# --- shuffled options ----------------------------------------------------------------------------


def test_shuffling_keeps_the_answer_and_depends_on_the_text_alone() -> None:
    items = [replace(ITEM, texts=(f"q{n}",), label=n % 4) for n in range(400)]
    for item in items:
        other = shuffled(item)
        assert sorted(other.options) == sorted(item.options)
        assert other.options[other.label] == item.options[item.label]
        assert shuffled(item) == other
        # Whatever order the set has the options in, the place of each is the same afterwards or
        # follows from the text: it cannot carry the set's own habit over.
    places = Counter(shuffled(replace(item, label=0)).label for item in items)
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) < 400 * 0.25 + 4 * np.sqrt(400 * 0.25 * 0.75)


def test_a_model_that_knows_places_falls_to_chance(place: Path) -> None:
    rows = [
        {"question": text, "choices": ["w", "x", "y", "z"], "answer": 1}
        for text in cases.sentences(900)
    ]
    source = cases.written(place / "always-b.jsonl", rows)
    found = cases.task("multiple_choice", source, sequence=128)

    class SecondOption(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            logits = torch.zeros(*input_ids.shape, 256)
            logits[..., ord("B")] = 5.0
            return SimpleNamespace(logits=logits)

    reading = found.evaluate(SecondOption(), "report", None, CPU)
    assert reading.scores["accuracy"] == 1.0
    count = found.size("report", None)
    low, high = binom.interval(0.999, count, 0.25)
    assert low / count <= reading.scores["shuffled_accuracy"] <= high / count


def at_chance(found: Any, seed: int) -> None:
    reading = found.evaluate(found.build_model(seed), "report", None, CPU)
    count = found.size("report", None)
    for name in ("accuracy", "shuffled_accuracy"):
        low, high = binom.interval(0.999, count, 0.25)
        assert low / count <= reading.scores[name] <= high / count, (name, reading.scores)


def test_an_untrained_model_is_at_chance(place: Path) -> None:
    found = cases.task("multiple_choice", cases.choices(place, 2000), sequence=96)
    at_chance(found, 0)


@local_data.needed
def test_an_untrained_model_is_at_chance_on_mmlu() -> None:
    found = cases.task(
        "multiple_choice",
        "file:mmlu/val?layout=mmlu",
        heldout="file:mmlu/test?layout=mmlu",
        tokenizer="bpe:1000",
        sequence=128,
        heldout_examples=400,
    )
    found.check()
    assert found.size("report", None) == 400
    at_chance(found, 1)


# --- encoders ------------------------------------------------------------------------------------


def test_an_encoder_scores_every_option_by_itself(place: Path, bert: Model) -> None:
    found = cases.task("multiple_choice", cases.choices(place), bert, sequence=48)
    found.check()
    model = found.build_model(0).eval()
    assert type(model).__name__ == "BertForMultipleChoice"
    items, examples = found.encoded("report")[:3], found.examples.slices["report"]
    batch = found.to_device(found.collate(items), CPU)
    assert batch.inputs["input_ids"].shape[0] == 12
    with torch.no_grad():
        outputs = found.outputs(model, batch).numpy()
        for row, item in enumerate(items):
            example = examples[item.place]
            pairs = [(example.texts[0], option) for option in example.options]
            for place_, each in enumerate(encode.rows(found.tokenizer, pairs, 48)):
                one = model(
                    input_ids=torch.tensor(each.ids)[None, None].long(),
                    token_type_ids=torch.tensor(each.types)[None, None].long(),
                )
                assert outputs[row, place_] == pytest.approx(float(one.logits), abs=1e-5)
    reading = found.evaluate(model, "report", None, CPU)
    assert set(reading.scores) == {"accuracy"}


def test_an_encoder_is_trained_with_items_of_unlike_many_options(place: Path, bert: Model) -> None:
    rows = [
        {"question": text, "choices": ["x", "y", "z"][: 2 + n % 2], "answer": n % 2}
        for n, text in enumerate(cases.sentences(80))
    ]
    source = cases.written(place / "uneven-encoder.jsonl", rows)
    found = cases.task("multiple_choice", source, bert, sequence=48, batch=6)
    model, held = found.build_model(0).eval(), found.batches(0).next()
    with torch.no_grad():
        whole = float(found.loss(model, found.to_device(held, CPU)))
        parts = found.split(held, 2)
        summed = sum(s * float(found.loss(model, found.to_device(p, CPU))) for p, s in parts)
    assert summed == pytest.approx(whole, rel=1e-5)
    outputs = found.outputs(model, found.to_device(held, CPU)).detach().numpy()
    lacking = held.targets["options"] == 2
    assert lacking.any()
    assert (outputs[lacking, 2] < -1e30).all()
    assert (outputs[~lacking] > -1e3).all()


@pytest.mark.parametrize("encoder", [False, True])
def test_a_trial_of_choices(encoder: bool, place: Path, bert: Model) -> None:
    model = bert if encoder else cases.TINY
    protocol = cases.protocol(
        "multiple_choice", cases.choices(place), model, metric="accuracy", sequence=64
    )
    record = small.train("adamw", protocol, phase="final")
    assert record.status in ("ok", "undertrained"), record.reason
    names = {"accuracy"} if encoder else {"accuracy", "accuracy_norm", "shuffled_accuracy"}
    assert set(record.scores["report"]) == names | {"cross_entropy"}


# --- what is refused -----------------------------------------------------------------------------


def test_what_choices_cannot_be(place: Path) -> None:
    source = cases.choices(place)
    found = cases.task("multiple_choice", source, shots=-1)
    with pytest.raises(BenchError, match=r"task.shots=-1"):
        found.check()
    found = cases.task("multiple_choice", source)
    first, *rest = found.examples.slices["report"]
    found.examples.slices["report"] = (replace(first, label=4), *rest)
    with pytest.raises(BenchError, match=r"report: right option 4 .*0 to 3"):
        found.check()
    found.examples.slices["report"] = (replace(first, options=("x",) * 27, label=0), *rest)
    with pytest.raises(BenchError, match="report: 27 options"):
        found.check()
