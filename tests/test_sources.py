"""Data: pinned text, slices that share nothing, an order of batches that nothing can shift."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from levelfield.bench import documents, manual, next_token, sources
from levelfield.bench.documents import Counts, Text, assemble
from levelfield.bench.sources import SLICES, BatchOrder, Corpus
from levelfield.bench.spec import BenchError, Data
from levelfield.tests import small

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


# --- documents ---------------------------------------------------------------------------------


def texts(*found: str) -> list[Text]:
    return [Text(name=str(n), text=text) for n, text in enumerate(found)]


def test_a_text_is_taken_once_whatever_its_spacing_and_accents() -> None:
    counts = Counts()
    same = [
        "Việt Nam  là",
        "Vi\u1ec7t Nam là",
        "\ufeffVie\u0323\u0302t\r\nNam là\n\n",
        "việt nam là",
    ]
    found = list(assemble(texts(*same, "", " \n\t"), counts))
    assert [item.text for item in found] == [same[0], same[3]]
    assert (counts.documents, counts.duplicates, counts.empty) == (2, 2, 2)


def test_more_documents_move_none_and_shares_are_kept() -> None:
    many = [f"document number {n}" for n in range(4000)]
    some = {item.text: item.slice for item in assemble(texts(*many[::3]), Counts())}
    every = {item.text: item.slice for item in assemble(texts(*many), Counts())}
    assert some.items() <= every.items()
    for name, share in manual.SHARES.items():
        assert abs(list(every.values()).count(name) / 4000 - share) < 0.02


def test_slices_are_for_ever() -> None:
    """Pinned: another rule would move every document."""
    places = [documents.slice_of(documents.fingerprint(f"document {n}")) for n in range(12)]
    assert "".join(place[0] for place in places) == "ttttrtttttst"


def test_the_seed_orders_documents_and_nothing_else() -> None:
    kept, one, same, other = (sources.load(Data(seed=seed)) for seed in (0, 1, 1, 2))
    assert kept.digest == DIGEST
    assert one.digest == same.digest
    assert len({kept.digest, one.digest, other.digest}) == 3
    for name in SLICES:
        assert sorted(text(one, name).split("\n\n")) == sorted(text(kept, name).split("\n\n"))


@pytest.mark.parametrize("change", [{"packing": False}, {"seed": 1}])
def test_a_generated_source_has_no_documents(change: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="a generated source has no documents"):
        sources.load(Data(source="markov:order=1,symbols=4", **change))


def test_an_empty_slice_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(BenchError, match=r"has 3 documents, none of them in .*control"):
        sources.load(Data(source=f"file:{tmp_path / 'a.txt'}?document=line"))


# --- a document a row --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> Corpus:
    sources._load.cache_clear()
    return sources.load(ROWS)


ROWS = Data(packing=False, sequence=700, batch=8)
"""Long enough that some documents of the manual are padded."""


def test_a_row_is_a_document_cut_or_padded(rows: Corpus) -> None:
    for name in SLICES:
        whole = [d.text.encode() for d in manual.documents() if d.slice == name]
        found = rows.sequences(name, 700)
        assert found.shape == (len(whole), 701)
        for row, document in zip(found, whole, strict=True):
            kept = row[row != sources.IGNORED]
            assert kept.astype(np.uint8).tobytes() == document[:701]
            assert (row[len(kept) :] == sources.IGNORED).all()
        share = float((rows.tokens[name] < 0).mean())
        assert rows.facts["padding"][name] == pytest.approx(share, abs=1e-6)
        assert rows.facts["tokens"][name] == found.size
    assert rows.facts["padding"]["train"] > 0
    assert rows.digest != DIGEST
    assert len(rows.sequences("train", 700, 5)) == 5


def test_batches_are_whole_rows(rows: Corpus) -> None:
    order, same = (BatchOrder(rows.tokens["train"], ROWS, 3) for _ in range(2))
    known = {row.tobytes() for row in rows.sequences("train", 700)}
    drawn = [order.next() for _ in range(30)]
    assert {row.tobytes() for batch in drawn for row in batch} == known
    # The order depends on the length of the slice alone: an audit draws it without the text.
    blank = BatchOrder(np.broadcast_to(np.uint16(0), rows.facts["tokens"]["train"]), ROWS, 3)
    for batch in drawn:
        assert (same.next() == batch).all()
        blank.next()
    assert order.sha256 == same.sha256 == blank.sha256


def test_another_sequence_makes_other_rows(rows: Corpus) -> None:
    assert sources.load(replace(ROWS, batch=1)) is rows
    assert sources.load(replace(ROWS, sequence=9)).sequences("report", 9).shape[1] == 10
    with pytest.raises(BenchError, match="train slice holds 700 tokens"):
        BatchOrder(np.zeros(700, np.int32), ROWS, 0)


class Table(torch.nn.Module):
    """Logits by the token before, and a note of the ids it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
        self.seen: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor) -> Any:
        self.seen.append(input_ids)
        return SimpleNamespace(logits=self.table[input_ids])


def test_padding_has_no_loss_and_the_mean_is_over_tokens(rows: Corpus) -> None:
    task, model = next_token.NextToken("fp32", "cpu"), Table()
    found = rows.sequences("train", 700)
    table = torch.log_softmax(model.table.double(), -1)
    losses = [
        -table[list(row[:-1]), list(row[1:])]
        for row in (row[row >= 0].astype(np.int64) for row in found)
    ]
    assert len({len(loss) for loss in losses}) > 1
    expected = float(torch.cat(losses).mean())
    cpu = torch.device("cpu")
    assert task.mean_loss(model, found, cpu) == pytest.approx(expected, rel=1e-6)
    split = [task.mean_loss(model, found[:n], cpu) for n in (1, len(found))]
    assert split[0] == pytest.approx(float(losses[0].mean()), rel=1e-6)
    # Short rows in a forward pass of their own weigh less than the full ones before.
    order = np.argsort((found < 0).sum(axis=1), kind="stable")
    many = np.concatenate([found[[order[0]] * next_token.EVAL_BATCH], found[[order[-1]]]])
    parts = [losses[order[0]]] * next_token.EVAL_BATCH + [losses[order[-1]]]
    assert len(parts[-1]) < 0.9 * len(parts[0])
    by_row = sum(float(part.mean()) for part in parts) / len(parts)
    by_token = float(torch.cat(parts).mean())
    assert task.mean_loss(model, many, cpu) == pytest.approx(by_token, rel=1e-7)
    assert by_row != pytest.approx(by_token, rel=1e-6)
    batch = next_token.to_device(found, cpu)
    assert float(task.loss(model, batch)) == pytest.approx(expected, rel=1e-5)
    assert all(int(ids.min()) >= 0 and ids.dtype == torch.int64 for ids in model.seen)


def test_labels_are_not_drawn_for_padding(rows: Corpus) -> None:
    task, model = next_token.NextToken("fp32", "cpu"), Table()
    found = rows.sequences("report", 700)
    short = found[(found < 0).sum(axis=1).argmax()][None]
    real = int((short >= 0).sum())
    assert real < 600
    model.table[0] = 1e4 * torch.eye(256)[7]  # what padding is read as
    drawn = task.sampled_loss(
        model, next_token.to_device(short, torch.device("cpu")), torch.Generator().manual_seed(0)
    )
    full = short.copy()
    full[short < 0] = 0
    with_padding = task.sampled_loss(
        model,
        next_token.to_device(full.astype(np.uint16), torch.device("cpu")),
        torch.Generator().manual_seed(0),
    )
    # Padding's own labels are certain here, so that counting them would shrink the mean.
    assert float(with_padding) < float(drawn) * real / 690


def test_packed_batches_go_the_way_they_went(corpus: Corpus) -> None:
    cpu = torch.device("cpu")
    batch = next_token.to_device(corpus.sequences("control", 64, 3), cpu)
    assert batch.dtype == torch.int64
    task, model = next_token.NextToken("fp32", "cpu"), Table()
    logits = model.table[batch[:, :-1]].reshape(-1, 256)
    plain = torch.nn.functional.cross_entropy(logits, batch[:, 1:].reshape(-1))
    assert torch.equal(task.loss(model, batch), plain)
    assert model.seen[0].data_ptr() == batch.data_ptr()


@pytest.mark.parametrize("name", ["adamw", "sophia"])
def test_a_trial_trains_on_rows(name: str) -> None:
    protocol = small.changed(data=Data(sequence=32, batch=4, packing=False, tokenizer="bpe:300"))
    record = small.train(name, protocol, phase="final")
    assert record.status in ("ok", "undertrained"), record.reason
    assert record.report_loss is not None
