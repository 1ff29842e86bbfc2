"""Write docs/memory_claims.md and its figures from the claims of the specs.

python scripts/memory_claims.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from levelfield.bench import growth, published
from levelfield.reports import growth as figures
from levelfield.reports.svg import standalone
from levelfield.reports.text import markdown

DOCS = Path(__file__).parent.parent / "docs"
METHODS = (
    "shampoo", "soap", "adamw", "adam_mini", "muon", "galore", "frugal", "foam", "apollo",
    "foam_8bit", "apollo_mini", "foam_mini",
)  # fmt: skip
HEAD = """# Memory figures of the papers, computed again

Made by `python scripts/memory_claims.py` from the claims of the specs, which tests hold to what is
measured. GiB is 2^30 bytes, GB is 10^9.

"""


def cells() -> str:
    """Every printed cell beside its counts."""
    rows = []
    found = published.check()
    for item in found:
        cell = item.cell
        if item.reproduced:
            how = "yes"
        elif item.reading is not None:
            how = f"as {item.reading}"
        else:
            how = "no"
        digits = len(cell.printed.partition(".")[2]) + 1
        rows.append(
            (
                cell.line, cell.method, cell.size, str(cell.convention), cell.printed,
                f"{item.recomputed:.{digits}f}", how, f"{item.ours:.{digits}f}",
                f"{item.difference:+.{digits}f}", cell.cause,
            )
        )  # fmt: skip
    exact = sum(item.reproduced for item in found)
    read = sum(item.reading is not None for item in found) - exact
    words = (
        "## Cell by cell\n\nEach number a paper prints, the same quantity under the paper's own "
        "convention, whether the printed digits come out, and the plain count beside it: the state "
        f"of all parameters and, where the cell has them, the weights. {exact} of {len(found)} "
        f"cells come out to their printed digits, {read} more in another unit or from a rounded "
        "number of parameters. `difference` is the plain count less the printed number.\n\n"
    )
    columns = (
        "paper", "method", "size", "convention", "printed", "recomputed", "comes out", "ours",
        "difference", "cause",
    )  # fmt: skip
    return words + markdown(columns, rows)


def law() -> str:
    """The h squared law, the chains to 5.7 GB, and what holds against them."""
    sizes = growth.savings()
    rows = [
        (s.size, str(s.hidden), str(s.layers), f"{s.linear:,}", f"{s.bytes / 2**30:.3f}",
         f"{s.bytes / 2 / 1e9:.3f}", f"{100 * (s.law - 1):+.2f} %")
        for s in sizes
    ]  # fmt: skip
    hidden = [s.hidden for s in sizes]
    fixed = [96, 192, 384, 768, 1536, 3072]
    at_depth = [growth.saved_bytes(growth.linear_weights(h, 12), "float32") for h in fixed]
    chains = [
        (item.words, f"{item.gigabytes:.2f}", "yes" if item.gives_the_figure else "no")
        for item in growth.chains()
    ]
    return (
        "## What falling state memory saves, from 60M to 7B\n\n"
        "![Saving against hidden size](memory_saving.svg)\n\n"
        + markdown(("size", "h", "L", "linear weights", "saved, fp32 GiB", "saved, bf16 GB",
                 "12 L h² against the count"), rows)
        + "\nFRUGAL's share falls from 0.25 to 0. At a fixed depth the saving grows with h to the "
        f"power {growth.slope(fixed, at_depth):.3f}; along the published sizes depth grows too and "
        f"the slope against h is {growth.slope(hidden, [s.bytes for s in sizes]):.2f}. The law is "
        f"c L h² with c = {growth.coefficient():g} bytes in fp32 "
        f"({growth.coefficient('bfloat16'):g} in bf16). These are counts; they carry no interval."
        "\n\nThe saving is there at the end of training only: the peak of the run stays at the "
        "share it started with, so a run that does not fit at its start never gets to the saving. "
        "\n\n### Ways to the paper's 5.7 GB at 7B\n\n"
        + markdown(("assumptions", "GB", "gives 5.7"), chains)
        + "\nMore than one chain of assumptions gives the figure, so it does not tell which was "
        "meant. The direct count is the one that levelfield prints.\n"
    )  # fmt: skip


def against_size() -> str:
    """State of every method over the published sizes."""
    rows = []
    for name in METHODS:
        held = [growth.state_bytes(name, size, "float32") for size in growth.SIZES]
        hidden = [item.hidden for item in growth.savings()]
        rows.append(
            (f"`{name}`", *(f"{b / 2**30:.2f}" for b in held), f"{growth.slope(hidden, held):.2f}")
        )
    return (
        "## State of each method against size\n\n![State against hidden size](memory_state.svg)\n\n"
        "fp32 GiB at the defaults, with the fallback's AdamW for the parameters that a method does "
        "not take; the larger of the start and the end of a run. Slopes against h below 2 come "
        "from embedding and head, whose share falls with size.\n\n"
        + markdown(("method", *growth.SIZES, "slope against h"), rows)
    )


def draw() -> dict[str, str]:
    """File name -> text of each figure."""
    sizes = growth.savings("bfloat16")
    small = [32, 64, 128, 256]
    fixed = [*small, 512, 768, 1024, 2048, 2560, 4096]
    lines = [
        figures.Line(label="published sizes, counted", hidden=[s.hidden for s in sizes],
                     bytes=[s.bytes for s in sizes]),
        figures.Line(label="fixed depth of 12 layers: h²", hidden=fixed, marks=False,
                     bytes=[growth.saved_bytes(growth.linear_weights(h, 12), "bfloat16")
                            for h in fixed]),
        figures.Line(label="two layers, as small runs here have", hidden=small,
                     bytes=[growth.saved_bytes(growth.linear_weights(h, 2), "bfloat16")
                            for h in small]),
    ]  # fmt: skip
    states = [
        figures.Line(label=name, hidden=[s.hidden for s in sizes],
                     bytes=[growth.state_bytes(name, size, "float32") for size in growth.SIZES])
        for name in METHODS
    ]  # fmt: skip
    return {
        "memory_saving.svg": standalone(
            figures.saving(lines, growth.PAPER_GB, sizes[-1].hidden, "saving")
        ),
        "memory_state.svg": standalone(figures.state(states, "state")),
    }


def text() -> str:
    """The whole document."""
    return HEAD + cells() + "\n" + law() + "\n" + against_size()


def main() -> int:
    target = DOCS / "memory_claims.md"
    if "--check" in sys.argv:
        same = target.read_text(encoding="utf-8") == text()
        print(f"{target.name}: {'as the specs say' if same else 'out of date'}")
        return 0 if same else 1
    target.write_text(text(), encoding="utf-8")
    for name, svg in draw().items():
        (DOCS / name).write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
