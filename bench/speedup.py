"""Speed-up over the tuned reference: tokens it needs for a loss, over tokens the method took.

The reference's final losses at fully decayed horizons D (every horizon a run of its own, its
learning rate tuned there) are fitted by L(D) = beta + alpha D^-b; a method that reaches L_o with
D_o tokens has S = D_ref(L_o) / D_o. R^2 says nothing about such a fit (above .99 while S spans
1.10 to 1.32 at a seed sd of .02), so it is not given: the bootstrap interval is.

Sources: K. Wen et al., "Fantastic pretraining optimizers and where to find them", arXiv
2509.02046 (2025); the Huber loss on log residuals: J. Hoffmann et al., "Training compute-optimal
large language models", arXiv 2203.15556 (2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.bench.stats import Estimate, Missing, finite, mean

HORIZONS, SEEDS = 5, 3
"""Fewest horizons, and seeds at each, that three parameters are fitted to."""
HUBER = 1e-3
"""Log residual from which the loss grows linearly."""
STARTS = tuple((share, b) for share in (0.0, 0.5, 0.9, 0.99) for b in (0.1, 0.3, 0.7, 1.5))
"""Starting points: beta as a share of the lowest loss, and b."""

Horizons = Mapping[float, Sequence[float]]
"""Tokens of a fully decayed run -> final losses by seed, nats a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """L(D) = beta + alpha D^-b over the range it was fitted in."""

    alpha: float
    beta: float
    b: float
    tokens: tuple[float, float]
    """Shortest and longest horizon: nothing is inverted beyond."""

    @property
    def lowest(self) -> float:
        """The law's loss at the longest horizon."""
        return self.loss(self.tokens[1])

    @property
    def highest(self) -> float:
        """The law's loss at the shortest horizon."""
        return self.loss(self.tokens[0])

    def loss(self, tokens: float) -> float:
        """Nats a token."""
        return self.beta + self.alpha * math.pow(tokens, -self.b)

    def invert(self, loss: float) -> float | Missing:
        """Tokens the reference needs for `loss`; refused outside the range fitted."""
        if not finite(loss):
            return Missing(f"loss = {loss}")
        if not self.lowest <= loss <= self.highest:
            side = "better" if loss < self.lowest else "worse"
            return Missing(
                f"loss {loss:.4f} is {side} than all the reference's horizons reach "
                f"({self.lowest:.4f} to {self.highest:.4f}): an extrapolation"
            )
        return float((self.alpha / (loss - self.beta)) ** (1 / self.b))


def fit_law(horizons: Horizons) -> Law | Missing:
    """Fit the law to all seeds: Huber loss on log residuals, many starts, the best end.

    Refused below 5 horizons x 3 seeds, on losses that are not finite, and on means that do not
    fall from the shortest horizon to the longest.
    """
    if len(horizons) < HORIZONS or min(map(len, horizons.values())) < SEEDS:
        seeds = min(map(len, horizons.values()), default=0)
        return Missing(
            f"{len(horizons)} horizons of at least {seeds} seeds; {HORIZONS} of {SEEDS} are needed"
        )
    if any(not finite(d) or d <= 0 for d in horizons):
        return Missing("a horizon is not a positive number of tokens")
    if any(not finite(loss) or loss <= 0 for losses in horizons.values() for loss in losses):
        return Missing("a loss is not a positive number: a failed run cannot be in the fit")
    return _fit(horizons, STARTS)


def _fit(horizons: Horizons, starts: Sequence[tuple[float, float]]) -> Law | Missing:
    import numpy as np
    from scipy.optimize import least_squares

    tokens = sorted(horizons)
    means = [mean(list(horizons[d])) or 0.0 for d in tokens]
    if means[-1] >= means[0]:
        return Missing("the reference's loss does not fall with the horizon")
    unit = math.sqrt(tokens[0] * tokens[-1])
    x = np.array([math.log(d / unit) for d in tokens for _ in horizons[d]])
    y = np.array([math.log(loss) for d in tokens for loss in horizons[d]])
    lowest = min(means)

    def residuals(theta: Any) -> Any:
        beta, log_alpha, b = theta
        return np.log(beta + np.exp(log_alpha - b * x)) - y

    def slopes(theta: Any) -> Any:
        beta, log_alpha, b = theta
        fading = np.exp(log_alpha - b * x)
        return np.stack((np.ones_like(x), fading, -x * fading), axis=1) / (beta + fading)[:, None]

    best = None
    for share, b in starts:
        beta = share * lowest
        start = (beta, math.log(max(math.exp(float(y.mean())) - beta, 1e-3 * lowest)), b)
        found = least_squares(
            residuals,
            start,
            jac=slopes,
            bounds=([0.0, -30.0, 1e-3], [lowest, 30.0, 10.0]),
            x_scale=(lowest, 1.0, 1.0),
            loss="huber",
            f_scale=HUBER,
        )
        if math.isfinite(found.cost) and (best is None or found.cost < best.cost):
            best = found
    if best is None:
        return Missing("no start of the fit came to an end")
    beta, log_alpha, b = (float(value) for value in best.x)
    return Law(
        alpha=math.exp(log_alpha + b * math.log(unit)),
        beta=beta,
        b=b,
        tokens=(tokens[0], tokens[-1]),
    )


def speedup(
    horizons: Horizons,
    tokens: float,
    losses: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
) -> Estimate | Missing:
    """S = D_ref(mean loss) / tokens with a bootstrap interval over the seeds of both sides.

    Every resample draws the residuals of the reference's seeds, pooled over horizons and widened
    by sqrt(S / (S - 1)), refits, draws the method's seeds alike, and inverts. Three seeds resampled
    at each horizon alone would cover too rarely. More than 5 % of resamples outside the range
    fitted make the interval, not the estimate, missing.

    Args:
        horizons: the reference's final losses by tokens.
        tokens: what the method took; its run is fully decayed too.
        losses: the method's final losses by seed, or by study.
    """
    law = fit_law(horizons)
    if isinstance(law, Missing):
        return law
    centre = mean(list(losses))
    if centre is None or not finite(tokens) or tokens <= 0:
        return Missing("the method's losses and tokens are not all finite")
    needed = law.invert(centre)
    if isinstance(needed, Missing):
        return needed
    n, value = len(losses), needed / tokens
    if n < SEEDS:
        note = f"{n} seeds of the method: no interval below {SEEDS}"
        return Estimate(value=value, low=None, high=None, n=n, note=note)
    import numpy as np

    dice = np.random.default_rng(seed)
    middle = {d: mean(list(values)) or 0.0 for d, values in horizons.items()}
    widened = [
        (loss - middle[d]) * math.sqrt(len(values) / (len(values) - 1))
        for d, values in horizons.items()
        for loss in values
    ]
    own = [(loss - centre) * math.sqrt(n / (n - 1)) for loss in losses]
    start = [(min(0.999, law.beta / law.lowest), law.b)]
    drawn, outside = [], 0
    for _ in range(resamples):
        again = {d: list(middle[d] + dice.choice(widened, len(v))) for d, v in horizons.items()}
        refit = _fit(again, start)
        place = centre + float(dice.choice(own, n).mean())
        reached = refit if isinstance(refit, Missing) else refit.invert(place)
        if isinstance(reached, Missing):
            outside += 1
        else:
            drawn.append(reached / tokens)
    if outside > 0.05 * resamples:
        note = f"no interval: {outside / resamples:.0%} of resamples lie outside the range fitted"
        return Estimate(value=value, low=None, high=None, n=n, note=note)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def local_speedup(law: Law, reference_loss: float, loss: float) -> float | Missing:
    """The first-order version: S = exp((L_ref - L_o) / (b (L_ref - beta))), same tokens for both.

    The law's slope at the reference's own loss; it needs no range but is only good near S = 1.
    """
    gap = reference_loss - law.beta
    if not (finite(reference_loss) and finite(loss)) or gap <= 0:
        return Missing("the reference's loss does not lie above the fitted floor")
    exponent = (reference_loss - loss) / (law.b * gap)
    return math.exp(exponent) if abs(exponent) < 50 else Missing("far outside the local slope")
