"""What the GLUE protocols share: RoBERTa-base fine-tuned as the GaLore family does it.

Source: J. Zhao et al., "GaLore", ICML 2024, appendix: 30 epochs, batch 16 (CoLA 32), 512 tokens,
rates of 1e-5 to 3e-5 for full fine-tuning. Warm-up of 6 % and a linear decay to zero are those of
RoBERTa's and LoRA's recipes, which GaLore's baselines took over.
"""

from levelfield.bench.spec import Data, Fallback, Model, Published, Schedule, Tuner

MODEL = Model(source="FacebookAI/roberta-base")
SCHEDULE = Schedule(shape="linear", warmup=0.06, floor=0.0)
FALLBACK = Fallback(lr=5e-5, beta1=0.9, beta2=0.999, weight_decay=0.1)
TUNER = Tuner(start=0.03, resolution=0.2, reserve=1)
METHODS = ("adamw", "galore", "frugal", "foam", "lora", "adalora", "increlora", "sora", "adapad")
MARGIN = 0.3
"""Points of a score within which two methods count as equal."""

NOTE = (
    "Scores are points of error, 100 x (1 - score), on halves of the public validation split: one "
    "chooses rates, the other is reported. Papers report the best epoch on the whole of it, which "
    "makes their figures half a point to a point better. 30 epochs of the training split less its "
    "control slice (5 %, at most 512 examples), an evaluation an epoch. Every method's rates start "
    "at 0.03 of its paper's, which are for pre-training; an adapter's at its own."
)


def data(config: str, layout: str = "", validation: str = "validation", batch: int = 16) -> Data:
    """A configuration of GLUE on the hub."""
    source = f"hf:nyu-mll/glue?config={config}&split="
    end = f"&layout={layout or config}"
    return Data(
        source=f"{source}train{end}",
        heldout=f"{source}{validation}{end}",
        tokenizer="model",
        sequence=512,
        batch=batch,
    )


def files(layout: str, train: str, *heldout: str) -> tuple[str, ...]:
    """Settings for local files, and the encoder that needs no hub."""
    return (
        f"data.source=file:{train}?layout={layout}",
        "data.heldout=" + "+".join(f"file:{name}?layout={layout}" for name in heldout),
        "data.sequence=128",
        "model.source=pypi:minilm",
    )


def published(unit: str, full: float, galore: float, lora: float) -> tuple[Published, ...]:
    """One run a figure, best epoch."""
    source = "GaLore, RoBERTa-base, rank 4"
    return tuple(
        Published(method=method, value=value, unit=unit, source=source)
        for method, value in (("adamw", full), ("galore", galore), ("lora", lora))
    )
