"""A source whose best possible loss is known: an order-k Markov chain.

Every context of k symbols has its own next-symbol distribution, drawn from a symmetric Dirichlet.
The floor is the chain's own negative log-likelihood on the very tokens that are evaluated, so that
`loss - floor` is what a model has left to learn.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from levelfield.bench.digest import did_you_mean
from levelfield.bench.spec import BenchError

MOST_ENTRIES = 10_000_000
"""Entries of the transition table: 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovSource:
    """Settings of the chain, written as `markov:order=2,symbols=32`."""

    order: int = 2
    symbols: int = 32
    concentration: float = 0.1
    """Of the Dirichlet: smaller is more predictable."""
    train: int = 160_000
    held_out: int = 16_000
    """Tokens of the selection and of the report slice; control has half as many."""
    seed: int = 20260101

    def sizes(self) -> dict[str, int]:
        """Tokens a slice."""
        return {
            "train": self.train,
            "control": self.held_out // 2,
            "selection": self.held_out,
            "report": self.held_out,
        }


def parse(text: str) -> MarkovSource:
    """Read `order=2,symbols=32,...`.

    Raises:
        BenchError: an unknown setting or a value out of range.
    """
    values: dict[str, float] = {}
    known = MarkovSource.__dataclass_fields__
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            raise BenchError(f"unknown Markov setting {part!r}", did_you_mean(name, known))
        try:
            values[name] = float(value) if name == "concentration" else int(value)
        except ValueError:
            raise BenchError(f"Markov setting {part!r} is not a number", "order=2") from None
    source = MarkovSource(**values)  # type: ignore[arg-type]
    _check(source)
    return source


def _check(source: MarkovSource) -> None:
    if not (1 <= source.order <= 16 and 2 <= source.symbols <= 65_536) or (
        source.symbols ** (source.order + 1) > MOST_ENTRIES
    ):
        raise BenchError(
            f"a Markov source of order {source.order} over {source.symbols} symbols",
            "accepted: order 1 to 16, 2 to 65536 symbols, symbols^(order + 1) up to ten million",
        )
    if not (0 < source.concentration < math.inf):
        raise BenchError(f"Markov concentration {source.concentration}", "accepted: above 0")
    if source.train < 1 or source.held_out < 2 or source.seed < 0:
        raise BenchError(
            f"Markov train={source.train}, held_out={source.held_out}, seed={source.seed}",
            "accepted: train of 1 or more, held_out of 2 or more, seed of 0 or more",
        )


def generate(
    source: MarkovSource,
) -> tuple[dict[str, npt.NDArray[np.uint16]], dict[str, npt.NDArray[np.float64]]]:
    """Tokens [n] of each slice, and the chain's NLL in nats of every token given those before.

    Each slice is a chain of its own that starts from the context of k zeros, which the NLL knows.
    """
    random = np.random.Generator(np.random.PCG64(source.seed))
    contexts = source.symbols**source.order
    alphas = np.full(source.symbols, source.concentration)
    rows = random.dirichlet(alphas, size=contexts)
    rows = 0.999 * rows + 0.001 / source.symbols  # no token is impossible, so no loss is infinite
    cumulative = [row.tolist() for row in np.cumsum(rows, axis=1)]
    surprise = -np.log(rows)
    tokens, losses = {}, {}
    for name, size in source.sizes().items():
        stream = np.empty(size, dtype=np.uint16)
        seen = np.empty(size, dtype=np.int64)
        context = 0
        for index, draw in enumerate(random.random(size).tolist()):
            symbol = min(bisect_right(cumulative[context], draw), source.symbols - 1)
            stream[index], seen[index] = symbol, context
            context = (context * source.symbols + symbol) % contexts
        tokens[name] = stream
        losses[name] = surprise[seen, stream]
    return tokens, losses
