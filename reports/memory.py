"""The memory plan for people: a table in the terminal, a stacked figure, CSV, a page of its own."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.bench.memory import GIB, OUTSIDE, Fit, Plan, Row
from levelfield.bench.store import write_atomic
from levelfield.reports.blocks import Cell, Column, Table, grid
from levelfield.reports.frames import frame
from levelfield.reports.measure import KINDS, Missing
from levelfield.reports.svg import INK, PAPER, SOFT, canvas, export, palette_css, standalone, style
from levelfield.reports.svg import KINDS as COLORS
from levelfield.reports.text import (
    DASH,
    binary_unit,
    bytes_text,
    clean,
    listed,
    plural,
    significant,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

STEM = "memory"
WIDTH = 1240
BYTES = ("weights", "gradients", "state", "activations", "temporary", "total")
TITLES = {
    "weights": "weights",
    "gradients": "gradients",
    "state": "state",
    "activations": "activations",
    "temporary": "in the update",
    "total": "total peak",
}
MEANING = (
    "weights: with the model's buffers; state: the optimizer's, without its step counters",
    "activations: the most of a pass, logits included; in the update: the most that the optimizer "
    "takes in its step beside weights, gradients and state; a method that updates inside backward "
    "has its update among the activations",
    "total peak: of the whole step; the columns need not be at their most at the same moment",
    "formula: what the methods claim: exact for weights, gradients and state, so the least that is "
    "needed; simulated: real steps with fake tensors; measured: a short run, by the allocator",
)


# --- rows -------------------------------------------------------------------------------------


def table(plan: Plan) -> DataFrame:
    """One row a method and route; all bytes as they are, empty cells with their reasons."""
    fits = [fit.capacity for fit in plan.rows[0].fits] if plan.rows else []
    columns = [
        *("method", "route", "device"),
        *(f"{name}_bytes" for name in BYTES),
        *("state_start_bytes", "state_end_bytes", "pass_peak_bytes", "update_peak_bytes"),
        *("host_reads", "wall_s", *(f"fits_{name}" for name in fits)),
    ]
    return frame(columns, [cells for row in plan.rows for cells in _cells(row, plan)])


def _cells(row: Row, plan: Plan) -> list[dict[str, Any]]:
    claims, seen, real = row.formula, row.simulated, row.measured
    unknown = Missing("a claim holds neither activations nor temporaries")
    found: list[dict[str, Any]] = [
        {
            "method": row.method,
            "route": "formula",
            "device": "any",
            "weights_bytes": claims.weights,
            "gradients_bytes": claims.gradients,
            "state_bytes": claims.state,
            "activations_bytes": unknown,
            "temporary_bytes": unknown,
            "total_bytes": claims.total,
            "state_start_bytes": claims.state_start,
            "state_end_bytes": claims.state_end,
        }
    ]
    if seen is not None:
        why = Missing(row.reasons.get("simulated.temporary", ""))
        found.append(
            {
                "method": row.method,
                "route": "simulated",
                "device": plan.target,
                "weights_bytes": seen.weights,
                "gradients_bytes": seen.gradients,
                "state_bytes": seen.state,
                "activations_bytes": seen.activations,
                "temporary_bytes": why if seen.temporary is None else seen.temporary,
                "total_bytes": why if seen.total is None else seen.total,
                "pass_peak_bytes": seen.pass_peak,
                "update_peak_bytes": why if seen.update_peak is None else seen.update_peak,
                "host_reads": seen.host_reads,
                "wall_s": round(seen.wall_s, 2),
            }
        )
    elif "simulated" in row.reasons:
        found.append(_empty(row, "simulated", plan.target))
    if real is not None:
        apart = Missing("an allocator does not tell what its blocks are for")
        found.append(
            {
                "method": row.method,
                "route": "measured",
                "device": real.device,
                **{f"{name}_bytes": apart for name in BYTES},
                "state_bytes": real.state,
                "total_bytes": real.total,
                "pass_peak_bytes": real.pass_peak,
                "update_peak_bytes": real.update_peak,
                "wall_s": round(real.wall_s, 2),
            }
        )
    elif "measured" in row.reasons:
        found.append(_empty(row, "measured", ""))
    for fit in row.fits:
        for cells in found:
            if cells["route"] == fit.route:
                cells[f"fits_{fit.capacity}"] = _word(fit)
    return found


def _empty(row: Row, route: str, device: str) -> dict[str, Any]:
    why = Missing(row.reasons[route])
    return {
        "method": row.method,
        "route": route,
        "device": device,
        **{f"{name}_bytes": why for name in BYTES},
    }


def _word(fit: Fit) -> str:
    return {True: "yes", False: "no", None: "not known"}[fit.fits]


# --- the terminal -----------------------------------------------------------------------------


def lines(plan: Plan) -> list[str]:
    """The plan as text."""
    shown = table(plan).to_dict("records")
    unit, exponent = binary_unit(
        [row["total_bytes"] for row in shown if _known(row["total_bytes"])]
    )
    width = max([len(row.method) for row in plan.rows] + [6])
    head = f"{'method':<{width}}  {'route':<11}" + "".join(
        f"{TITLES[name]:>{_width(name)}}" for name in BYTES
    )
    found = [title(plan), f"in {unit} (1 {unit} is 2^{exponent} bytes)", "", head]
    for row in shown:
        amounts = [(name, row[f"{name}_bytes"]) for name in BYTES]
        if not any(_known(value) for _, value in amounts):
            continue  # the reason is told below
        cells = "".join(
            f"{_amount(value, exponent, row['route'], name):>{_width(name)}}"
            for name, value in amounts
        )
        where = f"  on {row['device']}" if row["route"] == "measured" else ""
        found.append(f"{row['method']:<{width}}  {row['route']:<11}{cells}{where}")
    said = [*verdicts(plan), *remarks(plan)]
    return [*found, *([""] if said else []), *said, "", *MEANING, OUTSIDE]


def _width(name: str) -> int:
    return max(9, len(TITLES[name])) + 2


def _known(value: object) -> bool:
    return isinstance(value, (int, float)) and value == value


def _amount(value: Any, exponent: int, route: str, name: str) -> str:
    if not _known(value):
        return "-"
    least = ">= " if route == "formula" and name == "total" else ""
    return f"{least}{value / 2**exponent:.2f}"


def title(plan: Plan) -> str:
    """What was planned, in a line."""
    ways = [
        f"{plan.batch} x {plan.sequence} tokens a pass",
        plural(plan.accumulation, "pass", "passes") + " a step",
    ]
    if plan.checkpointing:
        ways.append("checkpointing")
    return (
        f"{clean(plan.model)}: {plan.parameters:,} parameters, {plan.precision}, "
        f"{', '.join(ways)}, planned for {plan.target}"
    )


def verdicts(plan: Plan) -> list[str]:
    """What fits, in words."""
    sizes = [
        f"{fit.capacity} is {fit.capacity_bytes / GIB:.2f} GiB (2^30 bytes)"
        for fit in (plan.rows[0].fits if plan.rows else ())
        if not fit.capacity.lower().rstrip().endswith("gib")
    ]
    found = []
    for row in plan.rows:
        if row.fits:
            first = row.fits[0]
            words = ", ".join(f"{fit.capacity}: {_word(fit)}" for fit in row.fits)
            found.append(
                f"{row.method} fits {words} (peak {'at least ' if first.least else ''}"
                f"{bytes_text(first.peak or 0)} + {bytes_text(first.margin)} margin, "
                f"{first.route})"
            )
    return [*found, *sizes]


def remarks(plan: Plan) -> list[str]:
    """What is missing and why, state that changes over the run, host reads."""
    found = []
    missing: dict[tuple[str, str], list[str]] = {}
    for row in plan.rows:
        claims = row.formula
        if claims.state_end != claims.state:
            found.append(
                f"{row.method}: state {bytes_text(claims.state)} at its most, "
                f"{bytes_text(claims.state_end)} at the end; the most has to fit"
            )
        for part, why in row.reasons.items():
            name = "simulated inside the update" if part == "simulated.temporary" else part
            missing.setdefault((name, why), []).append(row.method)
    found += [f"not {name}: {listed(names)}: {why}" for (name, why), names in missing.items()]
    reading = [
        f"{row.method} {row.simulated.host_reads}"
        for row in plan.rows
        if row.simulated is not None and row.simulated.host_reads
    ]
    if reading:
        found.append(f"scalars that the host reads in a step, each a wait: {listed(reading)}")
    return found


# --- the figure -------------------------------------------------------------------------------


def figure(plan: Plan, name: str = STEM) -> str:
    """The peak of every method by kind, smallest first, with the devices' sizes as lines."""
    rows = sorted(plan.rows, key=lambda row: (not _whole(row), _height(row)))
    unit, exponent = binary_unit([_height(row) for row in rows])
    scale = 2**exponent
    with style():
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        drawn = canvas(WIDTH, 110 + 26 * len(rows))
        axes = drawn.add_subplot()
        for number, row in enumerate(rows):
            _bar(axes, number, row, scale)
        fits = plan.rows[0].fits
        widest = max([_height(row) for row in rows] + [1]) / scale
        shown = [fit for fit in fits if fit.capacity_bytes / scale <= 1.6 * widest]
        for fit in shown:
            place = fit.capacity_bytes / scale
            axes.axvline(place, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(clean(fit.capacity), (place, -0.8), (5, 0), textcoords="offset points",
                          color=INK, fontsize=10, va="center")  # fmt: skip
        axes.set_yticks(range(len(rows)), [clean(row.method) for row in rows])
        for text in axes.get_yticklabels():
            text.set_color(INK)
            text.set_fontsize(11)
        axes.set_ylim(len(rows) - 0.4, -1.1 if shown else -0.6)
        axes.set_xlim(0, 1.14 * max([widest, *(fit.capacity_bytes / scale for fit in shown)]))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{unit} at the step's peak")
        handles: list[Any] = [Patch(facecolor=color) for color, _ in COLORS]
        labels = list(KINDS)
        if any(row.measured is not None for row in rows):
            handles.append(Line2D([], [], marker="D", ls="", mfc=PAPER, mec=INK, ms=5.5))
            labels.append("measured")
        drawn.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False,
                     fontsize=10, handlelength=0.9, columnspacing=1.2,
                     handletextpad=0.4)  # fmt: skip
        return export(drawn, name, "Memory at the peak of a step", title(plan))


def _parts(row: Row) -> Mapping[str, int]:
    """Bytes by kind at the highest peak that is known; the claims where none is."""
    if row.simulated is not None:
        return row.simulated.kinds
    claims = row.formula
    return {"weights": claims.weights, "gradients": claims.gradients, "state": claims.state}


def _height(row: Row) -> int:
    return sum(_parts(row).values())


def _whole(row: Row) -> bool:
    """Whether the peak of the whole step is known."""
    return row.simulated is not None and row.simulated.total is not None


def _bar(axes: Axes, number: int, row: Row, scale: int) -> None:
    parts = _parts(row)
    left = 0.0
    for kind, (color, _) in zip(KINDS, COLORS, strict=True):
        part = parts.get(kind, 0) / scale
        axes.barh(number, part, left=left, color=color, height=0.66, linewidth=0)
        left += part
    end = left
    if row.measured is not None:
        end = max(end, row.measured.total / scale)
        axes.plot([row.measured.total / scale], [number], "D", mfc=PAPER, mec=INK, ms=5.5)
    text = significant(left, 3)
    if not _whole(row):
        known = "claims" if row.simulated is None else "its pass"
        text = f"≥ {text}: only {known} known"
    axes.annotate(text, (end, number), (9, 0), textcoords="offset points", va="center", color=SOFT,
                  fontsize=10, bbox={"fc": PAPER, "ec": "none", "pad": 1})  # fmt: skip


# --- files ------------------------------------------------------------------------------------


def write(plan: Plan, folder: Path) -> tuple[Path, ...]:
    """Write the page, the figure and the table under a folder; returns their paths."""
    data = table(plan)
    drawing = figure(plan)
    files = {
        f"{STEM}.html": page(plan, data, drawing),
        f"{STEM}.svg": standalone(drawing),
        f"{STEM}.csv": data.to_csv(index=False, lineterminator="\n"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text)
    return tuple(folder / name for name in files)


def page(plan: Plan, data: DataFrame, drawing: str) -> str:
    """The plan as one HTML text that loads nothing."""
    unit, exponent = binary_unit([_height(row) for row in plan.rows])

    def show(value: Any) -> str:
        return f"{value / 2**exponent:.2f}"

    def least(row: Mapping[str, Any]) -> Cell | None:
        return Cell(text=f"≥ {show(row['total_bytes'])}") if row["route"] == "formula" else None

    known = data[[f"{name}_bytes" for name in BYTES]].notna().any(axis=1)
    grids = grid(
        STEM,
        f"Bytes by method and route, {unit}",
        data[known],
        [
            Column("method", "method", clean, align="left"),
            Column("route", "route", clean, align="left"),
            *(Column(f"{name}_bytes", TITLES[name], show) for name in BYTES),
            *(
                Column(str(name), str(name).replace("fits_", "fits "), clean)
                for name in data.columns
                if str(name).startswith("fits_")
            ),
        ],
        decorate={"total_bytes": least},
    )
    css = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    said = "".join(f"<li>{html.escape(text)}</li>" for text in (*verdicts(plan), *remarks(plan)))
    meaning = "".join(f"<li>{html.escape(text)}</li>" for text in (*MEANING, OUTSIDE))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>memory of {html.escape(clean(plan.model))} · levelfield</title>\n<style>\n"
        f":root{{{palette_css(dark=False)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{palette_css(dark=True)}}}}}\n{css}"
        "td,th{white-space:nowrap}</style>\n"
        "</head>\n<body>\n<header>\n"
        f'<p class="kicker">levelfield <span>·</span> memory</p>\n'
        f"<h1>{html.escape(_headline(plan))}</h1>\n"
        f'<p class="summary">{html.escape(title(plan))}; 1 {unit} is 2^{exponent} bytes</p>\n'
        '</header>\n<main>\n<section>\n<div class="parts">\n'
        f'<figure class="wide"><h3>At the peak of a step</h3><div class="scroll">{drawing}</div>'
        f"<figcaption>{_caption(plan)}</figcaption></figure>\n"
        f'<div class="tablepart">{_html(grids)}</div>\n'
        f'<ul class="prose">{said}</ul>\n<ul class="notes">{meaning}</ul>\n'
        "</div>\n</section>\n</main>\n</body>\n</html>\n"
    )


def _caption(plan: Plan) -> str:
    text = "Smallest first"
    if not all(map(_whole, plan.rows)):
        text += "; last, those of which only a part is known"
    if any(row.fits for row in plan.rows):
        text += "; dashed: the devices' sizes, of which a margin is kept free"
    return text + "."


def _headline(plan: Plan) -> str:
    rows = sorted(filter(_whole, plan.rows), key=_height)
    if not rows:
        rows = sorted(plan.rows, key=_height)
        return f"At least {bytes_text(_height(rows[0]))}, with {rows[0].method}"
    first, last = rows[0], rows[-1]
    if len(rows) == 1:
        return f"{bytes_text(_height(first))} at the peak of a step with {first.method}"
    return (
        f"From {bytes_text(_height(first))} with {first.method} "
        f"to {bytes_text(_height(last))} with {last.method}"
    )


def _html(table: Table) -> str:
    """A table as the pages of runs draw theirs."""
    head = "".join(
        f'<th scope="col" class="{column.align}">{html.escape(column.title)}</th>'
        for column in table.columns
    )
    body = []
    for cells in table.rows:
        drawn = []
        for column, cell in zip(table.columns, cells, strict=True):
            tag = 'th scope="row"' if column.key == "method" else "td"
            note = f"<sup>{cell.note}</sup>" if cell.note else ""
            text = html.escape(cell.text or DASH)
            drawn.append(
                f'<{tag} class="{column.align} {cell.kind}">{text}{note}</{tag.split()[0]}>'
            )
        body.append(f"<tr>{''.join(drawn)}</tr>")
    notes = "".join(
        f"<li><sup>{letter}</sup> {html.escape(words)}</li>"
        for letter, _, words in (text.partition(" ") for text in table.footnotes)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody>'
        f'</table></div><ul class="notes">{notes}</ul>'
    )


def data(plan: Plan) -> dict[str, Any]:
    """The plan for machines: bytes, None where something is not known, and the reasons."""
    return {
        "model": plan.model,
        "parameters": plan.parameters,
        "batch": plan.batch,
        "sequence": plan.sequence,
        "accumulation": plan.accumulation,
        "precision": plan.precision,
        "checkpointing": plan.checkpointing,
        "device": plan.target,
        "methods": [_data(row) for row in plan.rows],
        "outside": OUTSIDE,
        "wall_s": round(plan.wall_s, 2),
        "process_peak_bytes": plan.process_peak_bytes,
    }


def _data(row: Row) -> dict[str, Any]:
    from dataclasses import asdict

    def plain(part: Any) -> dict[str, Any] | None:
        return None if part is None else {**asdict(part), "total": part.total}

    fits: Sequence[dict[str, Any]] = [{**asdict(fit), "margin": fit.margin} for fit in row.fits]
    return {
        "method": row.method,
        "formula": plain(row.formula),
        "simulated": plain(row.simulated),
        "measured": plain(row.measured),
        "fits": list(fits),
        "reasons": dict(row.reasons),
    }
