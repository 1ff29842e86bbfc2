"""One tuning rule for all methods, as an Optuna sampler driven by ask/tell.

`bracket` spends every method's trials alike: trial 0 at the paper's defaults; then the scale
dimension moves by a fixed factor, up or down, until its minimum is interior; the rest is one
scrambled Sobol sequence over ranges of the same width for every method. The last trials are a
reserve: while the best point lies in the outer tenth of a range they go beyond that edge, else the
sequence goes on. What is proposed depends on the study's seed and on the losses told before, never
on the number of workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from levelfield.bench.digest import derive_seed
from levelfield.bench.space import Dim
from levelfield.bench.spec import BenchError, OptimizerSpec, TrialRecord, Tuner

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to try: the trial's number and every hyper-parameter."""

    number: int
    hparams: Mapping[str, Any]


def objective(record: TrialRecord) -> float:
    """What the tuner is told: the selection loss of a trial that ended well, else infinity.

    The only comparator between trials: diverged, broken and non-finite ones never win.
    """
    loss = record.selection_loss
    if record.status not in ("ok", "undertrained") or loss is None or not math.isfinite(loss):
        return math.inf
    return loss


def best_record(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial with the lowest objective; `undertrained` ones only if nothing else is there."""
    for status in ("ok", "undertrained"):
        good = [r for r in records if r.status == status and math.isfinite(objective(r))]
        if good:
            return min(good, key=lambda record: (objective(record), record.trial))
    return None


def next_offset(
    tried: Mapping[int, float], allowed: Sequence[int], resolution: float = 0.0
) -> int | None:
    """The bracket's next step from the default, in factors; None when the minimum is interior.

    Args:
        tried: loss by offset; infinity for a trial that did not end well. Offset 0 is there.
        allowed: offsets that the dimension's natural bounds permit.
        resolution: after two steps down in a row that gained less than this each, no further.
    """
    if all(math.isinf(loss) for loss in tried.values()):
        # Nothing works yet: a smaller scale is the safer side.
        candidates: tuple[int, ...] = (min(tried) - 1,)
    else:
        best = min(tried, key=lambda offset: (tried[offset], abs(offset)))
        candidates = (best + 1,) if _flat(tried, best, resolution) else (best + 1, best - 1)
    return next((k for k in candidates if k not in tried and k in allowed), None)


def _flat(tried: Mapping[int, float], best: int, resolution: float) -> bool:
    """Whether the last two steps down to `best` gained less than the resolution each."""
    above = [tried.get(best + step, math.inf) for step in (2, 1, 0)]
    return all(0.0 <= high - low < resolution for high, low in itertools.pairwise(above))


def started(spec: OptimizerSpec, factor: float) -> OptimizerSpec:
    """The spec with the default and the range of its scale moved by `tuner.start`, inside the
    natural bounds; an adapter's as they are."""
    if factor == 1.0 or spec.inner is not None:
        return spec
    dim = spec.space[spec.scale]
    lowest, highest = dim.bounds
    low, high, default = (
        min(max(float(f"{value * factor:.6g}"), lowest), highest)
        for value in (dim.low, dim.high, dim.default)
    )
    moved = replace(dim, low=low, high=high, default=default)
    return replace(spec, space={**spec.space, spec.scale: moved})


class TuningStudy:
    """The trials of one method: asks generations, is told records.

    Args:
        spec: the method.
        tuner: the protocol's rule.
        trials: how many are asked in all; every one counts, whatever becomes of it.
        seed: of the whole run; the study's own seed derives from it, `name` and `index`.
        index: of the study among the method's independent ones.
        name: the method's name in the run, if not the spec's.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        tuner: Tuner,
        trials: int,
        seed: int,
        index: int = 0,
        name: str | None = None,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.spec, self.tuner, self.trials = started(spec, tuner.start), tuner, trials
        self.seed = derive_seed("tune", seed, name or spec.name, index)
        self._study = optuna.create_study(sampler=_bracket_sampler(self))
        self._told: dict[int, TrialRecord] = {}
        self._open: dict[int, Any] = {}
        self._values: dict[int, dict[str, Any]] = {}
        self._beyond: set[int] = set()

    @property
    def asked(self) -> int:
        return len(self._values)

    @property
    def beyond_count(self) -> int:
        """Trials spent beyond an edge so far."""
        return len(self._beyond)

    @property
    def records(self) -> list[TrialRecord]:
        return [self._told[number] for number in sorted(self._told)]

    @property
    def finished(self) -> bool:
        return len(self._told) == self.trials

    def ask(self) -> list[Proposal]:
        """The next generation; empty while one is open and when the budget is spent."""
        if self._open or self.asked >= self.trials:
            return []
        size = self._generation()
        return [self._ask_one() for _ in range(min(size, self.trials - self.asked))]

    def _generation(self) -> int:
        left = self.trials - self.tuner.reserve - self.asked
        if left < 1:
            return 1  # the reserve looks at the best point before every trial
        if self.tuner.kind != "bracket":
            return min(self.tuner.generation, left)
        # While bracketing every step needs the one before; the Sobol points need nothing.
        return 1 if self.asked == 0 or self.offset() is not None else left

    def _ask_one(self) -> Proposal:
        number = self.asked
        self._study.sampler = self._sampler(number)
        bracket = self.tuner.kind == "bracket"
        fixed = self._fixed_point(number)
        wide = bracket or fixed is not None  # a default may lie outside its range
        space = {name: dim.distribution(wide) for name, dim in self.spec.space.items()}
        if fixed is not None:
            self._study.enqueue_trial(fixed, skip_if_exists=False)
        trial = self._study.ask(space)
        tuned = {name: self.spec.space[name].value(x) for name, x in trial.params.items()}
        self._open[number] = trial
        self._values[number] = tuned
        return Proposal(number, {**self.spec.fixed, **tuned})

    def _fixed_point(self, number: int) -> dict[str, float] | None:
        """Coordinates of a trial that no sampler chooses: the defaults, a step beyond an edge."""
        if number == 0:
            return {name: dim.coordinate(dim.default) for name, dim in self.spec.space.items()}
        bracketing = self.tuner.kind == "bracket" and self.offset() is not None
        if number < self.trials - self.tuner.reserve or bracketing:
            return None
        point = self.beyond_edge()
        if point is not None:
            self._beyond.add(number)
        return point

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial; seeded per trial, so that a resumed study proposes the same."""
        import optuna

        seed = derive_seed(self.seed, number) % 2**32
        if self.tuner.kind == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if self.tuner.kind == "tpe":
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=max(4, self.trials // 3), multivariate=False
            )
        return _bracket_sampler(self)

    def tell(self, number: int, record: TrialRecord) -> None:
        """Take the record of an asked trial."""
        if number not in self._open:
            raise BenchError(f"trial {number} of {self.spec.name} was not asked for")
        self._study.tell(self._open.pop(number), objective(record))
        self._told[number] = record

    def best(self) -> TrialRecord | None:
        """The study's best trial so far, or None if none ended well."""
        return best_record(self.records)

    # --- ranges and their edges --------------------------------------------------------------

    def ranges(self) -> dict[str, Dim]:
        """Every dimension with the range in use: the scale's lies around the bracket's minimum;
        trials beyond an edge widen a range."""
        dims = dict(self.spec.space)
        if self.tuner.kind == "bracket":
            dims[self.spec.scale] = self.scale.around(self._centre(), self.tuner.decades)
        for number in sorted(self._beyond & set(self._told)):
            for name, dim in dims.items():
                value = self._values[number][name]
                dims[name] = replace(dim, low=min(dim.low, value), high=max(dim.high, value))
        return dims

    def edges(self) -> dict[str, str]:
        """Dimensions whose best value lies in the outer tenth of its range, with the side."""
        best = self.best()
        if best is None:
            return {}
        found = {n: dim.edge(float(best.hparams[n])) for n, dim in self.ranges().items()}
        return {name: side for name, side in found.items() if side is not None}

    def beyond_edge(self) -> dict[str, float] | None:
        """The best point with its first edge dimension moved a third of a decade past the range
        (a third of the range where it is not logarithmic); None if nothing is at an edge."""
        best, edges = self.best(), self.edges()
        if best is None or not edges:
            return None
        name, side = next(iter(edges.items()))
        dim = self.ranges()[name]
        low, high = dim.coordinate(dim.low), dim.coordinate(dim.high)
        step = math.log(10) / 3 if dim.scale == "log" else (high - low) / 3
        moved = high + step if side == "high" else low - step
        point = {n: d.coordinate(float(best.hparams[n])) for n, d in self.spec.space.items()}
        return {**point, name: dim.coordinate(dim.value(moved))}

    def _centre(self) -> float:
        tried = self.bracket_trials()
        losses = {k: objective(self._told[n]) for k, n in tried.items()}
        return self.scale_at(min(losses, key=lambda k: (losses[k], abs(k))) if losses else 0)

    # --- the bracket rule --------------------------------------------------------------------

    @property
    def scale(self) -> Dim:
        return self.spec.space[self.spec.scale]

    def scale_at(self, offset: int) -> float:
        """The scale dimension `offset` factors from its default."""
        if offset == 0:
            return self.scale.default
        return float(f"{self.scale.default * self.tuner.factor**offset:.6g}")

    def offset(self) -> int | None:
        """The next offset to try, or None once the minimum is interior."""
        tried = {k: objective(self._told[n]) for k, n in self.bracket_trials().items()}
        if not tried:
            return 0
        low, high = self.scale.bounds
        reach = range(min(tried) - 1, max(tried) + 2)
        allowed = [k for k in reach if low <= self.scale_at(k) <= high]
        return next_offset(tried, allowed, self.tuner.resolution)

    def bracket_trials(self) -> dict[int, int]:
        """Trial number by offset, of the told trials that moved the scale alone."""
        defaults = self.spec.defaults()
        found: dict[int, int] = {}
        for number in sorted(self._told):
            values = self._values[number]
            alone = all(values[n] == defaults[n] for n in values if n != self.spec.scale)
            offset = round(
                math.log(values[self.spec.scale] / self.scale.default, self.tuner.factor)
            )
            if alone and values[self.spec.scale] == self.scale_at(offset):
                found.setdefault(offset, number)
            else:
                break
        return found

    def sobol_points(self, skipped: int) -> list[dict[str, float]]:
        """The rest of the trials: one scrambled Sobol sequence around the bracket's minimum."""
        from scipy.stats import qmc

        dims = dict(self.spec.space)
        if self.tuner.kind == "bracket":
            dims[self.spec.scale] = self.scale.around(self._centre(), self.tuner.decades)
        count = self.trials - skipped
        engine = qmc.Sobol(len(dims), scramble=True, rng=derive_seed(self.seed, "sobol") % 2**32)
        shares = engine.random_base2(max(0, (count - 1).bit_length()))[:count]
        return [
            {
                name: dim.coordinate(dim.at(float(u)))
                for (name, dim), u in zip(dims.items(), row, strict=True)
            }
            for row in shares
        ]


def _bracket_sampler(owner: TuningStudy) -> BaseSampler:
    """`bracket` and `sobol` as an Optuna sampler (made here, so that Optuna loads late)."""
    import optuna

    class BracketSampler(optuna.samplers.BaseSampler):
        """Proposes the bracket's next step, then the Sobol points one after the other."""

        def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
            bracket = owner.tuner.kind == "bracket"
            return {n: d.distribution(wide=bracket) for n, d in owner.spec.space.items()}

        def sample_relative(
            self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]
        ) -> dict[str, Any]:
            point = {n: d.coordinate(d.default) for n, d in owner.spec.space.items()}
            if trial.number == 0:
                return point
            offset = owner.offset() if owner.tuner.kind == "bracket" else None
            if offset is not None:
                point[owner.spec.scale] = owner.scale.coordinate(owner.scale_at(offset))
                return point
            first = len(owner.bracket_trials()) if owner.tuner.kind == "bracket" else 1
            return owner.sobol_points(first)[trial.number - first - owner.beyond_count]

        def sample_independent(
            self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
        ) -> Any:
            raise AssertionError("every dimension is sampled together")

    return BracketSampler()
