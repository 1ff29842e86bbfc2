"""Tokens on disk: the same as in memory, made once, whole or not at all, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levelfield.bench import documents, source_file, sources, token_store, tokenising
from levelfield.bench.documents import Counts
from levelfield.bench.sources import SLICES, Corpus
from levelfield.bench.spec import BenchError, Data
from levelfield.tests.test_sources import DIGEST

BOTH = "builtin:python-manual+file:a.jsonl"
DIGESTS = {
    ("file:a.jsonl", True): "c5a1184e532c3ef50365a47d016ead77209f967757c028ac70d520e445bc7fc3",
    (BOTH, True): "e35bfa764c9c17fce33a424cef0eb24bfffa9e8b73353a47bdf9ad8a80c08d83",
    ("file:a.jsonl", False): "7eea0cd45dc79d7b3ffe8d7f4163695e0880405bced28cadd889ffff2efcee1b",
}
"""Pinned: of texts that were all in memory, in rows of 31 where they are not packed."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(documents.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    texts = [f"document {n % 700}\n" + f"về số {n % 700} " * (n % 40) for n in range(900)]
    write(tmp_path / "a.jsonl", [*texts, ""])
    sources._load.cache_clear()
    yield tmp_path
    sources._load.cache_clear()


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def load(source: str = "file:a.jsonl", **changes: Any) -> Corpus:
    """As a new process would."""
    sources._load.cache_clear()
    return sources.load(Data(**{"source": source, "sequence": 30, **changes}))


def folder(home: Path) -> Path:
    (found,) = (path for path in (home / "cache/levelfield/tokens").iterdir() if path.is_dir())
    return found


def reference(corpus: Corpus, source: str, row: int | None) -> dict[str, np.ndarray]:
    """The streams with all texts in memory, one document tokenised after another."""
    parts = source.split("+")
    texts = [text for part in parts for text in sources._read(part).texts]
    made, found = corpus.tokenizer, {}
    assert made is not None
    items = list(documents.assemble(texts, Counts()))
    end = [] if made.end is None else [made.end]
    for name in SLICES:
        ids = [[*made.encode([item.text])[0], *end] for item in items if item.slice == name]
        if row is not None:
            rows = [(one + [-100] * row)[:row] for one in ids if len(one) > 1]
            found[name] = np.array(rows, np.int32).ravel()
            continue
        between = [] if end else [*b"\n\n"]
        joined = [token for one in ids for token in (*between, *one)][len(between) :]
        found[name] = np.array(joined, np.uint16)
    return found


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
@pytest.mark.parametrize("source", ["file:a.jsonl", BOTH])
def test_tokens_are_those_of_texts_in_memory(source: str, tokenizer: str, packing: bool) -> None:
    made = load(source, tokenizer=tokenizer, packing=packing)
    again = load(source, tokenizer=tokenizer, packing=packing)
    assert made.tokenizer is not None
    assert again.tokenizer is not None
    expected = reference(again, source, None if packing else 31)
    for corpus in (made, again):
        for name in SLICES:
            assert corpus.tokens[name].dtype == expected[name].dtype
            assert (corpus.tokens[name] == expected[name]).all()
            assert not corpus.tokens[name].flags.writeable
            assert corpus.facts["tokens"][name] == len(expected[name])
            if not packing:
                share = float((expected[name] == sources.IGNORED).mean())
                assert corpus.facts["padding"][name] == round(share, 6)
    assert made.facts == again.facts
    assert list(made.facts) == list(again.facts)
    assert (made.vocabulary, made.row) == (again.vocabulary, again.row)
    assert made.tokenizer.digest == again.tokenizer.digest
    if tokenizer == "bytes" and (source, packing) in DIGESTS:
        assert made.digest == DIGESTS[source, packing]


def test_the_builtin_text_is_the_same_in_memory_and_on_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = load("builtin:python-manual")
    assert not (home / "cache").exists()
    monkeypatch.setattr(sources, "SOURCES", {})
    builtin = [
        documents.Text(name=item.name, text=item.text, slice=item.slice)
        for item in sources.manual_documents()
    ]
    read = documents.Source(texts=builtin, licence=held.facts["licence"], stamp="pinned")
    monkeypatch.setattr(sources, "_read", lambda part: read)
    kept = load("builtin:python-manual")
    assert kept.digest == held.digest == DIGEST
    assert kept.facts == held.facts
    assert folder(home)


def test_a_tokenizer_is_written_out_as_before(home: Path) -> None:
    made, again = load(tokenizer="bpe:300"), load(tokenizer="bpe:300")
    for corpus, name in ((made, "one"), (again, "two")):
        assert corpus.tokenizer is not None
        corpus.tokenizer.write(home / name)
    written = [(home / name / "tokenizer.json").read_bytes() for name in ("one", "two")]
    assert written[0] == written[1]


def test_a_second_load_reads_no_text_and_a_changed_file_is_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("text was read")

    first = load(tokenizer="bpe:300")
    with monkeypatch.context() as patched:
        patched.setattr(source_file, "_read_file", never)
        patched.setattr(tokenising, "_sample", never)
        assert load(tokenizer="bpe:300").facts == first.facts
        for other in ({"tokenizer": "bpe:301"}, {"packing": False}, {"seed": 1}):
            with pytest.raises(AssertionError):
                load(**{"tokenizer": "bpe:300", **other})
        patched.setattr(token_store, "_code", lambda: "other code")
        with pytest.raises(AssertionError):
            load(tokenizer="bpe:300")
    text = (home / "a.jsonl").read_text()
    time.sleep(0.02)
    (home / "a.jsonl").write_text(text.replace("document 7", "document X"))  # of the same size
    changed = load(tokenizer="bpe:300")
    assert changed.digest != first.digest
    assert changed.facts["documents"] == first.facts["documents"]


@pytest.mark.parametrize("name", ["train.bin", "report.bin", "facts.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["torn", "longer", "missing"])
def test_what_is_torn_or_missing_is_made_again(home: Path, name: str, how: str) -> None:
    first = load(tokenizer="bpe:300")
    ids = first.tokens["train"].copy()  # what is mapped is torn with its file
    file = folder(home) / name
    whole = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:-2] if how == "torn" else whole + b"\0\0")
    again = load(tokenizer="bpe:300")
    assert again.facts == first.facts
    assert file.read_bytes() == whole
    assert (again.tokens["train"] == ids).all()


def test_a_failed_pass_leaves_no_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(token_store, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            load()
    tokens = home / "cache/levelfield/tokens"
    assert not [path for path in tokens.iterdir() if path.is_dir()]
    (name,) = (path.stem for path in tokens.iterdir())
    (tokens / f"{name}.part").mkdir()  # of a process that was killed
    (tokens / f"{name}.part" / "train.bin").write_bytes(b"half")
    assert load().digest == DIGESTS["file:a.jsonl", True]
    assert folder(home).name == name


def test_a_file_that_changes_while_it_is_read_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = source_file._read_file

    def growing(path: Path, found: Any) -> Any:
        yield from read(path, found)
        with path.open("a") as file:
            file.write('{"text": "late"}\n')

    monkeypatch.setattr(source_file, "_read_file", growing)
    with pytest.raises(BenchError, match=r"file:a.jsonl changed while it was read \(try again"):
        load()


def test_a_cache_that_cannot_be_written_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    with pytest.raises(BenchError, match="XDG_CACHE_HOME names another cache folder"):
        load()


def test_a_text_of_an_earlier_chunk_is_dropped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {n}" for n in range(2000)]
    write(home / "a.jsonl", texts)
    once = load()
    write(home / "a.jsonl", [*texts, *reversed(texts)])
    twice = load()
    assert twice.digest == once.digest
    assert twice.facts["documents_duplicates"] == twice.facts["documents"] == 2000
    monkeypatch.setattr(token_store, "CHUNK", 7)
    monkeypatch.setattr(token_store, "CHARACTERS", 20)
    assert load(source="file:a.jsonl?limit=2000").digest == once.digest


def test_an_order_of_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, moved = load(), load(seed=1)
    assert moved.facts["bytes"] == kept.facts["bytes"]
    assert moved.digest != kept.digest
    monkeypatch.setattr(sources, "MOST_HELD", 1000)
    with pytest.raises(BenchError, match=r"data.seed=2 with over 1,000 bytes .*data.seed=0"):
        load(seed=2)
    assert load().digest == kept.digest


CODE = """
import resource, sys
from levelfield.bench import sources
from levelfield.bench.spec import Data
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
corpus = sources.load(Data(source=sys.argv[1]))
print(corpus.digest, peak() - before)
"""


def processes(source: str, count: int) -> list[list[str]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, source], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(count)
    ]
    found = [process.communicate()[0].split() for process in started]
    assert all(process.returncode == 0 for process in started)
    return found


def test_processes_that_start_at_once_make_one_folder(home: Path) -> None:
    found = processes("file:a.jsonl", 3)
    assert {digest for digest, _ in found} == {DIGESTS["file:a.jsonl", True]}
    assert folder(home)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(home: Path) -> None:
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, (50_000, 2000), np.uint8)
    with (home / "big.jsonl").open("w") as file:
        for row in letters:
            file.write(json.dumps({"text": row.tobytes().decode()}) + "\n")
    assert (home / "big.jsonl").stat().st_size > 100e6
    ((digest, made),) = processes("file:big.jsonl", 1)
    ((again, mapped),) = processes("file:big.jsonl", 1)
    assert digest == again
    assert int(made) < 40e6
    assert int(mapped) < 5e6
