"""rsLoRA: LoRA whose update is divided by the root of its rank.

    y = W x + (alpha / sqrt(r)) B A x

With alpha / r the update shrinks as r grows; this factor keeps its size, so that higher ranks learn
more. All else is that of `lora`.

Paper: Damjan Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA",
https://arxiv.org/abs/2312.03732, 2023. Code: peft (Apache-2.0), `use_rslora`.
Defaults: those of `lora`. Deviations: those of `lora`.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._adapter_peft import build_plain, inject_lora
from levelfield.optimizers._claims import copies

SPEC = OptimizerSpec(
    name="rslora",
    family="adapter",
    summary="LoRA scaled by alpha over the root of its rank",
    paper="Kalajdzievski, A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA, 2023, "
    "https://arxiv.org/abs/2312.03732",
    code="https://github.com/huggingface/peft @ v0.21.2",
    licence="Apache-2.0",
    implementation="peft",
    build=build_plain,
    adapter=inject_lora,
    inner="adamw",
    parent="lora",
    space={
        "lr": space.log(1e-4, 1e-1, default=5e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 8,
        "alpha": 8.0,
        "dropout": 0.0,
        "target": "all-linear",
        "rank_stabilised": True,
        "weight_decay": 0.0,
    },
    state_bytes=copies(0),
)
