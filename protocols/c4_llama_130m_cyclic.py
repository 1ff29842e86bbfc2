"""LLaMA-130M on C4 over the long cyclic horizon of the FRUGAL line."""

from levelfield.bench.spec import Budget, Engine, Evaluation, Model, Protocol, Schedule
from levelfield.protocols import _c4

PROTOCOL = Protocol(
    name="c4_llama_130m_cyclic",
    summary="LLaMA-130M on English C4: 200,000 steps in ten cosine cycles, fp32 weights with bf16 "
    "arithmetic, one study of 4 trials a method",
    note="The protocol behind FRUGAL's and AdaFRUGAL's tables (github.com/fzmushko/FRUGAL @ "
    "c7ebe4c2): warm-up and decay begin again every 20,000 steps, so that its figures stand beside "
    "no other protocol's; evaluation there divides by n. " + _c4.DEVIATIONS,
    ranked=False,
    model=Model(
        hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=32_000, positions=1024
    ),
    data=_c4.data(112_000_000),
    budget=Budget(steps=200_000, trials=4, studies=1, seeds=1, trial_timeout_s=1_209_600.0),
    schedule=Schedule(shape="cosine", warmup=0.1, floor=0.1, cycles=10),
    fallback=_c4.FALLBACK,
    tuner=_c4.TUNER,
    evaluation=Evaluation(every=1_000, sequences=2048, most=_c4.MOST),
    engine=Engine(accumulation=8, checkpoint_tokens=131_072_000),
    precision="fp32+bf16",
    clip_norm=None,
    methods=("adamw", "frugal", "adafrugal_rho", "adafrugal_t", "adafrugal", "galore"),
    files=_c4.FILES,
)
