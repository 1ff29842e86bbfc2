"""What the SQuAD protocols share: Qwen3-0.6B with a head over spans, adapters against LoRA."""

from levelfield.bench.spec import Fallback, Model, Schedule, Tuner

MODEL = Model(source="Qwen/Qwen3-0.6B-Base")
SCHEDULE = Schedule(shape="linear", warmup=0.06, floor=0.0)
FALLBACK = Fallback(lr=5e-5, beta1=0.9, beta2=0.999, weight_decay=0.0)
TUNER = Tuner(start=0.03, resolution=0.2, reserve=1)
METHODS = ("lora", "rslora", "adalora", "increlora", "adapad", "adamw")
MARGIN = 0.3
"""Points of F1 within which two methods count as equal."""

NOTE = (
    "AdaPaD's paper says neither how its model reads SQuAD nor with which rates; here a head over "
    "spans reads the question first, since the model looks to the left alone, and then windows of "
    "the context with a stride of 128 tokens. F1 is that of the official scorer, as points of "
    "error, on halves of the validation split, 2,048 questions each at most. Epochs are counted by "
    "windows: about 88,000 of SQuAD 1.1, about 131,000 of SQuAD 2.0. AdaPaD claims LoRA's score "
    "with 30.7 % fewer parameters of adapters: equal is within 0.3 points over the seeds. Written "
    "answers instead of spans: --set task.kind=generative_qa."
)
