"""The papers' pre-training protocols: sizes, schedules, plans without a GPU or data, real steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from levelfield.bench import plan, study
from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.schedules import lr_factor
from levelfield.bench.settings import apply_settings
from levelfield.bench.spec import Protocol
from levelfield.bench.train import run_trial
from levelfield.tests import local_data, small

MILLIONS = {
    "c4_llama_60m": 58.07,
    "c4_llama_130m": 134.11,
    "c4_llama_350m": 367.97,
    "c4_llama_1b": 1339.08,
    "c4_llama_3b": 2685.8,
    "c4_llama_7b": 6738.42,
    "c4_llama_350m_seq1024": 367.97,
    "c4_llama_350m_seq2048": 367.97,
    "c4_llama_130m_cyclic": 134.11,
    "vietvault_llama_130m": 134.11,
    "c4_gpt2_124m": 124.48,
    "c4_qwen_0b6": 473.24,
}
"""Published where a paper says; GPT-2's 124.44 million and 47 rows more; Qwen3-0.6B's 440.47
million without its table of 151,936 rows, and one of 32,000."""


def protocol(name: str) -> Protocol:
    return PROTOCOLS.load(name).value


@pytest.mark.parametrize("name", MILLIONS)
def test_every_size_has_its_published_parameters(name: str) -> None:
    """Counted from shapes; neither data nor a tokenizer is needed."""
    count = plan.count_parameters(protocol(name))
    assert count / 1e6 == pytest.approx(MILLIONS[name], abs=0.06 if name == "c4_llama_3b" else 0.01)


@pytest.mark.parametrize("name", [name for name in MILLIONS if "seq1024" not in name])
def test_a_step_has_as_many_tokens_as_in_the_papers(name: str) -> None:
    assert protocol(name).tokens_per_step == 131_072


def test_apollo_s_long_sequences_keep_their_batch() -> None:
    assert protocol("c4-llama-350m-seq1024").tokens_per_step == 512 * 1024


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("c4_llama_60m", 1.31e9), ("c4_llama_130m", 2.62e9), ("c4_llama_350m", 7.86e9),
     ("c4_llama_1b", 13.1e9), ("c4_llama_7b", 19.7e9)],
)  # fmt: skip
def test_horizons_are_those_of_the_papers(name: str, tokens: float) -> None:
    found = protocol(name)
    assert found.budget.steps * found.tokens_per_step == pytest.approx(tokens, rel=0.005)
    assert found.warmup_steps == found.budget.steps // 10


def test_the_cyclic_schedule_begins_again() -> None:
    found = protocol("c4_llama_130m_cyclic")
    total, cycle = found.budget.steps, 20_000
    for start in range(0, total, cycle):
        assert lr_factor(found.schedule, start, total) == 1 / 2_000
        assert lr_factor(found.schedule, start + 1_999, total) == 1.0
        assert lr_factor(found.schedule, start + cycle - 1, total) == pytest.approx(0.1)


def test_cycles_that_do_not_divide_the_horizon_end_at_the_floor() -> None:
    schedule = replace(protocol("c4_llama_130m_cyclic").schedule, cycles=3)
    factors = [lr_factor(schedule, step, 100) for step in range(100)]
    assert [step for step, factor in enumerate(factors) if factor == pytest.approx(0.1)][-1] == 99
    assert sum(factor == 1.0 for factor in factors) >= 3


def test_the_largest_is_planned_without_gpu_data_or_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = protocol("c4-llama-7b")
    methods = study.load_methods(["adamw", "foam"])
    told = plan.plan(found, methods, seed=0, final_seeds=1, slots=1, device="cuda")
    adamw, foam = told["methods"]
    assert told["tokens_a_trial"] == 150_000 * 131_072
    assert told["parameters"] == 6_738_415_616
    assert adamw["state_bytes"] == 2 * 2 * 6_738_415_616
    assert adamw["flops"] == 6.0 * told["parameters"] * adamw["tokens"]
    # What a data sheet's rate at 40 % makes of it.
    assert adamw["assumed_device_h"]["H100"] == pytest.approx(
        adamw["flops"] / (0.4 * 989e12) / 3600
    )
    # bf16 weights, gradients and two moments, and activations on top.
    assert adamw["peak_bytes"] > 4 * 2 * told["parameters"]
    assert foam["peak_bytes"] < adamw["peak_bytes"]
    lines = plan.lines(told)
    assert any("adamw" in line and "25.1" in line for line in lines)


def test_the_papers_evaluation_is_printed_beside_ours(tmp_path: Path) -> None:
    from levelfield.reports import view as views
    from levelfield.reports.sections import published

    run = small.run(
        tmp_path,
        ["adamw"],
        apply_settings(small.PROTOCOL, ["evaluation.legacy_batch=64", "budget.seeds=1"]),
    )
    view = views.build(run)
    block = published.render(view)
    assert block is not None
    (row,) = block.tables[0].frame.to_dict("records")
    (method,) = view.methods
    (loss,) = method.losses.values()
    length = small.PROTOCOL.data.sequence
    rows = (run.manifest["data"]["tokens"]["report"] - 1) // length
    n = math.ceil(rows / 64)
    assert row["perplexity"] == pytest.approx(math.exp(loss))
    assert row["legacy_perplexity"] == pytest.approx(math.exp(loss * n / (n + 1)))


@pytest.mark.slow
@local_data.needed
def test_twenty_real_steps_of_the_60m_on_real_c4() -> None:
    """The true model, 2,048 tokens a step in four parts, on the local file, with its own BPE."""
    found = protocol("c4-llama-60m")
    asked = apply_settings(
        found,
        [
            *found.files,
            *("precision=fp32", "data.batch=8", "engine.accumulation=4", "budget.steps=20"),
            *("evaluation.every=20", "evaluation.sequences=4", "threads=2"),
        ],
    )
    record = run_trial(small.request("adamw", asked), lambda progress: None)
    assert (record.status, record.reason) == ("ok", None)
    assert record.parameters == 58_073_600
    assert (record.steps, record.tokens) == (20, 20 * 2_048)
    assert record.initial_loss == pytest.approx(math.log(32_000), abs=0.3)
    assert record.selection_loss is not None
    assert record.selection_loss < record.initial_loss - 1.0
    assert record.lr_trace[0][1] == 0.5
    assert record.lr_trace[-1][1] == pytest.approx(0.1)
