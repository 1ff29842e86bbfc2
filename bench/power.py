"""How many studies, how small a difference: planning a comparison, and showing equivalence.

Three designs. `welch` and `two-sample`: two methods with n independent values each (studies, or
disjoint seeds), sd the standard deviation within a method; tested by Welch's t, as comparisons
are, or by the pooled t. `paired`: n differences, sd theirs. Effects, deviations and margins are in
one unit, nats a token here. Power is that of the two-sided t test, by the non-central t
distribution; the normal approximation asks for too few: 7.85 sd^2/effect^2 pairs make 8 where 10
are needed. Welch's test finds up to ten points less than the pooled one at three studies a method.

Sources: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences" (1988); D. J.
Schuirmann, "A comparison of the two one-sided tests procedure", Journal of Pharmacokinetics and
Biopharmaceutics 15 (1987) 657-680; K. F. Phillips, "Power of the two one-sided tests procedure in
bioequivalence", the same 18 (1990) 137-144 (exact power).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from levelfield.bench.stats import Missing, finite

Design = Literal["welch", "two-sample", "paired"]
MOST = 100_000
"""Numbers of studies or seeds beyond this are not searched."""
MOST_WELCH = 200
"""With more values a group Welch's test and the pooled one have the same power to four digits."""


def _frame(sd: float, n: int, design: Design) -> tuple[float, int]:
    """Standard error of the difference and its degrees of freedom."""
    if design == "paired":
        return sd / math.sqrt(n), n - 1
    return sd * math.sqrt(2 / n), 2 * n - 2


def _refused(sd: float, n: int = 2, **more: float) -> str | None:
    if not (finite(sd) and sd > 0):
        return f"sd = {sd}: a positive spread is needed"
    if n < 2:
        return f"n = {n}: no spread can be estimated"
    wrong = {name: value for name, value in more.items() if not (finite(value) and value > 0)}
    return f"{wrong}: positive numbers are needed" if wrong else None


def achieved_power(
    effect: float, sd: float, n: int, *, alpha: float = 0.05, design: Design = "welch"
) -> float | Missing:
    """Probability that the two-sided t test finds a true difference of `effect`.

    P(|T| > t(1 - alpha/2, df)), T non-central t with effect / se; both tails. For `welch` with
    equal spreads T has 2n - 2 degrees of freedom and is independent of b, the share of one group in
    both sums of squares; b ~ Beta((n - 1)/2, (n - 1)/2) alone sets the test's own
    df = (n - 1) / (b^2 + (1 - b)^2), so that its power is the mean over b.
    """
    if reason := _refused(sd, n):
        return Missing(reason)
    if not finite(effect):
        return Missing(f"effect = {effect}")
    from scipy.stats import t

    se, df = _frame(sd, n, design)
    shift = abs(effect) / se
    if design == "welch" and n <= MOST_WELCH:
        power, least = _welch(n, shift, alpha), 0.0
    else:
        power, least = _beyond(float(t.ppf(1 - alpha / 2, df)), df, shift), alpha
    return min(1.0, max(least, power)) if math.isfinite(power) else Missing("no convergence")


def _welch(n: int, shift: float, alpha: float) -> float:
    """Power of Welch's test for n values a group, by Gauss-Legendre over x, b = sin(x)^2."""
    import numpy as np
    from scipy.special import betaln
    from scipy.stats import t

    nodes, weights = np.polynomial.legendre.leggauss(64)
    x = (nodes + 1) * math.pi / 8  # half of the range: the other one mirrors it
    b = np.sin(x) ** 2
    log_density = math.log(2) + (n - 2) * np.log(np.sin(x) * np.cos(x))
    density = np.exp(log_density - betaln((n - 1) / 2, (n - 1) / 2))
    bounds = t.ppf(1 - alpha / 2, (n - 1) / (b**2 + (1 - b) ** 2))
    beyond = [_beyond(float(bound), 2 * n - 2, shift) for bound in bounds]
    return float(2 * math.pi / 8 * np.sum(weights * density * beyond))


def _beyond(bound: float, df: float, shift: float) -> float:
    """P(|T| > bound) of a non-central t."""
    from scipy.stats import nct

    if shift > bound + 38:
        return 1.0  # beyond what the distribution's series can hold; the rest is below 1e-16
    above, below = float(nct.sf(bound, df, shift)), float(nct.cdf(-bound, df, shift))
    # The series gives up where a tail is nothing: P(T < -bound) < P(Z < -shift).
    return above + (0.0 if math.isnan(below) and shift > 6 else below)


def needed(
    effect: float,
    sd: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    design: Design = "welch",
) -> int | Missing:
    """Fewest studies (or seeds) a method that find `effect` with this power.

    One difference a pair and sd = effect: 10.
    """
    if reason := _refused(sd, effect=abs(effect)):
        return Missing(reason)

    def enough(n: int) -> bool:
        found = achieved_power(effect, sd, n, alpha=alpha, design=design)
        return not isinstance(found, Missing) and found >= power

    return _fewest(enough)


def detectable(
    sd: float,
    n: int,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    design: Design = "welch",
) -> float | Missing:
    """The smallest true difference that n studies (or seeds) a method find with this power."""
    if reason := _refused(sd, n):
        return Missing(reason)
    from scipy.optimize import brentq

    se, _ = _frame(sd, n, design)

    def short(effect: float) -> float:
        found = achieved_power(effect, sd, n, alpha=alpha, design=design)
        return (1.0 if isinstance(found, Missing) else found) - power

    high = se
    while short(high) < 0:
        high *= 2
    return float(brentq(short, 0.0, high, xtol=1e-12 * high))


# --- equivalence ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """Two one-sided tests against a margin declared beforehand. Its power comes first."""

    power: float | None
    """Probability of showing equivalence of two methods that are equal, with this spread."""
    margin: float
    p: float | None
    """The larger of the two one-sided p values."""
    interval: tuple[float, float] | None
    """The 1 - 2 alpha interval of the difference; equivalent where it lies inside the margin."""
    equivalent: bool
    reason: str | None = None


def tost_power(
    sd: float, n: int, margin: float, *, alpha: float = 0.05, design: Design = "welch"
) -> float | Missing:
    """Probability that two equal methods are shown to be equivalent within +- margin.

    P(|D| < margin - t(1 - alpha, df) s): exact, D normal around 0 with standard error se, s its
    estimate: the integral over the chi distribution of s / se.
    """
    if reason := _refused(sd, n, margin=margin):
        return Missing(reason)
    se, df = _frame(sd, n, design)
    return _tost_power(se, df, margin, alpha)


def _tost_power(se: float, df: float, margin: float, alpha: float) -> float:
    from scipy.integrate import quad
    from scipy.stats import chi, norm, t

    bound = float(t.ppf(1 - alpha, df))
    widest = margin / (se * bound)  # estimates of se above this leave no room

    def density(ratio: float) -> float:
        room = margin / se - bound * ratio
        return float((2 * norm.cdf(room) - 1) * chi.pdf(ratio * math.sqrt(df), df) * math.sqrt(df))

    top = min(widest, 1 + 12 / math.sqrt(2 * df) + 12 / df)
    points = [ratio for ratio in (0.5, 1.0) if ratio < top]
    value, _ = quad(density, 0.0, top, points=points or None, limit=200)
    return min(1.0, max(0.0, float(value)))


def tost_needed(
    sd: float,
    margin: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    design: Design = "welch",
) -> int | Missing:
    """Fewest studies (or seeds) a method that show two equal methods to be equivalent.

    About 8.56 sd^2 / margin^2 differences in the paired design: (z(.95) + z(.9))^2.
    """
    if reason := _refused(sd, margin=margin):
        return Missing(reason)

    def enough(n: int) -> bool:
        found = tost_power(sd, n, margin, alpha=alpha, design=design)
        return not isinstance(found, Missing) and found >= power

    return _fewest(enough)


def tost(
    difference: float | None,
    se: float | None,
    df: float | None,
    margin: float,
    *,
    alpha: float = 0.05,
) -> Equivalence:
    """Whether a difference is shown to lie inside +- margin, at level alpha.

    Takes the parts of an `inference.Comparison`. p = max of P(T > (margin -+ difference) / se)
    over both sides. A margin chosen after the results proves nothing.
    """
    empty = Equivalence(power=None, margin=margin, p=None, interval=None, equivalent=False)
    if reason := _refused(1.0, margin=margin):
        return replace(empty, reason=reason)
    if difference is None or se is None or df is None or not finite(difference):
        return replace(empty, reason="no difference with a standard error")
    if not finite(se) or se <= 0 or df <= 0:
        return replace(empty, reason="no spread between studies: nothing bounds the difference")
    from scipy.stats import t

    p = max(
        float(t.sf((margin - difference) / se, df)), float(t.sf((margin + difference) / se, df))
    )
    reach = float(t.ppf(1 - alpha, df)) * se
    return Equivalence(
        power=_tost_power(se, df, margin, alpha),
        margin=margin,
        p=p,
        interval=(difference - reach, difference + reach),
        equivalent=p <= alpha,
    )


def _fewest(enough: Callable[[int], bool]) -> int | Missing:
    """The smallest n from 2 on for which `enough(n)`, which stays true once it is."""
    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST:
            return Missing(f"more than {MOST}")
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
