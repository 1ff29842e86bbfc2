"""GLUE: QNLI: does a sentence answer a question."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_qnli",
    summary=(
        "QNLI: does a sentence answer a question: RoBERTa-base, 30 epochs (195,420 steps x 16 "
        "examples), by accuracy; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The local file is the validation split alone: --files carves all slices from it. The recipe "
    "for DeBERTaV3-base of AdaLoRA (and AdaPaD's comparison): --set "
    "model.source=microsoft/deberta-v3-base --set data.batch=32 --set data.sequence=512 --set "
    "budget.steps=16286 --set schedule.warmup=0.0307; its rate for AdaLoRA is 0.0005, the "
    "dropout before its head, 0.1, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("qnli"),
    budget=Budget(steps=195_420, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=6_514, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files("qnli", "qnli/dev.tsv"),
    published=_glue.published("accuracy, %", full=92.33, galore=92.24, lora=92.18),
)
