"""A control: one method under two names, the same hyper-parameters, disjoint seeds."""

from levelfield.bench.spec import Budget, Model, Protocol

PROTOCOL = Protocol(
    name="aa_seeds",
    summary="A/A control: adamw twice at the same hyper-parameters with disjoint final seeds",
    note="Any difference found here is luck: its rate over many runs is the false-positive rate.",
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=400, trials=1, studies=3, seeds=3, trial_timeout_s=300.0),
    methods=("adamw@a", "adamw@b"),
    reference="adamw@a",
    paired=False,
)
