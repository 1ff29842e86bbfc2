"""Scores against the libraries' own definitions and the official scorers of SQuAD."""

from __future__ import annotations

import math

import numpy as np
import pytest

from levelfield.bench import scores

CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The Eiffel Tower.", ("Eiffel Tower",)),
    ("a cat, an owl and the dog", ("cat owl and dog", "cats")),
    ("Beyoncé", ("Beyonce", "Beyoncé!")),
    ("10\u201312 %", ("10-12%", "10\u201312")),
    ("U.S.A.", ("USA", "the United States")),
    ("the", ("The",)),
    ("in 1889 in Paris", ("1889", "in Paris in 1889", "Paris")),
    ("dog dog cat", ("dog cat cat", "the dog")),
    ("  New   York\tCity ", ("new york city",)),
    ("", ("something",)),
    ("anything", ()),
    ("", ()),
    ("the", ()),
    ("Theodore an-swered", ("theodore answered",)),
    ("Ελλάδα", ("ελλάδα",)),
    ("\u201cquoted\u201d", ("quoted",)),
    ("người Việt Nam", ("Việt Nam", "người Việt")),
    ("a", ("an", "nothing")),
)
"""Answers that are hard to score: articles, punctuation, Unicode, several golds, none."""
EXACT_1 = (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1)
F1_1 = (1, 1, 1, 1, 1, 0, 1, 2 / 3, 1, 0, 1, 1, 0, 0.8, 0)
"""What evaluate-v1.1.py of the SQuAD site gives to those that have golds."""
EXACT_2 = (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0)
F1_2 = (1, 1, 1, 1, 1, 1, 1, 2 / 3, 1, 0, 0, 1, 1, 1, 1, 0, 0.8, 0)
"""What evaluate-v2.0.py gives to all."""


def close(value: float) -> object:
    return pytest.approx(value, abs=1e-6)


def test_spans_of_1_1_are_scored_as_the_official_scorer_does() -> None:
    with_golds = [case for case in CASES if case[1]]
    for (answer, golds), exact, f1 in zip(with_golds, EXACT_1, F1_1, strict=True):
        told = scores.spans([answer], [golds], unanswerable=False)
        assert told == {"exact_match": close(exact), "f1": close(f1)}, answer
    told = scores.spans(*zip(*with_golds, strict=True), unanswerable=False)
    assert told == {"exact_match": close(0.6666666666666666), "f1": close(0.6977777777777779)}


def test_spans_of_2_0_are_scored_as_the_official_scorer_does() -> None:
    for (answer, golds), exact, f1 in zip(CASES, EXACT_2, F1_2, strict=True):
        told = scores.spans([answer], [golds], unanswerable=True)
        assert (told["exact_match"], told["f1"]) == (close(exact), close(f1)), (answer, golds)
    told = scores.spans(*zip(*CASES, strict=True), unanswerable=True)
    assert told == {
        "exact_match": close(0.6111111111111112),
        "f1": close(0.7481481481481482),
        "has_answer_exact_match": close(0.6),
        "has_answer_f1": close(0.7644444444444446),
        "no_answer_exact_match": close(0.6666666666666666),
        "no_answer_f1": close(0.6666666666666666),
    }


def test_two_classes_count_the_positive_one() -> None:
    labels, answers = [1, 1, 1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 1, 0, 0, 0]
    hits, misses, alarms, quiet = 2, 2, 1, 3
    told = scores.classes(labels, answers, 2)
    assert told["accuracy"] == close((hits + quiet) / 8)
    assert told["f1"] == close(2 * hits / (2 * hits + misses + alarms))
    bottom = math.sqrt((hits + alarms) * (hits + misses) * (quiet + alarms) * (quiet + misses))
    assert told["matthews"] == close((hits * quiet - alarms * misses) / bottom)


def test_more_classes_count_alike() -> None:
    labels, answers = [0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 0, 0]
    each = (2 * 1 / (2 * 1 + 1 + 2), 2 * 2 / (2 * 2 + 1 + 1), 0.0)
    told = scores.classes(labels, answers, 3)
    assert told["f1"] == close(sum(each) / 3)
    assert scores.classes([0, 0], [0, 0], 3)["f1"] == close(1 / 3)  # a class nobody has is 0


def test_answers_that_are_all_the_same_say_nothing() -> None:
    assert scores.classes([0, 1, 1], [1, 1, 1], 2)["matthews"] == 0
    assert scores.classes([1, 1], [1, 1], 2)["accuracy"] == 1
    assert scores.correlations([1.0, 2.0, 3.0], [0.5] * 3) == {"pearson": 0, "spearman": 0}
    nearly = scores.correlations([1.0, 2.0, 3.0], [0.5, 0.5, 0.5 + 1e-16])  # a warning elsewhere
    assert all(math.isfinite(value) for value in nearly.values())
    assert scores.correlations([2.0, 2.0], [1.0, 3.0]) == {"pearson": 0, "spearman": 0}


def test_correlations_are_the_textbooks() -> None:
    random = np.random.default_rng(0)
    labels = random.normal(size=50).round(1)  # with ties
    answers = labels + random.normal(size=50)
    first, second = labels - labels.mean(), answers - answers.mean()
    told = scores.correlations(labels.tolist(), answers.tolist())
    assert told["pearson"] == close((first @ second) / math.sqrt(first @ first * second @ second))
    below = [(labels[:, None] > labels).sum(1) + ((labels[:, None] == labels).sum(1) - 1) / 2]
    ranks, others = below[0], answers.argsort().argsort()
    assert told["spearman"] == close(float(np.corrcoef(ranks, others)[0, 1]))
    assert scores.correlations([1.0, 2.0, 4.0], [1.0, 8.0, 64.0])["spearman"] == close(1)
