"""SST-2 made small: sentences of film reviews, for or against."""

from levelfield.bench.spec import Data, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="glue_cpu_sentiment",
    summary="is a sentence of a film review positive: MiniLM, 64 steps x 8 examples, by accuracy; "
    "4 trials and 3 final seeds a method",
    note=_twin.NOTE + " The sentences are from the source that SST was made of, with the mean "
    "rating of 20 people; those rated within 0.5 of neutral are left out. A logistic regression on "
    "the frozen encoder reaches 73.6 %.",
    task=Task(kind="classification", metric="accuracy"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:vader",
        tokenizer="model",
        sequence=64,
        batch=8,
        examples=_twin.EXAMPLES,
        heldout_examples=_twin.HELDOUT,
    ),
    budget=_twin.BUDGET,
    schedule=_twin.SCHEDULE,
    fallback=_twin.FALLBACK,
    tuner=_twin.TUNER,
    evaluation=_twin.EVALUATION,
    timing=_twin.TIMING,
    claims="adamw",
    margin_nats=_twin.MARGIN,
    methods=_twin.METHODS,
)
