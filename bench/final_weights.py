"""Final weights that a run keeps: a folder each, as transformers reads one, tokenizer and all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from levelfield.bench.digest import to_plain
from levelfield.bench.model_source import WEIGHTS
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.spec import BenchError
from levelfield.bench.tasks import Task
from levelfield.bench.train_request import TrialRequest

ORIGIN = "levelfield.json"
"""In the folder: what the weights were trained by."""
ADAPTER = "adapter"
"""In the folder: an adapter alone, as peft reads it."""


def folder_of(run: Path, request: TrialRequest) -> Path:
    """Where a final trial's weights go."""
    return run / WEIGHTS / request.key


def save(
    run: Path, request: TrialRequest, model: nn.Module, weights: Mapping[str, Any], task: Task
) -> None:
    """Write the folder whole or not at all; an adapter is in the weights, and beside them alone.

    Args:
        weights: the state dict of `model`, whose own may be cut up over processes.

    Raises:
        BenchError: a model that transformers cannot write.
    """
    adapted = model
    merge: Any = getattr(model, "merged", None)  # of an adapter: it goes into the weights
    if merge is not None:
        model = merge(model)
        weights = model.state_dict()
    writer: Any = getattr(model, "save_pretrained", None)
    if writer is None:
        raise BenchError(
            f"engine.save_final: a {type(model).__name__} has no save_pretrained",
            "accepted: a model of transformers",
        )
    folder = folder_of(run, request)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    from transformers.utils import logging

    logging.disable_progress_bar()  # one that every trial would draw
    writer(str(part), state_dict=weights)
    task.write_tokenizer(part)
    export: Any = getattr(adapted, "exported", None)
    if export is not None:
        # Refused where no component is left. peft looks for what it could quantise by.
        with quiet_imports(), contextlib.suppress(BenchError):
            export(adapted, part / ADAPTER)
    origin = {
        "run_id": request.run_id,
        "protocol": request.protocol.name,
        "method": request.optimizer,
        "seed": request.seed,
        "hparams": to_plain(request.hparams),
    }
    (part / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)
