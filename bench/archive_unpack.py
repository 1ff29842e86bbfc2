"""Opening zip and tar files as data: the named members below one folder, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from levelfield.bench.archive_table import Archive
from levelfield.bench.errors import first_line
from levelfield.bench.spec import BenchError

MOST_BYTES = 1 << 31
"""Of what is extracted from one archive."""


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    plain: bool
    """A regular file, not a link or a device."""
    open: Callable[[], IO[bytes] | None]


def unpack(file: Path, archive: Archive, folder: Path) -> None:
    """Write an archive's members below a folder, and nothing else anywhere.

    Raises:
        BenchError: a broken archive, one that is too large, a member that is missing, is a link,
            or points outside.
    """
    if not archive.inside:
        _extract(file, archive.members, archive.count, folder)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        outer = Path(made)
        _extract(file, archive.inside, 1, outer)
        inner = next(path for path in outer.rglob("*") if path.is_file())
        _extract(inner, archive.members, archive.count, folder)


def _extract(file: Path, members: str, wanted: int, folder: Path) -> None:
    count, total = 0, 0
    try:
        for member in _members(file):
            if not re.fullmatch(members, member.name):
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
        reason = first_line(error) if str(error) else type(error).__name__
        raise BenchError(f"{file.name} cannot be unpacked: {reason}", "get it again") from None
    if count != wanted:
        raise BenchError(
            f"{file.name} holds {count} members like {members!r}", f"{wanted} are expected"
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
