"""The leaderboard: who is ahead, how sure that is, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.bench.spec import Section
from levelfield.reports import measure, tables, units
from levelfield.reports.blocks import Block, Cell, Column, Prose, Table, grid
from levelfield.reports.eligible import dig
from levelfield.reports.strip import axis, scale, strip
from levelfield.reports.svg import look
from levelfield.reports.text import (
    big,
    binary_unit,
    clean,
    exact,
    fixed,
    plural,
    short,
    shortened,
    signed,
    significant,
    unit_note,
)
from levelfield.reports.view import View

UNTUNED = (
    "Nothing was tuned: every method ran at one point, where tuning would start, so nothing is "
    "ranked. Another rate could turn the order round; more budget.trials and budget.studies=3 tune "
    "every method."
)
SEED_LUCK = (
    "At these hyper-parameters: these intervals see seed luck, not tuning luck. A second round of "
    "tuning could find other values, so nothing is ranked; budget.studies=3 tunes every method "
    "three times over."
)


def render(view: View) -> Block:
    """The table, and how to read it."""
    table = _table(view)
    reading = [
        f"Loss is the mean over the whole report slice after the last step, in nats a token; lower "
        f"is better. Every dot is a final seed, the bar is the 95 % t interval of the mean over "
        f"{_unit(view)}, the upright line the median of all dots; the dashed line is the median of "
        f"{clean(view.reference)}. "
        "Rows are sorted by median; a seed that failed counts as worse than any number."
    ]
    if view.pairs:
        reading.append(
            "Place = 1 + the number of methods that are significantly better. The tuning study is "
            "the unit: each was tuned from its own start and is worth the mean of its final seeds; "
            f"t test over studies, two-sided, Holm over all {plural(len(view.pairs), 'pair')} "
            f"(for places; over the {plural(len(view.family.claims), 'claim')} against "
            f"{clean(view.baseline)} for those), "
            f"alpha {short(view.family.alpha)}. Methods that cannot be told apart share a place; a "
            "noisy one may hold a better place than its median suggests."
        )
    seeds_only = any(method.good and len(method.study_values) < 2 for method in view.methods)
    words = SEED_LUCK if view.tuned else UNTUNED
    luck = [Prose(words, "strong")] if seeds_only and view.ranked else []
    return Block(parts=(table, *luck, *(Prose(text, "beside") for text in reading)))


def _unit(view: View) -> str:
    studies = max((len(method.study_values) for method in view.methods), default=0)
    if studies < 2:
        return "final seeds, at these hyper-parameters"
    return f"the {studies} independent tuning studies"


def _table(view: View) -> Table:
    frame, written = tables.leaderboard(view), units.written(view)
    on = scale(view)
    methods = {clean(method.name): method for method in view.methods}
    unit, exponent = binary_unit(
        value
        for method in view.methods
        if (value := measure.known(measure.state_bytes(method))) is not None
    )
    peak_unit, peak_exponent = binary_unit(
        value
        for method in view.methods
        if (value := measure.known(measure.memory(method, "total"))) is not None
    )

    def method(row: Mapping[str, Any]) -> Cell:
        spec, drawn = methods[row["method"]].spec, look(methods[row["method"]], view)
        return Cell(
            text=row["method"],
            href=_link(spec.get("paper")),
            sub=row["family"] or "",
            title=clean(spec.get("summary") or ""),
            html=f'<i class="chip" style="--c:{drawn.variable}"></i>',
        )

    def seeds(row: Mapping[str, Any]) -> Cell:
        found = methods[row["method"]]
        if on is None or not found.final:
            return Cell(text="–", kind="none")
        failed = row["finals"] - row["good_finals"]
        note = f"{plural(failed, 'seed')} failed" if failed else ""
        return Cell(html=strip(found, view, on), sub=note, kind="stripcell")

    def mean(row: Mapping[str, Any]) -> Cell | None:
        if row["report_loss_mean_nats"] is None or row["interval_low_nats"] is None:
            return None
        half = (row["interval_high_nats"] - row["interval_low_nats"]) / 2
        studies, seeds_run = row["studies"], row["good_finals"]
        over = f"{studies} × {seeds_run // studies}" if studies > 1 else f"n={seeds_run}"
        return Cell(
            text=written(row["report_loss_mean_nats"]),
            sub=f"± {written(half)}, {over}" + ("" if seeds_run == row["finals"] else " †"),
        )

    def difference(row: Mapping[str, Any]) -> Cell | None:
        if row["difference_to_baseline_nats"] is None:
            return None
        low, high = row["difference_low_nats"], row["difference_high_nats"]
        winner = view.winner(methods[row["method"]].name, view.baseline)
        return Cell(
            text=signed(row["difference_to_baseline_nats"], 4),
            sub=f"{signed(low, 3)} … {signed(high, 3)}",
            kind="sure" if winner else "unsure",
        )

    def state(row: Mapping[str, Any]) -> Cell | None:
        if row["state_bytes"] is None:
            return None
        each = row["state_bytes_per_parameter"]
        per = "" if each is None else f"{significant(each, 3)} B/param"
        return Cell(text=significant(row["state_bytes"] / 2**exponent, 3), sub=per)

    def tokens(row: Mapping[str, Any]) -> Cell | None:
        horizon = measure.horizon_tokens(view, methods[row["method"]])
        if row["tokens_to_reference"] is None or not horizon:
            return None
        share = fixed(100 * row["tokens_to_reference"] / horizon, 0)
        return Cell(text=f"{share} %", sub=big(row["tokens_to_reference"]))

    def hparams(row: Mapping[str, Any]) -> Cell:
        found, edge = methods[row["method"]], row["at_edge"]
        lines = [
            f"{clean(name)}={shortened(exact(found.hparams[name]), 3)}"
            for name in found.tuned
            if name in found.hparams
        ]
        return Cell(text="\n".join(lines) or "–", sub=f"⚠ {edge}" if edge and view.tuned else "")

    reference = clean(view.reference)
    columns = [
        Column("method", "method", align="left"),
        Column("strip", "report loss, every seed", align="left", help=axis(on) if on else ""),
        Column("report_loss_median_nats", "median", written),
        Column("report_loss_mean_nats", "mean, 95 % interval", written),
        Column("tokens_to_reference", f"tokens to {reference}'s loss"),
        *(
            (Column("tuning_gain_nats", "tuning gain", lambda v: fixed(v, 3)),)
            if view.tuned
            else ()
        ),
        Column("step_time_ratio", f"step time, × {reference}", lambda v: fixed(v, 2)),
        Column("state_bytes", f"state, {unit} ({unit_note(exponent)})"),
        Column(
            "peak_bytes",
            f"peak, {peak_unit} ({unit_note(peak_exponent)})",
            lambda v: significant(v / 2**peak_exponent, 3),
        ),
        Column("failures", "failures", lambda v: (v or "none").replace("; ", "\n"), align="left"),
        Column(
            "best_hparams",
            "best hyper-parameters" if view.tuned else "hyper-parameters",
            align="left",
        ),
    ]
    if view.ranked:
        columns.insert(4, Column("difference_to_baseline_nats", f"against {clean(view.baseline)}"))
    if dig(view.manifest, "data", "floor_loss_nats") is not None:
        columns.insert(3, Column("loss_minus_floor_nats", "median − floor", written))
    if view.ranked:
        columns.insert(0, Column("place", "place"))
    return grid(
        "leaderboard",
        "Leaderboard",
        frame,
        columns,
        decorate={
            "method": method,
            "strip": seeds,
            "report_loss_mean_nats": mean,
            "difference_to_baseline_nats": difference,
            "tokens_to_reference": tokens,
            "state_bytes": state,
            "best_hparams": hparams,
        },
        muted=lambda row: view.ranked and row["place"] is None,
        extra_notes=_dagger(view),
    )


def _dagger(view: View) -> tuple[str, ...]:
    if all(len(method.good) in (0, len(method.final)) for method in view.methods):
        return ()
    return (
        "† mean, interval and tests over the seeds that ran: failed seeds would make them worse",
    )


def _link(url: object) -> str:
    text = str(url or "")
    return text if text.startswith(("https://", "http://")) else ""


SECTION = Section(
    name="leaderboard",
    title="Leaderboard",
    order=10,
    summary="report loss with every seed, places, cost, failures, best hyper-parameters",
    render=render,
)
