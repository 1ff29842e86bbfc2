"""LoRA: the weights stay, and each linear layer gets an update of low rank.

    y = W x + (alpha / r) B A x        A: [r, in] Kaiming-uniform, B: [out, r] zero

Trained are A, B and the head over labels where the task has one; W and all else is frozen.
`target`: `all-linear` (every linear layer in the body's layers), or suffixes of their names joined
by `+`.
`inner` is the method that trains A and B: `lora(inner=muon)`.

Paper: Edward J. Hu, Yelong Shen, Phillip Wallis, Zeyuan Allen-Zhu, Yuanzhi Li, Shean Wang, Lu Wang,
Weizhu Chen, "LoRA: Low-Rank Adaptation of Large Language Models",
https://arxiv.org/abs/2106.09685, 2021. Code: peft (Apache-2.0).
Defaults: r 8, alpha 8 (a factor of 1, as the paper keeps for RoBERTa), lr 5e-4 (its GLUE rate for
most tasks), no dropout, no weight decay. State: that of the method under it.

Deviations: all linear layers instead of queries and values alone (`target=q_proj+v_proj` is the
paper's); no dropout (the paper's GPT-2 runs use .1).
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._adapter_peft import build_plain, inject_lora
from levelfield.optimizers._claims import copies

SPEC = OptimizerSpec(
    name="lora",
    family="adapter",
    summary="frozen weights, and an update of fixed low rank beside each linear layer",
    paper="Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021, "
    "https://arxiv.org/abs/2106.09685",
    code="https://github.com/huggingface/peft @ v0.21.2",
    licence="Apache-2.0",
    implementation="peft",
    build=build_plain,
    adapter=inject_lora,
    inner="adamw",
    space={
        "lr": space.log(1e-4, 1e-1, default=5e-4),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "rank": 8,
        "alpha": 8.0,
        "dropout": 0.0,
        "target": "all-linear",
        "rank_stabilised": False,
        "weight_decay": 0.0,
    },
    state_bytes=copies(0),
)
