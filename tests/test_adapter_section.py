"""Adapters on the page: counts, rank maps, fewer parameters only at a score shown to be equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from levelfield.bench.spec import TrialRecord
from levelfield.reports import page, ranks, units
from levelfield.reports import view as views
from levelfield.reports.blocks import Block, Column, Prose, grid
from levelfield.reports.frames import frame
from levelfield.reports.sections import adapters
from levelfield.tests import report_records

EVEN = {
    f"bert.encoder.layer.{layer}.{kind}": 2 for layer in range(6) for kind in ("query", "value")
}
LATE = {name: (4 if ".5." in name or ".4." in name else 1) for name in EVEN}


def record(name: str, seed: int, loss: float, found: Mapping[str, int] | None) -> TrialRecord:
    """A final."""
    told: dict[str, Any] = {}
    if found is not None:
        rank = sum(found.values())
        told = {
            "trained_parameters": 100 * (rank + 3),
            "deployed_parameters": 100 * rank,
            "head_parameters": 770,
            "ranks": dict(found),
            "budget": 28,
        }
    return TrialRecord(
        run_id="r", phase="final", protocol="p", optimizer=name, trial=seed, seed=seed,
        hparams={"lr": 1e-3}, tuned=("lr",), status="ok", report_loss=loss, selection_loss=loss,
        steps=10, passes=10.0 if found is None else 20.0, parameters=50_000, adapter=told,
    )  # fmt: skip


def view(tmp_path: Path, losses: Mapping[str, Sequence[float]]) -> views.View:
    """Three methods: the whole model, fixed ranks, ranks that were chosen."""
    kinds = {"adamw": None, "fixed": EVEN, "chosen": LATE}
    fakes = {name: report_records.Fake(loss=1, lr=1e-3, default=1e-3) for name in kinds}
    manifest = report_records.manifest(fakes)
    manifest["protocol"]["task"] = {"kind": "classification", "metric": "accuracy"}
    manifest["protocol"]["margin_nats"] = 0.3
    records = tuple(
        record(name, seed, loss, kinds[name])
        for name in kinds
        for seed, loss in enumerate(losses[name])
    )
    run = SimpleNamespace(path=tmp_path, manifest=manifest, records=records, notes=())
    return views.build(run)  # type: ignore[arg-type]


SPREAD = {
    "adamw": [20.0, 21, 22],
    "fixed": [20.0, 22, 24, 21, 19],
    "chosen": [21.0, 20, 23, 22, 20],
}


def prose(block: Block) -> str:
    return " ".join(part.text for part in block.parts if isinstance(part, Prose))


def test_modules_are_placed_by_layer_and_kind() -> None:
    assert ranks.place("bert.encoder.layer.3.attention.self.query") == ("attention.self.query", 3)
    assert ranks.place("model.layers.11.mlp.up_proj") == ("mlp.up_proj", 11)
    assert ranks.place("pooler") == ("pooler", 0)


def test_ranks_are_means_over_finals_and_late_layers_are_counted(tmp_path: Path) -> None:
    found = {m.name: ranks.of_method(m) for m in view(tmp_path, SPREAD).methods}
    assert found["adamw"] is None
    even, late = found["fixed"], found["chosen"]
    assert even is not None
    assert late is not None
    assert even.uniform
    assert not late.uniform
    assert ranks.late_share(even) == pytest.approx(1 / 3)
    # Of 4 x 4 + 8 x 1 ranks, 16 lie in the last two of six layers.
    assert ranks.late_share(late) == pytest.approx(16 / 24)
    assert late.layers == (0, 1, 2, 3, 4, 5)
    assert late.kinds == ("query", "value")


def test_the_table_counts_what_records_tell(tmp_path: Path) -> None:
    rows = {
        row["method"]: row for row in adapters.adapters(view(tmp_path, SPREAD)).to_dict("records")
    }
    assert rows["chosen"]["deployed_parameters"] == 2_400
    assert rows["chosen"]["trained_parameters"] == 2_700
    assert rows["chosen"]["passes_a_step"] == 2.0
    assert rows["chosen"]["total_rank"] == 24
    assert rows["chosen"]["rank_budget"] == 28  # what it may keep, beside what it does
    assert rows["adamw"]["deployed_parameters"] == 50_000
    assert "it trains all of the model" in rows["adamw"]["missing"]


def test_fewer_parameters_at_an_equal_score_only_where_it_is_shown(tmp_path: Path) -> None:
    """The same sizes: noise that hides the margin, no noise, and a true gap."""
    noisy = prose(adapters.render(view(tmp_path, SPREAD)) or Block())
    assert "whether at an equal score is not testable here" in noisy
    equal = {
        **SPREAD,
        "fixed": [20.00, 20.02, 20.01, 19.99, 20.0],
        "chosen": [20.01, 20.0, 20.02, 20.0, 20.03],
    }
    shown = prose(adapters.render(view(tmp_path, equal)) or Block())
    assert "0.0 % more" in shown or "0.0 % fewer" in shown
    assert "at an equal score: the difference is" in shown
    worse = {**equal, "chosen": [21.01, 21.0, 21.02, 21.0, 21.03]}
    gap = prose(adapters.render(view(tmp_path, worse)) or Block())
    assert "not at an equal score: the difference is" in gap
    edge = {**equal, "chosen": [20.28, 20.27, 20.31, 20.25, 20.33]}
    assert "an equal score is not shown" in prose(adapters.render(view(tmp_path, edge)) or Block())


def test_the_test_of_equality_is_scipys(tmp_path: Path) -> None:
    losses = {**SPREAD, "fixed": [20.0, 20.2, 19.9, 20.1], "chosen": [20.05, 20.1, 19.95, 20.3]}
    found = view(tmp_path, losses)
    base, method = (next(m for m in found.methods if m.name == n) for n in ("fixed", "chosen"))
    text = adapters.reduction(found, method, base, 0.5)
    one, other = np.array(losses["chosen"]), np.array(losses["fixed"])
    low = scipy_stats.ttest_ind(one, other - 0.5, equal_var=False, alternative="greater").pvalue
    high = scipy_stats.ttest_ind(one, other + 0.5, equal_var=False, alternative="less").pvalue
    assert text is not None
    assert f"p = {max(low, high):.3f}" in text


def test_a_scored_page_never_calls_points_nats(tmp_path: Path) -> None:
    found = view(tmp_path, SPREAD)
    rendered = page.render_all(found, page.sections())
    html = page.render(found, [item for item in rendered if not item.block.nats])
    assert "points" in html
    assert "nats" not in html.replace("margin_nats", "")


def test_units_turn_words_cells_and_columns() -> None:
    scored = SimpleNamespace(setting=lambda *keys, default=None: "accuracy")
    plain = SimpleNamespace(setting=lambda *keys, default=None: "")
    table = grid("t", "loss, nats", frame(("loss_nats",), [{"loss_nats": 1.0}]),
                 [Column("loss_nats", "loss, nats")])  # fmt: skip
    block = Block(parts=(table, Prose("0.1 nats a token of report loss")))
    turned = units.block_in_unit(scored, block)  # type: ignore[arg-type]
    assert turned.parts[1] == Prose("0.1 points of error of report error")
    assert turned.tables[0].columns[0].title == "error, points"
    assert list(turned.tables[0].frame.columns) == ["loss_points", "missing"]
    assert units.block_in_unit(plain, block) is block  # type: ignore[arg-type]
    kept = Block(parts=block.parts, nats=True)
    assert units.block_in_unit(scored, kept) is kept  # type: ignore[arg-type]
