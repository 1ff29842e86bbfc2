"""What a GPU says: the gpu-marked tests, real peaks against the planner's, step times.

python scripts/gpu_check.py                 on the first CUDA device; writes docs/gpu.md
python scripts/gpu_check.py --device cpu --model llama-60m --batch 1 --seq 32 -o adamw
                                            the same table here, without tests; nothing written
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from levelfield.bench import architecture, memory, models, next_token, simulate
from levelfield.bench.build import build_stepper
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.stepper import StepBatch
from levelfield.reports.text import markdown

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "gpu.md"
METHODS = (
    "adamw", "adam_mini", "lion", "muon", "foam", "foam_mini", "frugal", "adafrugal", "galore",
    "apollo", "apollo_mini", "fira", "adafactor", "soap", "shampoo", "adamw_8bit", "adalomo",
)  # fmt: skip
WARM, TIMED = 5, 20


def step_ms(name: str, load: simulate.Workload, device: torch.device) -> float:
    """Median milliseconds of a step after the first ones, the device waited for."""
    spec = OPTIMIZERS.load(name).value
    with device:
        model = simulate.build(load)
        params = models.parameters(model)
        protocol = load.protocol()
        stepper = build_stepper(spec, protocol, model, params, spec.defaults(), 0)
        task = next_token.NextToken(load.precision, device.type)
        times = []
        for step in range(WARM + TIMED):
            tokens = simulate.real_tokens(load)
            batch = StepBatch(
                [lambda tokens=tokens: task.loss(model, tokens)],
                protocol.tokens_per_step,
                sampled_losses=[lambda g, tokens=tokens: task.sampled_loss(model, tokens, g)],
            )
            start = _now_s(device)
            stepper.step(batch, 1.0)
            if step >= WARM:
                times.append(_now_s(device) - start)
    return 1e3 * sorted(times)[len(times) // 2]


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def rows(names: Sequence[str], load: simulate.Workload, device: torch.device) -> list[list[str]]:
    """Simulated and real peaks of pass and update, their ratios, milliseconds a step."""
    found = []
    for name in names:
        spec, reasons = OPTIMIZERS.load(name).value, dict[str, str]()
        simulator = simulate.Simulator(load, simulate.build_meta(load))
        seen = memory.simulate(spec, simulator, reasons)
        real = memory.measure(spec, load, reasons)
        cells = [name]
        for stretch in ("pass_peak", "update_peak"):
            planned, measured = getattr(seen, stretch, None), getattr(real, stretch, None)
            ratio = f"{planned / measured:.3f}" if planned and measured else "–"
            cells += [_gib(planned), _gib(measured), ratio]
        try:
            cells.append(f"{step_ms(name, load, device):.2f}")
        except Exception as error:
            reasons["step"] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            cells.append("–")
        found.append([*cells, "; ".join(f"{key}: {why}" for key, why in reasons.items())])
        print(" ".join(found[-1]), flush=True)
    return found


def _gib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**30:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="what a GPU says")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama-350m")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("-o", dest="methods", action="append")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    load = simulate.Workload(
        architecture=architecture.resolve(asked.model),
        batch=asked.batch,
        sequence=asked.seq,
        precision=asked.precision,
        target="cuda" if device.type == "cuda" else "cpu",
    )
    tested = "not run"
    if device.type == "cuda":
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        tested = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
        print(tested, flush=True)
    table = rows(asked.methods or METHODS, load, device)
    if device.type != "cuda":
        return 0
    head = ["method", "pass: simulated GiB", "real", "ratio", "update: simulated GiB", "real",
            "ratio", "ms a step", "not known"]  # fmt: skip
    lines = [
        "# On a GPU",
        "",
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, "
        f"{datetime.now(UTC):%Y-%m-%d}. {asked.model}, {asked.precision}, {asked.batch} x "
        f"{asked.seq} tokens. Made by `python scripts/gpu_check.py`; gpu-marked tests: {tested}.",
        "",
        markdown(head, table),
    ]
    TARGET.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
