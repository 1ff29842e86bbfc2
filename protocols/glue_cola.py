"""GLUE: CoLA: is an English sentence acceptable."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_cola",
    summary=(
        "CoLA: is an English sentence acceptable: RoBERTa-base, 30 epochs (7,620 steps x 32 "
        "examples), by Matthews correlation; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The recipe for DeBERTaV3-base of AdaLoRA (and AdaPaD's comparison): --set "
    "model.source=microsoft/deberta-v3-base --set data.batch=32 --set data.sequence=64 --set "
    "budget.steps=6346 --set schedule.warmup=0.0158; its rate for AdaLoRA is 0.0008, the dropout "
    "before its head, 0.1, is not set here.",
    task=Task(kind="classification", metric="matthews"),
    model=_glue.MODEL,
    data=_glue.data("cola", batch=32),
    budget=Budget(steps=7_620, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=254, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files(
        "cola", "cola/in_domain_train.tsv", "cola/in_domain_dev.tsv", "cola/out_of_domain_dev.tsv"
    ),
    published=_glue.published("Matthews correlation, %", full=62.24, galore=60.35, lora=61.38),
)
