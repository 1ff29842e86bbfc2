"""GLUE: MRPC: do two sentences say the same."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_mrpc",
    summary=(
        "MRPC: do two sentences say the same: RoBERTa-base, 30 epochs (6,540 steps x 16 "
        "examples), by accuracy; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The local files are Microsoft's own text and its labelled test split. The figures of the "
    "paper are F1, which every record holds beside the accuracy. The recipe for DeBERTaV3-base "
    "of AdaLoRA (and AdaPaD's comparison): --set model.source=microsoft/deberta-v3-base --set "
    "data.batch=32 --set data.sequence=320 --set budget.steps=3266 --set schedule.warmup=0.1; "
    "its rate for AdaLoRA is 0.001, the dropout before its head, 0, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("mrpc"),
    budget=Budget(steps=6_540, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=218, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files("mrpc", "mrpc/msr_paraphrase_train.txt", "mrpc/msr_paraphrase_test.txt"),
    published=_glue.published("F1, %", full=91.3, galore=92.25, lora=91.07),
)
