"""Printed memory figures, and the law of the saving: recomputed from the specs' claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from levelfield.bench import growth, published
from levelfield.bench.published import Recomputed

ROOT = Path(__file__).parent.parent
FOUND = published.check()


def named(item: Recomputed) -> str:
    return f"{item.cell.line}-{item.cell.method}-{item.cell.size}"


@pytest.mark.parametrize("item", FOUND, ids=named)
def test_a_cell_comes_out_or_says_why_not(item: Recomputed) -> None:
    decimals = len(item.cell.printed.partition(".")[2])
    if item.reproduced:
        assert f"{item.recomputed:.{decimals}f}" == item.cell.printed
    else:
        assert f"{item.recomputed:.{decimals}f}" != item.cell.printed
        assert item.cell.cause


@pytest.mark.parametrize(
    ("line", "methods", "cells"),
    [
        ("FRUGAL", ("AdamW", "FRUGAL, ρ = 0.25", "FRUGAL, ρ = 0"), 12),
        ("FOAM", ("FOAM, level 2", "FOAM-Mini, one fold a row"), 4),
        ("AdaFRUGAL", ("dynamic ρ at its start", "dynamic ρ at its end"), 2),
    ],
)
def test_the_papers_this_grew_from_come_out(
    line: str, methods: tuple[str, ...], cells: int
) -> None:
    found = [i for i in FOUND if i.cell.line == line and i.cell.method in methods]
    assert len(found) == cells
    assert all(item.reproduced for item in found)


def test_counts_by_hand() -> None:
    """LLaMA 130M: 12 layers of width 768 and 2048, vocabulary 32,000, two tables."""
    linear = 12 * (4 * 768**2 + 3 * 768 * 2048)
    rest = 2 * 32_000 * 768 + 25 * 768
    cell = next(c for c in published.CELLS if c.spec == "adamw" and c.size == "130m")
    assert published.state_bytes(cell) == 8 * (linear + rest)
    assert published.state_bytes(cell, published.MATRICES) == 8 * linear
    params = published.infos("130m", "bfloat16")
    assert sum(info.nbytes for info in params) == 2 * (linear + rest)


def test_the_law_is_c_l_h_squared() -> None:
    hidden = [96, 192, 384, 768, 1536]
    saved = [growth.saved_bytes(growth.linear_weights(h, 12), "float32") for h in hidden]
    assert growth.slope(hidden, saved) == pytest.approx(2.0, abs=1e-12)
    sizes = growth.savings()
    assert growth.slope([s.hidden for s in sizes], [s.bytes for s in sizes]) == pytest.approx(
        2.65, abs=0.005
    )
    assert all(abs(s.law - 1) < 0.0055 for s in sizes)
    assert growth.coefficient() == 2 * 4 * 0.25 * 12
    assert sizes[-1].linear == 6_476_005_376


def test_more_than_one_chain_gives_the_papers_figure() -> None:
    found = growth.chains()
    assert sum(item.gives_the_figure for item in found) >= 2
    direct = {item.words: item.gigabytes for item in found if "0.25 to 0" in item.words}
    assert direct["direct count, rho 0.25 to 0, bf16, GB"] == pytest.approx(6.476, abs=1e-3)
    assert direct["direct count, rho 0.25 to 0, fp32, GB"] == pytest.approx(12.952, abs=1e-3)


def test_the_document_is_what_the_specs_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "memory_claims.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
