"""Multiple choice: a language model names the letter; an encoder scores every option by itself.

A language model reads the question, the options behind their letters, and "Answer:"; the options'
scores are the logits of the letters there (D. Hendrycks et al., "Measuring Massive Multitask
Language Understanding", ICLR 2021), and the training loss is the cross-entropy over them. On whole
slices it is asked twice more. `accuracy_norm`: which option's text is likeliest after the question,
per byte, so that long ones are not put back (as lm-evaluation-harness's acc_norm, without its
options in the prompt). `shuffled_accuracy`: the letters again with the options in an order drawn
from the item's text; what knows the place of the answer alone falls to chance.

An encoder (an architecture with transformers' head for multiple choice) reads the question and an
option as a pair and gives it one logit: the order of options cannot matter, and neither of the two
scores is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench import answer_loss, choice_prompts, encode, model_source
from levelfield.bench.choice_prompts import ASK, LETTERS, asked, shuffled
from levelfield.bench.encode import Array, Row
from levelfield.bench.example_batches import Batch, Item, by_length
from levelfield.bench.example_task import called
from levelfield.bench.examples import Example, Examples
from levelfield.bench.labelled import OneOfSeveral
from levelfield.bench.sources import IGNORED
from levelfield.bench.spec import BenchError

LEAST = torch.finfo(torch.float32).min
"""The logit of an option that an item does not have."""


class MultipleChoice(OneOfSeveral):
    """Cross-entropy over the options; the right one has the largest logit."""

    SCORES = ("accuracy", "accuracy_norm", "shuffled_accuracy")
    EXAMPLES = "multiple_choice"

    @cached_property
    def encoder(self) -> bool:
        """Whether the model is one that scores options apart."""
        return self.config is not None and model_source.has_head(self.config, "scored_choice")

    @property
    def head(self) -> str:
        return "scored_choice" if self.encoder else "multiple_choice"

    @property
    def reads_mask(self) -> bool:
        return self.encoder

    @cached_property
    def most(self) -> int:
        """Options of the item that has the most."""
        slices = self.examples.slices.values()
        return max(len(item.options) for items in slices for item in items)

    def check_examples(self, found: Examples) -> None:
        for name, items in found.slices.items():
            for item in items:
                count = len(item.options)
                if not 2 <= count <= len(LETTERS):
                    raise BenchError(
                        f"{name}: {count} options of {item.texts[0][:40]!r}", "accepted: 2 to 26"
                    )
                if not isinstance(item.label, int) or not 0 <= item.label < count:
                    raise BenchError(
                        f"{name}: right option {item.label!r} of {item.texts[0][:40]!r}",
                        f"accepted: 0 to {count - 1}",
                    )
        if self.protocol.task.shots < 0:
            raise BenchError(f"task.shots={self.protocol.task.shots}", "accepted: 0 or more")
        if not self.encoder:
            letters = self.letters
            if len(set(letters)) < len(letters):
                raise BenchError(
                    "the tokenizer writes two letters of options with one token",
                    "accepted: a tokenizer that tells A from B",
                )

    # --- sequences ------------------------------------------------------------------------------

    @cached_property
    def letters(self) -> list[int]:
        """The token by which an answer's letter differs from the others."""
        asked = encode.ids(self.tokenizer, [f"{ASK} {letter}" for letter in LETTERS[: self.most]])
        return [found[-1] for found in asked]

    @cached_property
    def _solved(self) -> Mapping[str, str]:
        return choice_prompts.solved(self.examples.slices["train"], self.protocol.task.shots)

    def items(self, found: Sequence[Example]) -> list[Item]:
        return self._pairs(found) if self.encoder else self._prompts(found)

    def _prompts(self, found: Sequence[Example]) -> list[Item]:
        """One sequence an item, up to where the letter comes; cut at its beginning."""
        shots = self._solved if self.protocol.task.shots else {"": ""}
        # The letter that is cut off again: it must not change how what is before it is split.
        texts = [f"{shots.get(item.group, shots[''])}{asked(item)} A" for item in found]
        read = encode.ids(self.tokenizer, texts, special=True)
        made = []
        for place, (ids, item) in enumerate(zip(read, found, strict=True)):
            end = len(ids) - 1 - ids[::-1].index(self.letters[0])
            row = Row.of(ids[max(0, end - self.length) : end])
            made.append(Item(place, (row,), self._targets(item) | {"last": len(row.ids) - 1}))
        return made

    def _pairs(self, found: Sequence[Example]) -> list[Item]:
        """As many sequences an item as there are options; one that has fewer repeats its first."""
        texts = []
        for item in found:
            options = [*item.options, *item.options[:1] * (self.most - len(item.options))]
            texts += [(item.texts[0], option) for option in options]
        rows = encode.rows(self.tokenizer, texts, self.length)
        return [
            Item(
                place,
                tuple(rows[place * self.most : (place + 1) * self.most]),
                self._targets(item),
            )
            for place, item in enumerate(found)
        ]

    def _targets(self, item: Example) -> dict[str, Any]:
        return {"label": item.label, "options": len(item.options)}

    # --- loss and scores ------------------------------------------------------------------------

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """A logit an option, [b, options]; the least there is for one that an item lacks."""
        if self.encoder:
            apart = {name: x.view(-1, self.most, x.shape[-1]) for name, x in batch.inputs.items()}
            logits = called(self, model, Batch(apart, batch.targets))
        else:
            last = batch.targets["last"]
            logits = called(self, model, batch, (torch.arange(len(last), device=last.device), last))
            logits = logits[:, self.letters]
        options = torch.arange(self.most, device=logits.device)
        return logits.masked_fill(options >= batch.targets["options"][:, None], LEAST)

    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        right = [item.targets["label"] == said for item, said in zip(items, answers, strict=True)]
        return {"accuracy": float(np.mean(right))}

    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        """Of guessing."""
        chance = float(np.mean([1 / len(item.options) for item in found]))
        return dict.fromkeys(self.SCORES[:1] if self.encoder else self.SCORES, chance)

    def more_scores(
        self, model: nn.Module, found: Sequence[Example], device: torch.device
    ) -> Mapping[str, float]:
        if self.encoder:
            return {}
        items = self._prompts([shuffled(item) for item in found])
        _, told = self.read(model, items, device)
        return {
            "accuracy_norm": self._by_text(model, found, device),
            "shuffled_accuracy": self.scores(found, items, told)["accuracy"],
        }

    def _by_text(self, model: nn.Module, found: Sequence[Example], device: torch.device) -> float:
        """How often the right option's text is the likeliest a byte after the bare question."""
        texts = [f"{item.texts[0]}\n{ASK}" for item in found]
        before = encode.ids(self.tokenizer, texts, special=True)
        options = [f" {option}" for item in found for option in item.options]
        places = np.cumsum([0, *(len(item.options) for item in found)])
        owner = np.repeat(np.arange(len(found)), np.diff(places))
        items = [
            answer_loss.item(number, before[place], ids, self.length)
            for number, (place, ids) in enumerate(
                zip(owner, encode.ids(self.tokenizer, options), strict=True)
            )
        ]
        nats = self._nats(model, items, device)
        right = []
        for place, item in enumerate(found):
            sizes = [len(option.encode()) or 1 for option in item.options]
            each = nats[places[place] : places[place + 1]] / np.array(sizes)
            right.append(int(each.argmin()) == item.label)
        return float(np.mean(right))

    def _nats(self, model: nn.Module, items: Sequence[Item], device: torch.device) -> Array:
        """Of the answer in every item, [n]."""
        found = np.zeros(len(items))
        for places in by_length(items):
            batch = self.to_device(self.collate([items[place] for place in places]), device)
            targets = answer_loss.next_tokens(batch.inputs["input_ids"], batch.targets)
            rows, columns = (targets != IGNORED).nonzero(as_tuple=True)
            logits = called(self, model, batch, (rows, columns))  # a vocabulary is wide
            nats = nn.functional.cross_entropy(logits, targets[rows, columns], reduction="none")
            sums = torch.zeros(len(places), device=device).index_add(0, rows, nats)
            found[places] = sums.double().cpu().numpy()
        return found
