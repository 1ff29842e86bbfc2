"""Local files of every kind, and every trap in them: handled, or told in one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from levelfield.bench import documents, source_file, sources
from levelfield.bench.documents import Counts
from levelfield.bench.spec import BenchError, Data
from levelfield.tests import local_data

WORDS = [f"document {n} says {n * n} things\nover two lines" for n in range(300)]


def jsonl(texts: Iterable[str], column: str = "text") -> str:
    return "".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(texts))


def quoted(texts: Iterable[str]) -> str:
    rows = ['{},"{}"'.format(n, text.replace('"', '""')) for n, text in enumerate(texts)]
    return "\r\n".join(["id,text", *rows]) + "\r\n"


def read(rest: object) -> list[str]:
    found = list(documents.assemble(source_file.read(str(rest)).texts, Counts()))
    return [item.text for item in found]


def told(rest: object, *words: str) -> None:
    with pytest.raises(BenchError) as caught:
        read(rest)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# --- every kind --------------------------------------------------------------------------------


def test_jsonl_csv_parquet_and_gz_give_the_same_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(WORDS))
    (tmp_path / "b.csv").write_bytes(quoted(WORDS).encode())
    pyarrow.parquet.write_table(pyarrow.table({"text": WORDS}), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.csv"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
    for name in ("a.jsonl", "a.jsonl.gz", "b.csv", "b.csv.gz", "c.parquet"):
        assert read(tmp_path / name) == WORDS


def test_quotes_are_ordinary_characters_of_tsv(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('label\ttext\n1\t"never closed\n0\tplain\n')
    assert read(file) == ['"never closed', "plain"]
    file.write_text("a\tb\tone\nc\td\ttwo\n")
    assert read(f"{file}?header=no&column=3") == ["one", "two"]


def test_another_column_and_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(jsonl(WORDS, "body"))
    assert read(f"{file}?column=body&limit=7") == WORDS[:7]


def test_a_folder_is_its_files_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_text(jsonl(["two"]))
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "sub" / "c.csv").write_text("text\nthree\n")
    (tmp_path / "README").write_text("not data")
    assert read(tmp_path) == ["one", "two", "three"]


def test_a_name_without_a_suffix_needs_a_format(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text(jsonl(["one"]))
    told(file, "data is of no known kind", "?format=")
    assert read(f"{file}?format=jsonl") == ["one"]
    told(f"{file}?format=jsonline", "did you mean jsonl")


@pytest.mark.parametrize(
    ("rule", "count"), [("line", 8), ("heading", 2), ("file", 1), ("block", 1)]
)
def test_what_a_document_of_plain_text_is(tmp_path: Path, rule: str, count: int) -> None:
    file = tmp_path / "a.txt"
    text = " = One = \n\n = = Part = = \nbody a\nbody b\n\n = Two = \n\nbody c\nmore\n1 = 2 = 3\n"
    file.write_text(text)
    found = read(f"{file}?document={rule}")
    assert len(found) == count
    assert [line for line in "\n".join(found).split("\n") if line] == [
        line for line in text.split("\n") if line
    ]


def test_a_block_ends_at_a_blank_line_and_adding_text_moves_none_before(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    paragraphs = [f"{n} " + "word " * 100 for n in range(40)]
    file.write_text("\n\n".join(paragraphs))
    before = read(file)
    assert len(before) > 5
    assert all(len(text) >= source_file.BLOCK for text in before[:-1])
    assert "\n\n".join(before) == "\n\n".join(paragraphs)
    file.write_text("\n\n".join([*paragraphs, *paragraphs[:0:-1]]))
    assert read(file)[: len(before) - 1] == before[:-1]
    file.write_text("\n".join("line of verse" for _ in range(3000)))
    assert max(map(len, read(file))) < 5 * source_file.BLOCK


# --- traps --------------------------------------------------------------------------------------


def test_line_ends_and_marks_are_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert read(tmp_path / "a.txt") == ["one\ntwo\nthree"]
    (tmp_path / "b.csv").write_bytes(b'\xef\xbb\xbftext,n\r\n"one\r\ntwo",1\r\n')
    assert read(tmp_path / "b.csv") == ["one\ntwo"]
    (tmp_path / "c.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one\\r\\ntwo"}\r\n')
    assert read(tmp_path / "c.jsonl") == ["one\ntwo"]
    (tmp_path / "d.txt").write_bytes("một hai".encode("utf-16"))
    assert read(tmp_path / "d.txt") == ["một hai"]


def test_another_encoding_is_told_and_can_be_named(tmp_path: Path) -> None:
    for name, head in (("a.txt", b"fine\n"), ("a.csv", b"text\n"), ("a.jsonl", b'{"text": "x"}\n')):
        file = tmp_path / name
        file.write_bytes(head + b'{"text": "caf\xe9"}\n')
        told(file, f"{name} is not UTF-8: byte 0xe9", "?encoding=latin-1")
    assert read(f"{tmp_path / 'a.jsonl'}?encoding=latin-1") == ["x", "café"]
    told(f"{tmp_path / 'a.jsonl'}?encoding=klingon", "encoding=klingon")


def test_half_a_surrogate_pair_is_replaced_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n')
    counts = Counts()
    found = [item.text for item in documents.assemble(source_file.read(str(file)).texts, counts)]
    assert found == ["a\ufffdb", "\U0001f600"]
    assert counts.replaced == 1


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b"", ("a.jsonl is empty",)),
        ("a.parquet", b"", ("a.parquet is empty",)),
        ("a.jsonl", b"\n\n \n", ("a.jsonl holds no document",)),
        ("a.csv", b"text,n\n", ("a.csv holds no document",)),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), ("holds no document",)),
        ("a.jsonl", b'{"text": "x"}\n{"tex', ("line 2 is not JSON", "is the file whole?")),
        ("a.jsonl", b"[1]\n", ("line 1 is not a JSON object",)),
        ("a.jsonl", b'{"body": "x", "n": 1}\n', ("line 1 has no column 'text'", "body, n")),
        ("a.jsonl", b'{"text": 3}\n', ("line 1: column 'text' is of type int",)),
        ("a.jsonl", b"[" * 100_000, ("line 1 is not JSON",)),
        ("a.csv", b"body,n\nx,1\n", ("has no column 'text'", "body, n")),
        ("a.csv", b"text,n\nx,1\ny\n", ("line 3 has 1 columns", "the first has 2")),
        ("a.csv", b'text,n\n"x,1\n', ("is not CSV",)),
        ("a.parquet", b"not parquet at all", ("a.parquet:", "get it again")),
        ("a.jsonl.gz", b'{"text": "x"}\n', ("not gzipped",)),
        (
            "a.jsonl.gz",
            gzip.compress(jsonl(WORDS).encode(), mtime=0)[:-200],
            ("the file is broken",),
        ),
        ("a.xyz", b"x", ("a.xyz is of no known kind", ".jsonl")),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    tmp_path: Path, name: str, data: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(data)
    told(tmp_path / name, *words)


def test_columns_of_parquet_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), file)
    told(file, "no column 'text'", "body, n")
    told(f"{file}?column=n", "column 'n' is of type int")
    assert read(f"{file}?column=body") == ["x"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("limit=0", ("limit=0", "above 0")),
        ("limit=x", ("limit=x",)),
        ("colum=x", ("unknown option 'colum'", "did you mean column")),
        ("column=", ("option 'column'", "has no value")),
        ("document=page", ("document=page",)),
        ("header=maybe", ("header=maybe",)),
    ],
)
def test_options_are_checked(tmp_path: Path, options: str, words: tuple[str, ...]) -> None:
    (tmp_path / "a.txt").write_text("x")
    told(f"{tmp_path / 'a.txt'}?{options}", *words)


def test_a_file_that_is_not_there_is_looked_for_in_two_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    (data / "c4").mkdir(parents=True)
    (data / "c4" / "x.txt").write_text("from the folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(documents.FOLDER, raising=False)
    told("c4/x.txt", "no file or folder 'c4/x.txt'", f"${documents.FOLDER}")
    told("", "no file or folder ''")
    monkeypatch.setenv(documents.FOLDER, str(data))
    assert read("c4/x.txt") == ["from the folder"]
    (tmp_path / "c4").mkdir()
    (tmp_path / "c4" / "x.txt").write_text("from here")
    assert read("c4/x.txt") == ["from here"]


def test_a_folder_of_a_model_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("a b\n")
    told(tmp_path, "is a folder of a model", "data.tokenizer=")
    (tmp_path / "config.json").unlink()
    (tmp_path / "merges.txt").unlink()
    told(tmp_path, "holds no text", ".jsonl")


@pytest.mark.parametrize("kind", ["one line", "lines", "jsonl"])
def test_a_document_that_is_too_long_is_held_in_pieces_of_one_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 1000)
    body = "".join(f"{n:07d}" + ("\n" if kind == "lines" else " ") for n in range(5000))
    file = tmp_path / ("a.jsonl" if kind == "jsonl" else "a.txt")
    file.write_text(jsonl([body, "short"]) if kind == "jsonl" else body)
    counts = Counts()
    rest = str(file) if kind == "jsonl" else f"{file}?document=file"
    found = list(documents.assemble(source_file.read(rest).texts, counts))
    long = [item for item in found if item.text != "short"]
    assert "".join(item.text for item in long).replace("\n", "") == body.replace("\n", "")
    assert len({item.slice for item in long}) == 1
    assert max(len(item.text) for item in long) <= 1000
    assert counts.pieces == len(long) - 1 > 2
    assert counts.documents == (2 if kind == "jsonl" else 1)
    limited = documents.first(source_file.read(rest).texts, 1)
    assert sum(len(item.text) for item in limited) == len(body)


# --- through to tokens --------------------------------------------------------------------------


def test_any_protocol_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl([*WORDS, *WORDS[:5], ""]))
    corpus = sources.load(Data(source=f"file:{tmp_path / 'a.jsonl'}"))
    assert corpus.facts["documents"] == 300
    assert corpus.facts["documents_duplicates"] == 5
    assert corpus.facts["documents_empty"] == 1
    assert sum(corpus.facts["bytes"].values()) == len("\n\n".join(WORDS)) - 3 * 2
    slices = {
        name: set(corpus.tokens[name].astype("u1").tobytes().decode().split("\n\n"))
        for name in sources.SLICES
    }
    assert set().union(*slices.values()) == set(WORDS)
    assert sum(map(len, slices.values())) == 300
    assert len(slices["train"]) > 200


@local_data.needed
@pytest.mark.parametrize(
    ("rest", "documents_", "tokens"),
    [
        ("c4/c4-en-train-first1000.jsonl.gz", 1000, 1_752_014),
        ("viwiki/viwiki-sample.jsonl.gz", 632, None),
        ("wikitext2", 680, None),
        ("mrpc/msr_paraphrase_test.txt?format=tsv&column=#1 String", 1_700, None),
    ],
)
def test_real_pieces_are_read_whole(rest: str, documents_: int, tokens: int | None) -> None:
    corpus = sources.load(Data(source=f"file:{rest}"))
    assert abs(corpus.facts["documents"] - documents_) <= (25 if "mrpc" in rest else 0)
    if tokens is not None:
        assert corpus.facts["tokens"]["train"] == tokens
    sources._load.cache_clear()


def test_a_run_says_whether_real_data_was_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status: Callable[[], str] = local_data.status
    monkeypatch.setenv(local_data.NAME, str(tmp_path))
    assert status() == f"local data: used, {tmp_path}"
    monkeypatch.setenv(local_data.NAME, str(tmp_path / "none"))
    assert status() == "local data: skipped, LEVELFIELD_DATA names no folder"
    monkeypatch.delenv(local_data.NAME)
    assert status() == "local data: skipped, LEVELFIELD_DATA is not set"
