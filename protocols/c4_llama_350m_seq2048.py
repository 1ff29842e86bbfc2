"""LLaMA-350M on C4 with sequences of 2,048 tokens."""

from dataclasses import replace

from levelfield.bench.spec import Budget, Engine, Model, Protocol
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_350m_seq2048",
    summary="LLaMA-350M on English C4, packed rows of 2,048 tokens, 64 rows a step (131,072 "
    "tokens), 60,000 steps",
    note="FOAM names this length and no batch or horizon: tokens a step are held at 131,072, "
    "and documents are packed, since most are shorter than a row. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=1024, layers=24, heads=16, intermediate=2736, vocabulary=32_000, positions=2048
    ),
    data=replace(_c4.data(33_000_000), sequence=2048, batch=64, packing=True),
    budget=Budget(steps=60_000, trials=8, studies=1, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=16, activation_checkpointing=True, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
)
