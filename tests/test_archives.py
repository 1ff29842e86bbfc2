"""Pinned archives of the Python index: checked to the byte, opened as data, nothing run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import multiprocessing
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from levelfield.bench import (
    archive_index,
    archive_table,
    archive_unpack,
    archives,
    documents,
    sources,
)
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
        read=archive_table.plain,
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

        def fetch(package: str, file: str, part: Path) -> None:
            part.write_bytes(given[min(len(log), len(given) - 1)])
            log.append(file)

        monkeypatch.setattr(archive_index, "fetch", fetch)
        return log

    return serve


def kept(home: Path) -> list[str]:
    """All files in the cache but the lock."""
    return sorted(p.name for p in home.rglob("*") if p.is_file() and p.name != ".lock")


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


def test_an_archive_within_an_archive(home: Path, index: Callable[..., list[str]]) -> None:
    inner = sdist({**FILES, "pack/other.txt": b"not wanted"})
    data = sdist({"pack-1.0/more/inner.tar.gz": inner, "pack-1.0/setup.py": b"boom\n"})
    index(data)
    wanted = archive(data, file="pack-1.0.tar.gz", inside=r"pack-1\.0/more/inner\.tar\.gz")
    folder = archives.extracted(wanted)
    inside = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    assert inside == FILES
    assert not [name for name in kept(home) if "inner" in name]
    told(replace(wanted, inside=r"pack-1\.0/none\.tar\.gz"), "holds 0 members", "1 are expected")
    spoilt = sdist({"pack-1.0/more/inner.tar.gz": inner[:300]})
    index(spoilt)
    sha = hashlib.sha256(spoilt).hexdigest()
    told(replace(wanted, sha256=sha), "inner.tar.gz cannot be unpacked")


def test_a_member_of_an_inner_archive_that_points_outside_is_refused(
    home: Path, index: Callable[..., list[str]]
) -> None:
    inner = sdist({**FILES, "pack/data/../../../../x.txt": b"escaped"})
    data = sdist({"inner.tar.gz": inner})
    index(data)
    told(archive(data, inside=r"inner\.tar\.gz"), "points outside")
    assert kept(home) == ["pack-1.0-py3-none-any.whl"]


def test_a_model_is_a_folder_and_no_text(
    index: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel({**FILES, **OTHERS})
    index(data)
    model = archive(data, holds="model", root="pack/data", read=None)
    table = {"one": archive(data), "two": model}
    monkeypatch.setattr(archives, "ARCHIVES", table)
    assert archives.folder("two") == archives.extracted(model) / "pack" / "data"
    assert (archives.folder("two") / "000.txt").is_file()
    with pytest.raises(BenchError, match=r"pypi:two holds a model, not text.*pypi:one"):
        sources.load(Data(source="pypi:two"))
    with pytest.raises(BenchError, match=r"pypi:one holds text to learn from, not a model.*:two"):
        archives.folder("one")
    with pytest.raises(BenchError, match=r"unknown archive 'tow'.*did you mean pypi:two"):
        archives.folder("tow")


def _extract(wanted: Archive, data: bytes, place: str) -> None:
    os.environ["XDG_CACHE_HOME"] = place
    archive_index.fetch = lambda package, file, part: part.open("ab").write(data)  # type: ignore
    archives.extracted(wanted)


def test_two_processes_at_once_do_it_once(home: Path) -> None:
    data = wheel(FILES)
    wanted = archive(data, read=None)
    context = multiprocessing.get_context("fork")
    place = str(home / "cache")
    both = [context.Process(target=_extract, args=(wanted, data, place)) for _ in range(3)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    # Appended to by two, the download would have another sha256.
    assert [process.exitcode for process in both] == [0, 0, 0]
    assert len(kept(home)) == 1 + len(FILES)


def test_a_cache_that_cannot_be_written_is_told(home: Path) -> None:
    (home / "cache").write_text("a file")
    told(archive(b"x"), "cannot write", "XDG_CACHE_HOME")


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


def test_half_a_file_is_refused_and_the_next_try_works(
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
    "data",
    [b"", b"no archive", gzip.compress(b"x" * 5000), sdist(FILES)[:800], wheel(FILES)[:-9]],
    ids=["empty", "text", "gzip", "sdist cut", "wheel cut"],
)
def test_what_is_no_archive_is_told(index: Callable[..., list[str]], data: bytes) -> None:
    index(data)
    told(archive(data), "cannot be unpacked")


def test_a_bomb_is_not_unpacked(
    home: Path, index: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wheel(FILES)
    index(data)
    monkeypatch.setattr(archive_unpack, "MOST_BYTES", 1000)
    told(archive(data), "unpacks to more than 1,000 bytes")
    assert kept(home) == ["pack-1.0-py3-none-any.whl"]


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(BenchError, match=r"unknown archive 'bcc'.*did you mean pypi:bbc"):
        sources.load(Data(source="pypi:bcc"))


# --- an index on this machine -------------------------------------------------------------------


@dataclass
class Index:
    """A stand-in for the Python index, on the loopback."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    form: str = "json"
    """Of its pages: json or html."""
    broken: list[int] = field(default_factory=list)
    """After how many bytes each transfer breaks off, in turn; then none does."""
    ranges: bool = True
    """Whether it knows how to go on from a place."""
    login: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, range)."""
    logins: list[str | None] = field(default_factory=list)

    def page(self) -> tuple[str, bytes]:
        if self.form == "json":
            files = [{"filename": name, "url": f"../../f/{name}"} for name in self.files]
            answer = {"meta": {"api-version": "1.1"}, "name": "pack", "files": files}
            return "application/vnd.pypi.simple.v1+json", json.dumps(answer).encode()
        if self.form == "html":
            links = [f'<a href="/f/{name}#sha256=00">{name}</a><br/>' for name in self.files]
            return "text/html", f"<!DOCTYPE html><html>{''.join(links)}</html>".encode()
        return "application/vnd.pypi.simple.v1+json", b'{"message": "not an index"}'


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """pip's settings name this index and no other."""
    served = Index()

    class Answer(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            served.asked.append((self.path, asked))
            served.logins.append(self.headers.get("Authorization"))
            login = base64.b64encode(served.login.encode()).decode()
            if served.login and self.headers.get("Authorization") != f"Basic {login}":
                return self.send_error(401)
            if self.path == "/simple/pack-age/":
                return self.give(200, *served.page())
            data = served.files.get(self.path.removeprefix("/f/"))
            if data is None:
                return self.send_error(404)
            start = int(asked[6:-1]) if asked and served.ranges else 0
            if start and start >= len(data):
                return self.send_error(416)
            part = f"bytes {start}-{len(data) - 1}/{len(data)}" if start else ""
            stop = served.broken.pop(0) if served.broken else None
            self.give(206 if start else 200, "application/zip", data[start:], part, stop)

        def give(
            self, code: int, kind: str, data: bytes, part: str = "", stop: int | None = None
        ) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if part:
                self.send_header("Content-Range", part)
            self.end_headers()
            self.wfile.write(data[:stop])

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    served.url = f"http://127.0.0.1:{serving.server_port}/simple"
    monkeypatch.setattr(archive_index, "settings", lambda: {"index-url": served.url})
    yield served
    serving.shutdown()
    thread.join()
    serving.server_close()


def wanted_of(served: Index, data: bytes, file: str = "pack-1.0-py3-none-any.whl") -> Archive:
    served.files[file] = data
    return archive(data, package="Pack_.age", file=file)


@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize(
    ("file", "pack"), [("pack-1.0-py3-none-any.whl", wheel), ("pack-1.0.tar.gz", sdist)]
)
def test_wheels_and_source_distributions_are_fetched_alike(
    server: Index, form: str, file: str, pack: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    server.form = form
    server.files["pack-0.9.tar.gz"] = b"another"
    wanted = wanted_of(server, pack({**FILES, **OTHERS}), file)
    assert len(list(archives.extracted(wanted).rglob("*.txt"))) == len(FILES)
    assert [path for path, _ in server.asked] == ["/simple/pack-age/", f"/f/{file}"]


def test_a_transfer_that_breaks_off_goes_on_where_it_ended(server: Index, home: Path) -> None:
    wanted = wanted_of(server, data := wheel(FILES))
    server.broken = [1000, 2000]
    assert archives.extracted(wanted).is_dir()
    assert [begin for _, begin in server.asked[1:]] == [None, "bytes=1000-", "bytes=3000-"]
    assert not [name for name in kept(home) if name.endswith(".part")]
    assert len(data) > 3000


def test_a_server_that_cannot_go_on_begins_again(server: Index) -> None:
    wanted = wanted_of(server, wheel(FILES))
    server.broken, server.ranges = [1000, 2000], False
    assert archives.extracted(wanted).is_dir()
    assert len(server.asked) == 4


def test_what_came_is_kept_for_the_next_try(server: Index, home: Path) -> None:
    wanted = wanted_of(server, data := wheel(FILES))
    server.broken = [100, 100, 100]
    rest = f"{len(data) - 200:,} bytes; 300 bytes came, the next try goes on"
    told(wanted, "Pack_.age 1.0 cannot be downloaded: broke off after 100 of", rest)
    assert kept(home) == [f"{wanted.file}.part"]
    server.asked.clear()
    assert archives.extracted(wanted).is_dir()
    assert [begin for _, begin in server.asked[1:]] == ["bytes=300-"]


def test_a_whole_part_or_a_spoilt_one_is_no_obstacle(server: Index, home: Path) -> None:
    wanted = wanted_of(server, data := wheel(FILES))
    part = home / "cache" / "levelfield" / "archives" / f"{wanted.file}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(data + b"more")
    told(wanted, "has sha256", "nothing of it was used; try again")
    assert kept(home) == []
    part.write_bytes(data)
    assert archives.extracted(wanted).is_dir()


def test_another_file_of_that_name_is_refused(server: Index, home: Path) -> None:
    wanted = wanted_of(server, wheel(FILES))
    server.files[wanted.file] = wheel({})
    told(wanted, "has sha256", wanted.sha256[:16], "nothing of it was used")
    assert kept(home) == []
    assert len(server.asked) == 2


def test_what_an_index_does_not_have_is_told(server: Index) -> None:
    wanted = wanted_of(server, wheel(FILES))
    words = ("cannot be downloaded: the index gave no", wanted.file, f"${documents.FOLDER}")
    told(replace(wanted, package="other"), *words)
    server.files.clear()
    told(wanted, *words)
    server.form = "other"
    told(wanted, "cannot be downloaded: 127.0.0.1:", "not the answer of an index")


def test_a_page_that_names_a_file_that_is_not_there_is_told(server: Index) -> None:
    wanted = wanted_of(server, b"")
    server.files = {wanted.file + "x": b""}
    server.form = "html"
    page = server.page()[1].replace(b"whlx", b"whl")
    server.page = lambda: ("text/html", page)  # type: ignore[method-assign]
    told(wanted, "cannot be downloaded: HTTP 404")


def test_no_network_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {"index-url": "http://127.0.0.1:9/simple"}
    monkeypatch.setattr(archive_index, "settings", lambda: dead)
    told(archive(b"x"), "pack 1.0 cannot be downloaded: 127.0.0.1:9:", "refused", "network")
    monkeypatch.setattr(archive_index, "settings", lambda: {"no-index": "1"})
    told(archive(b"x"), "pip is told to use no index", f"${documents.FOLDER}")
    assert kept(home) == []


def test_a_second_index_is_asked_with_its_login(
    server: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wanted_of(server, wheel(FILES))
    server.login = "m@e:p@ss"
    mine = server.url.replace("//", "//m%40e:p%40ss@")
    both = {"index-url": server.url.replace("simple", "none"), "extra-index-url": f"\n{mine}"}
    monkeypatch.setattr(archive_index, "settings", lambda: both)
    assert archives.extracted(wanted).is_dir()
    assert [path[:6] for path, _ in server.asked] == ["/none/", "/simpl", "/f/pac"]
    told(replace(wanted, package="other", sha256="0" * 64), "HTTP 401")


def test_a_login_is_not_given_to_another_host(
    server: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wanted_of(server, wheel(FILES))
    away = server.url.replace("127.0.0.1", "localhost").replace("simple", f"f/{wanted.file}")
    page = f'<base href="/x/"><a href="{away}">{wanted.file}</a>'.encode()
    server.page = lambda: ("text/html", page)  # type: ignore[method-assign]
    mine = server.url.replace("//", "//me:secret@")
    monkeypatch.setattr(archive_index, "settings", lambda: {"index-url": mine})
    assert archives.extracted(wanted).is_dir()
    assert [login is not None for login in server.logins] == [True, False]


def test_a_password_is_never_told(server: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = server.url.replace("//", "//me:secret@")
    server.login = "another"
    monkeypatch.setattr(archive_index, "settings", lambda: {"index-url": mine})
    with pytest.raises(BenchError, match="HTTP 401") as caught:
        archives.extracted(archive(b"x"))
    assert "secret" not in str(caught.value)


def test_the_settings_are_those_of_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "CERT", "CONFIG_FILE")
    for name in names:
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    config = home / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://one/simple\nextra-index-url =\n  http://a\n  http://b\n"
        "[download]\nindex-url = http://two/simple\n[install]\nindex-url = http://three/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = archive_index.settings()
    assert found["index-url"] == "http://two/simple"
    assert found["extra-index-url"].split() == ["http://a", "http://b"]
    monkeypatch.setenv("PIP_INDEX_URL", "http://four/simple")
    assert archive_index.settings()["index-url"] == "http://four/simple"
    config.write_text("[global\nindex-url")
    with pytest.raises(BenchError, match=r"pip cannot read its settings: \w"):
        archive_index.settings()


# --- readers ------------------------------------------------------------------------------------


def test_readers_of_the_pinned_archives(tmp_path: Path) -> None:
    def texts(name: str) -> list[str]:
        read = archives.ARCHIVES[name].read
        assert read is not None
        return [item.text for item in read(tmp_path)]

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
        assert (wanted.holds == "text") == (wanted.read is not None)
        assert (wanted.holds == "examples") == bool(wanted.layout)
        assert (wanted.holds == "model") == bool(wanted.root)
