"""GLUE: SST-2: is a sentence of a film review positive."""

from levelfield.bench.spec import Budget, Evaluation, Protocol, Task
from levelfield.protocols import _glue

PROTOCOL = Protocol(
    name="glue_sst2",
    summary=(
        "SST-2: is a sentence of a film review positive: RoBERTa-base, 30 epochs (125,310 steps "
        "x 16 examples), by accuracy; 3 studies of 6 trials and 3 final seeds a method"
    ),
    note=_glue.NOTE
    + " "
    + "The recipe for DeBERTaV3-base of AdaLoRA (and AdaPaD's comparison): --set "
    "model.source=microsoft/deberta-v3-base --set data.batch=32 --set data.sequence=128 --set "
    "budget.steps=50128 --set schedule.warmup=0.0199; its rate for AdaLoRA is 0.0008, the "
    "dropout before its head, 0, is not set here.",
    task=Task(kind="classification", metric="accuracy"),
    model=_glue.MODEL,
    data=_glue.data("sst2"),
    budget=Budget(steps=125_310, trials=6, studies=3, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_glue.SCHEDULE,
    fallback=_glue.FALLBACK,
    tuner=_glue.TUNER,
    evaluation=Evaluation(every=4_177, sequences=1024),
    precision="fp32+bf16",
    claims="adamw",
    margin_nats=_glue.MARGIN,
    methods=_glue.METHODS,
    files=_glue.files("sst2", "sst2/train.tsv.gz", "sst2/dev.tsv"),
    published=_glue.published("accuracy, %", full=94.57, galore=94.04, lora=92.89),
)
