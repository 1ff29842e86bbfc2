"""Every adapter on a tiny BERT and a tiny LLaMA: whatever its record claims is measured."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from levelfield.bench import models
from levelfield.bench.build import adapt, inner_hparams, trained_by
from levelfield.bench.check import run_checks
from levelfield.bench.meter import state_bytes
from levelfield.bench.reference import load_spec
from levelfield.bench.registry import OPTIMIZERS, whole_model
from levelfield.bench.spec import BenchError
from levelfield.bench.study import check_adapters, load_method, method_digest
from levelfield.optimizers._adapter import find_targets, is_adapter
from levelfield.optimizers._adapter_clock import moments_factor
from levelfield.optimizers._adapter_export import as_lora, export, merged, updates
from levelfield.protocols._adapters import METHODS
from levelfield.tests import adapter_cases as cases
from levelfield.tests import small

over_names = pytest.mark.parametrize("name", cases.NAMES)
over_models = pytest.mark.parametrize("causal", [False, True], ids=["bert", "llama"])
MODES = ("adapad(mode=exact)", "adapad(mode=prefix)", "increlora(live_scale=false)")


def test_these_are_the_adapters() -> None:
    listed = {"lora", "rslora", "adalora", "increlora", "sora", "adapad", "debora", "ard_lora"}
    assert set(cases.NAMES) == listed
    whole = whole_model(OPTIMIZERS.entries())
    assert not listed & set(whole)
    assert {"adamw", "muon", "foam"} <= set(whole)
    for name in whole:
        assert load_spec(name).value.adapter is None


# --- promises ---------------------------------------------------------------------------------


@over_models
@pytest.mark.parametrize("name", [*cases.NAMES, *MODES])
def test_the_body_stays_and_the_rest_learns(name: str, causal: bool) -> None:
    case = cases.start(name, causal=causal)
    trained = {id(param.tensor) for param in case.params}
    frozen = {n: p for n, p in case.model.named_parameters() if id(p) not in trained}
    before = {n: p.detach().clone() for n, p in frozen.items()}
    adapter = [p for p in case.params if is_adapter(p.info.name)]
    assert len(adapter) >= 2 * len(find_targets(cases.llama() if causal else cases.bert(), ALL))
    head = [value.clone() for value in case.head()]
    assert bool(head) is not causal  # a causal model's head stays as it is
    start, weights = case.held_out(), case.weights()
    case.take(cases.STEPS)
    assert all(torch.isfinite(param.tensor).all() for param in case.params)
    assert all(torch.equal(before[n], p) for n, p in frozen.items())
    assert all(not torch.equal(a, b) for a, b in zip(head, case.head(), strict=True))
    moved = [not torch.equal(a, p.tensor) for a, p in zip(weights, case.params, strict=True)]
    assert sum(moved) > len(moved) / 2
    if not causal:  # whose tokens are random
        assert case.held_out() < start


ALL = "all-linear"


@over_models
@over_names
def test_nothing_changes_before_the_first_step(name: str, causal: bool) -> None:
    plain = (cases.llama() if causal else cases.bert()).eval()
    case = cases.start(name, causal=causal)
    with torch.no_grad():
        expected = plain(input_ids=cases.tokens(0)).logits
        seen = case.model(input_ids=cases.tokens(0)).logits
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-6)


@over_names
def test_two_runs_are_equal_and_another_seed_is_not(name: str) -> None:
    one, again, other = (cases.start(name, seed=seed) for seed in (1, 1, 2))
    assert one.take(12) == again.take(12)
    assert cases.same_bits(one.weights(), again.weights())
    assert one.take(2) != other.take(2)


@pytest.mark.parametrize("name", [*cases.NAMES, *MODES])
def test_a_round_trip_goes_on_bit_for_bit(name: str) -> None:
    """Across growth, pruning and hardening: saved at every step but the last few."""
    straight = cases.start(name, steps=24)
    saved, after = {}, []
    for step in range(24):
        saved[step] = (straight.weights(), copy.deepcopy(straight.stepper.state_dict()))
        straight.take(1)
        after.append(straight.weights())
    for step in (0, 1, 4, 9, 11, 12, 18, 19):
        resumed = cases.start(name, steps=24)
        weights, state = saved[step]
        with torch.no_grad():
            for param, value in zip(resumed.params, weights, strict=True):
                param.tensor.copy_(value)
        resumed.stepper.load_state_dict(state)
        resumed.step = step
        resumed.take(min(2, 24 - step))
        assert cases.same_bits(resumed.weights(), after[min(step + 1, 23)]), step
    assert straight.told["deployed_parameters"] > 0


@over_models
@pytest.mark.parametrize("name", [*cases.NAMES, "lora(inner=muon)", "adapad(inner=lion)"])
def test_state_is_what_is_claimed(name: str, causal: bool) -> None:
    case = cases.start(name, causal=causal)
    for step in (cases.STEPS // 4, cases.STEPS):
        case.take(step - case.step)
        assert state_bytes(case.stepper.optimizers) == case.claimed(step / cases.STEPS)
    assert case.claimed(1.0) > 0


@pytest.mark.parametrize("name", [*cases.NAMES, *MODES])
def test_what_is_evaluated_is_what_is_deployed_and_free_of_penalties(name: str) -> None:
    case = cases.start(name)
    losses = case.take(3)
    with torch.no_grad():  # the loss that a step tells is the task's alone
        told = float(case.loss(case.model, 3))
    if "=" not in name:  # else of a prefix
        assert case.take(1)[0] == pytest.approx(told, rel=1e-5)
    case.take(8)
    assert all(loss < 5.0 for loss in losses)
    with case.stepper.evaluating(), torch.no_grad():
        seen = float(case.loss(case.model, -1))
        plain = merged(case.model)
        count = sum(len(update.down) for update in updates(case.model).values())
    with torch.no_grad():
        assert float(case.loss(plain, -1)) == pytest.approx(seen, rel=1e-5)
    assert not any(is_adapter(n) for n, _ in plain.named_parameters())
    ranks = case.told["ranks"].values()
    if not name.startswith(("adalora", "ard_lora")):  # not pruned or hardened yet
        assert sum(ranks) == count


@over_names
def test_the_head_has_a_rate_of_its_own(name: str) -> None:
    case = cases.start(name, embed_multiplier=0.0)
    matrices = [p.tensor for p in case.params if p.info.role == "head"]
    assert len(matrices) == 1
    before = matrices[0].detach().clone()
    case.take(3)
    assert torch.equal(before, matrices[0])
    assert any(not torch.equal(torch.zeros_like(p), p) for p in case.head() if p.ndim == 1)


# --- what the record holds --------------------------------------------------------------------


@over_names
def test_a_trial_tells_of_its_adapter(name: str) -> None:
    spec = load_spec(name).value
    protocol = small.changed(steps=30)
    record = small.train(name, protocol, **{spec.scale: 5e-3})
    assert record.status in ("ok", "undertrained"), record.reason
    assert record.passes == record.steps == 30
    assert record.claimed_state_bytes == record.state_bytes
    held = record.adapter
    assert set(held) >= {"trained_parameters", "deployed_parameters", "ranks", "budget", "cap"}
    assert held["head_parameters"] == 0
    assert len(held["ranks"]) == 7
    assert all(name.split(".")[-1].endswith("_proj") for name in held["ranks"])
    assert 0 < held["deployed_parameters"] <= held["trained_parameters"]
    assert (record.refreshes is None) == (spec.refreshes is None)
    assert all(0 <= rank <= held["cap"] for rank in held["ranks"].values())


@pytest.mark.parametrize(
    "name", ["increlora", "adapad", "adapad(mode=exact)", "ard_lora", "adalora"]
)
def test_the_budget_is_met_and_never_exceeded(name: str) -> None:
    case = cases.start(name, steps=60)
    seen = []
    for _ in range(60):
        case.take(1)
        seen.append(sum(case.told["ranks"].values()))
    assert seen[-1] == case.told["budget"] == 24
    if name != "adalora" and name != "ard_lora":  # from above, or in between
        assert max(seen) == 24
        assert seen[0] == 12
        assert seen == sorted(seen)
    series = case.stepper.optimizers[-1].series["total_rank"]  # type: ignore[attr-defined]
    assert series[-1][1] == 24


def test_adapters_that_are_compared_have_one_budget_and_one_head() -> None:
    told = {name: cases.start(name).told for name in METHODS if name != "adamw"}
    assert len(told) == len(METHODS) - 1
    assert {name: found["budget"] for name, found in told.items()} == dict.fromkeys(told, 24)
    assert len({found["head_parameters"] for found in told.values()}) == 1


@pytest.mark.parametrize("name", ["adapad", "adapad(mode=exact)", "increlora"])
def test_trained_is_the_most_that_moves_in_one_step(name: str) -> None:
    case = cases.start(name, steps=60, interval=0.1, share=0.2)
    params = [p.tensor for p in case.params if is_adapter(p.info.name)]
    most = 0
    while case.rule.plain["grows"]:
        before = [param.detach().clone() for param in params]
        case.take(1)
        moved = [int((a != b).sum()) for a, b in zip(before, params, strict=True)]
        most = max(most, sum(moved))
    assert case.told["trained_parameters"] == most > case.told["deployed_parameters"]


# --- counts -----------------------------------------------------------------------------------


def meta_model(kind: str) -> nn.Module:
    from levelfield.bench.quiet import quiet_imports

    with quiet_imports():
        import transformers as t
    with torch.device("meta"):
        if kind == "deberta":
            config: Any = t.DebertaV2Config(
                vocab_size=128100,
                hidden_size=768,
                num_hidden_layers=12,
                num_attention_heads=12,
                intermediate_size=3072,
                relative_attention=True,
                pos_att_type=["p2c", "c2p"],
                position_buckets=256,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                type_vocab_size=0,
            )
            model: nn.Module = t.DebertaV2ForSequenceClassification(config)
        elif kind == "roberta":
            config = t.RobertaConfig(vocab_size=50265, max_position_embeddings=514)
            model = t.RobertaForSequenceClassification(config)
        else:
            config = t.Qwen3Config(
                vocab_size=1000,
                hidden_size=1024,
                intermediate_size=3072,
                num_hidden_layers=28,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=128,
            )
            model = t.Qwen3ForCausalLM(config)
    return model


@pytest.mark.parametrize(
    ("kind", "target", "modules", "unit"),
    [
        ("deberta", ALL, 72, 165_888),
        ("deberta", "query_proj,value_proj", 24, 36_864),
        ("roberta", ALL, 72, 165_888),
        ("roberta", "query,value", 24, 36_864),
        ("qwen3", ALL, 196, 630_784),
    ],
)
def test_a_rank_unit_costs_what_the_papers_count(
    kind: str, target: str, modules: int, unit: int
) -> None:
    found = find_targets(meta_model(kind), target)
    assert len(found) == modules
    assert sum(m.in_features + m.out_features for m in found.values()) == unit


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("lora", 8 * 165_888),
        ("lora(rank=2)", 2 * 165_888),
        ("adalora", 3 * (165_888 + 72)),
        ("sora", 8 * (165_888 + 72)),
    ],
)
def test_parameters_on_deberta_v3_base(name: str, elements: int) -> None:
    spec = load_spec(name).value
    protocol = cases.start("lora").protocol
    with torch.device("meta"):
        model = adapt(spec, protocol, meta_model("deberta"), spec.defaults(), 0)
    found = models.parameters(model)
    assert sum(p.info.numel for p in found if is_adapter(p.info.name)) == elements
    head = {p.info.name: p.info.role for p in found if not is_adapter(p.info.name)}
    assert head == {
        "pooler.dense.weight": "head",
        "pooler.dense.bias": "vector",
        "classifier.weight": "head",
        "classifier.bias": "vector",
    }


def test_lora_of_rank_eight_is_the_papers_size() -> None:
    assert 8 * 165_888 == 1_327_104  # "1.327M"


# --- merging and export -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*cases.NAMES, "adapad(mode=exact)"])
def test_exported_it_is_a_plain_lora_that_peft_loads(name: str, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftConfig, PeftModel

    warnings.simplefilter("ignore")  # of peft on transformers
    changes = {"sparsity": 4.0} if name == "sora" else {}  # so that gates close
    case = cases.start(name, **changes)
    case.take(cases.STEPS)
    with case.stepper.evaluating(), torch.no_grad():
        expected = case.model(input_ids=cases.tokens(-1)).logits
        inside = as_lora(case.model)
        export(case.model, tmp_path)
    before = cases.bert().eval()
    loaded = PeftModel.from_pretrained(before, str(tmp_path)).eval()
    with torch.no_grad():
        for model in (inside.eval(), loaded):
            torch.testing.assert_close(
                model(input_ids=cases.tokens(-1)).logits, expected, rtol=1e-4, atol=1e-5
            )
    config = PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(config, LoraConfig)
    kept = {name: rank for name, rank in case.told["ranks"].items() if rank}
    assert config.rank_pattern == config.alpha_pattern == kept
    if name in ("adapad", "increlora", "sora", "adalora"):
        assert len(set(case.told["ranks"].values())) > 1  # or the pattern would prove little


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("adapad(signal=loss)", "accepted: both, importance"),
        ("increlora(inner=sophia)", "increlora acts between gradient and update"),
        ("adapad(budget=3)", "below one rank a module"),
        ("lora(alpha=0)", "alpha=0"),
    ],
)
def test_a_run_refuses_an_adapter_before_it_trains(reference: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        check_adapters(small.changed(steps=30), [load_method(reference)])


def test_kept_weights_come_with_the_adapter_alone(tmp_path: Path) -> None:
    """Merged for whoever wants one model, and as what peft loads beside the weights before it."""
    from peft import PeftModel

    from levelfield.bench import final_weights, tasks

    warnings.simplefilter("ignore")  # of peft on transformers
    case = cases.start("adapad", causal=True)
    case.take(cases.STEPS)
    request = small.request("adapad", small.changed(steps=30))
    task = tasks.open_task(request.protocol, "cpu")
    with case.stepper.evaluating(), torch.no_grad():
        final_weights.save(tmp_path, request, case.model, case.model.state_dict(), task)
        expected = case.model(input_ids=cases.tokens(-1)).logits
    folder = final_weights.folder_of(tmp_path, request)
    base = cases.llama().eval()
    kept = PeftModel.from_pretrained(base, str(folder / final_weights.ADAPTER)).eval()
    with torch.no_grad():
        seen = kept(input_ids=cases.tokens(-1)).logits
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
    assert (folder / "model.safetensors").is_file()


# --- another method under it ------------------------------------------------------------------


def test_another_method_trains_the_adapter() -> None:
    loaded = load_spec("lora(inner=muon,rank=4)")
    spec, muon = loaded.value, load_spec("muon").value
    assert (spec.name, spec.inner) == ("lora(inner=muon,rank=4)", "muon")
    assert spec.space[spec.scale] == muon.space[muon.scale]
    assert set(spec.space) == {muon.scale, "embed_multiplier"}
    assert load_spec(loaded.entry.reference).value.name == spec.name
    case = cases.start(spec.name)
    assert [type(o).__name__ for o in case.stepper.optimizers] == ["Muon", "AdamW"]
    start = case.held_out()
    case.take(cases.STEPS, scale=0.2)
    assert case.held_out() < start
    assert case.told["cap"] == 4
    # What a run is the result of includes the method under it.
    digests = {method_digest(load_spec(f"lora(inner={inner})")) for inner in ("muon", "lion")}
    assert len({*digests, method_digest(load_spec("lora"))}) == 3


@pytest.mark.parametrize(
    ("reference", "name", "value"),
    [
        ("lora(inner=foam)", "alpha", 0.25),  # and not 8, LoRA's own
        ("adapad(inner=apollo_mini)", "rank", 1),
        ("adapad(inner=apollo)", "growth", 1.01),
        ("lora(inner=foam,alpha=4)", "alpha", 0.25),
        ("lora(inner=foam(alpha=0.5))", "alpha", 0.5),
        ("lora", "weight_decay", 0.0),
        ("adapad", "eps", 1e-12),
        ("lora(weight_decay=0.2)", "weight_decay", 0.2),
        ("sora(inner=lion)", "weight_decay", 0.1),
        ("lora(inner=adamw(weight_decay=0.1))", "weight_decay", 0.1),
        ("adapad(inner=adamw(eps=1e-8))", "eps", 1e-8),
        ("lora(inner=muon)", "embed_multiplier", 1.0),
    ],
)
def test_the_method_under_an_adapter_keeps_its_own_values(
    reference: str, name: str, value: float
) -> None:
    spec = load_spec(reference).value
    assert inner_hparams(trained_by(spec)[1], spec.defaults())[name] == value


def test_a_scale_that_is_no_learning_rate_takes_its_place() -> None:
    spec = load_spec("lora(inner=prodigy)").value
    assert spec.scale == "d_coef"
    assert "lr" not in spec.defaults()
    cases.start(spec.name, d_coef=1.0).take(3)


def test_a_plain_adapter_goes_with_a_method_of_its_own_stepper() -> None:
    case = cases.start("lora(inner=schedulefree_adamw)")
    start = case.held_out()
    case.take(cases.STEPS)
    assert case.held_out() < start
    assert case.told["trained_parameters"] > 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("lora(inner=rslora)", "rslora is an adapter itself"),
        ("lora(inner=muo)", "unknown optimizer 'muo'"),
        ("muon(inner=adamw)", "muon has no 'inner'"),
        ("lora(inner=muon,lr=0.1)", "is what tuning moves in"),
        ("lora(inner=deflation_parallel)", "deflation_parallel trains bilinear alone"),
        ("rslora(rank_stabilised=maybe)", "of another kind"),
    ],
)
def test_a_method_that_cannot_be_under_an_adapter_is_refused(reference: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as told:
        load_spec(reference)
    assert "\n" not in str(told.value)


def test_a_rule_needs_gradients_between_pass_and_update() -> None:
    with pytest.raises(BenchError, match="increlora acts between gradient and update"):
        cases.start("increlora(inner=sophia)")


# --- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hparams", "message"),
    [
        ("lora", {"target": "nope"}, "'nope' names no linear layer of a BertForSequence"),
        ("adapad", {"target": "query,keys"}, "'keys' names no linear layer"),
        ("lora", {"target": "+"}, "target is empty"),
        ("lora", {"rank": 0}, "rank=0"),
        ("adapad", {"budget": 3}, "budget=3 is below one rank a module"),
        ("increlora", {"budget": 11}, "accepted: 12 or more"),
        ("increlora", {"rank": 0}, "rank=0"),
        ("adapad", {"rank": "two"}, "rank='two'"),
        ("debora", {"rank": 0, "budget": 24}, "rank=0"),
        ("lora", {"alpha": 0.0}, r"alpha=0.0 \(accepted: a number above 0"),
        ("rslora", {"alpha": "big"}, "alpha='big'"),
        ("adalora", {"alpha": -1.0}, "alpha=-1.0"),
        ("lora", {"dropout": 1.0}, "dropout=1.0"),
        ("sora", {"dropout": -0.1}, "dropout=-0.1"),
        ("adapad", {"interval": 0.6}, "at most 0.5"),
        ("increlora", {"share": 0.0}, "share=0.0"),
        ("adapad", {"radius": -1.0}, "accepted: null, or a number above 0"),
        ("adapad", {"score_beta1": 1.0}, "score_beta1=1.0"),
        ("adalora", {"score_beta": 1.0}, "score_beta=1.0"),
        ("adalora", {"settle": 1.0}, "settle=1.0"),
        ("sora", {"sparsity": -1.0}, "sparsity=-1.0"),
        ("ard_lora", {"temperature": 0.0}, "temperature=0.0"),
        ("adapad", {"budget": 49}, "does not fit into 12 modules of at most 4"),
        ("adapad", {"mode": "both"}, "accepted: shared, exact, prefix"),
        ("adapad", {"signal": "loss"}, "accepted: both, importance"),
        ("adapad", {"growth": False, "budget": 13}, "unequal ranks"),
        ("adalora", {"init_rank": 2}, "init_rank=2 does not fall to rank=2"),
        ("sora", {"shrink": "hard"}, "accepted: prox, code"),
        ("debora", {"budget": 2}, "below one rank a module"),
    ],
)
def test_a_mistake_is_told_in_a_line(name: str, hparams: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message) as told:
        cases.start(name, **hparams)
    assert "\n" not in str(told.value)


def test_a_model_without_linear_layers_is_refused() -> None:
    model = models.build_model(models.ModelConfig(family="gpt2", hidden=16, layers=1), 29, 6, 0)
    with pytest.raises(BenchError, match=r"no nn\.Linear in a GPT2LMHeadModel"):
        cases.start("lora", causal=True, model=model)


def test_suffixes_choose_layers() -> None:
    found = find_targets(cases.bert(), "query+value")
    assert len(found) == 4
    assert all(name.endswith(("query", "value")) for name in found)
    names = [n.rsplit(".", 1)[-1] for n in find_targets(cases.bert(), ALL)]
    assert "pooler" not in "".join(names)  # in the body, but in none of its layers


def test_a_class_without_a_body_has_all_its_layers_adapted_but_the_head() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 9)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    assert list(find_targets(Own(), ALL)) == ["one"]


# --- a late component -------------------------------------------------------------------------


def test_a_late_component_takes_the_steps_of_a_fresh_adam() -> None:
    """Moments in a tensor whose count began earlier, corrected, are those of a fresh parameter."""
    betas, late, total = (0.9, 0.999), 37, 90
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(total, 5, generator=generator, dtype=torch.float64)
    grads[:late] = 0.0
    shared = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    fresh = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    old = torch.optim.AdamW([shared], lr=1e-2, betas=betas, eps=1e-30, weight_decay=0.0)
    new = torch.optim.AdamW([fresh], lr=1e-2, betas=betas, eps=1e-30, weight_decay=0.0)
    for step in range(total):
        before = shared.detach().clone()
        shared.grad = grads[step].clone()
        old.step()
        if step < late:
            assert torch.equal(shared, before)  # no gradient, no moments, no step
            continue
        fresh.grad = grads[step].clone()
        new.step()
        factor = moments_factor(betas, step - late + 1, step + 1)
        with torch.no_grad():
            shared.copy_(before + factor * (shared - before))
        torch.testing.assert_close(shared, fresh, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("name", "warmup"), [("adapad", 6), ("adapad(mode=exact)", 6), ("increlora", 12)]
)
def test_a_new_reserve_takes_adams_first_step_within_a_warm_up_of_its_own(
    name: str, warmup: int
) -> None:
    """Adam's first step is the rate in every entry, whatever the gradient."""
    case = cases.start(name, steps=60, interval=0.2, clip_norm=None)
    case.take(24)  # the first growth
    (grown,) = (m for m, rank in enumerate(case.rule.ranks) if rank == 2)
    layer, rate = case.rule.modules[grown], case.hparams["lr"] / warmup
    for age in (1, 2):
        reserve = layer.lora_B[:, 2].detach().clone()
        gain = None if layer.lora_E is None else float(layer.lora_E[1].detach())
        case.take(1)
        moved = (layer.lora_B[:, 2].detach() - reserve).abs()
        if age == 1:
            assert moved.tolist() == pytest.approx([rate] * len(moved), rel=0.1)
            if gain is not None:  # of the component that was committed
                assert abs(float(layer.lora_E[1].detach()) - gain) == pytest.approx(rate, rel=1e-2)
        else:
            assert 1.2 * rate < float(moved.max()) < 2.2 * rate


# --- levelfield check -------------------------------------------------------------------------


def test_check_says_what_is_not_for_adapters() -> None:
    asked = ("record", "roles", "matrix", "groups", "passes", "state bytes", "deterministic")
    found = {c.name: c for c in run_checks(load_spec("lora").value, asked)}
    outcomes = {name: found[name].outcome for name in asked}
    assert outcomes.pop("matrix") == outcomes.pop("groups") == "unsupported"
    assert set(outcomes.values()) == {"passed"}
    assert "not for adapters" in found["matrix"].reason


def test_the_passes_of_the_exact_form_are_checked() -> None:
    spec = load_spec("adapad(mode=exact,cap=2)").value
    for one, outcome in ((spec, "passed"), (replace(spec, passes=1.0), "failed")):
        found = {check.name: check for check in run_checks(one, ("passes",))}
        assert found["passes"].outcome == outcome, found["passes"].reason


@pytest.mark.slow
@over_names
def test_every_adapter_passes_every_check(name: str) -> None:
    found = list(run_checks(load_spec(name).value))
    assert [c.reason for c in found if c.outcome == "failed"] == []
