"""The smallest comparison worth a table."""

from levelfield.bench.spec import Budget, Model, Protocol, Tuner

PROTOCOL = Protocol(
    name="quick",
    summary="the smallest comparison worth a table: LLaMA h=32, 2 layers, 400 steps x 1,024 bytes "
    "of English; 3 studies of 8 trials and 5 final seeds a method",
    note="A model of 40 thousand parameters after 0.4 million bytes has learned spelling and short "
    "words. It tells broken from working, and large gains from none; it says nothing about the "
    "order of good methods at a billion parameters.",
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=400, trials=8, studies=3, seeds=5, sweep=7, trial_timeout_s=300.0),
    tuner=Tuner(reserve=2),
    methods=("adamw", "adamw_split", "adafactor", "lion", "signsgd", "muon", "frugal", "foam"),
)
