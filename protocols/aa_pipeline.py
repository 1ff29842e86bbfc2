"""A control: the whole pipeline twice over one method."""

from levelfield.bench.spec import Budget, Model, Protocol, Tuner

PROTOCOL = Protocol(
    name="aa_pipeline",
    summary="A/A control: adamw tuned twice with independent sampler seeds",
    note="Any difference found here is tuning luck and seed luck together.",
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=400, trials=8, studies=3, seeds=3, trial_timeout_s=300.0),
    tuner=Tuner(reserve=2),
    methods=("adamw@a", "adamw@b"),
    reference="adamw@a",
)
