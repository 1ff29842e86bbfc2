"""LLaMA-130M on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Published
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_130m",
    summary="LLaMA-130M on English C4: 20,000 steps x 131,072 tokens, three studies of 8 trials "
    "a method",
    note="The size that most papers' ablations use. " + _c4.DEVIATIONS,
    ranked=True,
    model=Model(
        hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(11_264_000),
    budget=Budget(steps=20_000, trials=8, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=8, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
    published=(
        Published(method="adamw", value=25.08, unit="perplexity", source="GaLore, Table 2"),
        Published(method="galore", value=25.36, unit="perplexity", source="GaLore, Table 2"),
        Published(method="foam", value=22.51, unit="perplexity", source="FOAM"),
    ),
)
