"""Where it comes from and how to run it again."""

from __future__ import annotations

import shlex

from levelfield.bench.spec import Section
from levelfield.reports import ledger, tables, units
from levelfield.reports.blocks import Block, Bullets, Code, Column, Part, Prose, grid
from levelfield.reports.eligible import dig
from levelfield.reports.text import bytes_text, clean, count, fixed, short
from levelfield.reports.view import View


def render(view: View) -> Block:
    """Commands, warnings, versions, data, protocol, every final."""
    parts: list[Part] = [Code(_commands(view))]
    odd = [*map(clean, view.manifest.get("warnings") or ()), *view.notes]
    changed = [clean(item) for item in view.manifest.get("modified") or ()]
    if changed:
        odd.insert(0, "changed on the command line: " + ", ".join(changed))
    odd += [
        f"interrupted and run again: {clean(item.get('key'))} at {clean(item.get('utc'))}"
        for item in view.manifest.get("interruptions") or ()
    ]
    if odd:
        parts.append(Bullets(tuple(odd)))
    parts.append(Prose(_data(view)))
    parts += [_facts(view, "provenance"), _facts(view, "protocol"), _finals(view)]
    return Block(parts=tuple(parts))


def _commands(view: View) -> str:
    manifest = view.manifest
    version = manifest.get("levelfield_version")
    command = [clean(word) for word in manifest.get("command") or ()]
    torch = dig(manifest, "environment", "torch")
    lines = ["# the same versions"]
    pinned = [
        f"{name}=={clean(value)}"
        for name, value in (("levelfield", version), ("torch", str(torch or "").partition("+")[0]))
        if value and "unknown" not in str(value)
    ]
    lines.append("# " + (" ".join(pinned) or "versions not recorded"))
    lines += ["# the same run", shlex.join(command) if command else "# command not recorded"]
    lines += [
        "# this page, again, in the folder that holds the run's",
        shlex.join(["levelfield", "report", clean(manifest.get("run_id") or view.path.name)]),
    ]
    return "\n".join(lines)


def _data(view: View) -> str:
    data = dig(view.manifest, "data", default={})
    sizes = dig(data, "tokens", default={})
    shown = ", ".join(f"{clean(k)} {count(v)}" for k, v in sizes.items())
    memory = dig(view.manifest, "environment", "memory_bytes")
    text = (
        f"Data: {clean(data.get('source') or 'not recorded')}, licence "
        f"{clean(data.get('licence') or 'not recorded')}; tokens: {shown or 'not recorded'}."
    )
    device = clean(dig(view.manifest, "environment", "device", default="not recorded"))
    text += f" Device: {device}."
    if isinstance(memory, int):
        text += f" Memory of the machine: {bytes_text(memory)} (GiB = 2³⁰ bytes)."
    return text


def _facts(view: View, name: str) -> Part:
    frame = ledger.provenance(view) if name == "provenance" else ledger.protocol(view)
    caption = {"provenance": "Provenance", "protocol": "The protocol, every setting"}[name]
    columns = [Column("key", "what", align="left"), Column("value", "value", align="left")]
    return grid(name, caption, frame, columns, folded=True)


def _finals(view: View) -> Part:
    return grid(
        "finals",
        "Every final",
        tables.finals(view),
        [
            Column("method", "method", align="left"),
            Column("seed", "seed"),
            Column("status", "status", align="left"),
            Column("report_loss_nats", "report loss", lambda v: fixed(v, 5)),
            *(
                (Column("perplexity", "perplexity", lambda v: fixed(v, 3)),)
                if units.reads_tokens(view)
                else ()
            ),
            Column("selection_loss_nats", "selection loss", lambda v: fixed(v, 5)),
            Column("tokens", "tokens", count),
            Column("steps", "steps"),
            Column("passes", "passes", short),
            Column("reason", "reason", lambda v: v, align="left"),
        ],
        muted=lambda row: row["status"] != "ok",
        folded=True,
    )


SECTION = Section(
    name="provenance",
    title="Provenance and how to reproduce",
    order=100,
    summary="commands, versions, data, protocol, every final",
    render=render,
)
