"""What the methods that borrow their low-bit states from a library share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levelfield.bench.spec import ParamInfo, StateBytes
from levelfield.bench.stepper import BuildContext
from levelfield.optimizers._claims import owners


def low_bit_groups(ctx: BuildContext, hparams: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The context's groups, each with the bits that its large tensors' moments are kept in.

    `embed_bits` of the hyper-parameters is that of the embedding; everything else has 8.
    """
    groups = ctx.groups(hparams)
    for group in groups:
        group["bits"] = hparams["embed_bits"] if group["role"] == "embed" else 8
    return groups


def check_embed_bits(hparams: Mapping[str, Any]) -> None:
    """Raises ValueError for anything but 8 and 32."""
    if hparams["embed_bits"] not in (8, 32):
        raise ValueError(f"embed_bits is {hparams['embed_bits']}: accepted: 8, 32")


def claim(
    quantised: Callable[[ParamInfo, Mapping[str, Any]], int | None],
    whole_itemsize: Callable[[ParamInfo], int],
    shared: int = 0,
) -> StateBytes:
    """Two moments a parameter, of large ones in few bits.

    Args:
        quantised: bytes of both moments of a parameter, or None if they are not quantised.
        whole_itemsize: bytes an element of a moment that is not.
        shared: bytes held once if anything is quantised (maps).
    """

    def state_bytes(
        params: Sequence[ParamInfo], hparams: Mapping[str, Any], progress: float
    ) -> int:
        total, once = 0, 0
        for info in owners(params):
            few = quantised(info, hparams)
            if few is None:
                # A 0-dim moment counts as a step counter does: not at all.
                total += 2 * info.numel * whole_itemsize(info) if info.shape else 0
            else:
                total, once = total + few, shared
        return total + once

    return state_bytes
