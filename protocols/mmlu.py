"""MMLU by the letter of the answer, after fine-tuning on its auxiliary questions."""

from levelfield.bench.spec import (
    Budget,
    Data,
    Evaluation,
    Fallback,
    Model,
    Protocol,
    Schedule,
    Task,
    Tuner,
)

PROTOCOL = Protocol(
    name="mmlu",
    summary="MMLU: which of four options is right: Qwen3-0.6B, one epoch of 10,000 auxiliary "
    "questions (625 steps x 16), by accuracy; 6 trials and 5 final seeds a method",
    note="The papers fine-tune Llama-3-8B-Instruct on instructions, and their differences (65.03 "
    "against 64.96 for APOLLO and GaLore) are within noise; here a model without a gate learns the "
    "questions themselves and is asked for the letter without solved examples (task.shots=5 puts "
    "five of the training slice in front). Halves of the test split are by subject: one chooses "
    "rates, the other is reported, 2,048 questions each, so the mean over all 57 subjects is not "
    "what is measured. `shuffled_accuracy` asks again with the options in an order of the item's "
    "own; what knows places rather than answers falls to chance. The accuracy before any step is "
    "the first point of every score curve.",
    task=Task(kind="multiple_choice", metric="accuracy"),
    model=Model(source="Qwen/Qwen3-0.6B-Base"),
    data=Data(
        source="hf:cais/mmlu?config=all&split=auxiliary_train&layout=mmlu",
        heldout="hf:cais/mmlu?config=all&split=test&layout=mmlu",
        tokenizer="model",
        sequence=512,
        batch=16,
        examples=10_000,
        heldout_examples=2048,
    ),
    budget=Budget(steps=625, trials=6, studies=1, seeds=5, trial_timeout_s=86_400.0),
    schedule=Schedule(shape="cosine", warmup=0.1, floor=0.0),
    fallback=Fallback(lr=1e-5, beta1=0.9, beta2=0.999, weight_decay=0.0),
    tuner=Tuner(start=0.01, resolution=0.2, reserve=1),
    evaluation=Evaluation(every=125, sequences=512),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=0.3,
    methods=("adamw", "apollo", "galore", "foam", "lora"),
    files=(
        "data.source=file:mmlu/val?layout=mmlu",
        "data.heldout=file:mmlu/test?layout=mmlu",
        "data.sequence=128",
        "model.source=pypi:minilm",
    ),
)
