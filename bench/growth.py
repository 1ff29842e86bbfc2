"""How optimizer state grows with the model, and what falling state memory saves at 7B.

The law: what FRUGAL's rho holds back is 2 b (rho_start - rho_end) bytes a linear weight (b bytes an
element), and a LLaMA with a feed-forward width of 8/3 h has 12 L h^2 linear weights. At fixed depth
the exponent of h is exactly 2. The published sizes grow in depth too, so that against h alone the
slope is steeper, and c L h^2 is the law. These are counts and carry no interval.

The paper (AdaFRUGAL, https://arxiv.org/abs/2601.11568) extrapolates a saving of about 5.7 GB at
7B. How it got there is not told; `chains` lists the assumptions that lead to this figure, and the
direct count stands beside them. Whatever the figure, it is reached at the last refresh: the peak of
the run stays where the state-full share started.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from levelfield.bench.published import PROTOCOL, infos
from levelfield.bench.shapes import SHAPES
from levelfield.bench.spec import ParamInfo

SIZES = tuple(name.removeprefix("llama-") for name in SHAPES)
PAPER_GB = 5.7
"""AdaFRUGAL's extrapolated saving at 7B."""
RHO_START, RHO_END = 0.25, 0.0
ITEMSIZE = {"float32": 4, "bfloat16": 2}


def linear_weights(hidden: int, layers: int, intermediate: int | None = None) -> int:
    """Weights of the seven linear layers of each block; 8/3 h is the feed-forward width if none is
    given, which is 12 L h^2 in all."""
    inner = hidden * 8 / 3 if intermediate is None else intermediate
    return round(layers * (4 * hidden**2 + 3 * hidden * inner))


def saved_bytes(weights: int, dtype: str, start: float = RHO_START, end: float = RHO_END) -> float:
    """Two moments of the share of linear weights that loses its state between start and end."""
    return 2 * ITEMSIZE[dtype] * (start - end) * weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """One published size: its exact count, and the law's."""

    size: str
    hidden: int
    layers: int
    linear: int
    """Linear weights, counted."""
    bytes: float
    """Saved between rho_start and rho_end, by the exact count."""

    @property
    def law(self) -> float:
        """12 L h^2 over the count of linear weights."""
        return 12 * self.layers * self.hidden**2 / self.linear


def savings(dtype: str = "float32") -> list[Saving]:
    """Every published size, exactly."""
    found = []
    for size in SIZES:
        model = SHAPES[f"llama-{size}"].model
        linear = sum(info.numel for info in infos(size, dtype) if info.role == "matrix")
        found.append(
            Saving(
                size=size,
                hidden=model.hidden,
                layers=model.layers,
                linear=linear,
                bytes=saved_bytes(linear, dtype),
            )
        )
    return found


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares exponent of y in x, both positive."""
    u, v = [math.log(a) for a in x], [math.log(b) for b in y]
    centre = math.fsum(u) / len(u)
    weight = math.fsum((a - centre) ** 2 for a in u)
    return math.fsum((a - centre) * b for a, b in zip(u, v, strict=True)) / weight


def coefficient(dtype: str = "float32") -> float:
    """c of c L h^2, bytes."""
    return saved_bytes(12, dtype)


def state_bytes(name: str, size: str, dtype: str) -> int:
    """A method's claimed state over a published size at its defaults, fallback included.

    Raises:
        BenchError: an unknown method.
    """
    from levelfield.bench.build import claimed_state_bytes
    from levelfield.bench.reference import load_spec

    spec = load_spec(name).value
    params: tuple[ParamInfo, ...] = infos(size, dtype)
    return max(
        claimed_state_bytes(spec, PROTOCOL, params, spec.defaults(), progress)
        for progress in (0.0, 1.0)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A way to a saving at 7B: its assumptions in words, and the number they give."""

    words: str
    gigabytes: float

    @property
    def gives_the_figure(self) -> bool:
        """Whether it rounds to the paper's figure."""
        return round(self.gigabytes, 1) == PAPER_GB


def chains() -> list[Chain]:
    """What leads to about 5.7 GB at 7B, what does not, and the direct count."""
    small, large = SHAPES["llama-130m"].model, SHAPES["llama-7b"].model
    widths = (large.hidden / small.hidden) ** 2
    depths = large.layers / small.layers
    printed = 0.52 - 0.37
    direct = {dtype: savings(dtype)[-1].bytes / 1e9 for dtype in ITEMSIZE}
    half = savings("bfloat16")[-1].linear
    return [
        Chain(words="0.52 - 0.37, printed for 130M in fp32, x h² x layers / 2 for bf16, units kept",
              gigabytes=printed * widths * depths / 2),
        Chain(words="the same printed saving x h² alone, fp32", gigabytes=printed * widths),
        Chain(words="the same x h² alone / 2 for bf16", gigabytes=printed * widths / 2),
        Chain(words="a base of 0.2 x h² alone", gigabytes=0.2 * widths),
        Chain(words="direct count with rho falling by 0.22, bf16, GB",
              gigabytes=saved_bytes(half, "bfloat16", 0.22) / 1e9),
        Chain(words="direct count, rho 0.25 to 0, bf16, GB", gigabytes=direct["bfloat16"]),
        Chain(words="direct count, rho 0.25 to 0, bf16, GiB",
              gigabytes=direct["bfloat16"] * 1e9 / 2**30),
        Chain(words="direct count, rho 0.25 to 0, fp32, GB", gigabytes=direct["float32"]),
    ]  # fmt: skip
