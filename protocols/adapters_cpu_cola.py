"""Adapters against each other on CoLA: one budget of rank, one of tuning."""

from levelfield.bench.spec import Budget, Data, Protocol, Task
from levelfield.protocols import _adapters, _twin

PROTOCOL = Protocol(
    name="adapters_cpu_cola",
    summary="is an English sentence acceptable (CoLA): full fine-tuning and adapters of two ranks "
    "a module on MiniLM, 128 steps x 16 of 1,024 sentences, by Matthews correlation; 4 trials, 5 "
    "final seeds a method",
    note=_adapters.NOTE
    + " This encoder was trained to compare sentences: a logistic regression on "
    "any of its layers stays below a correlation of 0.12 with as many sentences, so expect little. "
    "With --files it reads CoLA from $LEVELFIELD_DATA.",
    task=Task(kind="classification", metric="matthews"),
    model=_twin.MODEL,
    data=Data(
        source="hf:nyu-mll/glue?config=cola&split=train&layout=cola",
        heldout="hf:nyu-mll/glue?config=cola&split=validation&layout=cola",
        tokenizer="model",
        sequence=48,
        batch=16,
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
    files=(
        "data.source=file:cola/in_domain_train.tsv?layout=cola",
        "data.heldout=file:cola/in_domain_dev.tsv?layout=cola"
        "+file:cola/out_of_domain_dev.tsv?layout=cola",
    ),
)
