"""Measure on the CPU what each method goes with, into docs/support.md and bench/data/support.json.

python scripts/support_table.py [NAME ...]     all methods, or some of them anew

- accumulation: a batch in three parts ends where the whole one does, in float64.
- foreach: which of torch's many-tensor kernels the method's own step calls on the CPU.
- compile: 6 steps of `torch.compile(optimizer.step)` end where plain ones do. The backend is
  `aot_eager`: the step is traced and its operations run as traced; no code is generated.
- sharding: FSDP2 over two processes with gloo ends 3 steps where one process does.

What a spec says that it cannot do is tried all the same: this is where those words come from.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.bench.check_bare import Bare
from levelfield.bench.check_bench import Bench, distance
from levelfield.bench.check_steps import accumulation_error
from levelfield.bench.check_targets import exact_target
from levelfield.bench.registry import OPTIMIZERS, lacking, whole_model
from levelfield.bench.spec import BenchError, OptimizerSpec
from levelfield.reports.text import markdown

ROOT = Path(__file__).parent.parent
DATA = ROOT / "bench" / "data" / "support.json"
PAGE = ROOT / "docs" / "support.md"
FACTS = ("accumulation", "foreach", "compile", "sharding")
SHARE = 1e-3
"""How far apart two ways may end, as a share of the way."""
TIMEOUT_S = 60
Fact = dict[str, Any]
"""`holds`: True, False, or None if not measured; `reason`: one line."""
HEAD = """# What each method goes with

Made by `python scripts/support_table.py`, measured on the CPU. `accumulation`: a batch in three
parts ends where the whole one does. `foreach`: many-tensor kernels that the method's step calls.
`compile`: `torch.compile(optimizer.step)`, traced by `aot_eager` without generating code, ends
where the plain step does. `sharding`: FSDP2 over two processes ends where one process does.

"""


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls of many-tensor kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, int] = {"_foreach": 0, "_fused": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for start in self.seen:
            self.seen[start] += str(func).removeprefix("aten.").startswith(start)
        return func(*args, **(kwargs or {}))


def fact(holds: bool | None, reason: str) -> Fact:
    return {"holds": holds, "reason": reason}


def failure(error: BaseException) -> str:
    line = next((x.strip() for x in str(error).splitlines() if x.strip()), "no message")
    return f"{type(error).__name__}: {line}"[:160].replace("|", "/").replace(str(ROOT), "")


def tried(measure: Callable[[OptimizerSpec], Fact], spec: OptimizerSpec) -> Fact:
    try:
        return measure(spec)
    except Exception as error:
        return fact(False, failure(error))


def near(share: float) -> Fact:
    if share <= SHARE:
        return fact(True, "")
    return fact(False, f"ends {share:.2g} of the way elsewhere")


def accumulation(spec: OptimizerSpec) -> Fact:
    return near(accumulation_error(spec))


def foreach(spec: OptimizerSpec) -> Fact:
    bench = Bench(spec, spec.defaults())
    if not bench.plain:
        return fact(None, "the method drives its own step")
    bench.take(2)
    bench.batch().backward()
    with Calls() as calls:
        bench.stepper.optimizers[0].step()
    found = [f"{count} {name.strip('_')}" for name, count in calls.seen.items() if count]
    return fact(bool(found), f"{', '.join(found)} calls a step" if found else "a loop")


def compiled(spec: OptimizerSpec) -> Fact:
    ends = []
    for compiling in (False, True):
        torch._dynamo.reset()
        bare = Bare(spec, exact_target())
        if not bare.plain:
            return fact(None, "the method drives its own step")
        start = bare.weights()
        optimizer = bare.stepper.optimizers[0]
        if compiling:
            optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
        bare.take(6)
        ends.append(bare.weights())
    return near(distance(*ends) / distance(start, ends[0]))


def run_sharded(rank: int, port: int, name: str, target: str) -> None:
    """One of two processes; the first writes what it found."""
    found = _sharded(rank, port, name)
    if rank == 0:
        Path(target).write_text(json.dumps(found), encoding="utf-8")


def _sharded(rank: int, port: int, name: str) -> Fact:
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=20))
    try:
        spec = OPTIMIZERS.load(name).value
        mesh = init_device_mesh("cpu", (2,))

        def shard(model: nn.Module) -> None:
            for module in list(model.modules()):
                if type(module).__name__.endswith("DecoderLayer"):
                    fully_shard(module, mesh=mesh)
            fully_shard(model, mesh=mesh)

        for dtype in (torch.float64, torch.float32):  # some kernels have no float64
            try:
                found = _compared(spec, shard, dtype)
                break
            except (RuntimeError, TypeError) as error:
                if dtype == torch.float32 or "float64" not in str(error):
                    raise
    except Exception as error:
        return fact(False, failure(error))  # the other process may wait: leave the group as it is
    destroy_process_group()
    return found


def _compared(spec: OptimizerSpec, shard: Callable[[nn.Module], None], dtype: torch.dtype) -> Fact:
    """Three steps in one process, and of both together."""
    alone = Bench(spec, spec.defaults(), dtype)
    start = alone.weights()
    alone.take(3)
    together = Bench(spec, spec.defaults(), dtype, prepare=shard)
    split = sum(hasattr(param.tensor, "full_tensor") for param in together.params)
    if split != len(together.params):
        return fact(None, f"only {split} of {len(together.params)} parameters were split")
    together.take(3)
    whole = [_full(param.tensor) for param in together.params]
    return near(distance(alone.weights(), whole) / distance(start, alone.weights()))


def _full(tensor: Tensor) -> Tensor:
    gather = getattr(tensor, "full_tensor", None)
    value: Tensor = tensor if gather is None else gather()
    return value.detach()


def sharding(spec: OptimizerSpec) -> Fact:
    """In processes of their own: one that fails leaves the other waiting."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        target = Path(folder) / "found.json"
        pair = [
            fork.Process(target=run_sharded, args=(rank, port, spec.name, str(target)))
            for rank in range(2)
        ]
        for process in pair:
            process.start()
        for process in pair:
            process.join(TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        if not target.is_file():
            return fact(None, "the two processes did not come to an end")
        found: Fact = json.loads(target.read_text(encoding="utf-8"))
        return found


MEASURES: dict[str, Callable[[OptimizerSpec], Fact]] = {
    "accumulation": accumulation,
    "foreach": foreach,
    "compile": compiled,
    "sharding": sharding,
}


def measured(name: str) -> dict[str, Fact]:
    """All facts of one method."""
    try:
        spec = OPTIMIZERS.load(name).value
        absent = lacking(spec.requires)
    except BenchError:
        absent = ["what it needs"]
    if absent:
        return dict.fromkeys(FACTS, fact(None, f"no {', '.join(absent)} where it was measured"))
    found = {}
    for word, measure in MEASURES.items():
        found[word] = tried(measure, spec)
        print(f"{name:<22}{word:<14}{cell(found[word])}", flush=True)
    return found


def cell(found: Fact) -> str:
    words = {True: "yes", False: "no", None: "not measured"}[found["holds"]]
    return f"{words} ({found['reason']})" if found["reason"] else words


def page(support: dict[str, dict[str, Fact]]) -> str:
    rows = [(f"`{name}`", *(cell(row[word]) for word in FACTS)) for name, row in support.items()]
    return HEAD + markdown(("method", *FACTS), rows)


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or whole_model(OPTIMIZERS.entries())
    there = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}
    for name in names:
        there[name] = measured(name)
        support = {key: there[key] for key in whole_model(OPTIMIZERS.entries()) if key in there}
        DATA.write_text(json.dumps(support, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(page(support), encoding="utf-8")


if __name__ == "__main__":
    main()
