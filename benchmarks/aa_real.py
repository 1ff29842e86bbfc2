"""How often the rules call one method better than itself, on real trainings.

Every entry is the same method under a label of its own, tuned and trained from independent sampler
seeds; entries are compared two by two, each entry once, over tuning studies. The model is tiny so
that hundreds of studies fit into minutes.

    python benchmarks/aa_real.py [--pairs 30] [--method adamw_split] [--slots 2]

Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from levelfield.bench import api, inference
from levelfield.bench.registry import PROTOCOLS
from levelfield.bench.robustness import binomial
from levelfield.bench.samples import sample
from levelfield.bench.spec import Budget, Data, Evaluation, Model, Protocol, Timing, Tuner
from levelfield.bench.stats import Missing
from levelfield.bench.store import Run


def tiny(studies: int) -> Protocol:
    """The control `aa_pipeline` on a model that trains in a third of a second."""
    control = PROTOCOLS.load("aa_pipeline").value
    return replace(
        control,
        model=Model(hidden=16, layers=1, heads=2, intermediate=24),
        data=Data(sequence=32, batch=8),
        budget=Budget(steps=60, trials=8, studies=studies, seeds=3, trial_timeout_s=60.0),
        tuner=Tuner(reserve=2),
        evaluation=Evaluation(every=20, sequences=32),
        timing=Timing(windows=1, steps=1),
        methods=(),
    )


def rejections(run: Run, names: list[str], studies: int, alpha: float) -> dict[str, list[bool]]:
    """Whether each pair of entries is called different, by the test alone and by the whole rule."""
    samples = {
        name: sample(name, [r for r in run.records if r.optimizer == name], studies, False)
        for name in names
    }
    found: dict[str, list[bool]] = {"t test": [], "whole rule": []}
    for one, other in zip(names[::2], names[1::2], strict=True):
        pair = inference.compare(samples[one], samples[other])
        found["t test"].append(pair.p is not None and pair.p <= alpha)
        family = inference.family([samples[one], samples[other]], alpha=alpha, reference=one)
        verdicts = [family.verdict(item)[0] for item in family.pairs]
        found["whole rule"].append(any(verdict is not None for verdict in verdicts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="independent comparisons")
    parser.add_argument("--method", default="adamw_split", help="the method compared with itself")
    parser.add_argument("--studies", type=int, default=3, help="studies an entry")
    parser.add_argument("--slots", type=int, default=None, help="trials at once")
    args = parser.parse_args()
    protocol = tiny(args.studies)
    names = [f"{args.method}@n{number}" for number in range(2 * args.pairs)]
    with tempfile.TemporaryDirectory() as folder:
        run = api.run(protocol, names, out=Path(folder), slots=args.slots)
    alpha = protocol.alpha
    print(f"{'by':<12}{'rejected':>10}{'pairs':>7}{'rate':>8}   95 % interval")
    rows = {}
    for rule, hits in rejections(run, names, args.studies, alpha).items():
        rate = binomial(sum(hits), len(hits))
        assert not isinstance(rate, Missing)
        print(
            f"{rule:<12}{sum(hits):>10}{len(hits):>7}{rate.value:>8.1%}"
            f"   {rate.low:.1%} to {rate.high:.1%}"
        )
        rows[rule] = {"rejected": sum(hits), "pairs": len(hits), "low": rate.low, "high": rate.high}
    print(
        json.dumps(
            {
                "benchmark": "aa_real",
                "method": args.method,
                "studies": args.studies,
                "trials": len(run.records),
                "alpha": alpha,
                "rates": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
