"""Write docs/optimizers.md from the registry, or check that it is what the registry says.

python scripts/optimizer_table.py [--check | --check-all]

`--check` leaves out what has to be counted, the host reads; `--check-all` counts them too. A method
whose packages are missing here is told from its source alone, and checked for what that says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.bench import models
from levelfield.bench.build import adapt, claimed_state_bytes
from levelfield.bench.check import PROTOCOL
from levelfield.bench.check_claims import count_host_reads
from levelfield.bench.registry import OPTIMIZERS, Entry, lacking
from levelfield.bench.spec import BenchError, Model, OptimizerSpec, ParamInfo
from levelfield.reports.text import markdown

TARGET = Path(__file__).parent.parent / "docs" / "optimizers.md"
STEPS = 12
"""Of the run in which host reads are counted; every method's mechanism fires in it."""
HEAD = f"""# Methods

Made by `python scripts/optimizer_table.py` from the registry. State is what a spec claims (and a
test measures) for a LLaMA of width 64 with two layers in fp32, fallback included, in bytes a
parameter that is trained; AdamW has 8. `passes` are forward/backward passes a step, as claimed and
measured by a test. `host reads` are scalars that the host reads in a step beyond what the model
itself reads, counted over {STEPS} steps of a tiny LLaMA on the CPU. `cannot` is declared, and tried
by `levelfield check`.

"""
COLUMNS = (
    *("method", "family", "what it does", "paper", "implementation", "tuned (default)"),
    *("state", "passes", "host reads", "takes", "cannot", "needs"),
)
FROM_SOURCE = ("method", "family", "what it does", "paper")
"""Columns that need no import: literals of a spec."""


def infos(spec: OptimizerSpec) -> tuple[ParamInfo, ...]:
    """What the method trains of the model that the state column is for."""
    config = Model(hidden=64, layers=2, heads=4, intermediate=168)
    model = models.build_model(config, 256, 64, 0)
    model = adapt(spec, PROTOCOL, model, spec.defaults(), 0)
    return tuple(p.info for p in models.parameters(model))


def row(entry: Entry, counting: bool) -> dict[str, str]:
    """One method as cells by column; host reads are empty if not `counting`."""
    try:
        spec = OPTIMIZERS.load(entry.name).value
    except BenchError:
        return from_source(entry.literals or {}, entry.name)
    cells = {
        "method": f"`{spec.name}`",
        "family": spec.family,
        "what it does": spec.summary,
        "paper": spec.paper,
        "implementation": spec.implementation,
        "tuned (default)": ", ".join(f"{k} ({dim.default:g})" for k, dim in spec.space.items()),
        "state": state(spec),
        "passes": f"{spec.passes:g}",
        "takes": "all" if len(spec.roles) == 4 else ", ".join(spec.roles),
        "cannot": ", ".join(spec.cannot) or "–",
        "needs": ", ".join(spec.requires) or "–",
    }
    absent = lacking(spec.requires)
    reads = ""
    if counting and not absent:
        reads = "–" if spec.tasks else f"{count_host_reads(spec, STEPS):g}"
    return {**cells, "host reads": f"not measured: no {', '.join(absent)}" if absent else reads}


def state(spec: OptimizerSpec) -> str:
    if spec.tasks:
        return "–"  # its model is another
    params = infos(spec)
    held = claimed_state_bytes(spec, PROTOCOL, params, spec.defaults(), 1.0)
    return f"{held / sum(info.numel for info in params):.2f}"


def from_source(literals: Mapping[str, Any], name: str) -> dict[str, str]:
    """What is known of a method that does not load here."""
    needs = ", ".join(literals.get("requires", ()))
    return {
        **dict.fromkeys(COLUMNS, f"not measured: no {needs}" if needs else "not measured"),
        "method": f"`{name}`",
        "family": str(literals.get("family", "")),
        "what it does": str(literals.get("summary", "")),
        "paper": str(literals.get("paper", "")),
        "implementation": str(literals.get("implementation", "own")),
        "passes": f"{literals.get('passes', 1.0):g}",
        "cannot": ", ".join(literals.get("cannot", ())) or "–",
        "needs": needs or "–",
    }


def rows(counting: bool) -> list[dict[str, str]]:
    """All methods by family and name."""
    found = [row(entry, counting) for entry in OPTIMIZERS.entries().values()]
    return sorted(found, key=lambda cells: (cells["family"], cells["method"]))


def text(found: list[dict[str, str]]) -> str:
    """The whole page."""
    return HEAD + markdown(COLUMNS, ([cells[column] for column in COLUMNS] for cells in found))


def known(page: str, unmeasured: set[str], counting: bool) -> list[list[str]]:
    """The page as cells; of methods that cannot be measured here, what their sources say."""
    lines = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in unmeasured:
            cells = cells[: len(FROM_SOURCE)]
        elif len(cells) == len(COLUMNS) and not counting:
            del cells[COLUMNS.index("host reads")]
        lines.append(cells)
    return lines


def main() -> None:
    checking, counting = "--check" in sys.argv[1:], "--check" not in sys.argv[1:]
    found = rows(counting)
    made = text(found)
    if not checking and "--check-all" not in sys.argv[1:]:
        TARGET.write_text(made, encoding="utf-8")
        print(f"{TARGET}: {len(found)} methods")
        return
    unmeasured = {c["method"] for c in found if any("not measured" in v for v in c.values())}
    there = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
    if known(there, unmeasured, counting) != known(made, unmeasured, counting):
        sys.exit(f"{TARGET} is not what the registry says: python scripts/optimizer_table.py")


if __name__ == "__main__":
    main()
