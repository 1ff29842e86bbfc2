"""GLUE: STS-B: how alike two sentences are, 0 to 5."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_stsb",
    summary=(
        "STS-B: how alike two sentences are, 0 to 5: RoBERTa-base, 30 epochs (10,230 steps x 16 "
        "examples), by Pearson correlation; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The recipe for DeBERTaV3-base of AdaLoRA (and AdaPaD's comparison): --set "
    "model.source=microsoft/deberta-v3-base --set data.batch=32 --set data.sequence=128 --set "
    "budget.steps=4266 --set schedule.warmup=0.0234; its rate for AdaLoRA is 0.0022, the dropout "
    "before its head, 0.2, is not set here.",
    task=Task(kind="regression", metric="pearson"),
    model=_glue.MODEL,
    data=_glue.data("stsb"),
    budget=Budget(steps=10_230, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=341, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files("stsb", "stsb/stsb-en-train.csv", "stsb/stsb-en-dev.csv"),
    published=_glue.published("correlation, %", full=90.92, galore=90.73, lora=90.57),
)
