"""What a second process brings to AdaPaD's exact mode, whose components' passes are shared out.

K components in every linear layer of a LLaMA, a pass each: one process with one thread, two
processes with one thread each (engine.parallel=components), one process with two threads. The arms
take turns, window by window, in the same two processes. Two processes can be at most
passes / ceil(passes / 2) times as fast. A reserve is one more pass.

`by CPU`: the same by CPU time, of the busier of the two: what other load on the machine leaves.

    python benchmarks/component_parallel.py [--windows 5] [--steps 3] [--hidden 256] [--cases 5]

Prints a table and, last, one JSON line with `speedup` (of four components without a reserve).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.update(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1")

import torch
from torch import distributed

from levelfield.bench.distributed import Components
from levelfield.bench.group import Alone, Group
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import Budget, Data, Model, Protocol
from levelfield.bench.train import Trial
from levelfield.bench.train_request import TrialRequest

PROCESSES = 2
WANTED = 1.6
"""Times as fast with four components and no reserve."""
CASES = ((4, False), (4, True), (2, False), (8, False), (16, False))
"""Components, and whether each layer has a reserve besides."""


def protocol(hidden: int) -> Protocol:
    return Protocol(
        name="components",
        summary="a LLaMA whose passes outweigh everything else",
        model=Model(hidden=hidden, layers=2, heads=4, intermediate=hidden * 11 // 4),
        data=Data(sequence=64, batch=4),
        budget=Budget(steps=10_000),
    )


def prepared(config: Protocol, components: int, reserve: bool, group: Group) -> Trial:
    """A trial before its first step."""
    hparams = {
        **OPTIMIZERS.load("adapad").value.defaults(),
        **{"mode": "exact", "growth": reserve, "stagger": 0.0, "interval": 1.0},
        **{"rank": components + reserve, "cap": components + reserve},
    }
    request = TrialRequest(
        run_id="components",
        phase="tune",
        protocol=config,
        optimizer="adapad",
        reference="adapad",
        hparams=hparams,
        tuned=(),
        trial=0,
        seed=0,
    )
    trial = Trial(request, lambda progress: None, group)
    trial.load()
    trial.setup()
    if reserve:  # as growth would leave it
        rule: Any = trial.stepper.rule  # type: ignore[attr-defined]
        rule.plain["ranks"] = [components] * len(rule.modules)
        rule.refresh()
    return trial


def seconds_a_step(trial: Trial, threads: int, steps: int) -> tuple[float, float]:
    """By the clock, and of this process's CPU time."""
    torch.set_num_threads(threads)
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trial.one_step()
    return (time.perf_counter() - start) / steps, (time.process_time() - start_cpu) / steps


def measure(
    rank: int, config: Protocol, components: int, reserve: bool, windows: int, steps: int
) -> dict[str, list[float]]:
    """Seconds a step of each arm in every window; the second process only has a part in one. `cpu`
    arms: of CPU time, where there are two processes of the busier one."""
    both = prepared(config, components, reserve, Components(torch.device("cpu")))
    first = rank == 0
    alone = prepared(config, components, reserve, Alone()) if first else None
    arms = ("one", "one cpu", "two", "two cpu", "threads")
    found: dict[str, list[float]] = {name: [] for name in arms}

    def keep(name: str, times: tuple[float, float]) -> None:
        found[name].append(times[0])
        if f"{name} cpu" in found:
            found[f"{name} cpu"].append(times[1])

    for window in range(windows + 1):
        distributed.barrier()
        if alone is not None:
            keep("one", seconds_a_step(alone, 1, steps))
        distributed.barrier()  # the second process sleeps until here
        wall_s, cpu_s = seconds_a_step(both, 1, steps)
        busier = torch.tensor(cpu_s)
        distributed.all_reduce(busier, distributed.ReduceOp.MAX)
        keep("two", (wall_s, float(busier)))
        if alone is not None:
            keep("threads", seconds_a_step(alone, 2, steps))
        if window == 0:  # warms up
            found.update({name: [] for name in arms})
    if alone is not None:
        passes = components + reserve
        for trial in (alone, both):
            assert trial.passes == passes * trial.step, "not the passes that were meant"
    return found


def join(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES)


def all_cases(rank: int, port: int, count: int, work: Callable[[int, bool], Any]) -> list[Any]:
    join(rank, port)
    return [work(components, reserve) for components, reserve in CASES[:count]]


def ratio(times: dict[str, list[float]], name: str, other: str = "one") -> float:
    """How many times as fast as the other arm, window by window."""
    return statistics.median(a / b for a, b in zip(times[other], times[name], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=5, help="alternations")
    parser.add_argument("--steps", type=int, default=3, help="steps a window")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    parser.add_argument("--cases", type=int, default=len(CASES), help="rows of the table")
    args = parser.parse_args()
    config = protocol(args.hidden)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def silent(components: int, reserve: bool) -> None:
        measure(1, config, components, reserve, args.windows, args.steps)

    def told(components: int, reserve: bool) -> dict[str, float]:
        times = measure(0, config, components, reserve, args.windows, args.steps)
        passes = components + reserve
        row = {
            "components": components,
            "reserve": reserve,
            "one_ms": 1e3 * statistics.median(times["one"]),
            "speedup": ratio(times, "two"),
            "cpu_speedup": ratio(times, "two cpu", "one cpu"),
            "ideal": passes / math.ceil(passes / PROCESSES),
            "two_threads": ratio(times, "threads"),
        }
        print(
            f"{components:>4}{'yes' if reserve else 'no':>9}{row['one_ms']:>14.1f}"
            f"{row['speedup']:>15.2f}{row['cpu_speedup']:>8.2f}{row['ideal']:>8.2f}{row['two_threads']:>13.2f}",
            flush=True,
        )
        return row

    heads = ("K", 4), ("reserve", 9), ("one, ms", 14), ("two processes", 15), ("by CPU", 8)
    print(
        "".join(f"{name:>{width}}" for name, width in (*heads, ("ideal", 8), ("two threads", 13)))
    )
    second = multiprocessing.get_context("fork").Process(
        target=all_cases, args=(1, port, args.cases, silent), daemon=True
    )
    second.start()
    rows = all_cases(0, port, args.cases, told)
    second.join()
    print(
        json.dumps(
            {
                "benchmark": "component_parallel",
                "speedup": rows[0]["speedup"],
                "verdict": rows[0]["speedup"] >= WANTED,
                "load": os.getloadavg()[0],
                "cases": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
