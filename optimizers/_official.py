"""What the methods that run the authors' own packages share: groups by rank, counted refreshes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._projection import period_of, rank_of


def official(module: str, attribute: str) -> Any:
    """A class of a package without type information, which may not be there."""
    return getattr(importlib.import_module(module), attribute)


def ranked_groups(
    ctx: BuildContext, hparams: Mapping[str, Any], **projected: Any
) -> list[dict[str, Any]]:
    """The context's groups; matrices by their rank, each such group with `projected`.

    The packages know one rank a group, and project tensors of two dimensions alone.
    """
    found: list[dict[str, Any]] = []
    for group in ctx.groups(hparams):
        if group["role"] != "matrix":
            found.append(group)
            continue
        by_rank: dict[int | None, list[torch.nn.Parameter]] = {}
        for param in group["params"]:
            rank = None
            if param.ndim == 2 and param.numel():
                rank = rank_of(hparams["rank_fraction"], *param.shape)
            by_rank.setdefault(rank, []).append(param)
        for rank, params in by_rank.items():
            one = {key: value for key, value in group.items() if key != "infos"}
            if rank is not None:
                gap = period_of(hparams, ctx.total_steps)
                one |= {"rank": rank, "update_proj_gap": gap, **projected}
            found.append({**one, "params": params})
    return found


def counted(base: Any) -> Any:
    """A class of a package that tells how often it has renewed its projectors.

    It also calls a closure as torch does, with gradients: the packages call it without.
    """

    class Counted(base):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            super().step()
            return loss

        @property
        def refreshes(self) -> int:
            counts = [
                math.ceil(self.state[param]["step"] / group["update_proj_gap"]) - 1
                for group in self.param_groups
                if "rank" in group
                for param in group["params"]
                if self.state[param].get("step")
            ]
            return max(counts, default=0)

    return Counted
