"""Files of the Python index, through the interface that pip itself uses (PEP 503, PEP 691).

pip runs the code of a source distribution before it hands the file out. Here a file is looked up by
its name and fetched, and that is all: from the index that pip is told to use, whatever that is.
"""

from __future__ import annotations

import ast
import base64
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from levelfield.bench.errors import first_line
from levelfield.bench.spec import BenchError

DEFAULT = "https://pypi.org/simple"
TIMEOUT_S = 60
"""Of silence."""
TRIES = 3
"""At a file whose transfer breaks off: each goes on where the one before ended."""
MOST_BYTES = 1 << 32
"""Of one file."""

_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.01"
)
_SECTIONS = ("global", "download", ":env:")
"""Of pip's settings, the strongest last."""
_LOST = (OSError, http.client.HTTPException)


def settings() -> Mapping[str, str]:
    """What pip is told by its files and the environment; nothing where there is no pip.

    Raises:
        BenchError: settings that pip itself cannot read.
    """
    command = [sys.executable, "-m", "pip", "--no-input", "config", "list"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"`pip config list` gave no answer in {TIMEOUT_S} s") from None
    if done.returncode != 0 and "No module named pip" not in done.stderr:
        reason = " ".join(done.stderr.split())[:200] or "no message"
        raise BenchError(f"pip cannot read its settings: {reason}", "see `pip config debug`")
    found: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value))
    variables = {
        key: os.environ[name]
        for key in ("index-url", "extra-index-url", "no-index", "cert")
        if os.environ.get(name := f"PIP_{key.upper().replace('-', '_')}")
    }
    return {**found["global"], **found["download"], **found[":env:"], **variables}


def fetch(package: str, file: str, part: Path) -> None:
    """Bring a file of a package to `part`; what is there already is its beginning.

    Raises:
        BenchError: no index, none that has the file, no network, or a transfer that breaks off;
            `part` then keeps what came.
    """
    told = settings()
    if told.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        raise BenchError("pip is told to use no index (no-index)")
    context = ssl.create_default_context(cafile=told.get("cert") or None)
    indexes = [told.get("index-url") or DEFAULT, *told.get("extra-index-url", "").split()]
    reasons: list[str] = []
    for index in indexes:
        if urlsplit(index).scheme not in ("http", "https"):
            continue
        try:
            url = _links(index, package, context).get(file)
        except (*_LOST, ValueError) as error:
            reasons += [f"{_place(index)}: {_reason(error)}"] * (not _is(error, 404))
            continue
        if url is not None:
            _transfer(url, index, part, context)
            return
    raise BenchError("; ".join(reasons) or f"the index gave no {file} of {package}")


def _links(index: str, package: str, context: ssl.SSLContext) -> Mapping[str, str]:
    """The files of a package: {name: URL}."""
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    with _open(page, index, {"Accept": _ACCEPT}, context) as answer:
        text, where = answer.read().decode("utf-8"), answer.geturl()
        kind = answer.headers.get_content_type()
    if kind.endswith("json"):
        try:
            files = {item["filename"]: item["url"] for item in json.loads(text)["files"]}
        except (KeyError, TypeError):
            raise ValueError("not the answer of an index") from None
        return {name: urljoin(where, url) for name, url in files.items()}
    reader = _Anchors(where)
    reader.feed(text)
    return reader.links


class _Anchors(HTMLParser):
    """Links of a page of the older form, by the names of the files that they lead to."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if target and tag == "base":
            self._base = urljoin(self._base, target)
        elif target and tag == "a":
            url = urljoin(self._base, target)
            self.links[unquote(urlsplit(url).path.rpartition("/")[2])] = url


def _transfer(url: str, index: str, part: Path, context: ssl.SSLContext) -> None:
    reason = ""
    for _ in range(TRIES):
        start = part.stat().st_size if part.exists() else 0
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with _open(url, index, headers, context) as answer:
                reason = _receive(answer, start, part)
        except (*_LOST, ValueError) as error:
            # 416: there is no more of it than what came before.
            reason = "" if _is(error, 416) else _reason(error)
        if not reason:
            return
    came = part.stat().st_size if part.exists() else 0
    raise BenchError(f"{reason}; {came:,} bytes came, the next try goes on from there")


def _receive(answer: Any, start: int, part: Path) -> str:
    """Write what an answer brings; why that is not all, if it is not."""
    goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
        f"bytes {start}-"
    )
    awaited = answer.headers.get("Content-Length")
    count = 0
    with part.open("ab" if goes_on else "wb") as sink:
        while data := answer.read(1 << 20):
            count += len(data)
            if sink.tell() > MOST_BYTES:
                return f"more than {MOST_BYTES:,} bytes"
            sink.write(data)
    whole = awaited is None or count >= int(awaited)
    return "" if whole else f"broke off after {count:,} of {int(awaited):,} bytes"


def _open(
    url: str, index: str, headers: Mapping[str, str], context: ssl.SSLContext
) -> http.client.HTTPResponse:
    """Ask for a URL, with the login that an index's URL may hold; only its own host gets that."""
    parts, home = urlsplit(url), urlsplit(index)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"a link of scheme {parts.scheme!r}")
    request = urllib.request.Request(_bare(url), headers=dict(headers))
    if home.username is not None and _place(url) == _place(index):
        login = f"{unquote(home.username)}:{unquote(home.password or '')}"
        code = base64.b64encode(login.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {code}")
    answer: http.client.HTTPResponse = urllib.request.urlopen(
        request, timeout=TIMEOUT_S, context=context
    )
    return answer


def _place(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _bare(url: str) -> str:
    """Without a login and a fragment."""
    return urlsplit(url)._replace(netloc=_place(url), fragment="").geturl()


def _is(error: Exception, code: int) -> bool:
    return isinstance(error, urllib.error.HTTPError) and error.code == code


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"HTTP {error.code} {error.reason}"
    inner = getattr(error, "reason", None)
    cause = inner if isinstance(inner, Exception) else error
    return first_line(cause) if str(cause) else type(cause).__name__
