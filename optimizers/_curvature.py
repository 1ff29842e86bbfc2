"""What the methods that keep matrices about a gradient's two sides share.

A parameter of more than two dimensions is taken as [first, product of the others]. Matrices about
a side are float32 whatever the parameter's dtype, float64 for a float64 parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from levelfield.bench.spec import ParamInfo


def as_matrix(tensor: Tensor) -> Tensor:
    """[rows, columns] of a tensor of two or more dimensions, in the dtype of the factors.

    Contiguous: products round by layout, and the eigenvectors of a singular factor show it.
    """
    return tensor.flatten(1).to(factor_dtype(tensor)).contiguous()


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of what `as_matrix` makes."""
    columns = 1
    for size in shape[1:]:
        columns *= size
    return shape[0], columns


def factor_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def factor_itemsize(info: ParamInfo) -> int:
    """Bytes an element of the factors of a parameter."""
    return max(4, info.itemsize)


def period_of(fraction: float, total_steps: int) -> int:
    """A share of the horizon as whole steps, at least one."""
    return max(1, round(fraction * total_steps))


def eigh(
    matrix: Tensor, solve: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.linalg.eigh
) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix.

    What does not converge is tried again in float64; None if that fails too (non-finite values).
    The host learns of a failure from torch's exception, so nothing is read here, though torch
    itself waits for a CUDA device once a call.
    """
    for dtype in (matrix.dtype, torch.float64):
        try:
            values, vectors = solve(matrix.to(dtype))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        return values.to(matrix.dtype), vectors.to(matrix.dtype)
    return None


def restore_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Give every state tensor the dtype it was saved with, as a copy.

    To be called after `Optimizer.load_state_dict(saved)`. That casts all of them to their
    parameter's dtype, in which the float32 factors of a bfloat16 parameter lose their digits, and
    goes on to write into those of `saved` that need no cast.
    """
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for key, param in zip(keys, params, strict=True):
        if key in saved["state"]:
            optimizer.state[param] = _copied(saved["state"][key], param.device)


def _copied(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, device) for item in value)
    return value
