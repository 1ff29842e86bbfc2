"""SQuAD 2.0 by spans: a third of the questions has no answer."""

from levelfield.bench.spec import Budget, Data, Evaluation, Protocol, Task
from levelfield.protocols import _squad

PROTOCOL = Protocol(
    name="squad_v2",
    summary="SQuAD 2.0: where in a paragraph a question's answer is, if it has one: Qwen3-0.6B, 2 "
    "epochs (16,400 steps x 16 windows of 384 tokens), by F1; 6 trials and 5 final seeds a method",
    note=_squad.NOTE + " There is no local copy that --files could name.",
    task=Task(kind="extractive_qa", metric="f1"),
    model=_squad.MODEL,
    data=Data(
        source="hf:rajpurkar/squad_v2?split=train&layout=squad",
        heldout="hf:rajpurkar/squad_v2?split=validation&layout=squad",
        tokenizer="model",
        sequence=384,
        batch=16,
        heldout_examples=2048,
    ),
    budget=Budget(steps=16_400, trials=6, studies=1, seeds=5, trial_timeout_s=1_209_600.0),
    schedule=_squad.SCHEDULE,
    fallback=_squad.FALLBACK,
    tuner=_squad.TUNER,
    evaluation=Evaluation(every=1_640, sequences=512),
    precision="fp32+bf16",
    claims="lora",
    reference="lora",
    margin_nats=_squad.MARGIN,
    methods=_squad.METHODS,
)
