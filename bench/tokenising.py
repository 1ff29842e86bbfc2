"""Tokenizers: bytes, a byte-level BPE trained on the train slice, a local folder, a hub id."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.bench import documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.errors import LONGEST, first_line
from levelfield.bench.source_hub import explain
from levelfield.bench.spec import BenchError

Ids = npt.NDArray[Any]
BETWEEN = "\n\n"
"""Stands between two documents where a tokenizer has no end-of-text token."""
END = "<|endoftext|>"
"""The spelling of a BPE's end-of-text token in a tokenizer that is written out."""
LEAST_BPE, MOST_BPE = 300, 1_000_000
MOST_TRAINED = 200_000_000
"""Bytes of text a BPE is trained on: the first documents of the train slice, if it has more."""
FORMS = ("bytes", "bpe:4096")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Text to ids in [0, vocabulary)."""

    encode: Callable[[Sequence[str]], list[Ids]]
    vocabulary: int
    end: int | None
    """Put after every document; None: documents are set apart by a blank line."""
    digest: str
    write: Callable[[Path], None]
    """Into a folder, as transformers reads one."""
    file: Path | None = None
    """Where one that was trained is kept."""

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The narrowest that holds every id."""
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32


def resolve(name: str, train: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer of a protocol's `data`.

    Args:
        name: `bytes`, `bpe:SIZE`, a folder, or a hub id.
        train: gives the texts of the train slice, for one that is trained; called up to twice.

    Raises:
        BenchError: none of these, or one that cannot be loaded.
    """
    if name == "bytes":
        return Tokenizer(
            encode=_bytes, vocabulary=256, end=None, digest="bytes", write=_write_bytes
        )
    kind, colon, size = name.partition(":")
    if kind == "bpe" and colon:
        return _bpe(size, train)
    folder = documents.find(name) if name else None
    if folder is not None and folder.is_dir():
        return _pretrained(name, str(folder), local=True)
    near = difflib.get_close_matches(name, FORMS, n=1, cutoff=0.5)
    if near or not _HUB_ID.fullmatch(name):
        hint = did_you_mean(name, FORMS) + ("" if near else ", a folder, a hub id")
        raise BenchError(f"unknown tokenizer {name!r}", hint)
    return _pretrained(name, name, local=False)


def trains(name: str) -> bool:
    """Whether a tokenizer of this name is made from the train slice."""
    return name.startswith("bpe:")


def _bytes(texts: Sequence[str]) -> list[Ids]:
    return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) for text in texts]


def _write_bytes(folder: Path) -> None:
    """A byte-level BPE without merges whose ids are the bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    ids = {char: byte for byte, char in _byte_characters().items()}
    made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    _write(made, None, folder)


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2's table: bytes
    that print stand for themselves, the others for characters from 256 on, in order)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + place) for place, byte in enumerate(rest)
    }


def _write(made: Any, end: str | None, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    # A copy: an added token must not change the one in use.
    copy = type(made).from_str(made.to_str())
    options = {} if end is None else {"eos_token": end, "pad_token": end}
    PreTrainedTokenizerFast(tokenizer_object=copy, **options).save_pretrained(str(folder))


def _bpe(size: str, train: Callable[[], Iterable[str]]) -> Tokenizer:
    if not size.isdecimal() or not LEAST_BPE <= int(size) <= MOST_BPE:
        raise BenchError(f"bpe:{size}", f"accepted: bpe:{LEAST_BPE} to bpe:{MOST_BPE}")
    # The order of what threads find must not matter, and a fork after threads started is told.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    key = hashlib.sha256(f"{tokenizers.__version__} {size}".encode())
    for _ in _sample(train, key):
        pass
    path = documents.cache() / "tokenizers" / f"bpe-{size}-{key.hexdigest()[:32]}.json"
    found = reopened(path)
    if found is None:
        again = hashlib.sha256(f"{tokenizers.__version__} {size}".encode())
        made = _train_bpe(_sample(train, again), int(size))
        if again.digest() != key.digest():
            raise BenchError(f"the text of bpe:{size} changed while it was read", "try again")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        made.save(str(part))
        part.replace(path)
        found = _trained(made, path)
    return found


def _sample(train: Callable[[], Iterable[str]], key: hashlib._Hash) -> Iterator[str]:
    """The texts that a BPE is trained on, each put into a hash."""
    left = MOST_TRAINED
    for text in train():
        written = text.encode()
        left -= len(written)
        if left < 0:
            return
        key.update(hashlib.sha256(written).digest())
        yield text


def reopened(path: Path) -> Tokenizer | None:
    """A trained tokenizer from its file; None where there is none, or it is spoilt."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    try:
        return _trained(tokenizers.Tokenizer.from_file(str(path)), path)
    except Exception:  # the library raises nothing finer
        return None


def _trained(made: Any, path: Path) -> Tokenizer:
    wide = made.get_vocab_size()
    # The end of a text is an id of its own beyond the vocabulary: no text can spell it.
    return Tokenizer(
        encode=lambda items: [np.array(found.ids, np.uint32) for found in made.encode_batch(items)],
        vocabulary=wide + 1,
        end=wide,
        digest=hashlib.sha256(made.to_str().encode()).hexdigest(),
        write=lambda folder: _write(made, END, folder),
        file=path,
    )


def _train_bpe(texts: Iterator[str], size: int) -> Any:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def _pretrained(name: str, where: str, *, local: bool) -> Tokenizer:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer

        # No text can spell a special token.
        made: Any = AutoTokenizer.from_pretrained(
            where, local_files_only=local, split_special_tokens=True
        )
    except Exception as error:
        if local:
            line = first_line(error)[:LONGEST]
            raise BenchError(
                f"folder {name} holds no tokenizer that loads: {line}",
                "accepted: a folder that save_pretrained wrote",
            ) from error
        raise explain(error, f"tokenizer {name!r}", "data.tokenizer=FOLDER") from error
    backend = getattr(made, "backend_tokenizer", None)
    written = backend.to_str() if backend is not None else repr(sorted(made.get_vocab().items()))
    end = made.eos_token_id if made.eos_token_id is not None else made.sep_token_id

    def encode(texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        found = made(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [np.array(ids, np.uint32) for ids in found]

    return Tokenizer(
        encode=encode,
        vocabulary=max(len(made), max(made.get_vocab().values(), default=0) + 1),
        end=end,
        digest=hashlib.sha256(written.encode()).hexdigest(),
        write=lambda folder: made.save_pretrained(str(folder)),
    )
