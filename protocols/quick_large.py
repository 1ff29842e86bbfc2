"""A held-out workload for `quick`: twice the width, longer sequences."""

from levelfield.bench.spec import Budget, Data, Model, Protocol

PROTOCOL = Protocol(
    name="quick_large",
    summary="held out from `quick`: LLaMA h=64, 2 layers, sequences of 128 bytes, 400 steps",
    note="Run it with --tuned-from a run of `quick`: how much is lost by not tuning again.",
    data=Data(sequence=128, batch=8),
    model=Model(hidden=64, layers=2, heads=4, intermediate=168),
    budget=Budget(steps=400, trials=8, seeds=5, trial_timeout_s=600.0),
    methods=("adamw", "adamw_split", "lion", "muon"),
)
