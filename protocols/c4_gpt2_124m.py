"""GPT-2 small's architecture on C4, from fresh weights."""

from levelfield.bench.spec import Budget, Engine, Model, Protocol
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_gpt2_124m",
    summary="the shape of GPT-2 small (learned positions, LayerNorm, tied head) on English C4: "
    "20,000 steps x 131,072 tokens, one study of 8 trials",
    note="Does an order found on LLaMA hold on another architecture? GPT-2 keeps its projections "
    "transposed, as [in, out]. The table has 50,304 rows, as GPT-2's padded one. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        family="gpt2",
        hidden=768,
        layers=12,
        heads=12,
        intermediate=3072,
        vocabulary=50_304,
        positions=1024,
        tied=True,
    ),
    data=_c4.data(11_200_000),
    budget=Budget(steps=20_000, trials=8, studies=1, seeds=3, trial_timeout_s=1_209_600.0),
    schedule=_c4.SCHEDULE,
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=_c4.EVALUATION,
    engine=Engine(accumulation=8, checkpoint_tokens=131_072_000),
    precision="bf16",
    clip_norm=None,
    methods=_c4.METHODS,
    files=_c4.FILES,
)
