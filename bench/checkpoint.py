"""All that a trial needs to go on as if it had never stopped, in one file.

Written between two steps: weights, the stepper's state (with the generator that a method draws
from), the counts of its mechanism, the readings so far, and Python's and NumPy's own generators.
Schedule, batches, and torch's generator follow from the seed and the step.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from levelfield.bench.digest import sha256, to_plain
from levelfield.bench.train_request import TrialRequest, checkpoint_path

if TYPE_CHECKING:
    from levelfield.bench.train import Trial

FORMAT = 1
READINGS = (
    *("curve", "score_curve", "wall_s", "timed_steps", "passes", "peaks", "missing", "series"),
    *("held", "best", "step"),
)
"""Attributes of a trial that hold what it measured."""
COUNTED = ("refreshes", "series")
"""Attributes of an optimizer that its state_dict may leave out."""


def identity(request: TrialRequest) -> str:
    """Digest of everything that a checkpoint must share with the trial that goes on from it."""
    parts = (request.key, request.spec_digest, request.protocol_digest, request.data_digest)
    return sha256([FORMAT, *parts, to_plain(request.hparams), request.protocol.budget.steps])


def save(trial: Trial, path: Path) -> None:
    """Write a checkpoint whole or not at all; the one before stays until then."""
    group = trial.group
    state = {
        "identity": identity(trial.request),
        "weights": group.whole([param.tensor.detach() for param in trial.params]),
        "buffers": group.whole(list(trial.model.buffers())),
        "stepper": group.whole(trial.stepper.state_dict()),
        "counted": [
            {name: getattr(opt, name) for name in COUNTED if hasattr(opt, name)}
            for opt in trial.stepper.optimizers
        ],
        "losses": trial.losses,
        "norms": trial.norms,
        "readings": {name: getattr(trial, name) for name in READINGS},
        "random": (random.getstate(), np.random.get_state()),
    }
    if group.rank:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(request: TrialRequest, device: torch.device) -> Mapping[str, Any] | None:
    """The checkpoint of a trial, or None if there is none that it can go on from."""
    path = checkpoint_path(request)
    if path is None or not path.is_file():
        return None
    try:
        state: Mapping[str, Any] = torch.load(path, map_location=device, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError):
        return None  # torn: the trial begins again
    return state if state.get("identity") == identity(request) else None


def restore(trial: Trial, state: Mapping[str, Any]) -> None:
    """Put a trial that was set up where its checkpoint left it."""
    with torch.no_grad():
        for param, value in zip(trial.params, state["weights"], strict=True):
            _put(param.tensor, value)
        for buffer, value in zip(trial.model.buffers(), state["buffers"], strict=True):
            buffer.copy_(value)
    trial.stepper.load_state_dict(state["stepper"])
    for optimizer, counted in zip(trial.stepper.optimizers, state["counted"], strict=True):
        for name, value in counted.items():
            setattr(optimizer, name, value)
    trial.losses.copy_(state["losses"])
    trial.norms.copy_(state["norms"])
    for name, value in state["readings"].items():
        setattr(trial, name, value)
    random.setstate(state["random"][0])
    np.random.set_state(state["random"][1])
    trial.order.skip(trial.step)


def _put(tensor: Tensor, value: Tensor) -> None:
    """Copy into a tensor, which may be cut up over the processes of a group."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(tensor, DTensor):
        value = distribute_tensor(value, tensor.device_mesh, tensor.placements)
    tensor.copy_(value)
