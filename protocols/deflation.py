"""Whether parallel deflation mends its own errors where sequential deflation freezes them."""

from levelfield.bench.spec import (
    Budget,
    Data,
    Evaluation,
    Model,
    Protocol,
    Schedule,
    Task,
    Timing,
    Variant,
)

PROTOCOL = Protocol(
    name="deflation",
    summary="Y = W*X + E of rank 8, found component by component: in parallel or one after another",
    note="The loss is the relative error of W, ||W - W*|| / ||W*||, not nats a token; a batch is "
    "all 96 samples and a step is one round of communication. Every seed is another problem with "
    "other initial weights, the same for all methods. Sequential deflation gets as many rounds in "
    "all as parallel deflation (equal wall-clock on K devices), or as many a component (equal "
    "work, K times the wall-clock). Nothing is tuned: the rate is 0.5 of the Lipschitz bound. The "
    "problem is bilinear with W* of exactly the model's rank: what holds here need not hold for "
    "adapters of a language model.",
    ranked=False,
    task=Task(kind="bilinear"),
    model=Model(family="bilinear"),
    data=Data(source="bilinear:spectrum=exp,noise=0", batch=96, sequence=1),
    budget=Budget(steps=320, trials=1, studies=1, seeds=5, trial_timeout_s=120.0),
    schedule=Schedule(shape="constant", warmup=0.0),
    evaluation=Evaluation(every=20, sequences=96),
    timing=Timing(windows=3, steps=20),
    precision="fp64",
    clip_norm=None,
    reference="deflation_sequential",
    claims="deflation_sequential",
    methods=(
        "deflation_parallel",
        "deflation_parallel_advance",
        "deflation_sequential",
        "deflation_sequential_work",
    ),
    variants=(
        Variant(name="exp", settings=("data.source=bilinear:spectrum=exp,noise=0",)),
        Variant(name="exp_noise", settings=("data.source=bilinear:spectrum=exp,noise=0.5",)),
        Variant(name="pow", settings=("data.source=bilinear:spectrum=pow,noise=0",)),
        Variant(name="pow_noise", settings=("data.source=bilinear:spectrum=pow,noise=0.5",)),
    ),
)
