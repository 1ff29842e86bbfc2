"""Question answering by a language model that writes the answer.

The prompt is the context, the question and "answer:"; the loss is over the tokens of the answer and
what ends it. A question without an answer is answered by the word "unanswerable". Answers are read
greedily, at most 32 tokens. A context that is too long is cut at its end; a training example whose
answer is cut off with it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from levelfield.bench import answer_loss, encode, extractive_qa, model_source, scores
from levelfield.bench.example_batches import Batch, Item, by_length, drawn_class
from levelfield.bench.example_task import ExampleTask, called
from levelfield.bench.examples import Example, Examples
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.sources import IGNORED
from levelfield.bench.spec import BenchError

NONE = "unanswerable"
MOST = 32
"""Tokens of an answer, with what ends it."""


class GenerativeQA(ExampleTask):
    """Next-token prediction of the answer."""

    SCORES = extractive_qa.ExtractiveQA.SCORES
    EXAMPLES = "extractive_qa"

    @property
    def reads_mask(self) -> bool:
        return False

    @cached_property
    def unanswerable(self) -> bool:
        """Whether the set has questions without an answer."""
        return any(not item.answers for items in self.examples.slices.values() for item in items)

    def check_examples(self, found: Examples) -> None:
        if self.length < 2 * MOST:
            raise BenchError(f"data.sequence={self.length}", f"accepted: {2 * MOST} or more")
        source = self.protocol.model.source
        if model_source.is_function(source):
            raise BenchError(
                f"model.source={source} cannot write answers",
                "accepted: a model of transformers, which has `generate`",
            )
        if self.config is not None and model_source.has_head(self.config, "scored_choice"):
            raise BenchError(
                f"{source} is an encoder, and the answer is written from left to right",
                "accepted: a language model, or task.kind=extractive_qa",
            )

    @property
    def _end(self) -> list[int]:
        """What ends an answer: the end of a text, else of a line."""
        end = self.tokenizer.eos_token_id
        return [end] if end is not None else encode.ids(self.tokenizer, ["\n"])[0]

    def prompts(self, found: Sequence[Example]) -> list[tuple[list[int], int]]:
        """Of every example: its prompt, and how many characters of the context are in it."""
        contexts = self.tokenizer(
            [item.texts[1] for item in found],
            add_special_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        tails = encode.ids(
            self.tokenizer, [f"\nquestion: {item.texts[0]}\nanswer:" for item in found]
        )
        made = []
        for ids, offsets, tail in zip(
            contexts["input_ids"], contexts["offset_mapping"], tails, strict=True
        ):
            tail = tail[-(self.length - MOST) :]
            kept = self.length - MOST - len(tail)
            reach = max((end for _, end in offsets[:kept]), default=0)
            made.append(([*ids[:kept], *tail], reach))
        return made

    def items(self, found: Sequence[Example]) -> list[Item]:
        made: list[Item] = []
        for part in encode.chunks(found):
            golds = [item.answers[0][1] if item.answers else NONE for item in part]
            answers = encode.ids(self.tokenizer, [f" {gold}" for gold in golds])
            for item, (before, reach), answer in zip(
                part, self.prompts(part), answers, strict=True
            ):
                whole = all(start + len(text) <= reach for start, text in item.answers[:1])
                target = [*answer[: MOST - len(self._end)], *self._end]
                built = answer_loss.item(len(made), before, target, self.length)
                made.append(Item(built.place, built.rows, built.targets, (before, whole)))
        return made

    def training_items(self) -> tuple[Item, ...]:
        kept = tuple(item for item in self.encoded("train") if item.note[1])
        if not kept:
            raise BenchError(
                f"data.sequence={self.length} cuts every answer off", "accepted: a longer one"
            )
        return kept

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the token after each place, [b, t - 1, vocabulary]."""
        return called(self, model, batch)[:, :-1]

    def _labels(self, batch: Batch) -> Tensor:
        """[b, t - 1]: the token after each place, or -100 outside of the answer."""
        drawn: Tensor | None = batch.targets.get("drawn")
        if drawn is not None:
            return drawn
        return answer_loss.next_tokens(batch.inputs["input_ids"], batch.targets)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return answer_loss.losses(outputs, self._labels(batch))

    def drawn(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Mapping[str, Any]:
        outside = self._labels(batch) == IGNORED
        return {"drawn": drawn_class(outputs, generator).masked_fill(outside, IGNORED)}

    def answers(self, outputs: Tensor, items: Sequence[Item]) -> list[Any]:
        return [None] * len(items)  # they are written, not read off: see `read`

    def read(
        self, model: nn.Module, items: Sequence[Item], device: torch.device
    ) -> tuple[float, list[Any]]:
        loss, told = super().read(model, items, device)
        if math.isfinite(loss):
            for places in by_length(items):
                prompts = [items[place].note[0] for place in places]
                for place, text in zip(places, self.written(model, prompts, device), strict=True):
                    told[place] = text
        return loss, told

    def written(
        self, model: Any, prompts: Sequence[Sequence[int]], device: torch.device
    ) -> list[str]:
        """What the model writes after every prompt; "" for the word that means no answer."""
        from transformers import GenerationConfig

        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.pad, device=device)
        mask = torch.zeros_like(ids)
        for place, prompt in enumerate(prompts):  # what is written stands right behind all of them
            ids[place, width - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[place, width - len(prompt) :] = 1
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=MOST,
            use_cache=True,
            pad_token_id=self.pad,
            eos_token_id=self._end[-1],
        )
        with quiet_imports(), self.context():
            made = model.generate(ids, attention_mask=mask, generation_config=settings)
        read = self.tokenizer.batch_decode(made[:, width:], skip_special_tokens=True)
        lines = [text.strip().partition("\n")[0].strip() for text in read]
        return ["" if line.lower() == NONE else line for line in lines]

    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        golds = [[gold for _, gold in found[item.place].answers] for item in items]
        return scores.spans(answers, golds, self.unanswerable)

    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        return extractive_qa.silent_scores(found)
