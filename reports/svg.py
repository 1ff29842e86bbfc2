"""Colours, and matplotlib's SVG made fit for a page: themed, small, the same bytes every time.

Figures are drawn with the light palette; on export each colour becomes a CSS variable with that
colour as its fallback, so that one drawing serves light and dark, on the page and as a file.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levelfield.reports.view import Method, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, GRID, PAPER = "#1b1d21", "#6b7078", "#dfe1e5", "#fdfdfc"
DARK = {INK: "#e9eaec", SOFT: "#9da3ac", GRID: "#34373d", PAPER: "#16181b"}
NAMES = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper"}

# Okabe and Ito's colours for the colour-blind, darkened for white paper, lightened for black.
SERIES = (
    ("#0069b0", "#5aaef0"),
    ("#cf4f00", "#ff8c50"),
    ("#008a64", "#2fcb9f"),
    ("#a5468a", "#e69ccb"),
    ("#b07a00", "#edb73c"),
    ("#3c8fc4", "#9bd3f7"),
    ("#7a5c3e", "#c9ad8b"),
    ("#5a4fbf", "#aaa2ff"),
)
KINDS = (
    ("#8d96a3", "#7d8694"),
    ("#b9c0ca", "#565d68"),
    ("#0069b0", "#5aaef0"),
    ("#e2b45c", "#b98f3d"),
    ("#d9d4c7", "#5f5a4e"),
)
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.8), (6, 2, 1.5, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")


@dataclass(frozen=True, slots=True)
class Look:
    """How one method is drawn, on every figure of a page."""

    color: str
    dashes: tuple[float, ...]
    marker: str
    variable: str
    """The colour as CSS."""


def look(method: Method, view: View) -> Look:
    """The reference in ink; the others by their order in the manifest, then by dashes."""
    if method.name == view.reference:
        return Look(INK, (), "o", "var(--ink)")
    others = sorted(m.index for m in view.methods if m.name != view.reference)
    place = others.index(method.index)
    index = place % len(SERIES)
    dashes = DASHES[place // len(SERIES) % len(DASHES)]
    return Look(SERIES[index][0], dashes, MARKERS[index], f"var(--s{index})")


def _variables() -> dict[str, tuple[str, str]]:
    """CSS variable -> (light, dark)."""
    return {
        **{NAMES[light]: (light, dark) for light, dark in DARK.items()},
        **{f"s{i}": pair for i, pair in enumerate(SERIES)},
        **{f"k{i}": pair for i, pair in enumerate(KINDS)},
    }


def palette_css(dark: bool) -> str:
    """Declarations of every colour variable."""
    return "".join(f"--{name}:{pair[dark]};" for name, pair in _variables().items())


def canvas(width_px: int, height_px: int) -> Figure:
    """An empty figure without pyplot: no global state. One unit of the SVG is one CSS pixel."""
    from matplotlib.figure import Figure as MplFigure

    return MplFigure(figsize=(width_px / 72, height_px / 72), layout="constrained")


def style() -> AbstractContextManager[None]:
    """matplotlib settings under which figures are drawn and written."""
    import matplotlib as mpl

    return mpl.rc_context(
        {
            "svg.hashsalt": "levelfield",
            "svg.fonttype": "none",
            "text.parse_math": False,
            "font.size": 11,
            "font.family": "DejaVu Sans",
            "text.color": INK,
            "axes.edgecolor": GRID,
            "axes.labelcolor": SOFT,
            "axes.titlesize": 11,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            "savefig.facecolor": "none",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "xtick.color": GRID,
            "ytick.color": GRID,
            "xtick.labelcolor": SOFT,
            "ytick.labelcolor": SOFT,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "axes.formatter.useoffset": False,
        }
    )


def export(figure: Figure, name: str, title: str, description: str) -> str:
    """A figure as SVG text, with unique ids and a title for screen readers.

    Args:
        name: prefix of every id: several figures share one page.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
        buffer, metadata={"Date": None}
    )
    text = buffer.getvalue()
    body = text[text.index("<g id=") : text.rindex("</svg>")] if "<g id=" in text else ""
    defs = "".join(re.findall(r"<defs>\s*<style.*?</defs>", text, flags=re.S))
    width, height = (round(float(size) * 72) for size in figure.get_size_inches())
    body = re.sub(r'style="([^"]*)"', lambda match: f'style="{_themed(match[1])}"', defs + body)
    body = re.sub(r'(\sid=")', rf"\1{name}-", body)
    body = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', _rounded, body)
    body = re.sub(r"\n\s*", "\n", body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-labelledby="{name}-title {name}-desc" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f'<title id="{name}-title">{_escape(title)}</title>\n'
        f'<desc id="{name}-desc">{_escape(description)}</desc>\n{body}</svg>\n'
    )


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a pixel."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."),
                  attribute[0])  # fmt: skip


def standalone(svg: str) -> str:
    """An exported figure as a file of its own: it brings the colours that a page would give."""
    rules = (
        f"svg{{{palette_css(False)}color:var(--ink);background:var(--paper);"
        "font-family:system-ui,sans-serif}"
        f"@media (prefers-color-scheme:dark){{svg{{{palette_css(True)}}}}}"
    )
    head, _, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}>\n<style>{rules}</style>{rest}'


_COLORS = {pair[0]: name for name, pair in reversed(_variables().items())}


def _themed(declarations: str) -> str:
    """Fixed colours into variables, matplotlib's font into the page's."""
    for color, name in _COLORS.items():
        declarations = declarations.replace(color, f"var(--{name},{color})")
    return re.sub(
        r"font: (?P<words>(?:[a-z]+ |[0-9]{3} )*)(?P<size>[0-9.]+px) [^;]*",
        lambda match: (
            f"font-size: {match['size']}"
            + ("; font-weight: 600" if re.search(r"bold|600|700", match["words"]) else "")
        ),
        declarations,
    )


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
