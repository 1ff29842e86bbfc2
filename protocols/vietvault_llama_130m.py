"""LLaMA-130M on VietVault, as AdaFRUGAL trains it: the English recipe on Vietnamese text."""

from dataclasses import replace

from levelfield.bench.spec import Budget, Engine, Model, Protocol
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="vietvault_llama_130m",
    summary="LLaMA-130M on Vietnamese web text: 20,000 steps x 131,072 tokens, one study of 8 "
    "trials",
    note="The set is behind an agreement: log in to the hub with an account that accepted it, or "
    "name an open one with --set data.source=hf:nampdn-ai/mini-vncc?limit=700000. T5's vocabulary "
    "lacks most Vietnamese letters, so a byte-level BPE of 32,000 is trained on the train slice; "
    "the paper tells neither tokenizer nor steps. Run it with --tuned-from a run of "
    "c4_llama_130m: does nothing need to be tuned again? " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=32_000, positions=1024
    ),
    data=replace(
        _c4.data(11_200_000),
        source="hf:nampdn-ai/vietvault?limit=11200000",
        tokenizer="bpe:32000",
    ),
    budget=Budget(steps=20_000, trials=8, studies=1, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=8, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=("adamw", "adamw_split", "frugal", "adafrugal_rho", "adafrugal_t", "adafrugal"),
    files=("data.source=file:viwiki/viwiki-sample.jsonl.gz", "data.tokenizer=bpe:8000"),
)
