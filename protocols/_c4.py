"""What the C4 protocols share: data, schedule, fallback and evaluation of the GaLore family.

Source: github.com/jiaweizzhao/GaLore @ 2cc66f88, whose recipe APOLLO and FOAM took over: T5's
tokenizer, a document a row of 256 tokens (the rest of it is left out), 512 rows a step, cosine to
10 % after 10 % of warm-up, no weight decay, no clipping below 7B, pure bfloat16.
"""

from levelfield.bench.spec import Data, Evaluation, Fallback, Schedule, Tuner

ROWS = 512
"""Rows a step; x 256 tokens = 131,072."""

SCHEDULE = Schedule(shape="cosine", warmup=0.1, floor=0.1)
FALLBACK = Fallback(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)
MOST = 40_960
"""Rows behind the last evaluation; x 256 tokens = 10.5 million, as in the papers."""
EVALUATION = Evaluation(every=500, sequences=2048, most=MOST, legacy_batch=256)
TUNER = Tuner(reserve=1)
FILES = ("data.source=file:c4/c4-en-train-first1000.jsonl.gz", "data.tokenizer=bpe:32000")
METHODS = ("adamw", "adamw_split", "galore", "apollo", "foam", "frugal", "muon")
DEVIATIONS = (
    "Deviations from the papers, each a field: evaluation is the mean over tokens of a fixed slice "
    "(the papers' sum over n + 1 stands beside it), the learning rate is tuned for every method "
    "alike, and embedding and head have a multiplier of their own."
)


def data(documents: int) -> Data:
    """English C4, so many documents of it."""
    return Data(
        source=f"hf:allenai/c4?config=en&limit={documents}",
        tokenizer="google-t5/t5-base",
        sequence=256,
        batch=ROWS,
        packing=False,
    )
