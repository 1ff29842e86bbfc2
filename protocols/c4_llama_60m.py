"""LLaMA-60M on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Published
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_60m",
    summary="LLaMA-60M on English C4: 10,000 steps x 131,072 tokens, three studies of 8 trials a "
    "method",
    note="The smallest size of the published tables. " + _c4.DEVIATIONS,
    ranked=True,
    model=Model(
        hidden=512, layers=8, heads=8, intermediate=1376, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(5_632_000),
    budget=Budget(steps=10_000, trials=8, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=4, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
    published=(
        Published(method="adamw", value=34.06, unit="perplexity", source="GaLore, Table 2"),
        Published(method="galore", value=34.88, unit="perplexity", source="GaLore, Table 2"),
        Published(method="foam", value=28.53, unit="perplexity", source="FOAM"),
    ),
)
