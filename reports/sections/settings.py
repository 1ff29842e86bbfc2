"""Every hyper-parameter that was used, and how each method was run."""

from __future__ import annotations

from levelfield.bench.spec import Section
from levelfield.reports import charts, facts, ledger
from levelfield.reports.blocks import Block, Bullets, Column, Part, drawing, grid
from levelfield.reports.text import clean, listed, short, shortened, significant
from levelfield.reports.view import View


def render(view: View) -> Block | None:
    """Rules that hold for all, the schedule as drawn, settings and values by method."""
    if not view.methods:
        return None
    parts: list[Part] = []
    words = (
        "Factor on the peak learning rate, as the training loop applied it in the finals. "
        "Methods with the same trace share a line."
    )
    drawn = drawing(charts.schedule, view, "schedule", "Learning-rate schedule", words)
    parts += [*drawn, Bullets(_common(view), "beside" if drawn else "")]
    parts += [_settings(view), _values(view), _support(view)]
    return Block(parts=tuple(parts))


def _common(view: View) -> tuple[str, ...]:
    clip = view.setting("clip_norm")
    fallback = view.setting("fallback", default={})
    decayed = view.setting("decay_roles", default=())
    precision = view.setting("precision", default="not recorded")
    shape = view.setting("schedule", default={})
    has = bool(view.setting("budget"))
    clipping = "none" if has and clip is None else short(clip) if has else "not recorded"
    items = [
        f"Clipping of the global gradient norm: {clipping}.",
        "Parameters that a method does not take go to the protocol's fallback, AdamW with "
        + (", ".join(f"{clean(k)}={short(v)}" for k, v in fallback.items()) or "unknown settings")
        + ", in the same step and equal for all.",
        f"Weight decay touches the roles {listed(map(clean, decayed)) or 'not recorded'}.",
        "Schedule: "
        + (", ".join(f"{clean(k)} {short(v)}" for k, v in shape.items()) or "unknown")
        + " (warm-up, floor and decay as shares).",
        f"Precision: {clean(precision)}. Threads a trial: {short(view.setting('threads'))}.",
    ]
    return tuple(items)


def _settings(view: View) -> Part:
    return grid(
        "settings",
        "How each method is run",
        ledger.settings(view),
        [
            Column("method", "method", align="left"),
            Column("implementation", "implementation", align="left"),
            Column("roles", "takes", align="left"),
            Column("fallback_roles", "left to the fallback", lambda v: v or "nothing", "", "left"),
            Column("weight_decay_roles", "weight decay on", lambda v: v or "nothing", "", "left"),
            Column("schedule", "schedule", align="left"),
            Column("passes", "passes a step", lambda v: significant(float(v), 3)),
            Column("refreshes", "mechanism counted", lambda v: v or "none", align="left"),
            Column("cannot", "cannot", lambda v: v or "nothing", align="left"),
            Column("source", "source", align="left"),
            Column("digest", "digest", align="left"),
        ],
        folded=True,
    )


def _values(view: View) -> Part:
    return grid(
        "hyperparameters",
        "Every hyper-parameter used in the finals of the first study",
        facts.hyperparameters(view),
        [
            Column("method", "method", align="left"),
            Column("name", "name", align="left"),
            Column("value", "value", shortened),
            Column("kind", "kind", align="left"),
            Column("default", "paper's default", shortened),
            Column("range_low", "declared from", shortened),
            Column("range_high", "to", shortened),
            Column("range_scale", "scale", align="left"),
        ],
        muted=lambda row: not str(row["kind"]).startswith("tuned"),
        folded=True,
    )


def _support(view: View) -> Part:
    words = {"method": "method", "sharding": "sharding (FSDP2)", "accumulation": "accumulation",
             "foreach": "foreach", "compile": "compile"}  # fmt: skip
    return grid(
        "support",
        "What each method goes with, measured on the CPU by scripts/support_table.py",
        facts.support(view),
        [Column(name, words[name], align="left") for name in facts.SUPPORT],
        folded=True,
    )


SECTION = Section(
    name="settings",
    title="Settings",
    order=70,
    summary="every hyper-parameter, roles, fallback, clipping, schedule",
    render=render,
)
