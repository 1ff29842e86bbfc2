"""torchao's low-bit AdamW as the harness drives it, for `adamw_8bit_ao` and `adamw_4bit_ao`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

from levelfield.bench.spec import ParamInfo
from levelfield.bench.stepper import BuildContext


def low_bit(base: Any) -> Any:
    """A class of torchao with what a run needs beside the step.

    The library compiles its step. While every operation is watched (`bench.meter`) nothing can be
    compiled, so such a step runs the same code as it is written. A state dict holds the tensors
    that a quantised one is made of: the wrapper itself cannot be copied.
    """

    class LowBit(base):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            watched = bool(_get_current_dispatch_mode_stack())
            with torch.compiler.set_stance("force_eager") if watched else nullcontext():
                return super().step(closure)

        def state_dict(self) -> dict[str, Any]:
            kept: dict[str, Any] = super().state_dict()
            state = {
                key: {name: _taken_apart(value) for name, value in of_param.items()}
                for key, of_param in kept["state"].items()
            }
            return {**kept, "state": state}

        def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
            state = {
                key: {name: _put_together(value) for name, value in of_param.items()}
                for key, of_param in state_dict["state"].items()
            }
            super().load_state_dict({**state_dict, "state": state})

        @property
        def refreshes(self) -> int:
            """Steps with moments in few bits so far; waits for the device."""
            counts = [
                int(state["step"])
                for state in self.state.values()
                if is_traceable_wrapper_subclass(state["exp_avg"])
            ]
            return max(counts, default=0)

    return LowBit


def _taken_apart(value: Any) -> Any:
    if not (isinstance(value, Tensor) and is_traceable_wrapper_subclass(value)):
        return value
    names, rest = value.__tensor_flatten__()
    parts = {name: getattr(value, name) for name in names}
    return {"class": type(value), "parts": parts, "rest": rest}


def _put_together(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    parts = {name: part.clone() for name, part in value["parts"].items()}
    return value["class"].__tensor_unflatten__(parts, value["rest"])


def build_low_bit(base: Any, ctx: BuildContext, hparams: Mapping[str, Any]) -> Any:
    """An optimizer of a class of torchao over the context's parameters."""
    return low_bit(base)(
        ctx.groups(hparams),
        betas=(hparams["beta1"], hparams["beta2"]),
        eps=hparams["eps"],
        block_size=hparams["block"],
        bf16_stochastic_round=hparams["bf16_stochastic_round"],
    )


MIN_ELEMENTS = 4096
"""Smaller tensors are never quantised: fixed in the library."""


def is_quantised(info: ParamInfo, hparams: Mapping[str, Any]) -> bool:
    """Large tensors whose elements fill blocks to the last."""
    return info.numel >= MIN_ELEMENTS and info.numel % hparams["block"] == 0


def moment_bytes(info: ParamInfo, hparams: Mapping[str, Any], bits: int) -> int | None:
    """Of both moments together: codes, a scale a block, and a map of its own for each of the two.

    None if they are not quantised.
    """
    if not is_quantised(info, hparams):
        return None
    blocks: int = info.numel // hparams["block"]
    return 2 * (info.numel * bits // 8 + 4 * blocks + 4 * (1 << bits))
