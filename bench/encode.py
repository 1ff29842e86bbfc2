"""Examples as token ids: a tokenizer as transformers has it, texts encoded once, batches padded.

Texts with labels go through the tokenizer of the model's own source, special tokens and all: what
stands between the texts of a pair is that tokenizer's affair. One that puts nothing there (byte and
BPE tokenizers of language models) gets its end-of-text token, else a line end.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import documents, model_source, tokenising
from levelfield.bench.errors import LONGEST, first_line
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.source_hub import explain
from levelfield.bench.spec import BenchError, Data

Array = npt.NDArray[Any]
CHUNK = 1000
"""Texts tokenised at a time."""
MULTIPLE = 8
"""Batches are padded to a multiple of so many tokens, which matrix units like."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence as a model reads it."""

    ids: Array
    """Token ids, [t]."""
    types: Array
    """Which of two texts a token belongs to, [t]: 0 or 1."""

    @classmethod
    def of(cls, ids: Sequence[int], types: Sequence[int] | None = None) -> Row:
        """In few bytes: a set may have a hundred thousand of them."""
        kinds = np.zeros(len(ids), np.int8) if types is None else np.array(types, np.int8)
        return cls(np.array(ids, np.int32), kinds)


def open_tokenizer(data: Data, source: str, train: Callable[[], Iterable[str]]) -> Any:
    """The fast tokenizer of a protocol.

    Args:
        data: its `tokenizer`: `model`, `bytes`, `bpe:SIZE`, a folder, a hub id.
        source: of the model, for `model`.
        train: gives the texts of the training examples, for a tokenizer that is trained.

    Raises:
        BenchError: none of these, one that does not load, or one without a fast form.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    name = data.tokenizer
    if name == "model":
        if not source or model_source.is_function(source):
            raise BenchError(
                f"data.tokenizer=model, and model.source={source or 'none'} brings none",
                "accepted: data.tokenizer=bytes, bpe:4096, a folder, a hub id",
            )
        made = _loaded(name, *model_source.located(source))
    elif (folder := documents.find(name) if name else None) is not None and folder.is_dir():
        made = _loaded(name, str(folder), True)
    elif "/" in name:
        made = _loaded(name, name, False)
    else:
        with tempfile.TemporaryDirectory() as place:
            tokenising.resolve(name, train).write(Path(place))
            made = _loaded(name, place, True)
    if getattr(made, "backend_tokenizer", None) is None:
        raise BenchError(
            f"tokenizer {name!r} has no fast form, and answers are found by its offsets",
            "accepted: a tokenizer with a tokenizer.json",
        )
    _set_apart(made)
    return made


def _loaded(name: str, where: str, local: bool) -> Any:
    with quiet_imports():
        from transformers import AutoTokenizer
    try:
        # No text can spell a special token.
        return AutoTokenizer.from_pretrained(
            where, local_files_only=local, split_special_tokens=True
        )
    except Exception as error:
        if local:
            raise BenchError(
                f"tokenizer {name!r} does not load: {first_line(error)[:LONGEST]}",
                "accepted: a folder that save_pretrained wrote",
            ) from error
        raise explain(error, f"tokenizer {name!r}", "data.tokenizer=FOLDER") from error


def _set_apart(made: Any) -> None:
    """Have the texts of a pair set apart where the tokenizer would join them."""
    if made.num_special_tokens_to_add(pair=True) > made.num_special_tokens_to_add(pair=False):
        return
    from tokenizers import processors

    end = made.eos_token_id
    if end is None:
        end = made("\n", add_special_tokens=False)["input_ids"][-1]
    token = made.convert_ids_to_tokens(end)
    pair = processors.TemplateProcessing(
        single=["$A:0"], pair=["$A:0", f"{token}:0", "$B:1"], special_tokens=[(token, end)]
    )
    backend = made.backend_tokenizer
    before = backend.post_processor
    backend.post_processor = pair if before is None else processors.Sequence([before, pair])


def size(made: Any) -> int:
    """Rows that an embedding needs: one more than the largest id."""
    return max(len(made), max(made.get_vocab().values(), default=0) + 1)


def digest(made: Any) -> str:
    """Of all that decides which ids a text becomes."""
    backend = made.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return hashlib.sha256(backend.to_str().encode()).hexdigest()


def write(made: Any, folder: Path) -> None:
    """Into a folder, as transformers reads one; without the length of the last call."""
    made.backend_tokenizer.no_truncation()
    made.backend_tokenizer.no_padding()
    made.save_pretrained(str(folder))


def ids(made: Any, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """Ids of every text, uncut.

    Args:
        special: whether with the special tokens that the tokenizer puts around a text.
    """
    found: list[list[int]] = []
    for part in chunks(texts):
        found += made(list(part), add_special_tokens=special, verbose=False)["input_ids"]
    return found


def rows(made: Any, texts: Sequence[tuple[str, ...]], length: int) -> list[Row]:
    """Every example's one or two texts as one sequence of at most `length` tokens, the longer of
    two cut first."""
    found: list[Row] = []
    for part in chunks(texts):
        first = [item[0] for item in part]
        second = [item[1] for item in part] if len(part[0]) > 1 else None
        read = made(
            first,
            second,
            truncation="longest_first",
            max_length=length,
            return_token_type_ids=True,
            verbose=False,
        )
        found += [
            Row.of(one, two)
            for one, two in zip(read["input_ids"], read["token_type_ids"], strict=True)
        ]
    return found


def chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """So many at a time as are tokenised at once."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def padded(found: Sequence[Row], pad: int, longest: int) -> Mapping[str, Array]:
    """Rows as a batch, padded at the end to its longest, to a multiple of 8 where that is allowed.

    Args:
        found: b rows.
        pad: id that stands where there is no token.
        longest: tokens that no batch exceeds.

    Returns:
        input_ids, token_type_ids, attention_mask, each [b, t] of int64.
    """
    width = max(len(row.ids) for row in found)
    width = max(width, min(longest, -(-width // MULTIPLE) * MULTIPLE))
    filled = np.full((len(found), width), pad, np.int64)
    types, mask = np.zeros_like(filled), np.zeros_like(filled)
    for place, row in enumerate(found):
        filled[place, : len(row.ids)] = row.ids
        types[place, : len(row.ids)] = row.types
        mask[place, : len(row.ids)] = 1
    return {"input_ids": filled, "token_type_ids": types, "attention_mask": mask}
