"""Muon with AdamW's step size: the orthogonalised update scaled to an RMS of about a fifth.

The rule of `muon` with scale = 0.2 sqrt(max(rows, columns)) and with weight decay:

    B <- mu B + (1 - mu) G;   U = (1 - mu) G + mu B;   O = NS(U)
    p <- (1 - lr wd) p
    p <- p - lr * 0.2 sqrt(max(rows, columns)) * O

mu: `momentum`; wd: `weight_decay`; NS: `steps` quintic steps; `nesterov` off gives U = B. A matrix
of orthonormal rows or columns has an RMS of 1 / sqrt(max(rows, columns)); scaled so, matrices of
every shape move as far as under AdamW, and one rate and decay can serve both.

Paper: Jingyuan Liu, Jianlin Su, Xingcheng Yao, Zhejun Jiang, Guokun Lai, Yulun Du, Yidao Qin,
Weixin Xu, Enzhe Lu, Junjie Yan, Yanru Chen, Huabin Zheng, Yibo Liu, et al., "Muon is Scalable for
LLM Training", https://arxiv.org/abs/2502.16982, 2025 (Moonlight).
Reference code: https://github.com/MoonshotAI/Moonlight/blob/c2ad5b20/examples/toy_train.py (MIT).
Defaults: that code's: lr 1e-3, weight decay .1, momentum .95, Nesterov, 5 steps.

It takes the hidden matrices. Embedding, head and vectors go to the protocol's fallback;
`embed_multiplier` acts on the fallback's rate.

Deviations: those of `muon`. The reference sums gradients, B <- mu B + G with U = G + mu B, which is
1 / (1 - mu) times ours: the direction is the same, as NS divides by the norm. It gives the rest to
an AdamW at the same rate and decay; here the fallback has the protocol's, equal for all methods.
"""

from __future__ import annotations

from levelfield.bench import space
from levelfield.bench.spec import OptimizerSpec
from levelfield.optimizers._claims import copies
from levelfield.optimizers._muon import build_muon

SPEC = OptimizerSpec(
    name="muon_rms",
    family="matrix",
    summary="Muon scaled to the RMS of AdamW's update, with weight decay (Moonlight)",
    paper="Liu et al., Muon is Scalable for LLM Training, 2025, https://arxiv.org/abs/2502.16982",
    code="https://github.com/MoonshotAI/Moonlight/blob/c2ad5b20/examples/toy_train.py",
    licence="MIT",
    roles=("matrix",),
    build=build_muon,
    space={
        "lr": space.log(1e-4, 1e-1, default=1e-3),
        "embed_multiplier": space.embed_multiplier(),
    },
    fixed={
        "momentum": 0.95,
        "nesterov": True,
        "steps": 5,
        "adjust": "match_rms",
        "weight_decay": 0.1,
    },
    state_bytes=copies(1),
)
