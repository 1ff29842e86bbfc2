"""One run, one page: `report.html` with everything inside, tables as CSV, figures as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.bench.registry import SECTIONS
from levelfield.bench.spec import Section
from levelfield.bench.store import write_atomic
from levelfield.reports import units
from levelfield.reports import view as views
from levelfield.reports.blocks import Block, Bullets, Code, Figure, Prose, Table
from levelfield.reports.eligible import dig
from levelfield.reports.headline import headline, subline
from levelfield.reports.measure import horizon_steps, horizon_tokens, known, parameters
from levelfield.reports.svg import palette_css, standalone
from levelfield.reports.text import big, clean, plural, short

HERE = Path(__file__).parent
KINDS = {Prose: "prose", Bullets: "bullets", Code: "code", Table: "table", Figure: "figure"}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A section with what it rendered."""

    section: Section
    block: Block


def write(run: views.RunLike) -> Path:
    """Write a run's page, tables and figures under its folder; returns the page's path.

    Each file is replaced whole or not at all; tables and figures that a former page left behind
    are removed.
    """
    view = views.build(run)
    rendered = render_all(view, sections())
    files = {f"tables/{t.name}.csv": csv(t) for item in rendered for t in item.block.tables}
    files |= {
        f"figures/{figure.name}.svg": standalone(figure.svg)
        for item in rendered
        for figure in item.block.figures
    }
    page = run.path / "report.html"
    html = render(view, rendered)
    for folder in ("tables", "figures"):
        (run.path / folder).mkdir(parents=True, exist_ok=True)
    for name, text in sorted(files.items()):
        write_atomic(run.path / name, text)
    write_atomic(page, html)
    for old in (*run.path.glob("tables/*.csv"), *run.path.glob("figures/*.svg")):
        if old.relative_to(run.path).as_posix() not in files:
            old.unlink(missing_ok=True)
    return page


def sections() -> tuple[Section, ...]:
    """Every section that loads, in reading order."""
    found = [loaded.value for loaded in SECTIONS.load_all()]
    return tuple(sorted(found, key=lambda section: (section.order, section.name)))


def render_all(view: views.View, chosen: Sequence[Section]) -> tuple[Rendered, ...]:
    """What the sections have to show; one with nothing to show is left out.

    A section that raises is a plug-in's fault, or ours, and must not cost the rest of the page: it
    is shown with its error.
    """
    drafts = ((section, _attempt(section, view)) for section in chosen)
    return tuple(Rendered(section, block) for section, block in drafts if block is not None)


def _attempt(section: Section, view: views.View) -> Block | None:
    try:
        block: Block | None = section.render(view)
    except Exception as error:
        text = f"This section failed: {type(error).__name__}: {clean(error)}"
        return Block(parts=(Prose(text, "strong"),))
    return block if block is None else units.block_in_unit(view, block)


def csv(table: Table) -> str:
    """The whole frame behind a table; floats as they are."""
    text: str = table.frame.to_csv(index=False, lineterminator="\n")
    return text


def render(view: views.View, rendered: Sequence[Rendered]) -> str:
    """The page of a run as one HTML text that loads nothing."""
    return fill(
        title=clean(view.setting("name", default=view.path.name)),
        summary=clean(view.setting("summary", default="")),
        headline=units.in_unit(view, headline(view)),
        subline=units.in_unit(view, subline(view)),
        facts=facts(view),
        alerts=[*alerts(view), *left_out()],
        rendered=rendered,
        tuned=view.tuned,
        run_id=clean(view.manifest.get("run_id") or view.path.name),
        created=clean(view.manifest.get("created_utc") or "date not recorded"),
        version=clean(view.manifest.get("levelfield_version") or "version not recorded"),
    )


def fill(**content: Any) -> str:
    """The template with its content; every text in it is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.j2").render(
        **content,
        kind=lambda part: KINDS[type(part)],
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        light=palette_css(dark=False),
        dark=palette_css(dark=True),
    )


def facts(view: views.View) -> list[tuple[str, str]]:
    """The run in a few numbers, for the page's head."""
    sizes = [s for m in view.methods if (s := known(parameters(m))) is not None]
    tokens = horizon_tokens(view)
    found: list[tuple[str, Any]] = [
        ("methods", len(view.methods) or None),
        *(
            (
                ("tuning studies", view.setting("budget", "studies")),
                ("trials a study", view.setting("budget", "trials")),
                ("final seeds a study", view.manifest.get("final_seeds")),
            )
            if view.tuned
            else (("final seeds", view.manifest.get("final_seeds")),)
        ),
        ("parameters", big(max(sizes)) if sizes else None),
        ("tokens a trial", big(tokens) if tokens else None),
        ("steps", short(horizon_steps(view))),
        ("precision", view.setting("precision")),
        ("device", dig(view.manifest, "environment", "device")),
    ]
    return [(name, clean(value)) for name, value in found if value is not None]


def left_out() -> list[str]:
    """Sections that do not load, each with its reason."""
    return [f"Section {clean(n)} is left out: {clean(why)}" for n, why in SECTIONS.broken().items()]


def alerts(view: views.View) -> list[str]:
    """What a reader must know before the table."""
    from levelfield.reports.ledger import checks

    said = []
    broken = checks(view)
    for check in broken[broken["result"] == "NO"]["check"]:
        said.append(f"A check of fairness fails: {check}.")
    if view.excluded:
        said.append(f"{plural(len(view.excluded), 'record')} excluded; reasons below.")
    if view.manifest.get("modified"):
        changed = ", ".join(clean(item) for item in view.manifest["modified"])
        said.append(f"The protocol was changed on the command line: {changed}.")
    trials, studies = view.setting("budget", "trials"), view.setting("budget", "studies", default=1)
    planned = trials * studies if isinstance(trials, int) else None
    short = [m for m in view.methods if planned is not None and len(m.tune) < planned]
    if short and view.methods:
        names = ", ".join(clean(method.name) for method in short[:6])
        more = f" and {len(short) - 6} more" if len(short) > 6 else ""
        said.append(f"Fewer than {planned} tuning trials so far: {names}{more}.")
    return said + list(view.notes)
