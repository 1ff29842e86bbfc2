"""Figures of merit beyond the final loss: how soon, how hard to tune, how sensitive.

Every function is pure and returns `Missing` with a reason where a number would mean nothing. A
failed trial is never dropped: it counts as the initial loss where losses are averaged (the cap),
and as never reaching a target. Losses are nats a token.

Sources: R. Tang et al., "Showing your work doesn't always work", ACL 2020 (expected best); P. T.
Sivaprasad et al., "Optimizer benchmarking needs to account for hyperparameter tuning", ICML 2020
(omega-tunability); M. Wortsman et al., "Small-scale proxies for large-scale Transformer training
instabilities", arXiv 2309.14322 (2023) (learning-rate sensitivity).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.bench.spec import TrialRecord
from levelfield.bench.stats import Estimate, Missing, finite, median, tokens_to_target

BASIN_NATS = 0.01
"""Rates whose loss is within this of the best belong to the basin."""

Curve = Sequence[Sequence[float]]
"""[[tokens, wall_s, loss] ...] in order of tokens."""


# --- how soon ---------------------------------------------------------------------------------


def loss_at(curve: Curve, tokens: float) -> float | None:
    """The curve's loss at a number of tokens, linear in log tokens between evaluations.

    Linear in tokens from an evaluation at 0 tokens; None outside the curve or where an evaluation
    next to it is not finite.
    """
    points = [(float(point[0]), float(point[-1])) for point in curve]
    for (left, above), (right, below) in itertools.pairwise(points):
        if not left <= tokens <= right or left == right:
            continue
        if not (finite(above) and finite(below)):
            return None
        if left > 0:
            share = math.log(tokens / left) / math.log(right / left)
        else:
            share = (tokens - left) / (right - left)
        return above + share * (below - above)
    return None


def targets(
    curves: Sequence[Curve], shares: Sequence[float], horizon_tokens: float
) -> dict[float, float | Missing]:
    """Share of the horizon -> target: the median over the reference's finals of its curve there.

    Args:
        curves: of every final of the reference, an empty one for each that failed: it counts as
            worse than any loss, so that luck cannot set a target.
        horizon_tokens: training tokens of one trial.
    """
    found: dict[float, float | Missing] = {}
    for share in shares:
        losses = [loss_at(curve, share * horizon_tokens) for curve in curves]
        middle = median([math.inf if loss is None else loss for loss in losses])
        known = middle is not None and math.isfinite(middle)
        found[share] = (
            middle if known and middle is not None
            else Missing(f"half of the reference's finals have no loss at {share:.0%} of its steps")
        )  # fmt: skip
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """What a method spends until a target loss: medians over its finals, misses as infinity."""

    tokens: float
    steps: float
    seconds: float | None
    """Steps times the median step time of the timing phase; None where that is not measured."""
    reached: int
    finals: int


def to_target(
    curves: Sequence[Curve],
    target: float,
    tokens_per_step: float,
    step_s: float | None = None,
    confirm: int = 2,
) -> Reached | Missing:
    """Tokens, steps and seconds to a target (see `stats.tokens_to_target` for the crossing).

    Args:
        curves: of every final, an empty one for each that failed.
        step_s: seconds a step from the timing phase; the clocks of finals run beside others.
        confirm: consecutive evaluations at or below the target.
    """
    if not curves or not finite(target) or not tokens_per_step > 0:
        return Missing("no final, no finite target, or no tokens a step")
    crossings = [tokens_to_target(curve, target, confirm) for curve in curves]
    hits = sum(tokens is not None for tokens in crossings)
    middle = median([math.inf if tokens is None else tokens for tokens in crossings])
    if middle is None or not math.isfinite(middle):
        return Missing(
            f"reached by {hits} of {len(curves)} finals on {confirm} evaluations in a row"
        )
    steps = middle / tokens_per_step
    seconds = steps * step_s if step_s is not None and finite(step_s) else None
    return Reached(tokens=middle, steps=steps, seconds=seconds, reached=hits, finals=len(curves))


# --- how hard to tune: exchangeable trials only -----------------------------------------------


def exchangeable(
    records: Sequence[TrialRecord],
    *,
    kind: str,
    scale: str,
    defaults: Mapping[str, Any],
    factor: float = 10**0.5,
    reserve: int = 0,
    trials: int | None = None,
) -> tuple[TrialRecord, ...] | Missing:
    """The tuning trials of one study that were drawn alike: random or quasi-random ones.

    Left out: trial 0 (the paper's defaults), the bracket (the scale alone at whole steps of
    `factor` from its default), the reserve (all of it: what it does depends on what was found) and
    everything that `tpe` proposes.

    Args:
        kind, factor, reserve: the protocol's tuner; trials: its budget (default: the records).
        scale: name of the dimension that the bracket moves; defaults: of every searched dimension.
    """
    if kind == "tpe":
        return Missing("tpe proposes each trial from the ones before: they are not exchangeable")
    total = len(records) if trials is None else trials
    kept, bracketing = [], True
    for record in sorted(records, key=lambda r: r.trial):
        bracketing = bracketing and _on_bracket(record, scale, defaults, factor)
        early = record.trial == 0 or (kind == "bracket" and bracketing)
        if not early and record.trial < total - reserve:
            kept.append(record)
    return tuple(kept) if kept else Missing("no trial beyond the default, bracket and reserve")


def _on_bracket(
    record: TrialRecord, scale: str, defaults: Mapping[str, Any], factor: float
) -> bool:
    if any(record.hparams[n] != defaults[n] for n in record.tuned if n != scale):
        return False
    value, default = float(record.hparams[scale]), float(defaults[scale])
    offset = round(math.log(value / default, factor))
    return value == (default if offset == 0 else float(f"{default * factor**offset:.6g}"))


def trial_losses(records: Sequence[TrialRecord], cap: float) -> list[float]:
    """Selection losses with every failed trial at the cap, the initial loss; nothing is dropped."""
    return [
        min(r.selection_loss, cap)
        if r.status in ("ok", "undertrained")
        and r.selection_loss is not None
        and finite(r.selection_loss)
        else cap
        for r in records
    ]


def expected_best(losses: Sequence[float], k: int) -> float | Missing:
    """Expected best of k of these trials, nats: the unbiased U-statistic.

    sum over the sorted losses v(1) <= ... <= v(N) of C(N - i, k - 1) / C(N, k) v(i): the mean over
    all subsets of k trials of their best. For exchangeable trials only (`exchangeable`).
    """
    n = len(losses)
    if not 1 <= k <= n:
        return Missing(f"the best of {k} out of {n} trials")
    if not all(finite(loss) for loss in losses):
        return Missing("a loss is not finite: failed trials count as the initial loss")
    ordered = sorted(losses)
    ways = math.comb(n, k)
    return math.fsum(math.comb(n - i, k - 1) / ways * ordered[i - 1] for i in range(1, n - k + 2))


def expected_best_curve(
    losses: Sequence[float], *, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[Estimate, ...] | Missing:
    """`expected_best` for k = 1 ... N, with percentile bands over resampled trials for k <= N/2.

    Beyond half the trials a resample repeats its best too often for its band to mean anything.
    """
    n = len(losses)
    values = [expected_best(losses, k) for k in range(1, n + 1)]
    gone = next((value for value in values if isinstance(value, Missing)), None)
    if gone is not None or n < 2:
        return gone or Missing(f"{n} exchangeable trials: at least two are needed")
    import numpy as np

    half = n // 2
    weights = np.zeros((half, n))
    for k in range(1, half + 1):
        for i in range(1, n - k + 2):
            weights[k - 1, i - 1] = math.comb(n - i, k - 1) / math.comb(n, k)
    data, dice = np.asarray(losses, dtype=float), np.random.default_rng(seed)
    draws = np.sort(data[dice.integers(0, n, size=(resamples, n))], axis=1) @ weights.T
    ends = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return tuple(
        Estimate(
            value=value,
            low=float(ends[0, k]) if k < half else None,
            high=float(ends[1, k]) if k < half else None,
            n=n,
            note="" if k < half else "no band beyond half of the trials",
        )
        for k, value in enumerate(v for v in values if not isinstance(v, Missing))
    )


def tuning_gain(losses: Sequence[float]) -> float | Missing:
    """Expected best of one trial minus the best of all N, nats: large is hard to tune."""
    if len(losses) < 2:
        return Missing(f"{len(losses)} exchangeable trials: at least two are needed")
    first, last = expected_best(losses, 1), expected_best(losses, len(losses))
    if isinstance(first, Missing) or isinstance(last, Missing):
        return first if isinstance(first, Missing) else last
    return first - last


def omega_tunability(
    losses: Sequence[float], weights: Literal["uniform", "early"] = "uniform"
) -> float | Missing:
    """Sum over k of omega_k expected_best(k), nats; omega sums to one.

    uniform: every budget alike. early: omega_k proportional to N - k + 1, for those who tune
    little.
    """
    n = len(losses)
    values = [expected_best(losses, k) for k in range(1, n + 1)]
    gone = next((value for value in values if isinstance(value, Missing)), None)
    if gone is not None or not n:
        return gone or Missing("no exchangeable trials")
    omega = [1.0 if weights == "uniform" else float(n - k) for k in range(n)]
    pairs = zip(omega, (v for v in values if not isinstance(v, Missing)), strict=True)
    return math.fsum(w * v for w, v in pairs) / math.fsum(omega)
