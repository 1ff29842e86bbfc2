"""Adapters against each other on film reviews: one budget of rank, one of tuning."""

from levelfield.bench.spec import Budget, Data, Evaluation, Protocol, Task
from levelfield.protocols import _twin

PROTOCOL = Protocol(
    name="adapters_cpu_sentiment",
    summary="is a sentence of a film review positive: full fine-tuning and adapters of two ranks a "
    "module on MiniLM, 128 steps x 8 of 1,024 sentences, by accuracy; 4 trials and 5 final seeds a "
    "method",
    note="Every adapter may keep 72 ranks over the encoder's 36 matrices: LoRA two in each, "
    "AdaLoRA after it pruned three to that, IncreLoRA and AdaPaD after they grew from one, SoRA "
    "what its gates leave of four. The head is trained by all of them and told apart. A sentence "
    "of 256 is worth about half a point, and seeds scatter by several: a margin of 0.3 points "
    "needs hundreds of seeds. One study: nothing is ranked beyond these hyper-parameters.",
    task=Task(kind="classification", metric="accuracy"),
    model=_twin.MODEL,
    data=Data(
        source="pypi:vader",
        tokenizer="model",
        sequence=48,
        batch=8,
        examples=1024,
        heldout_examples=256,
    ),
    budget=Budget(steps=128, trials=4, studies=1, seeds=5, trial_timeout_s=1800.0),
    schedule=_twin.SCHEDULE,
    fallback=_twin.FALLBACK,
    tuner=_twin.TUNER,
    evaluation=Evaluation(every=64, sequences=64),
    timing=_twin.TIMING,
    claims="adamw",
    margin_nats=_twin.MARGIN,
    methods=(
        "adamw",
        "lora(rank=2,alpha=16.0)",
        "adalora",
        "increlora",
        "sora(rank=4)",
        "adapad",
    ),
)
