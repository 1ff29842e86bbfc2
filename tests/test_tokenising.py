"""Tokenizers: bytes, trained, local, from the hub; the same ids everywhere and every time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from levelfield.bench import documents, sources, tokenising
from levelfield.bench.spec import BenchError, Data
from levelfield.bench.tokenising import resolve

TEXTS = [
    *(f"the {n}th cat sat on the mat and saw {n * n} other cats\n\tsitting" for n in range(200)),
    "Tiếng Việt có dấu; emoji 🙂; a NUL \0; spaces   and\r\nends",
    "<|endoftext|> </s> <eos> spelt out",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(documents.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    sources._load.cache_clear()
    yield tmp_path
    sources._load.cache_clear()


@pytest.fixture
def folder(home: Path) -> Path:
    """A folder that `save_pretrained` wrote."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<eos>"],
    )
    made.train_from_iterator(TEXTS, trainer)
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")
    fast.save_pretrained(home / "model")
    return home / "model"


def told(name: str, *words: str) -> None:
    with pytest.raises(BenchError) as caught:
        resolve(name, lambda: TEXTS)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_bytes_are_the_text(home: Path) -> None:
    made = resolve("bytes", lambda: TEXTS)
    assert [ids.astype("u1").tobytes().decode() for ids in made.encode(TEXTS)] == TEXTS
    assert (made.vocabulary, made.end, made.dtype) == (256, None, np.uint16)
    assert list(home.rglob("*")) == []


def test_a_trained_tokenizer_loses_nothing_and_shortens(home: Path) -> None:
    made = resolve("bpe:400", lambda: TEXTS)
    (file,) = (path for path in home.rglob("*") if path.is_file())
    bare = tokenizers.Tokenizer.from_file(str(file))
    found = made.encode(TEXTS)
    assert [bare.decode(list(ids)) for ids in found] == TEXTS
    assert made.vocabulary == 400
    assert sum(map(len, found)) < sum(len(text.encode()) for text in TEXTS) / 2
    # No text spells the end of a text.
    assert made.end == 399
    assert max(int(ids.max()) for ids in found) < 399


def test_training_reads_the_train_slice_alone_and_repeats(home: Path) -> None:
    def load(*held_out: str) -> sources.Corpus:
        kept = [text for text in TEXTS if _slice(text) == "train"]
        rest = [next(f"{n}" for n in range(999) if _slice(f"{n}") == name) for name in others]
        (home / "a.txt").write_text("\n".join(kept[:50]).replace("\r", ""))
        lines = "\n".join([*(home / "a.txt").read_text().split("\n"), *rest, *held_out])
        (home / "a.txt").write_text(lines)
        sources._load.cache_clear()
        return sources.load(Data(source="file:a.txt?document=line", tokenizer="bpe:300"))

    def _slice(text: str) -> str:
        return documents.slice_of(documents.fingerprint(text))

    others = sources.SLICES[1:]
    one = load()
    held_out = next(f"zq{n} zqzq" * 50 for n in range(999) if _slice(f"zq{n} zqzq" * 50) != "train")
    two = load(held_out)
    assert one.facts["tokenizer_digest"] == two.facts["tokenizer_digest"]
    assert one.digest != two.digest
    assert len(list((home / "cache" / "levelfield" / "tokenizers").iterdir())) == 1
    with_train = next(
        f"zq{n} zqzq" * 50 for n in range(999) if _slice(f"zq{n} zqzq" * 50) == "train"
    )
    assert load(with_train).facts["tokenizer_digest"] != one.facts["tokenizer_digest"]


def test_a_cached_tokenizer_is_used_and_a_spoilt_one_is_trained_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve("bpe:320", lambda: TEXTS).digest
    (file,) = (path for path in home.rglob("*") if path.is_file())
    file.write_text(file.read_text()[:200])
    assert resolve("bpe:320", lambda: TEXTS).digest == first
    monkeypatch.setattr(tokenising, "_train_bpe", None)
    assert resolve("bpe:320", lambda: TEXTS).digest == first
    assert [path.name for path in home.rglob("*") if path.is_file()] == [file.name]


def test_training_gives_the_same_in_every_process(home: Path) -> None:
    here = resolve("bpe:500", lambda: TEXTS).digest
    code = (
        "from levelfield.bench.tokenising import resolve\n"
        "from levelfield.tests.test_tokenising import TEXTS\n"
        "print(resolve('bpe:500', lambda: TEXTS).digest)"
    )
    for threads in ("false", "true"):
        env = {**os.environ, "XDG_CACHE_HOME": str(home / threads)}
        env["TOKENIZERS_PARALLELISM"] = threads
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.split() == [here], done.stderr


def test_little_text_gives_a_smaller_vocabulary() -> None:
    made = resolve("bpe:4096", lambda: ["ab ab ab"])
    assert 257 <= made.vocabulary < 270
    assert made.end == made.vocabulary - 1


def test_a_folder_is_a_tokenizer(home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = resolve(str(folder), lambda: TEXTS)
    found = made.encode(TEXTS)
    loaded: Any = transformers.AutoTokenizer.from_pretrained(folder)
    assert [loaded.decode(ids) for ids in found[:50]] == TEXTS[:50]
    assert made.vocabulary == 400
    assert made.end == loaded.eos_token_id == 0
    assert all((ids != 0).all() for ids in found)  # spelt out in a text, it is no end
    assert resolve("model", lambda: TEXTS).digest == made.digest
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    monkeypatch.setenv(documents.FOLDER, str(home))
    assert resolve("model", lambda: TEXTS).digest == made.digest


def test_a_vocabulary_beyond_two_bytes_widens_the_tokens(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: Any = transformers.AutoTokenizer.from_pretrained(folder)
    loaded.add_tokens([f"\u4e00{n}" for n in range(70_000)])
    loaded.save_pretrained(home / "wide")
    lines = [f"line {n} \u4e00{69_000 + n}" for n in range(300)]
    (home / "a.txt").write_text("\n".join(lines))
    data = Data(source="file:a.txt?document=line", tokenizer="wide")
    corpus = sources.load(data)
    assert corpus.vocabulary == 70_400
    assert corpus.tokens["train"].dtype == np.uint32
    assert max(int(tokens.max()) for tokens in corpus.tokens.values()) == 400 + 69_299
    digest = corpus.digest
    sources._load.cache_clear()
    assert sources.load(data).digest == digest


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", ("unknown tokenizer ''",)),
        ("byte", ("did you mean bytes",)),
        ("bpe", ("unknown tokenizer 'bpe'",)),
        ("bpe:", ("bpe:", "accepted: bpe:300")),
        ("bpe:12", ("bpe:12", "accepted: bpe:300")),
        ("bpe:4k", ("bpe:4k",)),
        ("no such/folder/here", ("unknown tokenizer", "a folder")),
        ("nobody/nothing-of-this-name", ("nobody/nothing-of-this-name", "data.tokenizer=FOLDER")),
    ],
)
def test_what_is_unknown_is_told(name: str, words: tuple[str, ...]) -> None:
    told(name, *words)


def test_a_folder_without_a_tokenizer_is_told(home: Path) -> None:
    (home / "empty").mkdir()
    told("empty", "folder empty holds no tokenizer that loads")
    (home / "broken").mkdir()
    (home / "broken" / "tokenizer.json").write_text("{")
    told("broken", "folder broken holds no tokenizer that loads")


def test_training_reads_the_first_documents_alone_and_the_same_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve("bpe:320", lambda: TEXTS[:50]).digest
    size = sum(len(text.encode()) for text in TEXTS[:50])
    monkeypatch.setattr(tokenising, "MOST_TRAINED", size)
    assert resolve("bpe:320", lambda: TEXTS).digest == first
    assert len(list((home / "cache" / "levelfield" / "tokenizers").iterdir())) == 1
    monkeypatch.setattr(tokenising, "MOST_TRAINED", size - 1)
    resolve("bpe:320", lambda: TEXTS)
    assert len(list((home / "cache" / "levelfield" / "tokenizers").iterdir())) == 2
    turns = iter((TEXTS[:9], TEXTS[:10]))
    with pytest.raises(BenchError, match="the text of bpe:320 changed while it was read"):
        resolve("bpe:320", lambda: next(turns))
    assert len(list((home / "cache" / "levelfield" / "tokenizers").iterdir())) == 2
