"""Memory figures that papers print, computed again from the claims of our specs.

A cell is a printed number with the convention that it was printed under. Each is recomputed under
that convention (`recomputed`), and beside it stands the plain count (`ours`): every tensor of
optimizer state over all parameters, plus the weights where the cell includes them, in the cell's
unit. Where a printed number cannot be had from any stated convention, `cause` says what was tried.

Two families of conventions circulate and must not be mixed. The FRUGAL line prints optimizer state
alone, in fp32 and GiB (2^30). The GaLore line (GaLore, APOLLO, Fira, FOAM) prints weights and
state together, in bf16 and GB (10^9), some cells from rounded parameter counts.

Sources: GaLore, https://arxiv.org/abs/2403.03507, Tables 1 and 2; APOLLO,
https://arxiv.org/abs/2412.05270; FRUGAL, https://arxiv.org/abs/2411.07837; AdaFRUGAL,
https://arxiv.org/abs/2601.11568; FOAM, https://arxiv.org/abs/2512.07112 with the chart of
https://github.com/zqOuO/FOAM @ 13769c73.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from levelfield.bench.shapes import SHAPES
from levelfield.bench.spec import ParamInfo, Protocol, Role

Unit = Literal["GB", "GiB"]
BYTES: Mapping[Unit, int] = {"GB": 10**9, "GiB": 2**30}
ALL: tuple[Role, ...] = ("matrix", "embed", "head", "vector")
MATRICES: tuple[Role, ...] = ("matrix",)
PROTOCOL = Protocol(name="published", summary="the specs' claims alone are read")


@dataclass(frozen=True, kw_only=True, slots=True)
class Convention:
    """What a printed number counts, in which dtype and unit."""

    name: str
    unit: Unit
    dtype: Literal["float32", "bfloat16"]
    weights: bool
    """Whether the weights are in it."""
    state: bool = True
    """Whether optimizer state is in it at all."""
    state_of: tuple[Role, ...] = ALL
    """Parameters whose state is counted."""
    nominal: bool = False
    """Parameters from the size's name (1.3 billion) instead of the config's count."""

    def __str__(self) -> str:
        return f"{self.name}, {self.unit}" + (", parameters by name" if self.nominal else "")


FRUGAL = Convention(name="state, fp32", unit="GiB", dtype="float32", weights=False)
GALORE = Convention(name="weights + state, bf16", unit="GB", dtype="bfloat16", weights=True)
GALORE_STATE = Convention(name="state, bf16", unit="GB", dtype="bfloat16", weights=False)
WEIGHTS = Convention(
    name="weights alone, bf16", unit="GB", dtype="bfloat16", weights=True, state=False
)
LINEAR_STATE = Convention(
    name="state of linear layers alone, bf16",
    unit="GB",
    dtype="bfloat16",
    weights=False,
    state_of=MATRICES,
)
NOMINAL: Mapping[str, float] = {
    "60m": 60e6, "130m": 130e6, "350m": 350e6, "1b": 1.3e9, "3b": 3e9, "7b": 7e9,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One printed number."""

    line: str
    """The paper that prints it."""
    method: str
    size: str
    printed: str
    """As it is printed: its digits are part of it."""
    convention: Convention
    spec: str
    hparams: Mapping[str, Any] = field(default_factory=dict)
    copied: bool = False
    """Taken over from another method's column: no reading of this one's bytes is looked for."""
    cause: str = ""
    """Why the printed digits do not come out, or why ours differ from them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputed:
    """A cell beside its counts, all in the cell's unit."""

    cell: Cell
    recomputed: float
    """Under the paper's own convention."""
    ours: float
    """State of all parameters, plus the weights where the cell includes them."""

    reading: Convention | None
    """The reading of the convention that gives the printed digits: as stated if it does, else in
    the other unit or from the size's name; None if none does."""

    @property
    def reproduced(self) -> bool:
        """Whether the convention as stated gives the printed digits."""
        return self.reading == self.cell.convention

    @property
    def difference(self) -> float:
        """Ours less the printed number."""
        return self.ours - float(self.cell.printed)


def _cells() -> tuple[Cell, ...]:
    cells: list[Cell] = []

    def add(
        line: str, method: str, spec: str, convention: Convention, printed: Mapping[str, str],
        hparams: Mapping[str, Mapping[str, Any]] | None = None, cause: Mapping[str, str] | str = "",
        copied: bool = False,
    ) -> None:  # fmt: skip
        for size, number in printed.items():
            why = cause if isinstance(cause, str) else cause.get(size, "")
            chosen = (hparams or {}).get(size, (hparams or {}).get("", {}))
            cells.append(
                Cell(line=line, method=method, size=size, printed=number, convention=convention,
                     spec=spec, hparams=chosen, copied=copied, cause=why)
            )  # fmt: skip

    def by_size(*numbers: str) -> dict[str, str]:
        return dict(zip(("60m", "130m", "350m", "1b"), numbers, strict=True))

    add("FRUGAL", "AdamW", "adamw", FRUGAL, by_size("0.43", "1.00", "2.74", "9.98"))
    add("FRUGAL", "FRUGAL, ρ = 0.25", "frugal", FRUGAL, by_size("0.29", "0.52", "1.05", "3.23"),
        {"": {"rho": 0.25}})  # fmt: skip
    add("FRUGAL", "FRUGAL, ρ = 0", "frugal", FRUGAL, by_size("0.24", "0.37", "0.49", "0.98"),
        {"": {"rho": 0.0}})  # fmt: skip
    add("AdaFRUGAL", "dynamic ρ at its start", "frugal", FRUGAL, {"130m": "0.52"},
        {"": {"rho": 0.25}})  # fmt: skip
    add("AdaFRUGAL", "dynamic ρ at its end", "frugal", FRUGAL, {"130m": "0.37"},
        {"": {"rho": 0.0}},
        "0.37 needs ρ_end of 0.0136 at most (0.05 prints 0.40); it is reached at the last refresh "
        "only, and the peak of the run stays at the 0.52 of its start")  # fmt: skip
    rank = {"60m": 1 / 4, "130m": 1 / 3, "350m": 1 / 4, "1b": 1 / 4, "7b": 1 / 4}
    ranks = {size: {"rank_fraction": share} for size, share in rank.items()}
    halves = {size: {"rank_fraction": share / 2} for size, share in rank.items()}
    add("GaLore", "Adam", "adamw", GALORE_STATE, by_size("0.23", "0.51", "1.37", "5.20"),
        cause={
            "130m": "two moments of 134.1 M parameters take 0.536 GB or 0.500 GiB; 0.51 is twice "
            "a count of 127.5 M, which no reading of the config has",
            "350m": "the cell is in GiB: 1.371 GiB, 1.472 GB",
            "1b": "twice 2.60 GB, the weights of 1.3 billion parameters by name; the config has "
            "1.339 billion, 5.36 GB",
        })  # fmt: skip
    add("GaLore", "GaLore", "galore", GALORE_STATE, by_size("0.13", "0.28", "0.54", "1.78"), ranks,
        "not to be had from the code's tensors: 2rM + rk a linear layer and Adam on embedding, "
        "head and norms is 15 to 21 % more; leaving the projectors out or reading GiB does not "
        "give the column either")  # fmt: skip
    add("GaLore", "Adam", "adamw", GALORE, by_size("0.36", "0.76", "2.06", "7.80"),
        cause={
            "60m": "0.12 (60 M by name) + 0.23 + rounding; the config's 58.1 M take 0.348 GB",
            "130m": "0.25 + 0.51: the weights in GiB, the state as above; 0.805 GB",
            "350m": "GiB: 2.056; 2.208 GB",
            "1b": "3 x 2.60, from 1.3 billion by name; 8.03 GB",
        })  # fmt: skip
    add("GaLore", "GaLore", "galore", GALORE, by_size("0.24", "0.52", "1.22", "4.38"), ranks,
        "the sum of the rounded weights and of the state column that its tensors do not give"
        )  # fmt: skip
    add("APOLLO", "APOLLO-Mini", "apollo_mini", WEIGHTS, by_size("0.12", "0.25", "0.69", "2.60"),
        cause={
            "60m": "the weights alone: the state of embedding, head and norms (0.13 GB) is left "
            "out, as everywhere in this row",
            "130m": "the weights alone, in GiB (0.250); 0.268 GB",
            "350m": "the weights alone, in GiB (0.685); 0.736 GB",
            "1b": "the weights alone, from 1.3 billion by name; 2.68 GB",
        })  # fmt: skip
    add("APOLLO", "APOLLO", "apollo", GALORE, by_size("0.24", "0.52", "1.22", "4.38"), ranks,
        "GaLore's column, copied; APOLLO's own tensors need less where the projector is drawn "
        "again from its seed, and Adam on embedding and head is counted here",
        copied=True)  # fmt: skip
    add("APOLLO", "APOLLO, half the rank", "apollo", GALORE,
        by_size("0.18", "0.39", "0.95", "3.49"), halves,
        "the column leaves out part of the Adam state of embedding and head")  # fmt: skip
    add("APOLLO", "APOLLO, r = 256", "apollo", LINEAR_STATE, {"7b": "1.6"},
        {"": {"rank_fraction": 1 / 16}},
        "the linear layers alone; Adam on embedding, head and norms adds 1.05 GB")  # fmt: skip
    add("FOAM", "Adam", "adamw", GALORE, {"1b": "7.8", "7b": "40.4"},
        cause={"1b": "GaLore's 7.80, copied: 3 x 2.60 from 1.3 billion by name; the config's "
                     "1.339 billion take 8.03 GB"})  # fmt: skip
    add("FOAM", "FOAM, level 2", "foam", GALORE, {"1b": "4.4", "7b": "21.0"}, {"": {"level": 2}})
    add("FOAM", "FOAM-Mini, one fold a row", "foam_mini", GALORE, {"1b": "3.2", "7b": "14.5"})
    add("FOAM", "Muon", "muon", GALORE, {"1b": "5.6", "7b": "27.4"},
        cause={"7b": "27.48: read off a chart, or cut instead of rounded"})  # fmt: skip
    add("FOAM", "GaLore and APOLLO", "galore", GALORE, {"1b": "4.75", "7b": "22.9"}, ranks,
        {"1b": "4.763 with rank 512 and the projectors: read off a chart"})  # fmt: skip
    return tuple(cells)


CELLS = _cells()


@lru_cache
def infos(size: str, dtype: str) -> tuple[ParamInfo, ...]:
    """Every parameter of a published LLaMA; no tensor is allocated."""
    import torch

    from levelfield.bench import models

    shape = SHAPES[f"llama-{size}"]
    with torch.device("meta"):
        model = models.build_model(shape.model, shape.vocabulary, 256, 0)
    return tuple(replace(param.info, dtype=dtype) for param in models.parameters(model))


def state_bytes(cell: Cell, roles: Sequence[Role] = ALL) -> int:
    """The spec's claim at the end of a run, with the fallback's share, over these roles."""
    from levelfield.bench.build import claimed_state_bytes
    from levelfield.bench.registry import OPTIMIZERS

    spec = OPTIMIZERS.load(cell.spec).value
    params = tuple(p for p in infos(cell.size, cell.convention.dtype) if p.role in roles)
    return claimed_state_bytes(spec, PROTOCOL, params, {**spec.defaults(), **cell.hparams}, 1.0)


def value(cell: Cell, rule: Convention) -> float:
    """A cell's quantity under a convention, in its unit. Counted from the size's name, all bytes
    are in proportion."""
    params = infos(cell.size, rule.dtype)
    held = float(sum(param.nbytes for param in params)) if rule.weights else 0.0
    held += state_bytes(cell, rule.state_of) if rule.state else 0
    if rule.nominal:
        held *= NOMINAL[cell.size] / sum(param.numel for param in params)
    return held / BYTES[rule.unit]


def readings(rule: Convention) -> list[Convention]:
    """The convention as stated, then in the other unit, then both from the size's name."""
    other: Unit = "GB" if rule.unit == "GiB" else "GiB"
    stated = [rule, replace(rule, unit=other)]
    return [*stated, *(replace(reading, nominal=True) for reading in stated)]


def recompute(cell: Cell) -> Recomputed:
    """One cell under its own convention, and the plain count beside it."""
    rule = cell.convention
    decimals = len(cell.printed.partition(".")[2])
    tried = [rule] if cell.copied else readings(rule)
    fitting = [r for r in tried if f"{value(cell, r):.{decimals}f}" == cell.printed]
    return Recomputed(
        cell=cell,
        recomputed=value(cell, rule),
        ours=value(cell, replace(rule, state=True, state_of=ALL)),
        reading=fitting[0] if fitting else None,
    )


def check() -> list[Recomputed]:
    """Every cell, in the order of the papers."""
    return [recompute(cell) for cell in CELLS]
