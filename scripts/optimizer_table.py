"""Write docs/optimizers.md from the registry, or check that it is what the registry says.

python scripts/optimizer_table.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from levelfield.bench import models
from levelfield.bench.build import claimed_state_bytes
from levelfield.bench.check import PROTOCOL
from levelfield.bench.registry import OPTIMIZERS
from levelfield.bench.spec import Model, OptimizerSpec, ParamInfo

TARGET = Path(__file__).parent.parent / "docs" / "optimizers.md"
HEAD = """# Methods

Made by `python scripts/optimizer_table.py` from the registry. State is what a spec claims (and a
test measures) for a LLaMA of width 64 with two layers in fp32, fallback included, in bytes a
parameter; AdamW has 8. `passes` are forward/backward passes a step.

"""


def infos() -> tuple[ParamInfo, ...]:
    """Parameters of the model that the state column is for."""
    config = Model(hidden=64, layers=2, heads=4, intermediate=168)
    return tuple(p.info for p in models.parameters(models.build_model(config, 256, 64, 0)))


def row(spec: OptimizerSpec, params: tuple[ParamInfo, ...]) -> tuple[str, ...]:
    """One method as cells."""
    held = claimed_state_bytes(spec, PROTOCOL, params, spec.defaults(), 1.0)
    tuned = ", ".join(f"{name} ({dim.default:g})" for name, dim in spec.space.items())
    return (
        f"`{spec.name}`",
        spec.family,
        spec.summary,
        spec.paper,
        spec.implementation,
        tuned,
        f"{held / sum(info.numel for info in params):.2f}",
        f"{spec.passes:g}",
        "all" if len(spec.roles) == 4 else ", ".join(spec.roles),
        ", ".join(spec.requires) or "–",
    )


def text() -> str:
    """The whole page."""
    columns = (
        *("method", "family", "what it does", "paper", "implementation", "tuned (default)"),
        *("state", "passes", "takes", "needs"),
    )
    params = infos()
    specs = sorted((item.value for item in OPTIMIZERS.load_all()), key=lambda s: (s.family, s.name))
    lines = [columns, tuple("---" for _ in columns), *(row(spec, params) for spec in specs)]
    return HEAD + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def main() -> None:
    made = text()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(made, encoding="utf-8")
        print(f"{TARGET}: {made.count(chr(10)) - HEAD.count(chr(10)) - 2} methods")
    elif not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != made:
        sys.exit(f"{TARGET} is not what the registry says: python scripts/optimizer_table.py")


if __name__ == "__main__":
    main()
