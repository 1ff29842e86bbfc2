"""One question at five horizons, each fully decayed."""

from levelfield.bench.spec import Budget, Model, Protocol, Tuner, Variant

PROTOCOL = Protocol(
    name="horizons",
    summary="LLaMA h=32 over five fully decayed horizons, the rate tuned again at each: speed-up",
    note="A speed-up is read off a law fitted to the reference's horizons, with an interval over "
    "seeds, and only inside the range that was run.",
    axis="tokens",
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=100, trials=6, studies=1, seeds=3, trial_timeout_s=600.0),
    tuner=Tuner(reserve=1),
    methods=("adamw_split", "muon", "lion"),
    reference="adamw_split",
    variants=(
        Variant(name="s100", settings=("budget.steps=100",)),
        Variant(name="s200", settings=("budget.steps=200",)),
        Variant(name="s400", settings=("budget.steps=400",)),
        Variant(name="s800", settings=("budget.steps=800",)),
        Variant(name="s1600", settings=("budget.steps=1600",)),
    ),
)
