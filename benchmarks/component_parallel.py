"""What a second process brings to AdaPaD's exact mode, whose components' passes are shared out.

K components in every linear layer of a LLaMA, a pass each. How many times as fast as one process
with one thread (`one_ms`) are, a thread a process:
    speedup   p processes that share out the passes (engine.parallel=components)
    ideal     passes / ceil(passes / p), which they can reach at most; a reserve is one more pass
    data      p processes that make every pass on their part of the batch (engine.parallel=ddp)
    threads   one process with p threads
    cpu_*     the same by CPU time, of the busiest process: what other load on the machine, or
              more processes than cores, leave. It knows nothing of waiting for one another.
The arms take turns, window by window, in the same processes.

    python benchmarks/component_parallel.py [--windows 5] [--steps 3] [--cases 5] [--processes 2]

Prints a table and, last, one JSON line with `speedup` (of four components without a reserve), which
`scripts/parallel_figure.py` draws.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import queue
import socket
import statistics
import time
from typing import Any

os.environ.update(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1")

import torch
from torch import distributed

from levelfield.bench.distributed import Components, Ddp
from levelfield.bench.group import Alone, Group
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import Budget, Data, Model, Protocol
from levelfield.bench.train import Trial
from levelfield.bench.train_request import TrialRequest

WANTED = 1.6
"""Times as fast with four components and no reserve."""
CASES = ((4, False), (4, True), (2, False), (8, False), (16, False))
"""Components, and whether each layer has a reserve besides."""
ARMS = ("one", "one cpu", "components", "components cpu", "data", "data cpu", "threads")


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
        **{"mode": "exact", "growth": reserve, "stagger": 0.0, "interval": 0.5},
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
    rank: int, config: Protocol, case: tuple[int, bool], windows: int, steps: int
) -> dict[str, list[float]]:
    """Seconds a step of each arm in every window; the other processes only have a part in some.
    `cpu` arms: of CPU time, where there are several processes of the busiest."""
    device, first = torch.device("cpu"), rank == 0
    alone = prepared(config, *case, Alone()) if first else None
    both = prepared(config, *case, Components(device))
    halves = prepared(config, *case, Ddp(device))
    threads = distributed.get_world_size()
    found: dict[str, list[float]] = {name: [] for name in ARMS}

    def keep(name: str, times: tuple[float, float]) -> None:
        for arm, seconds in zip((name, f"{name} cpu"), times, strict=True):
            if arm in found:
                found[arm].append(seconds)

    for window in range(windows + 1):
        distributed.barrier()
        if alone is not None:
            keep("one", seconds_a_step(alone, 1, steps))
        for name, shared in (("components", both), ("data", halves)):
            distributed.barrier()  # the others sleep until here
            wall_s, cpu_s = seconds_a_step(shared, 1, steps)
            busiest = torch.tensor(cpu_s)
            distributed.all_reduce(busiest, distributed.ReduceOp.MAX)
            keep(name, (wall_s, float(busiest)))
        if alone is not None:
            keep("threads", seconds_a_step(alone, threads, steps))
        if window == 0:  # warms up
            found.update({name: [] for name in ARMS})
    passes = sum(case)
    for trial in filter(None, (alone, both, halves)):
        assert trial.passes == passes * trial.step, "not the passes that were meant"
    return found


def join(rank: int, processes: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=processes)


def all_cases(rank: int, processes: int, port: int, args: Any, told: Any) -> None:
    """What one process does; the first one tells what it measured."""
    join(rank, processes, port)
    for case in CASES[: args.cases]:
        times = measure(rank, protocol(args.hidden), case, args.windows, args.steps)
        if rank == 0:
            told.put(row(processes, case, times))
    distributed.destroy_process_group()


def row(processes: int, case: tuple[int, bool], times: dict[str, list[float]]) -> dict[str, Any]:
    """Each arm against one process with one thread: medians of ratios, window by window."""

    def ratio(name: str, other: str = "one") -> float:
        return statistics.median(a / b for a, b in zip(times[other], times[name], strict=True))

    passes = sum(case)
    return {
        "processes": processes,
        "components": case[0],
        "reserve": case[1],
        "one_ms": 1e3 * statistics.median(times["one"]),
        "speedup": ratio("components"),
        "cpu_speedup": ratio("components cpu", "one cpu"),
        "ideal": passes / math.ceil(passes / processes),
        "data": ratio("data"),
        "cpu_data": ratio("data cpu", "one cpu"),
        "threads": ratio("threads"),
    }


def started(processes: int, args: Any) -> list[dict[str, Any]]:
    """The rows of so many processes, printed as they come."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = [
        context.Process(target=all_cases, args=(rank, processes, port, args, told), daemon=True)
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    rows = []
    while len(rows) < len(CASES[: args.cases]):
        try:
            rows.append(told.get(timeout=5))
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise SystemExit("a process failed: its traceback is above") from None
            continue
        print(line(rows[-1]), flush=True)
    for worker in workers:
        worker.join()
    return rows


COLUMNS = (
    ("processes", 10, "d"), ("components", 11, "d"), ("reserve", 8, ""), ("one_ms", 8, ".1f"),
    ("speedup", 8, ".2f"), ("cpu_speedup", 12, ".2f"), ("ideal", 6, ".2f"), ("data", 6, ".2f"),
    ("cpu_data", 9, ".2f"), ("threads", 8, ".2f"),
)  # fmt: skip


def line(found: dict[str, Any]) -> str:
    told = {**found, "reserve": "yes" if found["reserve"] else "no"}
    return "".join(f"{told[name]:>{width}{form}}" for name, width, form in COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=5, help="alternations")
    parser.add_argument("--steps", type=int, default=3, help="steps a window")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    parser.add_argument("--cases", type=int, default=len(CASES), help="rows of the table")
    parser.add_argument("--processes", type=int, nargs="+", default=[2], help="one table for each")
    args = parser.parse_args()
    print("".join(f"{name:>{width}}" for name, width, _ in COLUMNS))
    rows = [found for processes in args.processes for found in started(processes, args)]
    print(
        json.dumps(
            {
                "benchmark": "component_parallel",
                "speedup": rows[0]["speedup"],
                "verdict": rows[0]["speedup"] >= WANTED,
                "load": os.getloadavg()[0],
                "cores": os.cpu_count(),
                "cases": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
