"""The hub, without a network: what it raises becomes one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import OfflineModeIsEnabled

from levelfield.bench import source_hub, sources
from levelfield.bench.spec import BenchError, Data

GATED = (
    "Dataset 'some/gated' is a gated dataset on the Hub. "
    "You must be authenticated to access it.\nVisit the page to ask for access."
)


class GatedRepoError(Exception):
    """Named as the hub's own, whose constructor wants an answer of a server."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    sources._load.cache_clear()
    yield tmp_path
    sources._load.cache_clear()


class Hub:
    """In the place of `datasets.load_dataset`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: Iterator[dict[str, Any]] = iter(())
        self.error: Exception | None = None
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        self.calls.append((args, kwargs))
        if self.error is not None:
            raise self.error
        return self.rows


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def endless(stop: int | None = None) -> Iterator[dict[str, Any]]:
    number = 0
    while number != stop:
        yield {"text": f"document {number}", "url": "x"}
        number += 1
    raise ConnectionError("the line went dead")


def told(source: str, *words: str) -> None:
    with pytest.raises(BenchError) as caught:
        sources.load(Data(source=source))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_set_is_streamed_to_the_limit_once_and_then_cached(hub: Hub) -> None:
    hub.rows = endless()
    source = "hf:some/set?config=en&split=validation&limit=300&revision=abc"
    corpus = sources.load(Data(source=source))
    assert corpus.facts["documents"] == 300
    assert corpus.facts["read"][source]["hub"]["revision"] == "abc"
    assert hub.calls == [
        (("some/set", "en"), {"split": "validation", "revision": "abc", "streaming": True})
    ]
    hub.error = ConnectionError("no network")
    sources._load.cache_clear()
    assert sources.load(Data(source=source)).digest == corpus.digest
    assert len(hub.calls) == 1
    told(source + "0", "cannot be reached")


def test_there_is_always_a_limit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_hub, "LIMIT", 200)
    hub.rows = endless()
    assert sources.load(Data(source="hf:some/set")).facts["documents"] == 200


def test_offline_reads_what_is_on_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.rows = endless()
    sources.load(Data(source="hf:some/set?limit=300"))
    assert hub.calls[0][1]["streaming"] is False


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionError("Couldn't reach the Hub\nmore"), ("cannot be reached", "file:PATH")),
        (TimeoutError("timed out"), ("cannot be reached",)),
        (DatasetNotFoundError(GATED), ("is gated", "HF_TOKEN", "file:PATH")),
        (GatedRepoError("403"), ("is gated", "HF_TOKEN")),
        (DatasetNotFoundError("Dataset 'a/b' doesn't exist"), ("is not on the hub", "HF_TOKEN")),
        (ValueError("BuilderConfig 'xx' not found.\nAvailable: ['en']"), ("BuilderConfig 'xx'",)),
        (RuntimeError("Dataset scripts are no longer supported"), ("scripts are no longer",)),
        (RuntimeError(""), ("RuntimeError: no message",)),
    ],
)
def test_what_the_hub_raises_is_told(
    hub: Hub, home: Path, error: Exception, words: tuple[str, ...]
) -> None:
    hub.error = error
    told("hf:some/aggregated-set", "some/aggregated-set", *words)
    assert not [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "error",
    [
        OfflineModeIsEnabled("Cannot reach the hub: offline mode is enabled"),
        ConnectionError("Couldn't reach 'some/set' on the Hub (OfflineModeIsEnabled)"),
    ],
)
def test_offline_without_a_copy_is_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.error = error
    told("hf:some/set", "forbids to get it", "unset HF_HUB_OFFLINE", "file:PATH")


def test_a_cause_is_seen_through_what_wraps_it(hub: Hub) -> None:
    hub.error = RuntimeError("failed")
    hub.error.__cause__ = GatedRepoError("401")
    told("hf:some/set", "is gated")


def test_a_line_that_goes_dead_leaves_nothing_half_read(hub: Hub, home: Path) -> None:
    hub.rows = endless(250)
    told("hf:some/set?limit=300", "cannot be reached", "the line went dead")
    assert not [path for path in home.rglob("*") if path.is_file()]
    hub.rows = endless()
    assert sources.load(Data(source="hf:some/set?limit=300")).facts["documents"] == 300


def test_a_spoilt_cache_is_told(hub: Hub, home: Path) -> None:
    hub.rows = endless()
    sources.load(Data(source="hf:some/set?limit=300"))
    (file,) = home.rglob("*.jsonl.gz")
    file.write_bytes(file.read_bytes()[:-40])
    sources._load.cache_clear()
    told("hf:some/set?limit=300", "cached copy of some/set is broken", f"remove {file}")


def test_columns_are_checked(hub: Hub) -> None:
    hub.rows = iter([{"content": "x", "n": 1}])
    told("hf:some/set", "some/set has no column 'text'", "content, n")
    hub.rows = iter([{"content": "x", "n": 1}])
    told("hf:some/set?column=n", "column 'n' is no text")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:", ("hf: names no set",)),
        ("hf:some/set?limit=-1", ("limit=-1",)),
        ("hf:some/set?splits=train", ("unknown option 'splits'", "did you mean split")),
    ],
)
def test_options_are_checked(hub: Hub, source: str, words: tuple[str, ...]) -> None:
    told(source, *words)
    assert hub.calls == []


def test_this_machine_is_offline_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library itself, not its stand-in: offline it raises something that is told."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told("hf:nobody/nothing-of-this-name", "nobody/nothing-of-this-name", "file:PATH")
