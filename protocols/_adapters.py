"""What the comparisons of adapters share: one budget of rank, one of tuning, an encoder."""

from levelfield.bench.spec import Evaluation

EXAMPLES, HELDOUT = 1024, 256
METHODS = (
    "adamw",
    "lora(rank=2,alpha=16.0)",
    "adalora",
    "increlora",
    "sora(rank=2)",
    "adapad",
)
NOTE = (
    "Every adapter may keep 72 ranks over the encoder's 36 matrices: LoRA two in each, "
    "AdaLoRA after it pruned three to that, IncreLoRA and AdaPaD after they grew from one, SoRA "
    "what its gates leave of two. The head is trained by all of them and told apart. A sentence "
    "of 256 is worth about half a point, and seeds scatter by several: a margin of 0.3 points "
    "needs hundreds of seeds. One study: nothing is ranked beyond these hyper-parameters."
)


def evaluation(steps: int) -> Evaluation:
    """In the middle and at the end."""
    return Evaluation(every=steps // 2, sequences=64)
