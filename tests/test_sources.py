"""Data: pinned text, slices that share nothing, an order of batches that nothing can shift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from levelfield.bench import manual, sources
from levelfield.bench.sources import SLICES, BatchOrder, Corpus
from levelfield.bench.spec import BenchError, Data

DIGEST = "75ee51d7a12822b91ea2d81dc05c65de19fe00f8321212bc8c129d690219b7bd"
"""The same on every CPython from 3.11 to 3.14."""
TOKENS = {"train": 163950, "control": 7405, "selection": 14965, "report": 15417}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return sources.load(Data())


def text(corpus: Corpus, name: str) -> str:
    return corpus.tokens[name].astype(np.uint8).tobytes().decode()


# --- the built-in text -------------------------------------------------------------------------


def test_the_text_is_pinned(corpus: Corpus) -> None:
    assert corpus.digest == DIGEST
    assert corpus.facts["digest"] == DIGEST
    assert corpus.facts["tokens"] == corpus.facts["bytes"] == TOKENS
    assert {name: len(tokens) for name, tokens in corpus.tokens.items()} == TOKENS
    assert corpus.vocabulary == 256
    assert all(tokens.max() < corpus.vocabulary for tokens in corpus.tokens.values())
    assert "PSF" in corpus.facts["licence"]


def test_slices_share_no_paragraph_and_no_document(corpus: Corpus) -> None:
    parts = {name: set(text(corpus, name).split("\n\n")) for name in SLICES}
    names = {name: {d.name for d in manual.documents() if d.slice == name} for name in SLICES}
    for found in (parts, names):
        assert all(found.values())
        assert len(set().union(*found.values())) == sum(len(part) for part in found.values())


def test_every_document_is_whole_in_its_slice(corpus: Corpus) -> None:
    for name in SLICES:
        documents = [d.text for d in manual.documents() if d.slice == name]
        assert text(corpus, name) == "\n\n".join(documents)


def test_a_corpus_is_read_once() -> None:
    assert sources.load(Data()) is sources.load(Data(batch=1, sequence=2))


def test_the_digest_sees_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(*documents: manual.Document) -> str:
        monkeypatch.setitem(sources.SOURCES, "made-up", lambda: (documents, "none"))
        sources._load.cache_clear()
        return sources.load(Data(source="made-up")).digest

    one = [manual.Document(name=name, slice=name, text=f"text of {name}") for name in SLICES]
    found = {digest(*one)}
    for index, item in enumerate(one):
        changed = list(one)
        changed[index] = replace(item, text=item.text + ".")
        found.add(digest(*changed))
    swapped = [replace(one[0], slice="report"), *one[1:3], replace(one[3], slice="train")]
    found.add(digest(*swapped))
    assert len(found) == len(one) + 2
    sources._load.cache_clear()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(source="builtin:python-manuel"), "did you mean builtin:python-manual"),
        (Data(source=""), "unknown data source ''"),
        (Data(source="builtin"), "unknown data source 'builtin'"),
        (Data(tokenizer="byte"), r"unknown tokenizer 'byte' \(did you mean bytes"),
        (Data(tokenizer=""), "unknown tokenizer ''"),
        (Data(source="markov:orders=2"), "unknown Markov setting 'orders=2'"),
        (Data(source="markov:order=x"), "is not a number"),
        (Data(source="markov:order=0"), "order 0"),
    ],
)
def test_what_is_unknown_is_told(data: Data, message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        sources.load(data)
    assert "\n" not in str(caught.value)


# --- the generated source ----------------------------------------------------------------------


def test_a_generated_source_depends_on_its_settings_alone() -> None:
    settings = "markov:order=1,symbols=4,train=500,held_out=100"
    one = sources.load(Data(source=settings))
    sources._markov.cache_clear()
    torch.manual_seed(1)
    np.random.default_rng(1).random()
    again = sources.load(Data(source=settings))
    assert one is not again
    assert one.digest == again.digest
    assert one.digest != sources.load(Data(source=settings + ",seed=1")).digest
    sizes = {"train": 500, "control": 50, "selection": 100, "report": 100}
    assert {name: len(tokens) for name, tokens in one.tokens.items()} == sizes
    assert one.vocabulary == 4
    assert max(int(tokens.max()) for tokens in one.tokens.values()) == 3


# --- evaluation sequences ----------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5, 64])
@pytest.mark.parametrize("name", SLICES)
def test_every_target_is_read_once(corpus: Corpus, name: str, length: int) -> None:
    found = corpus.sequences(name, length)
    stream = corpus.tokens[name]
    count = (len(stream) - 1) // length
    assert found.shape == (count, length + 1)
    assert (found[:, 1:].ravel() == stream[1 : count * length + 1]).all()
    assert (found[:, :-1].ravel() == stream[: count * length]).all()


@pytest.mark.parametrize("limit", [1, 2, 3, 32, 64])
def test_a_limit_is_spread_evenly(limit: int) -> None:
    stream = np.arange(64 * 100 + 1, dtype=np.uint16)
    corpus = Corpus({"selection": stream}, 10_000, {})
    found = corpus.sequences("selection", 64, limit)
    assert found.shape == (limit, 65)
    starts = [int(row[0]) // 64 for row in found]
    assert starts[0] == 0
    assert len(set(starts)) == limit
    if limit > 1:
        assert starts[-1] == 99
        gaps = np.diff(starts)
        assert gaps.max() - gaps.min() <= 1


def test_a_limit_beyond_the_slice_reads_all_of_it(corpus: Corpus) -> None:
    everything = corpus.sequences("control", 64)
    for limit in (len(everything), len(everything) + 1, 10**9, None):
        assert (corpus.sequences("control", 64, limit) == everything).all()


def test_a_slice_that_is_too_short_is_told(corpus: Corpus) -> None:
    size = TOKENS["control"]
    assert corpus.sequences("control", size - 1).shape == (1, size)
    with pytest.raises(BenchError, match=rf"'control' holds {size} tokens \({size + 1} are needed"):
        corpus.sequences("control", size)


# --- the order of batches ----------------------------------------------------------------------


def order(corpus: Corpus, seed: int = 0, data: Data | None = None) -> BatchOrder:
    return BatchOrder(corpus.tokens["train"], data or Data(), seed)


def test_the_order_depends_on_the_seed_alone(corpus: Corpus) -> None:
    one, same, other = order(corpus), order(corpus), order(corpus, seed=1)
    for _ in range(5):
        batch = one.next()
        assert batch.shape == (16, 65)
        assert (batch == same.next()).all()
        assert (batch != other.next()).any()
    assert one.sha256 == same.sha256 != other.sha256


def test_the_order_is_for_ever(corpus: Corpus) -> None:
    """Pinned: another order would make every old record stale."""
    found = order(corpus, seed=1)
    found.next()
    assert found.sha256 == "f6a69ee45db786f4b2e4c5878cbe87e49c82530caec496b537070009819292ab"


def test_random_numbers_drawn_elsewhere_do_not_shift_the_order(corpus: Corpus) -> None:
    quiet, noisy = order(corpus), order(corpus)
    for step in range(5):
        torch.manual_seed(step)
        torch.rand(step + 1)
        np.random.default_rng(step).random(step + 1)
        before = torch.get_rng_state()
        assert (noisy.next() == quiet.next()).all()
        assert torch.equal(torch.get_rng_state(), before)
    assert noisy.sha256 == quiet.sha256


def test_the_hash_covers_every_batch(corpus: Corpus) -> None:
    found = order(corpus)
    hashes = [found.sha256]
    for _ in range(3):
        found.next()
        hashes.append(found.sha256)
    assert len(set(hashes)) == 4


def test_windows_lie_anywhere_in_the_train_slice() -> None:
    stream = np.arange(12, dtype=np.uint16)
    found = BatchOrder(stream, Data(sequence=4, batch=200), 0).next()
    assert (np.diff(found.astype(int), axis=1) == 1).all()
    assert set(found[:, 0]) == set(range(8))  # the last window ends at the last token
    assert found.max() == 11


def test_a_train_slice_that_is_too_short_is_told() -> None:
    data = Data(sequence=8)
    BatchOrder(np.zeros(10, dtype=np.uint16), data, 0).next()
    with pytest.raises(BenchError, match=r"train slice holds 9 tokens .* need at least 10"):
        BatchOrder(np.zeros(9, dtype=np.uint16), data, 0)
