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
from torch.serialization import default_restore_location

from levelfield.bench.digest import sha256, to_plain
from levelfield.bench.train_request import TrialRequest, checkpoint_path

if TYPE_CHECKING:
    from levelfield.bench.train import Trial

FORMAT = 1
READINGS = (
    *("curve", "score_curve", "wall_s", "timed_steps", "passes", "peaks", "missing", "series"),
    *("held", "best", "step", "_fired", "_sampled_at"),
)
"""Attributes of a trial that hold what it measured."""
COUNTED = ("refreshes", "series")
"""Attributes of an optimizer that its state_dict may leave out; as properties they follow from what
is in it."""


def identity(request: TrialRequest) -> str:
    """Digest of everything that a checkpoint must share with the trial that goes on from it."""
    parts = (request.key, request.spec_digest, request.protocol_digest, request.data_digest)
    return sha256([FORMAT, *parts, to_plain(request.hparams), request.protocol.budget.steps])


def save(trial: Trial, path: Path) -> None:
    """Write a checkpoint whole or not at all; the one before stays until then."""
    group = trial.group
    state = {
        "identity": identity(trial.request),
        "weights": group.pack([param.tensor.detach() for param in trial.params]),
        "buffers": group.pack(list(trial.model.buffers())),
        "stepper": group.pack(trial.stepper.state_dict()),
        "counted": [
            {name: vars(opt)[name] for name in COUNTED if name in vars(opt)}
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
    if path is None:
        return None
    for part in path.parent.glob(f"{path.stem}.*.part"):  # of a process that was killed
        part.unlink(missing_ok=True)
    if not path.is_file():
        return None

    def place(storage: Any, location: str) -> Any:
        """What was on the CPU stays there: the states of generators, step counters."""
        if location == "cpu":
            return storage
        return default_restore_location(storage, str(device))  # type: ignore[no-untyped-call]

    try:
        state: Mapping[str, Any] = torch.load(path, map_location=place, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError):
        return None  # torn: the trial begins again
    return state if state.get("identity") == identity(request) else None


def restore(trial: Trial, state: Mapping[str, Any]) -> None:
    """Put a trial that was set up where its checkpoint left it."""
    unpack = trial.group.unpack
    with torch.no_grad():
        for param, value in zip(trial.params, unpack(state["weights"]), strict=True):
            param.tensor.copy_(value)
        for buffer, value in zip(trial.model.buffers(), unpack(state["buffers"]), strict=True):
            buffer.copy_(value)
    trial.stepper.load_state_dict(unpack(state["stepper"]))
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
