"""LLaMA-3B on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Tuner
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_3b",
    summary="LLaMA-3B on English C4: 120,000 steps x 131,072 tokens, the default point alone a "
    "method",
    note="Its horizon is not established by any paper: 120,000 steps, as a straight line "
    "between 1B and 7B would have it. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=2560, layers=32, heads=32, intermediate=6848, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(67_584_000),
    budget=Budget(steps=120_000, trials=1, studies=1, seeds=1, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=Tuner(reserve=0),
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=64, activation_checkpointing=True, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
)
