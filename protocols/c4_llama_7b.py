"""LLaMA-7B on C4 as the GaLore family trains it."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol, Tuner
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_7b",
    summary="LLaMA-7B on English C4: 150,000 steps x 131,072 tokens, the default point alone a "
    "method",
    note="The papers ran a single trial, with the gradient norm bounded by 1: so does this "
    "protocol, at every method's defaults. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=4096, layers=32, heads=32, intermediate=11008, vocabulary=32_000, positions=2048
    ),
    data=_c4.data(84_480_000),
    budget=Budget(steps=150_000, trials=1, studies=1, seeds=1, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=Tuner(reserve=0),
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=128, activation_checkpointing=True, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=1.0,
    methods=_c4.METHODS,
    files=_c4.FILES,
)
