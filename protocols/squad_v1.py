"""SQuAD 1.1 by spans, as AdaPaD's comparison with fixed-rank LoRA has it."""

from levelfield.bench.spec import Budget, Data, Evaluation, Protocol, Task
from levelfield.protocols import _squad

PROTOCOL = Protocol(
    name="squad_v1",
    summary="SQuAD 1.1: where in a paragraph a question's answer is: Qwen3-0.6B, 2 epochs (11,000 "
    "steps x 16 windows of 384 tokens), by F1; 6 trials and 5 final seeds a method",
    note=_squad.NOTE
    + " --files takes the English XQuAD, 1,190 questions of the development set, for all slices.",
    task=Task(kind="extractive_qa", metric="f1"),
    model=_squad.MODEL,
    data=Data(
        source="hf:rajpurkar/squad?split=train&layout=squad",
        heldout="hf:rajpurkar/squad?split=validation&layout=squad",
        tokenizer="model",
        sequence=384,
        batch=16,
        heldout_examples=2048,
    ),
    budget=Budget(steps=11_000, trials=6, studies=1, seeds=5, trial_timeout_s=1_209_600.0),
    schedule=_squad.SCHEDULE,
    fallback=_squad.FALLBACK,
    tuner=_squad.TUNER,
    evaluation=Evaluation(every=1_100, sequences=512),
    precision="fp32+bf16",
    claims="lora",
    reference="lora",
    margin_nats=_squad.MARGIN,
    methods=_squad.METHODS,
    files=(
        "data.source=file:xquad/xquad.en.json?layout=squad",
        "data.heldout=",
        "model.source=pypi:minilm",
    ),
)
