"""The best loss under a memory limit."""

from levelfield.bench.spec import Budget, Data, Model, Protocol, Tuner, Variant

PROTOCOL = Protocol(
    name="iso_memory",
    summary="four memory limits; under each every method trains the largest LLaMA whose simulated "
    "peak fits, at equal tokens",
    note="What a method's memory buys in model size, and what that size is worth at equal tokens. "
    "On a small model with a large batch activations are most of the peak, so that state counts "
    "for less than it does at a billion parameters: the batch here is small for that reason.",
    axis="memory",
    data=Data(sequence=32, batch=4),
    model=Model(hidden=16, layers=2, heads=2, intermediate=40),
    budget=Budget(steps=400, trials=6, studies=1, seeds=3, trial_timeout_s=600.0),
    tuner=Tuner(reserve=1),
    methods=("adamw_split", "foam", "frugal", "muon", "signsgd", "shampoo"),
    reference="adamw_split",
    sizes=(
        Variant(name="h16", settings=("model.hidden=16", "model.intermediate=40")),
        Variant(name="h24", settings=("model.hidden=24", "model.intermediate=64")),
        Variant(name="h32", settings=("model.hidden=32", "model.intermediate=88")),
        Variant(name="h40", settings=("model.hidden=40", "model.intermediate=104")),
        Variant(name="h48", settings=("model.hidden=48", "model.intermediate=128")),
        Variant(name="h64", settings=("model.hidden=64", "model.intermediate=168")),
        Variant(name="h80", settings=("model.hidden=80", "model.intermediate=216")),
        Variant(name="h96", settings=("model.hidden=96", "model.intermediate=256")),
    ),
    variants=(
        Variant(name="1.25MiB", settings=("budget.memory_gib=0.001220703125",)),
        Variant(name="1.75MiB", settings=("budget.memory_gib=0.001708984375",)),
        Variant(name="2.5MiB", settings=("budget.memory_gib=0.00244140625",)),
        Variant(name="3.5MiB", settings=("budget.memory_gib=0.00341796875",)),
    ),
)  # fmt: skip
