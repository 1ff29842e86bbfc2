"""Adapters against each other on film reviews: one budget of rank, one of tuning."""

from levelfield.bench.spec import Budget, Data, Protocol, Task
from levelfield.protocols import _adapters, _twin

PROTOCOL = Protocol(
    name="adapters_cpu_sentiment",
    summary="is a sentence of a film review positive: full fine-tuning and adapters of two ranks a "
    "module on MiniLM, 128 steps x 8 of 1,024 sentences, by accuracy; 4 trials and 5 final seeds a "
    "method",
    note=_adapters.NOTE,
    task=Task(kind="classification", metric="accuracy"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:vader",
        tokenizer="model",
        sequence=48,
        batch=8,
        examples=_adapters.EXAMPLES,
        heldout_examples=_adapters.HELDOUT,
    ),
    budget=Budget(steps=128, trials=4, studies=1, seeds=5, trial_timeout_s=1800.0),
    schedule=_twin.SCHEDULE,
    fallback=_twin.FALLBACK,
    tuner=_twin.TUNER,
    evaluation=_adapters.evaluation(128),
    timing=_twin.TIMING,
    claims="adamw",
    margin_nats=_twin.MARGIN,
    methods=_adapters.METHODS,
)
