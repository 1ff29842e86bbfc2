"""One question at five batch sizes and equal tokens."""

from levelfield.bench.spec import Budget, Model, Protocol, Tuner, Variant

PROTOCOL = Protocol(
    name="batches",
    summary="LLaMA h=32 at equal tokens with batches of 4 to 64 sequences, the rate tuned at each",
    note="At equal tokens a larger batch takes fewer steps; the largest batch without loss differs "
    "between methods.",
    axis="batch",
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=400, trials=6, studies=1, seeds=3, trial_timeout_s=600.0),
    tuner=Tuner(reserve=1),
    methods=("adamw_split", "muon", "lion"),
    reference="adamw_split",
    variants=(
        Variant(name="b4", settings=("data.batch=4", "budget.steps=1600")),
        Variant(name="b8", settings=("data.batch=8", "budget.steps=800")),
        Variant(name="b16", settings=("data.batch=16", "budget.steps=400")),
        Variant(name="b32", settings=("data.batch=32", "budget.steps=200")),
        Variant(name="b64", settings=("data.batch=64", "budget.steps=100")),
    ),
)
