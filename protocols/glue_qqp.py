"""GLUE: QQP: do two questions ask the same."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_qqp",
    summary=(
        "QQP: do two questions ask the same: RoBERTa-base, 30 epochs (681,240 steps x 16 "
        "examples), by accuracy; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "There is no local copy that --files could name. The figures of the paper are F1, which "
    "every record holds beside the accuracy. The recipe for DeBERTaV3-base of AdaLoRA (and "
    "AdaPaD's comparison): --set model.source=microsoft/deberta-v3-base --set data.batch=32 "
    "--set data.sequence=320 --set budget.steps=56771 --set schedule.warmup=0.0352; its rate for "
    "AdaLoRA is 0.0008, the dropout before its head, 0.15, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("qqp"),
    budget=Budget(steps=681_240, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=22_708, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=(),
    published=_glue.published("F1, %", full=92.28, galore=91.06, lora=91.29),
)
