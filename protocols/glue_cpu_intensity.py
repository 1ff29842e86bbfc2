"""STS-B's regression made small: how positive a sentence is."""

from levelfield.bench.spec import Data, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="glue_cpu_intensity",
    summary="how positive a sentence of a film review is: MiniLM, 64 steps x 8 examples, by "
    "Pearson's correlation; 4 trials and 3 final seeds a method",
    note=_twin.NOTE + " One sentence with its mean rating by 20 people, -4 to 4: a regression like "
    "STS-B, and not STS-B, whose pairs of sentences no package brings.",
    task=Task(kind="regression", metric="pearson"),
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
