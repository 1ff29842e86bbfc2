"""Small models, tokenizers and examples on disk for the tests of tasks with labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from levelfield.bench.spec import Budget, Data, Evaluation, Model, Protocol, Task, Timing
from levelfield.bench.tasks import open_task

CPU = torch.device("cpu")
TINY = Model(hidden=16, layers=1, heads=2, intermediate=24)
WORDS = (
    *("red", "green", "blue", "cat", "dog", "owl", "sat", "ran", "slept", "on"),
    *("under", "the", "a", "mat", "rug", "Zoë", "naïve", "1889", "U.S."),
)


def protocol(
    kind: str, source: str, model: Model = TINY, *, metric: str = "", shots: int = 0, **data: Any
) -> Protocol:
    """A protocol of a few steps; `data` are fields of its data."""
    fields = {"tokenizer": "bytes" if not model.source else "model", "sequence": 32, "batch": 4}
    return Protocol(
        name="tiny",
        summary="a few steps on a few examples",
        task=Task(kind=kind, metric=metric, shots=shots),  # type: ignore[arg-type]
        model=model,
        data=Data(source=source, **{**fields, **data}),
        budget=Budget(steps=8, trials=2, seeds=2, trial_timeout_s=60.0),
        evaluation=Evaluation(every=4, sequences=8),
        timing=Timing(windows=2, steps=2),
    )


def task(kind: str, source: str, model: Model = TINY, **more: Any) -> Any:
    """The task of such a protocol."""
    return open_task(protocol(kind, source, model, **more), "cpu")


def written(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    """Rows as a source of examples."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"file:{path}"


def sentences(count: int) -> list[str]:
    """Texts that differ, of 2 to 9 words."""
    return [
        " ".join([str(number), *(WORDS[(number * 7 + k * 5) % len(WORDS)] for k in range(length))])
        for number, length in ((n, 1 + n % 8) for n in range(count))
    ]


def classes(path: Path, count: int = 120) -> str:
    """Sentences; the class is whether a cat is in it."""
    rows = [{"text": text, "label": int("cat" in text)} for text in sentences(count)]
    return written(path / f"classes-{count}.jsonl", rows)


def pairs(path: Path, count: int = 120) -> str:
    """Pairs of sentences with three classes."""
    texts = sentences(count)
    rows = [
        {"a": text, "b": texts[-1 - number], "label": number % 3}
        for number, text in enumerate(texts)
    ]
    return written(path / f"pairs-{count}.jsonl", rows) + "?text=a,b"


def scored(path: Path, count: int = 120) -> str:
    """Sentences with a score: 2 to 9, how many words there are."""
    rows = [{"text": text, "label": float(len(text.split()))} for text in sentences(count)]
    return written(path / f"scored-{count}.jsonl", rows)


def questions(path: Path, count: int = 60, unanswerable: bool = False) -> str:
    """Questions in SQuAD's layout: the answer is a word of the context; every third has none."""
    paragraphs = []
    for number, text in enumerate(sentences(count)):
        context = f"Zoë's note {number}: {text}. Ends — here."
        answer = text.split()[-1]
        start = context.index(f" {answer}.") + 1
        answers = [{"text": answer, "answer_start": start}]
        if unanswerable and number % 3 == 0:
            answers = []
        asked = {"id": str(number), "question": f"what is last in {number}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    articles = [
        {"title": f"t{number}", "paragraphs": [item]} for number, item in enumerate(paragraphs)
    ]
    name = path / f"questions-{count}-{unanswerable}.json"
    name.write_text(json.dumps({"data": articles}), encoding="utf-8")
    return f"file:{name}"


def choices(path: Path, count: int = 80, options: int = 4) -> str:
    """Items whose right option stands in every place alike."""
    rows = [
        {
            "question": f"which is {text}?",
            "choices": [f"{WORDS[(number + k) % len(WORDS)]} {k}" for k in range(options)],
            "answer": number % options,
        }
        for number, text in enumerate(sentences(count))
    ]
    return written(path / f"choices-{count}-{options}.jsonl", rows)


def wordpiece(texts: Sequence[str], size: int = 400) -> Any:
    """An uncased WordPiece as BERT's: lower case, accents stripped, [CLS] A [SEP] B [SEP]."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def bert(folder: Path, texts: Sequence[str] = (), **settings: Any) -> Model:
    """A folder with the body of a small BERT, as the sentence encoders ship it."""
    from transformers import BertConfig, BertModel

    made = wordpiece([*texts, *sentences(40)])
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(made),
        pad_token_id=0,
        **{
            **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"intermediate_size": 24, "max_position_embeddings": 64},
            **settings,
        },
    )
    BertModel(config).save_pretrained(str(folder))
    made.save_pretrained(str(folder))
    return Model(source=str(folder))


def batch(found: Any, seed: int = 0) -> Any:
    """The first batch of a task, on the CPU."""
    return found.to_device(found.batches(seed).next(), CPU)
