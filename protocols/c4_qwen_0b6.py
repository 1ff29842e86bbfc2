"""Qwen3-0.6B's architecture on C4, from fresh weights."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_qwen_0b6",
    summary="the shape of Qwen3-0.6B (grouped queries, tied head) on English C4: 60,000 steps x "
    "131,072 tokens, one study of 4 trials",
    note="FOAM's tables have a Qwen variant; its horizon is not established: LLaMA-350M's is "
    "taken. "
    "The tokenizer is T5's, as for every C4 protocol here, in a table of 32,000 rows. "
    + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        family="qwen3",
        hidden=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        intermediate=3072,
        vocabulary=32_000,
        positions=1024,
        tied=True,
    ),
    data=_c4.data(33_800_000),
    budget=Budget(steps=60_000, trials=4, studies=1, seeds=1, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=32, activation_checkpointing=True, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
)
