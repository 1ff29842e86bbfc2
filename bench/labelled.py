"""Classification and regression of one text or a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from levelfield.bench import encode, scores
from levelfield.bench.example_batches import Batch, Item, drawn_class
from levelfield.bench.example_task import ExampleTask, called
from levelfield.bench.examples import Example, Examples
from levelfield.bench.spec import BenchError


class OneOfSeveral(ExampleTask):
    """Outputs are a logit for each thing that the label may be: cross-entropy over them."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch.targets["label"], reduction="none")

    def drawn(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Mapping[str, Any]:
        return {"label": drawn_class(outputs, generator)}

    def answers(self, outputs: Tensor, items: Sequence[Item]) -> list[Any]:
        return list(outputs.argmax(dim=-1).cpu().numpy())


class Classification(OneOfSeveral):
    """A class a text: cross-entropy over the logits."""

    SCORES = ("accuracy", "matthews", "f1")
    EXAMPLES = "classification"

    def settings(self) -> Mapping[str, Any]:
        return {"num_labels": len(self.examples.labels), **_padding(self)}

    def check_examples(self, found: Examples) -> None:
        classes = len(found.labels)
        for name, items in found.slices.items():
            for item in items:
                if not isinstance(item.label, int) or not 0 <= item.label < classes:
                    raise BenchError(
                        f"{name}: label {item.label!r} of {item.texts[0][:40]!r}",
                        f"accepted: 0 to {classes - 1}",
                    )

    def items(self, found: Sequence[Example]) -> list[Item]:
        rows = encode.rows(self.tokenizer, [item.texts for item in found], self.length)
        return [
            Item(place, (row,), {"label": item.label})
            for place, (row, item) in enumerate(zip(rows, found, strict=True))
        ]

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return called(self, model, batch)

    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        labels = [item.targets["label"] for item in items]
        return scores.classes(labels, answers, len(self.examples.labels))

    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        labels = [int(item.label or 0) for item in found]
        classes = len(self.examples.labels)
        most = Counter(labels).most_common(1)[0][0]
        best = scores.classes(labels, [most] * len(labels), classes)
        if classes == 2:  # for F1 the best constant answer is the positive class
            best = {**best, "f1": scores.classes(labels, [1] * len(labels), classes)["f1"]}
        return best


class Regression(ExampleTask):
    """A score a text: squared error on scores scaled to [0, 1] by the range in the training slice;
    correlations of the raw predictions."""

    SCORES = ("pearson", "spearman")
    EXAMPLES = "regression"

    def settings(self) -> Mapping[str, Any]:
        return {"num_labels": 1, "problem_type": "regression", **_padding(self)}

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest score of the training slice."""
        labels = [float(item.label or 0.0) for item in self.examples.slices["train"]]
        return min(labels), max(labels)

    def check_examples(self, found: Examples) -> None:
        low, high = self.range
        if low == high:
            raise BenchError(f"all training scores are {low:g}", "a score that varies")

    def items(self, found: Sequence[Example]) -> list[Item]:
        low, high = self.range
        rows = encode.rows(self.tokenizer, [item.texts for item in found], self.length)
        return [
            Item(
                place,
                (row,),
                {"score": np.float32((float(item.label or 0.0) - low) / (high - low))},
            )
            for place, (row, item) in enumerate(zip(rows, found, strict=True))
        ]

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return called(self, model, batch).squeeze(-1)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        errors: Tensor = outputs - batch.targets["score"]
        return errors.square()

    def drawn(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Mapping[str, Any]:
        """A squared error is, up to a constant, the likelihood of a normal of variance 1/2."""
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return {"score": outputs + noise * 0.5**0.5}

    def answers(self, outputs: Tensor, items: Sequence[Item]) -> list[Any]:
        return list(outputs.double().cpu().numpy())

    def scores(
        self, found: Sequence[Example], items: Sequence[Item], answers: Sequence[Any]
    ) -> Mapping[str, float]:
        return scores.correlations([float(item.targets["score"]) for item in items], answers)

    def constant_scores(self, found: Sequence[Example]) -> Mapping[str, float]:
        return dict.fromkeys(self.SCORES, 0.0)


def _padding(task: ExampleTask) -> Mapping[str, Any]:
    """A model that reads from left to right takes the last token that is no padding."""
    return {"pad_token_id": task.pad}
