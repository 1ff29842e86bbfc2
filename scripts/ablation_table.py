"""Write docs/ablations.md from runs of `quick`: what each part of a method is worth.

python scripts/ablation_table.py RUN [--defaults RUN] [--timed RUN]

RUN holds the methods and their ablations. `--defaults` names a run with one trial a study, the
papers' defaults; `--timed` a run whose timing phase had the machine for itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.bench.inference import Comparison, adjusted, compare
from levelfield.bench.samples import Sample, sample
from levelfield.bench.stats import deviation, mean
from levelfield.bench.store import load_run
from levelfield.reports import measure, view
from levelfield.reports.measure import Missing
from levelfield.reports.text import markdown
from levelfield.reports.view import View

TARGET = Path(__file__).parent.parent / "docs" / "ablations.md"


@dataclass(frozen=True)
class Question:
    """A method with the part, and one without it."""

    words: str
    whole: str
    without: str


QUESTIONS = (
    Question("FOAM without its residual (β2 = .95)", "foam", "foam(residual=false)"),
    Question("FRUGAL without the sign part", "frugal", "frugal(inactive_lr_scale=0.0)"),
    Question("Static T in place of Dynamic-T, columns", "adafrugal_t", "frugal"),
    Question("Static T in place of Dynamic-T, SVD", "adafrugal_t(selection=svd)",
             "frugal(selection=svd)"),
    Question("Static ρ in place of Dynamic-ρ", "adafrugal_rho", "frugal"),
    Question("FRUGAL in place of both", "adafrugal", "frugal"),
    Question("AdamW in place of FOAM", "foam", "adamw_split"),
    Question("AdamW in place of FRUGAL", "frugal", "adamw_split"),
)  # fmt: skip


def samples(found: View, names: Sequence[str]) -> dict[str, Sample]:
    """Study values of these methods, of those that are in the run."""
    studies = int(found.setting("budget", "studies", default=1))
    methods = {name: found.method(name) for name in names}
    return {
        name: sample(name, method.records, studies, bool(method.censored))
        for name, method in methods.items()
        if method is not None
    }


def verdict(item: Comparison, alpha: float = 0.05) -> str:
    """In words; `a` is the method with the part less."""
    if item.p_holm is None or item.difference is None:
        return item.reason or "not tested"
    if item.p_holm > alpha:
        return "not told apart"
    return "the part helps" if item.difference > 0 else "the part costs"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 else "< 0.001"


def row(words: str, item: Comparison, groups: Sequence[Sample]) -> tuple[str, ...]:
    values = [list(group.values.values()) for group in groups]
    shown = [
        f"{mean(v):.4f} ± {deviation(v) or 0:.4f}" if len(v) > 1 else "no value" for v in values
    ]
    if item.difference is None or item.interval is None:
        return (words, *shown, "–", "–", "–", item.reason or "not tested")
    low, high = item.interval
    return (
        words, *shown, f"{item.difference:+.4f}", f"[{low:+.4f}, {high:+.4f}]",
        "–" if item.p_holm is None else _p(item.p_holm), verdict(item),
    )  # fmt: skip


COLUMNS = (
    "question", "with it, nats", "without it, nats", "difference", "95 % interval", "p, Holm",
    "verdict",
)  # fmt: skip


def losses(found: View) -> str:
    """Every question on study values: Welch's test, Holm over the questions."""
    wanted = {name for q in QUESTIONS for name in (q.whole, q.without)}
    have = samples(found, sorted(wanted))
    asked = [q for q in QUESTIONS if q.whole in have and q.without in have]
    items = adjusted([compare(have[q.without], have[q.whole]) for q in asked])
    rows = [
        row(q.words, item, (have[q.whole], have[q.without]))
        for q, item in zip(asked, items, strict=True)
    ]
    return markdown(COLUMNS, rows)


def at_defaults(tuned: View, defaults: View) -> str:
    """AdaFRUGAL at its defaults against FRUGAL tuned, study by study of the same final seeds."""
    have, plain = (
        samples(tuned, ["frugal", "adafrugal"]),
        samples(defaults, ["frugal", "adafrugal"]),
    )
    trials = int(tuned.setting("budget", "trials", default=0))
    ada, frugal = plain["adafrugal"], plain["frugal"]
    pairs = (
        (f"AdaFRUGAL, defaults, against FRUGAL at {trials} trials", ada, have["frugal"]),
        ("AdaFRUGAL, defaults, against FRUGAL, defaults", ada, frugal),
        (f"AdaFRUGAL at {trials} trials against FRUGAL at {trials} trials", have["adafrugal"],
         have["frugal"]),
    )  # fmt: skip
    items = adjusted([compare(replace(b, name="b"), replace(a, name="a")) for _, a, b in pairs])
    rows = []
    for (words, one, other), item in zip(pairs, items, strict=True):
        cells = row(words, item, (one, other))
        told = {"the part helps": "AdaFRUGAL is better", "the part costs": "FRUGAL is better"}
        rows.append((*cells[:-1], told.get(cells[-1], cells[-1])))
    head = ("question", "AdaFRUGAL, nats", "FRUGAL, nats", *COLUMNS[3:])
    return markdown(head, rows)


def seconds(found: View) -> str:
    """Step times of dynamic T against static T, its control evaluations included."""
    rows = []
    for dynamic, static in (
        ("adafrugal_t", "frugal"), ("adafrugal_t(selection=svd)", "frugal(selection=svd)"),
        ("adafrugal", "frugal"),
    ):  # fmt: skip
        one, other = found.method(dynamic), found.method(static)
        if one is None or other is None:
            continue
        times = [measure.step_s(method) for method in (one, other)]
        ratio = measure.step_ratio(one, other)
        if isinstance(ratio, Missing) or any(isinstance(t, Missing) for t in times):
            continue
        ratios = _ratios(one, other)
        rows.append(
            (f"`{dynamic}`", f"`{static}`", *(f"{1e3 * float(t):.2f}" for t in times),
             f"{ratio:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}", _refreshes(one),
             _refreshes(other))
        )  # fmt: skip
    return markdown(
        ("dynamic", "static", "ms a step", "ms a step", "ratio", "over repetitions",
         "refreshes", "refreshes"),
        rows,
    )  # fmt: skip


def _ratios(one: view.Method, other: view.Method) -> list[float]:
    mine, theirs = measure._repetitions(one), measure._repetitions(other)
    return [mine[n] / theirs[n] for n in sorted(set(mine) & set(theirs))]


def _refreshes(method: view.Method) -> str:
    counts = sorted({r.refreshes for r in method.final if r.refreshes is not None})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(*counts)


def main() -> None:
    parser = argparse.ArgumentParser(description="ablations of the papers' methods")
    parser.add_argument("run", type=Path)
    parser.add_argument("--defaults", type=Path)
    parser.add_argument("--timed", type=Path)
    asked = parser.parse_args()
    found = view.build(load_run(asked.run))
    budget = [
        int(found.setting("budget", n, default=0)) for n in ("steps", "trials", "studies", "seeds")
    ]
    steps, trials, studies, seeds = budget
    day = str(found.manifest.get("created_utc", ""))[:10]
    text = [
        "# Ablations",
        "What a part of a method is worth, on `quick`: a LLaMA of width 32 and two layers, "
        f"{steps} steps, {trials} tuning trials in each of {studies} independent studies, {seeds} "
        "final seeds a study. Mean report loss over studies ± their standard deviation; Welch's t "
        "interval of the difference (without less with: positive means that the part helps), Holm "
        "over the questions of a table. A model of 40 thousand parameters says nothing about a "
        "billion.",
        f"Run of {day}; `python scripts/ablation_table.py RUN --defaults RUN --timed RUN` writes "
        "this page.",
        "## Loss",
        losses(found),
    ]  # fmt: skip
    if asked.defaults:
        text += [
            "## No tuning",
            "AdaFRUGAL's claim is that it needs no tuning of its own: its defaults alone, one "
            f"trial a study, against FRUGAL with {trials} trials.",
            at_defaults(found, view.build(load_run(asked.defaults))),
        ]
    if asked.timed:
        text += [
            "## Seconds",
            "Methods alternating, nothing else on the machine: the dynamic ones over whole runs, "
            "with the control evaluations that they read, the static ones over windows of whole "
            "periods. At this size a refresh is cheap, and reading the control loss costs more "
            "than the refreshes that it saves.",
            seconds(view.build(load_run(asked.timed))),
        ]
    TARGET.write_text("\n\n".join(part.strip("\n") for part in text) + "\n", encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
