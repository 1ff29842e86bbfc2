"""The papers' headline claims as records: what is said of which method, and how a run tests it.

Sizes are the papers' own, turned into the measure of the test: perplexities p of a method and q of
the other make log(q / p) nats a token, GLUE averages make points, shares of time and state stay
shares. None where a paper names no number, or none that could be read. Perplexities of FOAM and
its rivals at 1.3B are read off the chart of its released code.

Sources: AdaFRUGAL, https://arxiv.org/abs/2601.11568; FOAM, https://arxiv.org/abs/2512.07112 with
https://github.com/zqOuO/FOAM @ 13769c73; AdaPaD, https://arxiv.org/abs/2605.10741; the survey,
A. Ranganath, "Navigating LLM Valley", https://arxiv.org/abs/2605.09176.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from levelfield.reports import claim_counts as counts
from levelfield.reports import claim_families as families
from levelfield.reports import claim_tests as tests
from levelfield.reports.claim_parts import Direction, Finding
from levelfield.reports.view import View

PRETRAINING = ("causal_lm",)
GLUE = ("classification", "regression")
ANSWERS = ("extractive_qa", "generative_qa")


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a claim is made."""

    name: str
    arxiv: str

    @property
    def url(self) -> str:
        return f"https://arxiv.org/abs/{self.arxiv}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The model that a printed figure is of."""

    name: str
    hidden: int | None = None
    layers: int | None = None
    parameters: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One sentence of a paper that a run may test."""

    key: str
    paper: Paper
    text: str
    test: Callable[[Claim, View], Finding]
    methods: tuple[str, ...] = ()
    """All that must be in the run; the claim is about the first."""
    against: str = ""
    """The method that it is compared with, which must be in the run too."""
    families: tuple[str, ...] = ()
    """Instead of methods: the families that the claim is about."""
    quantity: str
    """What is compared."""
    direction: Direction = "lower"
    size: float | None = None
    """How large the paper says the effect is; positive."""
    least: float | None = None
    """Of an exact quantity: what still counts as the claimed size."""
    counts: tuple[str, ...] = ("state",)
    """Kinds of bytes that a claim of memory adds up."""
    at: Size | None = None
    tasks: tuple[str, ...] = PRETRAINING
    """Kinds of task that it speaks of; empty: any."""
    note: str = ""


ADAFRUGAL = Paper("AdaFRUGAL", "2601.11568")
FOAM = Paper("FOAM", "2512.07112")
ADAPAD = Paper("AdaPaD", "2605.10741")
SURVEY = Paper("Navigating LLM Valley", "2605.09176")

LLAMA_130M = Size(name="LLaMA-130M", hidden=768, layers=12)
LLAMA_1B = Size(name="LLaMA-1.3B", hidden=2048, layers=24)
LLAMA_7B = Size(name="LLaMA-7B", hidden=4096, layers=32)


def nats(perplexity: float, other: float) -> float:
    """The difference in loss between two perplexities, positive if the first is lower."""
    return math.log(other / perplexity)


CLAIMS: tuple[Claim, ...] = (
    # --- AdaFRUGAL
    Claim(
        key="adafrugal-time", paper=ADAFRUGAL, test=tests.less_time,
        text="Dynamic T takes 15 % less time than static FRUGAL",
        methods=("adafrugal_t",), against="frugal", quantity="step time", size=0.15,
    ),
    Claim(
        key="adafrugal-time-svd", paper=ADAFRUGAL, test=tests.less_time,
        text="Dynamic T takes 15 % less time than static FRUGAL, both with an SVD",
        methods=("adafrugal_t(selection=svd)",), against="frugal(selection=svd)",
        quantity="step time", size=0.15,
    ),
    Claim(
        key="adafrugal-frugal", paper=ADAFRUGAL, test=tests.better,
        text="Dynamic T has a lower perplexity than static FRUGAL (18.58 against 18.60)",
        methods=("adafrugal_t",), against="frugal", quantity="report loss",
        size=nats(18.58, 18.60),
    ),
    Claim(
        key="adafrugal-galore", paper=ADAFRUGAL, test=tests.better,
        text="Dynamic T has a lower perplexity than GaLore (18.58 against 20.01)",
        methods=("adafrugal_t",), against="galore", quantity="report loss",
        size=nats(18.58, 20.01),
    ),
    Claim(
        key="adafrugal-state", paper=ADAFRUGAL, test=counts.state_falls,
        text="Dynamic ρ lets the state fall over a run (0.52 to 0.37 GB)",
        methods=("adafrugal_rho",), quantity="state at the end", size=1 - 0.37 / 0.52,
        at=LLAMA_130M,
    ),
    Claim(
        key="adafrugal-combined", paper=ADAFRUGAL, test=counts.no_worse_while_state_falls,
        text="Both controls together: falling state, a perplexity close to FRUGAL's (18.83 "
        "against 18.60)",
        methods=("adafrugal",), against="frugal", quantity="report loss",
        size=nats(18.60, 18.83),
    ),
    Claim(
        key="adafrugal-language", paper=ADAFRUGAL, test=tests.transfers,
        text="Hyper-parameters tuned on English serve Vietnamese without retuning",
        methods=("adafrugal",), quantity="report loss of finals that were not tuned here",
    ),
    Claim(
        key="adafrugal-glue-lora", paper=ADAFRUGAL, test=tests.better,
        text="Dynamic T scores higher than LoRA on GLUE (86.8 against 86.1)",
        methods=("adafrugal_t",), against="lora", quantity="error", size=0.7, tasks=GLUE,
    ),
    Claim(
        key="adafrugal-glue-frugal", paper=ADAFRUGAL, test=tests.better,
        text="Dynamic T scores higher than FRUGAL on GLUE (86.8 against 86.7)",
        methods=("adafrugal_t",), against="frugal", quantity="error", size=0.1, tasks=GLUE,
    ),
    Claim(
        key="adafrugal-64gb", paper=ADAFRUGAL, test=counts.state_of_parameters,
        text="AdamW's states can take 64 GB",
        methods=("adafrugal_rho",), against="adamw_split", quantity="state", direction="higher",
        size=64e9, least=63.5e9, at=Size(name="8 billion parameters", parameters=8e9), tasks=(),
        note="FRUGAL's paper counts 64 GB for weights, gradients and states together, in 16 bit",
    ),
    Claim(
        key="adafrugal-7b", paper=ADAFRUGAL, test=counts.frees_at_size,
        text="Falling state would save 5.7 GB at 7B",
        methods=("adafrugal_rho",), quantity="state free at the end", direction="higher",
        size=5.7e9, least=5.65e9, at=LLAMA_7B,
        note="free at the end only: the peak is that of the start",
    ),
    # --- FOAM
    Claim(
        key="foam-mini-state", paper=FOAM, test=counts.saves_at_size,
        text="Up to 90 % less state than Adam, with one fold a row",
        methods=("foam_mini",), against="adamw_split", quantity="state", size=0.90, least=0.895,
        at=LLAMA_1B, tasks=(),
    ),
    Claim(
        key="foam-state", paper=FOAM, test=counts.saves_at_size,
        text="Up to 90 % less state than Adam, at level 2 of its pre-training runs",
        methods=("foam",), against="adamw_split", quantity="state", size=0.90, least=0.895,
        at=LLAMA_1B, tasks=(),
    ),
    Claim(
        key="foam-total", paper=FOAM, test=counts.saves_at_size,
        text="About half of the memory of training with Adam",
        methods=("foam",), against="adamw_split", quantity="weights and state", size=0.50,
        least=0.45, counts=("weights", "state"), at=LLAMA_7B, tasks=(),
        note="as the paper counts: weights and state, without gradients and activations",
    ),
    Claim(
        key="foam-galore", paper=FOAM, test=counts.better_at_no_more_state,
        text="Beats GaLore with no more state (perplexity 13.12 against 17.20)",
        methods=("foam",), against="galore", quantity="report loss", size=nats(13.12, 17.20),
    ),
    Claim(
        key="foam-apollo", paper=FOAM, test=counts.better_at_no_more_state,
        text="Beats APOLLO with no more state (perplexity 13.12 against 14.18)",
        methods=("foam",), against="apollo", quantity="report loss", size=nats(13.12, 14.18),
        note="the paper counts stored projectors of APOLLO; drawn again, they take nothing",
    ),
    Claim(
        key="foam-adam-mini", paper=FOAM, test=counts.better_at_no_more_state,
        text="Beats Adam-mini with no more state",
        methods=("foam",), against="adam_mini", quantity="report loss",
    ),
    Claim(
        key="foam-muon", paper=FOAM, test=counts.better_at_no_more_state,
        text="Beats Muon with no more state (perplexity 13.12 against 14.29)",
        methods=("foam",), against="muon", quantity="report loss", size=nats(13.12, 14.29),
    ),
    Claim(
        key="foam-steps", paper=FOAM, test=tests.fewer_steps,
        text="Reaches Adam's loss in fewer steps",
        methods=("foam",), against="adamw_split", quantity="steps to a loss",
    ),
    Claim(
        key="foam-seconds", paper=FOAM, test=tests.sooner,
        text="Reaches Adam's loss in less time",
        methods=("foam",), against="adamw_split", quantity="seconds to a loss",
    ),
    Claim(
        key="foam-residual", paper=FOAM, test=tests.better,
        text="Needs its residual: without it the loss is worse",
        methods=("foam",), against="foam(residual=false)", quantity="report loss",
    ),
    Claim(
        key="foam-delta", paper=FOAM, test=counts.bounded_series,
        text="The residual is no larger than the gradient (δ ≤ 1)",
        methods=("foam",), quantity="delta", size=1.0, tasks=(),
        note="follows for any block mean, which projects the gradient",
    ),
    # --- AdaPaD
    Claim(
        key="adapad-adalora", paper=ADAPAD, test=tests.better,
        text="Scores higher than AdaLoRA on GLUE (89.34 against 89.03)",
        methods=("adapad",), against="adalora", quantity="error", size=0.31, tasks=GLUE,
    ),
    Claim(
        key="adapad-increlora", paper=ADAPAD, test=tests.better,
        text="Scores higher than IncreLoRA on GLUE (89.34 against 88.99)",
        methods=("adapad",), against="increlora", quantity="error", size=0.35, tasks=GLUE,
    ),
    Claim(
        key="adapad-parameters", paper=ADAPAD, test=counts.fewer_parameters_at_equal_score,
        text="30.7 % fewer adapter parameters than LoRA at an equal score (15.9 to 44.3 %)",
        methods=("adapad",), against="lora", quantity="deployed parameters", size=0.307,
        least=0.159, tasks=(*GLUE, *ANSWERS),
        note="the paper's figures are of answers to questions (SQuAD)",
    ),
    Claim(
        key="adapad-ranks", paper=ADAPAD, test=counts.ranks_gather,
        text="Ranks gather in the last layers and in feed-forward modules",
        methods=("adapad",), quantity="ranks", direction="higher", tasks=(*GLUE, *ANSWERS),
    ),
    Claim(
        key="adapad-devices", paper=ADAPAD, test=counts.not_recorded,
        text="2.66 times as fast on 4 devices",
        methods=("adapad",), quantity="time on 4 devices", size=1 - 1 / 2.66, tasks=(),
        note="runs time one device",
    ),
    Claim(
        key="adapad-synchronisation", paper=ADAPAD, test=counts.not_recorded,
        text="Synchronisation cancels the gain of more devices at a large rank",
        methods=("adapad",), quantity="time on 4 devices", direction="higher", tasks=(),
        note="runs time one device",
    ),
    # --- the survey
    Claim(
        key="survey-winner", paper=SURVEY, test=families.no_single_winner,
        text="No single method wins in loss, memory and time",
        families=("all",), quantity="loss, memory, time", tasks=(),
    ),
    Claim(
        key="survey-sign", paper=SURVEY, test=families.narrower_basin,
        text="Sign methods need finer tuning than adaptive ones",
        families=("sign", "adaptive"), quantity="width of the basin of rates",
    ),
    Claim(
        key="survey-curvature", paper=SURVEY, test=families.fewer_longer_steps,
        text="Curvature methods take fewer, longer steps",
        families=("curvature",), quantity="steps to a loss; step time",
    ),
    Claim(
        key="survey-matrix", paper=SURVEY, test=families.steadier,
        text="Matrix methods are more stable",
        families=("matrix",), quantity="share of runs that diverged or had a spike",
    ),
)  # fmt: skip
