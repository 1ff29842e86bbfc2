"""A source with a known floor."""

from levelfield.bench.spec import Budget, Data, Model, Protocol, Tuner

PROTOCOL = Protocol(
    name="markov",
    summary="a generated order-2 Markov source over 32 symbols, whose best loss is known: "
    "LLaMA h=32, 2 layers, 400 steps x 1,024 tokens",
    note="The floor is the source's own loss on the evaluated tokens; a model can only reach it "
    "where it sees two symbols of context. Learning a table of 1,024 rows is not learning English.",
    data=Data(source="markov:order=2,symbols=32", tokenizer="none"),
    model=Model(hidden=32, layers=2, heads=2, intermediate=88),
    budget=Budget(steps=400, trials=8, studies=3, seeds=3, trial_timeout_s=300.0),
    tuner=Tuner(reserve=2),
    methods=("adamw", "lion", "signsgd"),
)
