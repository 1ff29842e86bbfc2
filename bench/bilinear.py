"""The task of low-rank regression Y = W* X + E: a problem whose every component is known.

    W* = sum_k sigma_k u_k v_k^T   [m, d], u_k and v_k orthonormal, of random directions
    X [d, n] of standard normal entries, E [m, n] of N(0, noise^2)
    sigma_k = 10 * 0.7^(k - 1) (spectrum=exp) or 10 / k (spectrum=pow), k = 1 ... K

The model is W = sum_k b_k a_k^T. Written `bilinear:spectrum=exp,noise=0.5,m=30,d=24,n=96,rank=8`.

An instance, with the model's initial weights, is drawn from the seed that gives any task its
weights: every seed is another problem, methods share it, and the spectra and noises of one seed
share X, E / noise, the singular vectors and the initial weights. A step reads all n samples.

Notation: m outputs, d inputs, n samples, K components; matrices of samples are [outputs, samples].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from levelfield.bench.digest import did_you_mean, sha256
from levelfield.bench.spec import BenchError, Protocol
from levelfield.bench.tasks import Reading

Array = npt.NDArray[np.float64]
Columns = npt.NDArray[np.int64]

DRAWING = 1
"""Raised when `draw` changes what a seed gives."""
INITIAL = 0.1
"""Standard deviation of the entries of b_k and a_k before the first step."""
PRECISIONS = ("fp64", "fp32")
EXAMPLE = "bilinear:spectrum=exp,noise=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Settings of the problem."""

    spectrum: str = "exp"
    noise: float = 0.0
    """Standard deviation of the entries of E."""
    m: int = 30
    d: int = 24
    n: int = 96
    rank: int = 8
    """Components of W*, and of the model."""

    @property
    def singular_values(self) -> Array:
        """sigma_1 ... sigma_K."""
        order = np.arange(1.0, self.rank + 1)
        return SPECTRA[self.spectrum](order)


SPECTRA: Mapping[str, Callable[[Array], Array]] = {
    "exp": lambda order: 10.0 * 0.7 ** (order - 1),
    "pow": lambda order: 10.0 / order,
}
"""Name -> singular values of W* by their order 1 ... K."""


def parse(text: str) -> Source:
    """Read `bilinear:spectrum=exp,noise=0,...`.

    Raises:
        BenchError: another source, an unknown setting, a value out of range.
    """
    kind, _, settings = text.partition(":")
    if kind != "bilinear":
        raise BenchError(f"data.source={text!r} in a task of kind bilinear", f"accepted: {EXAMPLE}")
    values: dict[str, Any] = {}
    known = Source.__dataclass_fields__
    for part in filter(None, settings.split(",")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            raise BenchError(f"unknown bilinear setting {part!r}", did_you_mean(name, known))
        if name == "spectrum":
            values[name] = value
            continue
        try:
            values[name] = float(value) if name == "noise" else int(value)
        except ValueError:
            raise BenchError(f"bilinear setting {part!r} is not a number", EXAMPLE) from None
    source = Source(**values)
    if source.spectrum not in SPECTRA:
        raise BenchError(
            f"bilinear spectrum={source.spectrum!r}", did_you_mean(source.spectrum, SPECTRA)
        )
    if not (0 <= source.noise < math.inf):
        raise BenchError(f"bilinear noise={source.noise}", "accepted: 0 or more")
    if not 1 <= source.rank <= min(source.m, source.d, source.n):
        raise BenchError(
            f"bilinear rank={source.rank} with m={source.m}, d={source.d}, n={source.n}",
            "accepted: 1 up to the smallest of m, d and n",
        )
    return source


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem, and where a model starts on it."""

    x: Array
    """[d, n]"""
    y: Array
    """[m, n]"""
    truth: Array
    """W*, [m, d]."""
    b: Array
    """[K, m]"""
    a: Array
    """[K, d]"""


def draw(source: Source, seed: int) -> Instance:
    """The problem that a seed gives."""
    random = np.random.Generator(np.random.PCG64(seed))
    left = np.linalg.qr(random.standard_normal((source.m, source.rank)))[0]
    right = np.linalg.qr(random.standard_normal((source.d, source.rank)))[0]
    truth = (left * source.singular_values) @ right.T
    x = random.standard_normal((source.d, source.n))
    error = source.noise * random.standard_normal((source.m, source.n))
    b = INITIAL * random.standard_normal((source.rank, source.m))
    a = INITIAL * random.standard_normal((source.rank, source.d))
    return Instance(x=x, y=truth @ x + error, truth=truth, b=b, a=a)


def components(x: Array, y: Array, count: int) -> Array:
    """P*_k, [count, m, n]: what exact deflation finds one after another.

    The best rank-1 fit b a^T X of Y is the first term of the SVD of Y X^+ X, whatever the condition
    of X, and that of what is left is the next one.
    """
    fitted = y @ np.linalg.pinv(x) @ x
    u, s, vt = np.linalg.svd(fitted, full_matrices=False)
    parts: Array = s[:count, None, None] * u.T[:count, :, None] * vt[:count, None, :]
    return parts


class LowRank(nn.Module):
    """W = sum_k b_k a_k^T, with the problem that it is trained on.

    Attributes:
        b, a: [K, m] and [K, d], trained.
        x, y, truth: [d, n], [m, n], [m, d] as in `Instance`.
        parts: [K, m, n], what exact deflation finds (`components`), to measure against.
    """

    x: Tensor
    y: Tensor
    truth: Tensor
    parts: Tensor

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.from_numpy(instance.b))
        self.a = nn.Parameter(torch.from_numpy(instance.a))
        given = {"x": instance.x, "y": instance.y, "truth": instance.truth}
        given["parts"] = components(instance.x, instance.y, len(instance.b))
        for name, value in given.items():
            self.register_buffer(name, torch.from_numpy(value), persistent=False)

    def forward(self, columns: Tensor | None = None) -> Tensor:
        """Half the mean squared error over samples, 0-dim: ||W X - Y||_F^2 / (2 n).

        Args:
            columns: which samples, int64; None: all.
        """
        x, y = self.x, self.y
        if columns is not None:
            x, y = x[:, columns], y[:, columns]
        residual = self.b.T @ (self.a @ x) - y
        return residual.square().sum() / (2 * x.shape[1])


class All:
    """The samples of every step: all of them, in their order."""

    def __init__(self, samples: int) -> None:
        self._columns = np.arange(samples)

    def next(self) -> Columns:
        return self._columns

    def skip(self, steps: int) -> None:
        pass

    @property
    def sha256(self) -> str:
        return sha256(["all", len(self._columns)])


class Bilinear:
    """Low-rank regression; the loss of an evaluation is ||W - W*||_F / ||W*||_F.

    There are no held-out samples: W* itself is known, so all slices read the same error.

    Args:
        protocol: source, batch, precision.
        device_type: `cpu` or `cuda`.
    """

    def __init__(self, protocol: Protocol, device_type: str) -> None:
        self._protocol = protocol
        self.source = parse(protocol.data.source)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {
            "source": self._protocol.data.source,
            "licence": "generated",
            "tokenizer": "none: samples are numbers",
            "seed": "of the trial: every seed is another instance, the same for all methods",
            **asdict(self.source),
            "singular_values": [float(value) for value in self.source.singular_values],
            "digest": sha256(["bilinear", DRAWING, INITIAL, asdict(self.source)]),
        }

    @property
    def vocabulary(self) -> int:
        return 0

    def check(self) -> None:
        protocol, samples = self._protocol, self.source.n
        if (protocol.data.batch, protocol.data.sequence) != (samples, 1):
            raise BenchError(
                f"data.batch={protocol.data.batch}, data.sequence={protocol.data.sequence} in a "
                "task of kind bilinear",
                f"accepted: data.batch={samples}, data.sequence=1: a step reads all samples",
            )
        if protocol.precision not in PRECISIONS:
            raise BenchError(
                f"precision={protocol.precision} in a task of kind bilinear",
                f"accepted: {', '.join(PRECISIONS)}",
            )
        if protocol.model.family != "bilinear" or protocol.model.source:
            given = protocol.model.source or protocol.model.family
            raise BenchError(
                f"{given} in a task of kind bilinear", "accepted: model.family=bilinear"
            )

    def build_model(self, seed: int) -> LowRank:
        return LowRank(draw(self.source, seed))

    def batches(self, seed: int) -> All:
        return All(self.source.n)

    def split(self, batch: Columns, parts: int) -> Sequence[tuple[Columns, float]]:
        pieces = np.array_split(batch, parts)
        return [(piece, len(piece) / len(batch)) for piece in pieces]

    def to_device(self, batch: Columns, device: torch.device) -> Tensor:
        return torch.from_numpy(batch).to(device, non_blocking=True)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch)
        return loss

    def sampled_loss(self, model: nn.Module, batch: Tensor, generator: torch.Generator) -> Tensor:
        raise BenchError(
            "a task of kind bilinear draws no labels from the model", "accepted: another method"
        )

    def size(self, name: str, limit: int | None) -> int:
        return self.source.n

    def evaluate(
        self, model: nn.Module, name: str, limit: int | None, device: torch.device
    ) -> Reading:
        """The relative error of W, of whatever slice."""
        b, a, truth = (getattr(model, key).detach() for key in ("b", "a", "truth"))
        error = torch.linalg.norm(b.T @ a - truth) / torch.linalg.norm(truth)
        return Reading(float(error))

    def write_tokenizer(self, folder: Path) -> None:
        """There is no text."""
