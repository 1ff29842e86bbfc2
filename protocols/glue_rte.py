"""GLUE: RTE: does one text entail another."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_rte",
    summary=(
        "RTE: does one text entail another: RoBERTa-base, 30 epochs (4,440 steps x 16 examples), "
        "by accuracy; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The recipe for DeBERTaV3-base of AdaLoRA (and AdaPaD's comparison): --set "
    "model.source=microsoft/deberta-v3-base --set data.batch=32 --set data.sequence=320 --set "
    "budget.steps=3695 --set schedule.warmup=0.0541; its rate for AdaLoRA is 0.0012, the dropout "
    "before its head, 0.2, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("rte"),
    budget=Budget(steps=4_440, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=148, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files("rte", "rte/train.tsv", "rte/dev.tsv"),
    published=_glue.published("accuracy, %", full=79.42, galore=79.42, lora=78.7),
)
