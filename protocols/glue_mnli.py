"""GLUE: MNLI: does a premise entail a hypothesis, contradict it, or neither."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_mnli",
    summary=(
        "MNLI: does a premise entail a hypothesis, contradict it, or neither: RoBERTa-base, 30 "
        "epochs (735,360 steps x 16 examples), by accuracy; 3 studies of 6 trials and 3 final "
        "seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "There is no local copy that --files could name. The recipe for DeBERTaV3-base of AdaLoRA "
    "(and AdaPaD's comparison): --set model.source=microsoft/deberta-v3-base --set data.batch=32 "
    "--set data.sequence=256 --set budget.steps=85792 --set schedule.warmup=0.0117; its rate for "
    "AdaLoRA is 0.0005, the dropout before its head, 0.15, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("mnli", validation="validation_matched"),
    budget=Budget(steps=735_360, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=24_512, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=(),
    published=_glue.published("accuracy, %", full=87.18, galore=87.0, lora=86.82),
)
