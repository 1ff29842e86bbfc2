"""LLaMA-350M on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Published
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_350m",
    summary="LLaMA-350M on English C4: 60,000 steps x 131,072 tokens, one study of 8 trials a "
    "method",
    note="At this cost one study is what most can pay: nothing is ranked beyond its "
    "hyper-parameters. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=1024, layers=24, heads=16, intermediate=2736, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(33_792_000),
    budget=Budget(steps=60_000, trials=8, studies=1, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=16, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
    published=(
        Published(method="adamw", value=18.8, unit="perplexity", source="GaLore, Table 2"),
        Published(method="galore", value=18.95, unit="perplexity", source="GaLore, Table 2"),
        Published(method="foam", value=15.87, unit="perplexity", source="FOAM"),
    ),
)
