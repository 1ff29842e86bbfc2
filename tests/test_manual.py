"""The built-in corpus: one text on every CPython, whole topics a slice, no silent loss."""

from __future__ import annotations

import sys
import textwrap

import pytest

from levelfield.bench import manual
from levelfield.bench.spec import BenchError

SHA256 = "30d95da6d268048dca6d5a8a5106436d88cf298facca23c199f046bfb56d6f6b"
BYTES = {"train": 163904, "control": 7383, "selection": 14943, "report": 15395}


@pytest.fixture(scope="module")
def corpus() -> tuple[manual.Document, ...]:
    return manual.documents()


def test_text_is_the_same_on_every_python(corpus: tuple[manual.Document, ...]) -> None:
    assert manual.corpus_sha256(corpus) == SHA256
    assert manual.slice_bytes(corpus) == BYTES
    assert sum(BYTES.values()) == 201625


def test_digest_sees_name_slice_text_and_order(corpus: tuple[manual.Document, ...]) -> None:
    one = manual.Document(name="a", slice="train", text="b")
    variants = [
        (one,),
        (manual.Document(name="ab", slice="train", text=""),),
        (manual.Document(name="a", slice="report", text="b"),),
        (manual.Document(name="a", slice="train", text="c"),),
        (),
        corpus,
        corpus[::-1],
    ]
    assert len({manual.corpus_sha256(v) for v in variants}) == len(variants)


def test_order_is_that_of_the_topic_names(corpus: tuple[manual.Document, ...]) -> None:
    names = [doc.name for doc in corpus]
    assert names == sorted(set(names))


def test_no_paragraph_occurs_twice(corpus: tuple[manual.Document, ...]) -> None:
    parts = [part for doc in corpus for part in doc.text.split("\n\n")]
    assert len(parts) == len(set(parts)) == 1227
    assert all(len(part.split()) >= manual.MIN_WORDS and "\n" not in part for part in parts)


def test_slices_have_about_their_shares(corpus: tuple[manual.Document, ...]) -> None:
    sizes = manual.slice_bytes(corpus)
    assert sizes.keys() == manual.SHARES.keys()
    for part, share in manual.SHARES.items():
        assert sizes[part] / sum(sizes.values()) == pytest.approx(share, abs=0.02)


def test_line_wrapping_and_topic_of_a_paragraph_do_not_matter() -> None:
    text = "\n \n".join(
        textwrap.fill(part, 40, break_long_words=False, break_on_hyphens=False)
        for doc in reversed(manual.documents())
        for part in doc.text.split("\n\n")
    )
    assert manual.corpus_sha256(manual.documents({"all in one": text})) == SHA256


def test_a_missing_paragraph_is_named() -> None:
    topics = {doc.name: doc.text for doc in manual.documents()}
    first, rest = topics["assert"].split("\n\n", 1)
    with pytest.raises(BenchError, match=r"lacks 1 of the 1227 .* topic 'assert'") as caught:
        manual.documents({**topics, "assert": rest})
    assert manual.paragraph_hash(first) in str(caught.value)
    assert caught.value.hint is not None
    assert "3.11 to 3.14" in caught.value.hint


def test_a_python_without_its_manual_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(BenchError, match="has no manual text"):
        manual.documents()


def test_paragraphs_are_one_line_without_rules() -> None:
    text = 'The "x" statement\n*****************\n\n   a = [1,\n        2]\n \n\n+----+\n\n'
    assert manual.paragraphs(text) == ['The "x" statement', "a = [1, 2]"]


def test_the_list_reads_back_as_written() -> None:
    index = manual.parse_index(manual.INDEX.read_text(encoding="utf-8"))
    assert manual.parse_index(manual.format_index(index, ["a comment", ""])) == index
    assert [topic.name for topic in index] == [doc.name for doc in manual.documents()]
