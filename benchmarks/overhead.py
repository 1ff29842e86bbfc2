"""What the harness costs: training through levelfield against a bare loop.

Both arms train the same model on the same batches with the same optimizer, clipping and schedule,
in one process, in turn, window by window. A third arm, a second bare loop, tells how far two equal
arms differ on this machine today: with that ratio off by more than 1 % no verdict is given.

    python benchmarks/overhead.py [--windows 40] [--steps 25] [--hidden 32]

Prints a table and, last, one JSON line with `ratio` and `aa_ratio`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from levelfield.bench import models, next_token, sources
from levelfield.bench.digest import derive_seed
from levelfield.bench.registry import OPTIMIZERS, PROTOCOLS
from levelfield.bench.schedules import lr_factor
from levelfield.bench.spec import Protocol
from levelfield.bench.train import Trial
from levelfield.bench.train_request import TrialRequest

NOISE = 0.01
"""Largest distance of the A/A ratio from 1 at which the other ratio means anything."""


def bare_loop(protocol: Protocol) -> Callable[[], None]:
    """One step of what somebody would write by hand, with everything prepared."""
    corpus = sources.load(protocol.data)
    length = protocol.data.sequence
    model = models.build_model(protocol.model, corpus.vocabulary, length, derive_seed("weights", 0))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True)
    order = sources.BatchOrder(corpus.tokens["train"], protocol.data, derive_seed("batches", 0))
    done = 0

    def step() -> None:
        nonlocal done
        batch = next_token.to_device(order.next(), torch.device("cpu"))
        logits = model(input_ids=batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, protocol.clip_norm or math.inf)
        factor = lr_factor(protocol.schedule, done, protocol.budget.steps)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # a hand-written loop logs its loss
        done += 1

    return step


def harness_loop(protocol: Protocol) -> Callable[[], None]:
    """One step of a trial, as `run_trial` takes it."""
    request = TrialRequest(
        run_id="overhead",
        phase="tune",
        protocol=protocol,
        optimizer="adamw",
        reference="adamw",
        hparams=OPTIMIZERS.load("adamw").value.defaults(),
        tuned=(),
        trial=0,
        seed=0,
    )
    trial = Trial(request, lambda progress: None)
    trial.load()
    trial.setup()

    def step() -> None:
        trial.one_step()
        if trial.step % 10 == 0:
            trial.check_loss()

    return step


def seconds(step: Callable[[], None], count: int) -> float:
    """Seconds of `count` steps."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=40, help="alternations")
    parser.add_argument("--steps", type=int, default=25, help="steps a window")
    parser.add_argument("--hidden", type=int, default=32, help="width of the model")
    args = parser.parse_args()
    protocol = PROTOCOLS.load("quick").value
    horizon = (args.windows + 1) * args.steps
    protocol = replace(
        protocol,
        budget=replace(protocol.budget, steps=horizon),
        model=replace(protocol.model, hidden=args.hidden, intermediate=args.hidden * 11 // 4),
    )
    torch.set_num_threads(protocol.threads)
    arms = {
        "harness": harness_loop(protocol),
        "bare": bare_loop(protocol),
        "bare again": bare_loop(protocol),
    }
    for step in arms.values():
        seconds(step, args.steps)
    times: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for window in range(args.windows):
        shift = window % len(names)  # every arm takes every place in turn
        for name in names[shift:] + names[:shift]:
            times[name].append(seconds(arms[name], args.steps) / args.steps)
    ratio = paired(times["harness"], times["bare"])
    aa_ratio = paired(times["bare again"], times["bare"])
    print(f"{'arm':<12}{'median ms':>11}{'min':>9}{'max':>9}")
    for name, values in times.items():
        print(
            f"{name:<12}{1e3 * statistics.median(values):>11.3f}"
            f"{1e3 * min(values):>9.3f}{1e3 * max(values):>9.3f}"
        )
    steady = abs(aa_ratio - 1) <= NOISE
    verdict = f"{ratio - 1:+.2%} over a bare loop" if steady else "no verdict: too noisy"
    print(f"harness / bare {ratio:.4f}, bare / bare {aa_ratio:.4f}: {verdict}")
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "ratio": ratio,
                "aa_ratio": aa_ratio,
                "alternations": args.windows,
                "steps": args.steps,
                "verdict": (ratio <= 1.03) if steady else None,
            }
        )
    )


def paired(one: list[float], other: list[float]) -> float:
    """Median of the ratios window by window."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
