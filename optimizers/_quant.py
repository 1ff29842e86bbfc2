"""Blockwise 8-bit quantisation with a dynamic map, and state dicts that keep such tensors.

A tensor is cut into blocks of `block` consecutive elements, whatever its shape; the last may be
shorter. Each is divided by its largest absolute value, and every element becomes the number (0 to
255) of the nearest entry of a map from -1 to 1, or 0 to 1.

The map spends its first bits on a decimal exponent and the rest on a fraction: for each exponent
i = 0..6 it has 2^i steps over [.1, 1] * 10^(i - 6), 2^(i+1) if it is unsigned, each told by its
middle; the signed map has them twice, with both signs; 0 and 1 complete the 256. So -1 is not in
it. Against a block's largest value the error is at most .0071 (signed) and .0036 (unsigned), and
near 0 far less: the smallest positive entries are 5.5e-7 and 3.25e-7.

Rule: Tim Dettmers, Mike Lewis, Sam Shleifer, Luke Zettlemoyer, "8-bit Optimizers via Block-wise
Quantization", https://arxiv.org/abs/2110.02861, 2021, with the blocks of 256 of
https://github.com/bitsandbytes-foundation/bitsandbytes @ 95f9af30 (MIT; nothing copied).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

EXPONENTS = 7
CODES = 256


def dynamic_map(signed: bool) -> list[float]:
    """The 256 entries in rising order."""
    positive = []
    for exponent in range(EXPONENTS):
        steps = 2 ** (exponent if signed else exponent + 1)
        scale = 10.0 ** (exponent + 1 - EXPONENTS)
        positive += [scale * (0.1 + 0.9 * (step + 0.5) / steps) for step in range(steps)]
    negative = [-value for value in positive] if signed else []
    return sorted([*negative, 0.0, *positive, 1.0])


def map_tensor(signed: bool, device: torch.device) -> Tensor:
    """The map, float32 [256]."""
    return torch.tensor(dynamic_map(signed), dtype=torch.float32, device=device)


def quantise(x: Tensor, entries: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """x of any shape -> (numbers of entries, uint8, same shape; largest values, float32 [blocks]).

    Halves between two entries go to the lower one. A block of zeros has 0 for its largest value;
    one with a NaN gives NaN throughout.
    """
    cells = _cells(x, block)
    largest = cells.abs().amax(dim=1).to(torch.float32) if x.numel() else x.new_zeros(0).float()
    scale = largest.to(x.dtype).clamp(min=torch.finfo(torch.float32).tiny)
    table = entries.to(x.dtype)
    middles = (table[1:] + table[:-1]) / 2
    numbers = torch.bucketize(cells / scale.unsqueeze(1), middles, out_int32=True)
    return numbers.to(torch.uint8).flatten()[: x.numel()].clone().view(x.shape), largest


def dequantise(
    numbers: Tensor, largest: Tensor, entries: Tensor, block: int, dtype: torch.dtype
) -> Tensor:
    """What was quantised, to within half the distance of two entries, times its block's largest."""
    cells = _cells(numbers, block)
    values = entries.to(dtype)[cells.int()] * largest.to(dtype).unsqueeze(1)
    return values.flatten()[: numbers.numel()].view(numbers.shape)


def quantised_bytes(elements: int, block: int) -> int:
    """A byte an element and 4 a block."""
    return elements + 4 * -(-elements // block)


MAP_BYTES = 2 * CODES * 4
"""A signed and an unsigned map, float32, held once a device."""


def _cells(x: Tensor, block: int) -> Tensor:
    """[blocks, block], zeros at the end."""
    flat = x.reshape(-1)
    return pad(flat, (0, -x.numel() % block)).view(-1, block)


def restore_dtypes(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """After the base class has loaded a state dict: take every tensor as it was saved.

    The base class casts them to their parameter's dtype: codes become floats, float32 loses digits.
    """
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for key, param in zip(keys, params, strict=True):
        for name, value in state_dict["state"].get(key, {}).items():
            if isinstance(value, Tensor):
                optimizer.state[param][name] = value.to(param.device, copy=True)
