"""LLaMA-1B on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Published
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_1b",
    summary="LLaMA-1B on English C4: 100,000 steps x 131,072 tokens, one study of 4 trials a "
    "method",
    note="The config has 24 layers of 32 heads (1.34 billion parameters), where a table of "
    "the paper prints 32 of 24. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=2048, layers=24, heads=32, intermediate=5461, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(56_320_000),
    budget=Budget(steps=100_000, trials=4, studies=1, seeds=1, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=32, activation_checkpointing=True, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
    published=(
        Published(method="adamw", value=15.56, unit="perplexity", source="GaLore, Table 2"),
        Published(method="galore", value=15.64, unit="perplexity", source="GaLore, Table 2"),
        Published(method="foam", value=13.13, unit="perplexity", source="FOAM"),
    ),
)
