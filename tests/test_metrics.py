"""Figures of merit on hand-made records."""

from __future__ import annotations

import math
from typing import Any

import pytest

from levelfield.bench.metrics import METRICS
from levelfield.bench.spec import Metric
from levelfield.tests.report_records import record

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}


POWERED = {"phase": "timing", "tokens_per_s": 500.0, "wall_s": {"step": 2.0}, "joules": 400.0}
"""A thousand tokens for 400 joules."""


def test_names_are_unique_and_every_metric_says_what_it_is() -> None:
    assert len(BY_NAME) == len(METRICS)
    assert all(metric.unit and metric.summary for metric in METRICS)


@pytest.mark.parametrize(
    ("name", "fields", "value"),
    [
        ("report_loss", {"report_loss": 2.0}, 2.0),
        ("report_loss", {"report_loss": math.nan}, None),
        ("perplexity", {"report_loss": math.log(8)}, 8.0),
        ("perplexity", {"report_loss": 1e9}, None),
        ("perplexity", {"report_loss": math.inf}, None),
        ("state_bytes", {"state_bytes": 0}, 0.0),
        ("state_bytes_per_parameter", {"state_bytes": 80, "parameters": 10}, 8.0),
        ("state_bytes_per_parameter", {"state_bytes": 80, "parameters": None}, None),
        ("peak_bytes", {"peak_bytes": {"total": 7}}, 7.0),
        ("peak_bytes", {"peak_bytes": {}}, None),
        ("spikes", {"spikes": None}, None),
        ("max_grad_norm", {"max_grad_norm": 3.5}, 3.5),
        ("step_s", {"phase": "timing", "wall_s": {"windows": [0.3, 0.1, 0.2]}}, 0.2),
        ("step_s", {"phase": "timing", "wall_s": {}}, None),
        ("tokens_per_joule", {**POWERED}, 2.5),
        ("tokens_per_joule", {**POWERED, "joules": None}, None),
        ("tokens_per_joule", {**POWERED, "joules": 0.0}, None),
        ("tokens_per_joule", {**POWERED, "wall_s": {"step": None}}, None),
        ("tokens_per_joule", {**POWERED, "tokens_per_s": None}, None),
        ("tokens_per_joule", {**POWERED, "phase": "final"}, None),
        ("tokens_per_joule", {**POWERED, "status": "error"}, None),
        ("step_s", {"phase": "final", "wall_s": {"windows": [0.1]}}, None),
    ],
)
def test_value(name: str, fields: dict[str, Any], value: float | None) -> None:
    found = BY_NAME[name].compute(record("a", **fields))
    assert found == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_an_empty_record_has_no_made_up_value(metric: Metric) -> None:
    assert metric.compute(record("a", parameters=None)) is None
