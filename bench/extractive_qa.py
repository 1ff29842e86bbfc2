"""Question answering by spans: the question first, then windows of the context.

The recipe of BERT's SQuAD script (J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, "BERT", NAACL 2019)
and of those after it: 384 tokens with a stride of 128 (here a third of the sequence, whatever its
length), the 20 best starts and ends, at most 30 tokens an answer. A question that a window does not
answer points at the `cls` token, or at the first one where there is none. Deviation: padding takes
no part in the softmax, so that a loss does not depend on what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench import encode, scores
from levelfield.bench.encode import Array, Row
from levelfield.bench.example_batches import Batch, Item, drawn_class
from levelfield.bench.example_task import ExampleTask
from levelfield.bench.examples import Example, Examples
from levelfield.bench.spec import BenchError

BEST = 20
"""Starts and ends that are paired."""
LONGEST = 30
"""Tokens of an answer."""
LEAST = 24
"""Tokens of a window, below which a third of it is no stride."""
PARTS = tuple(
    f"{part}_{name}" for part in ("has_answer", "no_answer") for name in ("exact_match", "f1")
)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a context behind its question."""

    row: Row
    first: int
    """Of the context's tokens."""
    offsets: Array
    """[n, 2]: the characters of every token of the context."""
    null: int
    """The token that stands for no answer here."""

    def target(self, start: int, end: int) -> tuple[int, int]:
        """First and last token of the characters [start, end), or twice `null` where the window
        does not hold all of them."""
        begins, ends = self.offsets[:, 0], self.offsets[:, 1]
        if not len(begins) or begins[0] > start or ends[-1] < end:
            return self.null, self.null
        first = int(np.argmax(ends > start))
        last = len(begins) - 1 - int(np.argmax(begins[::-1] < end))
        return self.first + first, self.first + last

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The characters from one token to another."""
        return int(self.offsets[first - self.first, 0]), int(self.offsets[last - self.first, 1])


class ExtractiveQA(ExampleTask):
    """Start and end of the answer: the mean of two cross-entropies over a window's tokens."""

    SCORES = ("exact_match", "f1", *PARTS)
    EXAMPLES = "extractive_qa"

    @cached_property
    def unanswerable(self) -> bool:
        """Whether the set has questions without an answer."""
        return any(not item.answers for items in self.examples.slices.values() for item in items)

    def check_examples(self, found: Examples) -> None:
        if self.length < LEAST:
            raise BenchError(f"data.sequence={self.length}", f"accepted: {LEAST} or more")

    def items(self, found: Sequence[Example]) -> list[Item]:
        made = []
        for place, windows in enumerate(self.windows(found)):
            answers = found[place].answers
            for window in windows:
                start, text = answers[0] if answers else (-1, "")
                ends = window.target(start, start + len(text)) if answers else (window.null,) * 2
                made.append(Item(place, (window.row,), {"span": np.array(ends)}, window))
        return made

    def windows(self, found: Sequence[Example]) -> list[list[Window]]:
        """Of every example: its context in windows that overlap by a third of the sequence."""
        made: list[list[Window]] = []
        for part in encode.chunks(found):
            made += self._windows(part)
        return made

    def _windows(self, found: Sequence[Example]) -> list[list[Window]]:
        read = self.tokenizer(
            self._questions([item.texts[0] for item in found]),
            [item.texts[1] for item in found],
            truncation="only_second",
            max_length=self.length,
            stride=self.length // 3,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
            verbose=False,
        )
        cls = self.tokenizer.cls_token_id
        made: list[list[Window]] = [[] for _ in found]
        for number, place in enumerate(read["overflow_to_sample_mapping"]):
            ids = read["input_ids"][number]
            inside = np.array([part == 1 for part in read.sequence_ids(number)])
            made[place].append(
                Window(
                    row=Row.of(ids, read["token_type_ids"][number]),
                    first=int(np.argmax(inside)),
                    offsets=np.array(read["offset_mapping"][number], np.int32)[inside],
                    null=ids.index(cls) if cls in ids else 0,
                )
            )
        return made

    def _questions(self, texts: Sequence[str]) -> list[str]:
        """Questions cut to a third of the sequence: the rest is the context's."""
        most = self.length // 3
        read = self.tokenizer(
            list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return [
            text if len(offsets) <= most else text[: offsets[most - 1][1]]
            for text, offsets in zip(texts, read["offset_mapping"], strict=True)
        ]

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of starts and ends, [b, 2, t]; padding has the least there is."""
        with self.context():
            found = model(**batch.inputs)
        logits = torch.stack([found.start_logits, found.end_logits], dim=1).float()
        mask = batch.inputs["attention_mask"][:, None, :] == 0
        return logits.masked_fill(mask, torch.finfo(torch.float32).min)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        logits = outputs.transpose(1, 2)  # [b, t, 2]: the classes are the tokens
        return nn.functional.cross_entropy(logits, batch.targets["span"], reduction="none").mean(
            dim=1
        )

    def drawn(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Mapping[str, Any]:
        return {"span": drawn_class(outputs, generator)}

    def answers(self, outputs: Tensor, items: Sequence[Item]) -> list[Any]:
        """Of every window: (score of its best span, score of no answer, characters of the span)."""
        found = outputs.double().cpu().numpy()
        return [best_span(logits, item.note) for logits, item in zip(found, items, strict=True)]

    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        best: dict[int, tuple[float, float, tuple[int, int] | None]] = {}
        for item, (score, null, span) in zip(items, answers, strict=True):
            before = best.get(item.place, (-np.inf, np.inf, None))
            least = min(null, before[1])
            best[item.place] = (
                (score, least, span) if score > before[0] else (before[0], least, before[2])
            )
        said, golds = [], []
        for place, (score, null, span) in sorted(best.items()):
            silent = span is None or (self.unanswerable and null > score)
            text = "" if silent or span is None else found[place].texts[1][slice(*span)]
            said.append(text.strip())
            golds.append([gold for _, gold in found[place].answers])
        return scores.spans(said, golds, self.unanswerable)

    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        return silent_scores(found)


def silent_scores(found: Sequence[Example]) -> Mapping[str, float]:
    """What saying nothing to every question scores."""
    none = sum(not item.answers for item in found) / len(found)
    told = {"exact_match": none, "f1": none}
    return told | dict(zip(PARTS, (0.0, 0.0, 1.0, 1.0), strict=True)) if none else told


def best_span(logits: Array, window: Window) -> tuple[float, float, tuple[int, int] | None]:
    """The best span of a window among its best starts and ends.

    Args:
        logits: of starts and ends, [2, t].

    Returns:
        Its score (start + end), that of no answer, and its characters; None without a context.
    """
    null = float(logits[0, window.null] + logits[1, window.null])
    count = len(window.offsets)
    inside = logits[:, window.first : window.first + count]
    starts, ends = (np.argsort(-part, kind="stable")[:BEST] for part in inside)
    tokens = ends[None, :] - starts[:, None] + 1
    sums = inside[0][starts][:, None] + inside[1][ends][None, :]
    sums = np.where((tokens >= 1) & (tokens <= LONGEST), sums, -np.inf)
    if not sums.size or not np.isfinite(sums.max()):
        return -np.inf, null, None
    row, column = np.unravel_index(int(sums.argmax()), sums.shape)
    first, last = window.first + int(starts[row]), window.first + int(ends[column])
    return float(sums[row, column]), null, window.span(first, last)
