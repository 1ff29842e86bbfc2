"""A minute of training to try an installation."""

from levelfield.bench.spec import Budget, Evaluation, Model, Protocol, Timing

PROTOCOL = Protocol(
    name="smoke",
    summary="try an installation: LLaMA h=64, 2 layers, 80 steps of 1,024 bytes of English",
    note="A hundred steps measure the start of training, where stateless methods lead: nothing "
    "here ranks anything. Use `quick` or more for a comparison.",
    ranked=False,
    model=Model(hidden=64, layers=2, heads=4, intermediate=168),
    budget=Budget(steps=80, trials=4, seeds=2, trial_timeout_s=120.0),
    evaluation=Evaluation(every=10, sequences=32),
    timing=Timing(windows=5, steps=5),
    methods=("adamw", "lion", "signsgd"),
)
