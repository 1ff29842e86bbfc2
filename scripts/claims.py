"""Write docs/claims.md: what runs, and the memory planner, say of the papers' claims.

python scripts/claims.py RUN... [--out FILE]

Figures of a model of a billion parameters are computed from the claims of the specs, which tests
hold to what is measured; everything else is read off the records of the runs, each judged by
itself as on its own page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from levelfield.bench import published
from levelfield.bench.build import claimed_state_bytes
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.shapes import SHAPES
from levelfield.bench.spec import ENGINE_VERSION, BenchError
from levelfield.bench.store import load_run
from levelfield.reports import claim_counts, claims_table, view
from levelfield.reports.claim_parts import SAVED, Part
from levelfield.reports.claim_weigh import counted
from levelfield.reports.claims import CLAIMS, Claim, Size
from levelfield.reports.claims_table import VERDICTS, Judged
from levelfield.reports.text import clean, markdown

TARGET = Path(__file__).parent.parent / "docs" / "claims.md"
ELSEWHERE = {
    "adafrugal-time": "[ablations](ablations.md#seconds)",
    "adafrugal-time-svd": "[ablations](ablations.md#seconds)",
    "adafrugal-frugal": "[ablations](ablations.md#loss)",
    "adafrugal-combined": "[ablations](ablations.md#loss)",
    "foam-residual": "[ablations](ablations.md#loss)",
    "adapad-parameters": "[adapters](adapters.md)",
    "adapad-devices": "[component parallelism](component_parallel.md)",
    "adapad-synchronisation": "[component parallelism](component_parallel.md)",
}
"""Claims that another page speaks of where no run given here does."""

Shown = tuple[str, str, str, str]
"""Verdict, figures, power, source."""


# --- from the planner -------------------------------------------------------------------------


def size_name(size: Size) -> str:
    """The published shape that a claim's size means: llama-1b."""
    return next(
        name.removeprefix("llama-")
        for name, shape in SHAPES.items()
        if (shape.model.hidden, shape.model.layers) == (size.hidden, size.layers)
    )


def state(name: str, size: str, dtype: str, progress: float) -> int:
    """A method's claimed state at its defaults, the fallback's share with it."""
    spec = OPTIMIZERS.load(name).value
    params = published.infos(size, dtype)
    return claimed_state_bytes(spec, published.PROTOCOL, params, spec.defaults(), progress)


def saves(claim: Claim, size: str) -> Part:
    """As `claim_counts.saves_at_size`, in bf16 as the paper counts."""
    weights = sum(param.nbytes for param in published.infos(size, "bfloat16"))
    extra = weights if "weights" in claim.counts else 0
    held = [
        state(name, size, "bfloat16", 1.0) + extra for name in (claim.methods[0], claim.against)
    ]
    least = -math.log1p(-(claim.least if claim.least is not None else claim.size or 0.0))
    words = f"{' + '.join(claim.counts)} saved"
    return counted(words, math.log(held[1] / held[0]), SAVED, least=least)


def falls(claim: Claim, size: str) -> Part:
    """As `claim_counts.state_falls`, in fp32 as the paper counts."""
    first, last = (state(claim.methods[0], size, "float32", at) for at in (0.0, 1.0))
    return counted("state saved at the end", math.log(first / last), SAVED, least=1e-12)


def frees(claim: Claim, size: str) -> Part:
    """As `claim_counts.frees_at_size`, in bf16: what the paper's figure is closest to."""
    first, last = (state(claim.methods[0], size, "bfloat16", at) for at in (0.0, 1.0))
    return counted("freed in bf16", first - last, claim_counts.GB, least=claim.least or 0.0)


PLANNED: Mapping[Callable[..., object], Callable[[Claim, str], Part]] = {
    claim_counts.saves_at_size: saves,
    claim_counts.state_falls: falls,
    claim_counts.frees_at_size: frees,
}


def planned(claim: Claim) -> Iterator[Shown]:
    """What the planner says of a claim about a published size; nothing for the others."""
    count = PLANNED.get(claim.test)
    if count is None or claim.at is None:
        return
    part = count(claim, size_name(claim.at))
    told = "reproduced" if part.p_for == 0 else "not reproduced"
    power = f"counted at {claim.at.name}"
    yield told, part.text, power, "[planner](memory_claims.md)"


# --- from runs --------------------------------------------------------------------------------


def judged(path: Path) -> tuple[str, tuple[Judged, ...]]:
    """A run's name and what it says of every claim.

    Raises:
        BenchError: a run of another engine: its numbers are not those of this version.
    """
    run = load_run(path)
    engine = run.manifest.get("engine_version")
    if engine != ENGINE_VERSION:
        raise BenchError(
            f"{path} was made by engine version {engine}, this is {ENGINE_VERSION}", "run it again"
        )
    seen = view.build(run)
    day = str(run.manifest.get("created_utc", ""))[:10]
    devices = sorted({record.device for record in run.records})
    name = f"{clean(seen.setting('name'))}, {day}, {' and '.join(devices)}"
    return name, claims_table.judge(seen)


def shown(item: Judged, source: str) -> Shown:
    p = "" if item.p_holm is None else f"p = {item.p_holm:.2g} (Holm)"
    figures = "; ".join(filter(None, (item.figures, item.claimed, p)))
    return item.verdict, figures, item.power, source


def rows(runs: list[tuple[str, tuple[Judged, ...]]]) -> Iterator[tuple[str, ...]]:
    """A row a claim and source that speaks of it, what is shown before what is not."""
    for index, claim in enumerate(CLAIMS):
        found = list(planned(claim))
        found += [shown(items[index], name) for name, items in runs]
        told = [item for item in found if item[0] not in VERDICTS[3:]]
        told = told or [item for item in found if item[0] != "no data"]
        told.sort(key=lambda item: [str(verdict) for verdict in VERDICTS].index(item[0]))
        told = told or [("no data", "", "", ELSEWHERE.get(claim.key, ""))]
        paper = f"[{claim.paper.name}]({claim.paper.url})"
        for place, (verdict, figures, power, source) in enumerate(told):
            said = claim.note if claim.note not in power else ""
            first = (claim.text + (f" ({said})" if said else ""), paper)
            yield (*(first if place == 0 else ("", "")), verdict, figures, power, source)


def text(runs: list[tuple[str, tuple[Judged, ...]]]) -> str:
    """The page."""
    parts = [
        "# What the papers claim",
        "Headline claims of papers, and what runs of levelfield say of them. Effects are positive "
        "as claimed, with the 95 % interval over tuning studies. Reproduced: every part of the "
        "claim is shown, Holm-adjusted over the claims that a run tests. Not reproduced: a part is "
        "shown to be the other way round. Not distinguishable: neither. Not testable here: the "
        "claimed effect is smaller than what the run finds with power .8. No data: nothing was run "
        "that could tell. A verdict holds for the model and horizon of its run: forty thousand "
        "parameters say nothing about a billion.",
        "`python scripts/claims.py RUN...` writes this page.",
        markdown(
            ("claim", "paper", "verdict", "effect, + is as claimed", "power", "from"), rows(runs)
        ),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="what runs say of the papers' claims")
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=TARGET)
    asked = parser.parse_args()
    try:
        found = [judged(path) for path in asked.runs]
    except BenchError as error:
        raise SystemExit(str(error)) from None
    asked.out.write_text(text(found), encoding="utf-8")
    print(asked.out)


if __name__ == "__main__":
    main()
