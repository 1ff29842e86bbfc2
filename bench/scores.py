"""Scores of answers against labels, by the libraries that define them for their fields.

Each is in [-1, 1], higher is better. Of answers that are all the same, a correlation is 0: nothing
of the labels is in them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def classes(labels: Sequence[int], answers: Sequence[Any], count: int) -> Mapping[str, float]:
    """Accuracy, Matthews correlation, F1 (of class 1 where there are two, else the mean over the
    classes), by scikit-learn."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    names = list(range(count))
    average = {"average": "binary"} if count == 2 else {"average": "macro", "labels": names}
    with warnings.catch_warnings():
        # Answers and labels of one class only: the library says so each time.
        warnings.simplefilter("ignore", UserWarning)
        return {
            "accuracy": float(accuracy_score(labels, answers)),
            "matthews": float(matthews_corrcoef(labels, answers)),
            "f1": float(f1_score(labels, answers, zero_division=0, **average)),
        }


def correlations(labels: Sequence[float], answers: Sequence[Any]) -> Mapping[str, float]:
    """Pearson's and Spearman's, by scipy."""
    from scipy.stats import pearsonr, spearmanr

    first, second = np.asarray(labels, np.float64), np.asarray(answers, np.float64)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # Answers that differ in their last digits alone: the library doubts the number.
        warnings.simplefilter("ignore")
        found = {
            "pearson": float(pearsonr(first, second).statistic),
            "spearman": float(spearmanr(first, second).statistic),
        }
    return {name: value if np.isfinite(value) else 0.0 for name, value in found.items()}


def spans(
    answers: Sequence[str], golds: Sequence[Sequence[str]], unanswerable: bool
) -> Mapping[str, float]:
    """Exact match and F1 of SQuAD, by torchmetrics, as its official scorers count them.

    Args:
        answers: what was said to each question; "" for no answer.
        golds: the accepted answers to each; none where a question has no answer.
        unanswerable: whether the set has questions without an answer (SQuAD 2.0); their scores and
            those of the others are then told apart, too.

    P. Rajpurkar, R. Jia, P. Liang, "Know What You Don't Know", ACL 2018. Both scorers agree but
    where an answer has no word left once articles and punctuation are gone: of 1.1, its F1 is 0; of
    2.0, such a gold is none, and an answer without a word is right where there is no gold.
    """
    exact, f1 = [], []
    for answer, accepted in zip(answers, golds, strict=True):
        worded = [gold for gold in accepted if not _wordless(gold)] if unanswerable else accepted
        found = _squad(answer, worded or [""])
        exact.append(found[0])
        f1.append(0.0 if not unanswerable and _wordless(answer) else found[1])
    has = np.array([bool(accepted) for accepted in golds])
    values = {"exact_match": np.array(exact), "f1": np.array(f1)}
    told = {name: float(value.mean()) for name, value in values.items()}
    if unanswerable:
        for part, which in (("has_answer", has), ("no_answer", ~has)):
            if which.any():
                told |= {
                    f"{part}_{name}": float(value[which].mean()) for name, value in values.items()
                }
    return told


def _squad(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    from torchmetrics.functional.text import squad

    target: Any = {"answers": {"text": list(golds), "answer_start": [0] * len(golds)}, "id": "0"}
    found = squad([{"prediction_text": answer, "id": "0"}], [target])
    return float(found["exact_match"]) / 100, float(found["f1"]) / 100


def _wordless(text: str) -> bool:
    """Whether nothing of it counts."""
    return _squad(text, [""])[0] == 1.0
