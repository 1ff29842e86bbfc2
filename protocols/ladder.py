"""One question at five sizes."""

from levelfield.bench.spec import Budget, Data, Model, Protocol, Tuner, Variant

PROTOCOL = Protocol(
    name="ladder",
    summary="LLaMA from 14 to 130 thousand parameters, six bytes a parameter, tuned at each size",
    note="Five small sizes show how a gain changes with size on this machine; what they say about "
    "a billion parameters is an extrapolation over four orders of magnitude.",
    axis="parameters",
    data=Data(sequence=64, batch=16),
    model=Model(hidden=16, layers=2, heads=2, intermediate=40),
    budget=Budget(steps=80, trials=8, studies=1, seeds=3, trial_timeout_s=600.0),
    tuner=Tuner(reserve=2),
    methods=("adamw_split", "muon", "lion"),
    reference="adamw_split",
    variants=(
        Variant(name="h16", settings=("model.hidden=16", "model.intermediate=40",
                                      "budget.steps=80")),
        Variant(name="h24", settings=("model.hidden=24", "model.intermediate=64",
                                      "budget.steps=160")),
        Variant(name="h32", settings=("model.hidden=32", "model.intermediate=88",
                                      "budget.steps=245")),
        Variant(name="h48", settings=("model.hidden=48", "model.intermediate=128",
                                      "budget.steps=480")),
        Variant(name="h64", settings=("model.hidden=64", "model.intermediate=168",
                                      "budget.steps=765")),
    ),
)  # fmt: skip
