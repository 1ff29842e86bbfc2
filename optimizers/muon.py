"""Muon: the momentum of a matrix, orthogonalised by Newton-Schulz steps.

    B <- mu B + (1 - mu) G
    U  = (1 - mu) G + mu B                   Nesterov; without it U = B
    O  = NS(U)                               singular values of U sent to about one
    p <- (1 - lr wd) p
    p <- p - lr * scale * O

mu: `momentum`; wd: `weight_decay`; NS: `steps` quintic steps, see `_ops.newton_schulz`.
scale, for `adjust` = "original": sqrt(max(1, rows / columns)); for "match_rms":
0.2 sqrt(max(rows, columns)), which gives the update about the RMS of AdamW's (Moonlight).
The decay uses lr without the scale.

Paper: Keller Jordan, Yuchen Jin, Vlado Boza, Jiacheng You, Franz Cesista, Laker Newhouse, Jeremy
Bernstein, "Muon: An optimizer for hidden layers in neural networks",
https://kellerjordan.github.io/posts/muon/, 2024.
match_rms: Jingyuan Liu et al., "Muon is Scalable for LLM Training",
https://arxiv.org/abs/2502.16982, 2025.
Reference code: https://github.com/KellerJordan/Muon/blob/857d1adc/muon.py (MIT).
Defaults: that code's: lr .02, momentum .95, Nesterov, 5 steps, weight decay 0.

It takes the hidden matrices. Embedding, head and vectors go to the protocol's fallback;
`embed_multiplier` acts on the fallback's rate.

Deviations: Newton-Schulz runs in bfloat16 on CUDA only, elsewhere in float32 (bfloat16 products
are very slow on most CPUs) and for float64 parameters in float64; the scale multiplies the rate
instead of a bfloat16 update; the gradient is not overwritten; a tensor of more than two dimensions
is taken as [first, product of the others], also for the scale; `grad` None is skipped.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._claims import copies
from levelfield.optimizers._muon import Muon, build_muon

__all__ = ["SPEC", "Muon"]

SPEC = OptimizerSpec(
    name="muon",
    family="matrix",
    summary="Orthogonalised momentum for hidden matrices, AdamW for the rest",
    paper="Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024, "
    "https://kellerjordan.github.io/posts/muon/",
    code="https://github.com/KellerJordan/Muon/blob/857d1adc/muon.py",
    licence="MIT",
    roles=("matrix",),
    build=build_muon,
    space={
        "lr": space.log(2e-3, 2e-1, default=0.02),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "momentum": 0.95,
        "nesterov": True,
        "steps": 5,
        "adjust": "original",
        "weight_decay": 0.0,
    },
    state_bytes=copies(1),
)
