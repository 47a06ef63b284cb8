"""Whatever answers in place of the Hub, a download ends soon, with one sentence, and writes nothing outside of the cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

import composer
from composer.data.hub import read_hub
from composer.data.references import HubData
from composer.errors import DataError, PushError
from converters import endpoint
from converters.errors import HubError
from converters.hub import fetch, fetch_files, fetch_recorded
from tests.hub_server import Handler, LocalHub, local_hub

CONTENT = b"{}" * 1000
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OID = hashlib.sha1(CONTENT).hexdigest()
FILE: dict[str, Any] = {"type": "file", "path": "config.json", "size": len(CONTENT), "oid": OID}
LOGIN = b"<!doctype html><html><title>Log in to the network</title></html>"
Answer = Callable[[Handler, str], bool]


def sent(part: str, body: bytes, status: int = 200, **headers: str) -> Answer:
    """Answer requests whose path has this part."""

    def answer(request: Handler, path: str) -> bool:
        if part in path:
            request.send_bytes(
                body, status, {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
            )
        return part in path

    return answer


def listed(*files: object) -> Answer:
    return sent("/tree/", json.dumps(files).encode())


def described(document: object) -> Answer:
    return sent("/revision/", json.dumps(document).encode())


def cut_off(request: Handler, path: str) -> bool:
    """Send half of each file, and close."""
    if "/resolve/" not in path or request.command == "HEAD":
        return False
    request.send_response(200)
    request.send_header("Content-Length", str(len(CONTENT)))
    request.end_headers()
    request.wfile.write(CONTENT[: len(CONTENT) // 2])
    request.close_connection = True
    return True


def closed(request: Handler, path: str) -> bool:
    request.close_connection = True
    return True


def redirected(request: Handler, path: str) -> bool:
    """A network that asks for a login."""
    if path == "/login":
        request.send_bytes(LOGIN, 200, {"Content-Type": "text/html"})
    else:
        request.send_bytes(b"", 302, {"Location": "/login"})
    return True


def without_end(request: Handler, path: str) -> bool:
    """Send more of each file than its size."""
    if "/resolve/" not in path or request.command == "HEAD":
        return False
    request.send_response(200)
    request.send_header("Connection", "close")
    request.end_headers()
    request.close_connection = True
    with suppress(OSError):
        for _ in range(64):
            request.wfile.write(bytes(2**20))
    return True


def always_another_page(request: Handler, path: str) -> bool:
    """Send empty pages of a list of files, each of which names itself as the next one."""
    if "/tree/" in path:
        request.answer([], headers={"Link": f'<{request.hub.endpoint}{request.path}>; rel="next"'})
    return "/tree/" in path


def bomb(request: Handler, path: str) -> bool:
    """Send each file compressed: a few bytes become 16 MiB."""
    if "/resolve/" not in path or request.command == "HEAD":
        return False
    request.send_bytes(gzip.compress(bytes(2**24)), 200, {"Content-Encoding": "gzip"})
    return True


def slow(request: Handler, path: str) -> bool:
    """Send a byte of each file now and then."""
    if "/resolve/" not in path or request.command == "HEAD":
        return False
    request.send_response(200)
    request.send_header("Content-Length", str(len(CONTENT)))
    request.end_headers()
    request.close_connection = True
    with suppress(OSError):
        for _ in CONTENT:
            request.wfile.write(b" ")
            threading.Event().wait(0.01)
    return True


def named(etag: str, commit: str = COMMIT, *, linked: bool = False, status: int = 200) -> Answer:
    headers = {"X_Repo_Commit": commit, "X_Linked_ETag" if linked else "ETag": etag}
    return sent("/resolve/", CONTENT, status, **headers, **({"X_Error_Code": "EntryNotFound"} if status == 404 else {}))


HASTY = SimpleNamespace(monotonic=partial(next, count(step=40)))
"""A clock by which 40 seconds pass between two readings: slow bytes are late, and short answers are in time."""
ANSWERS: dict[str, Answer] = {
    "a login page": sent("", LOGIN, Content_Type="text/html"),
    "a redirect to a login page": redirected,
    "a login page for files": sent("/resolve/", LOGIN, Content_Type="text/html"),
    "nothing": closed,
    "an empty answer": sent("", b""),
    "cut JSON": sent("/revision/", b'{"sha": "0123'),
    "cut JSON of files": sent("/tree/", b'[{"type": "file", "pa'),
    "deep JSON": sent("/revision/", b"[" * 200_000),
    "no UTF-8": sent("/revision/", b"\xff\xfe\x00"),
    "a list": described([]),
    "null": described(None),
    "no commit": described({"id": "owner/model"}),
    "a number for a commit": described({"sha": 7}),
    "a commit that leads upwards": described({"sha": "../../../../escaped", "siblings": []}),
    "no list of files": listed({**FILE, "path": 7}),
    "files in a mapping": sent("/tree/", b'{"a": 1}'),
    "files that are words": listed("config.json"),
    "a file without a hash": listed({"type": "file", "path": "config.json", "size": 2}),
    "a hash that leads upwards": listed({**FILE, "oid": "../../../escaped"}),
    "a large hash that leads upwards": listed({**FILE, "lfs": {"oid": "../../escaped", "size": 2, "pointerSize": 2}}),
    "large files that are words": listed({**FILE, "lfs": "large"}),
    "an ETag that leads upwards": named('"../../../escaped"'),
    "an absolute ETag": named("/tmp/escaped"),
    "a linked ETag that leads upwards": named('"../../../escaped"', linked=True),
    "an ETag that is a word": named('"latest"'),
    "a commit of a file that leads upwards": named(f'"{OID}"', "../../../escaped"),
    "a commit of no file that leads upwards": named(f'"{OID}"', "../../../escaped", status=404),
    "too many files": listed(*({**FILE, "path": str(number)} for number in range(endpoint.MOST_FILES + 1))),
    "too many bytes": sent("/tree/", b"[" + b" " * 2000 + b"]"),
    "pages without an end": always_another_page,
    "a file that is cut off": cut_off,
    "a file without an end": without_end,
    "a file that unpacks to more than its size": bomb,
    "a file that hardly moves": slow,
    "a redirect to itself": sent("/resolve/", b"", 302, Location="/owner/model/resolve/main/config.json"),
    "a redirect to a file of this machine": sent("/resolve/", b"", 302, Location="file:///etc/hostname"),
    "a wait of a day": sent("/resolve/", b"", 503, Retry_After="86400"),
    "a wait of years": sent("/resolve/", b"", 503, Retry_After="9" * 5000),
    "a limit that lasts a day": sent("/resolve/", b"", 429, RateLimit='"api";r=0;t=86400'),
    "an error of the server": sent("", b"", 500),
    "an error for files": sent("/resolve/", b"", 500),
    "too many requests": sent("/resolve/", b"", 429),
}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which huggingface_hub waits between its tries."""
    seconds: list[float] = []
    for module in (file_download, _http):
        monkeypatch.setattr(module.time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> Iterator[LocalHub]:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(endpoint, "MOST_ANSWER", 2**21)
    monkeypatch.setattr(endpoint, "MOST_PAGES", 10)
    with local_hub(str(tmp_path / "a" / "b" / "cache")) as served:
        served.create("owner/model", {"config.json": CONTENT})
        yield served


def files_outside(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / "a" / "b" / "cache")]


@pytest.mark.parametrize("case", ANSWERS)
def test_failed_downloads_give_one_sentence_and_write_no_file_elsewhere(
    hub: LocalHub, slept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "too many bytes":
        monkeypatch.setattr(endpoint, "MOST_ANSWER", 1000)
    if case == "a file that hardly moves":
        monkeypatch.setattr(endpoint, "time", HASTY)
    hub.intercept = ANSWERS[case]
    for download in (fetch, lambda repository: fetch_files(repository, None, ["config.json"])):
        before = len(hub.calls)
        with pytest.raises(HubError) as caught:
            download("owner/model")
        message = str(caught.value)
        assert 20 < len(message) < 600, message
        assert "\n" not in message, message
        assert len(hub.calls) - before < 25
        assert sum(slept) < 40
        slept.clear()
    assert files_outside(tmp_path) == []
    assert not list(tmp_path.rglob("escaped*"))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("a file without an end", "more than 2,000 bytes, the largest size that it has stated"),
        ("a file that unpacks to more than its size", "more than 2,000 bytes, the largest size that it has stated"),
        ("a file that hardly moves", "bytes of the file in 100 s"),
        ("a wait of a day", "asks to wait for 86400 s. Try again after that time"),
        ("a limit that lasts a day", "asks to wait for 86400 s. Try again after that time"),
    ],
)
def test_downloads_that_would_not_end_are_given_up(
    hub: LocalHub, slept: list[float], monkeypatch: pytest.MonkeyPatch, case: str, message: str
) -> None:
    if case == "a file that hardly moves":
        monkeypatch.setattr(endpoint, "time", HASTY)
    hub.intercept = ANSWERS[case]
    with pytest.raises(HubError, match=message):
        fetch("owner/model")
    assert slept == []


@pytest.mark.parametrize(
    "name", ["LICENSE/../../../../../escaped", "../../../../escaped.safetensors", "/escaped.safetensors", "..\\escaped.safetensors"]
)
def test_names_that_lead_upwards_write_no_file_elsewhere(hub: LocalHub, tmp_path: Path, name: str) -> None:
    lists, file = listed(FILE, {**FILE, "path": name}), named(f'"{OID}"', hub.repositories["owner/model"].branches["main"])
    hub.intercept = lambda request, path: lists(request, path) or ("escaped" in path and file(request, path))
    with suppress(HubError):  # the library leaves some out
        fetch("owner/model")
    assert files_outside(tmp_path) == []


def test_interrupted_downloads_without_progress_stop_soon(hub: LocalHub, slept: list[float]) -> None:
    hub.intercept = cut_off
    with pytest.raises(HubError, match=r"to GET .* it sent only a part of the file, 3 times"):
        fetch("owner/model")
    assert len([call for call in hub.calls if call.startswith("GET") and "/resolve/" in call]) <= endpoint.TRIES
    assert sum(slept) <= endpoint.TRIES


def test_downloads_with_progress_are_resumed(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file over a bad connection."""
    content = bytes(range(256)) * 40
    hub.create("owner/large", {"model.safetensors": content})
    monkeypatch.setattr(endpoint, "PROGRESS", 1000)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)

    def drop(request: Handler, path: str) -> bool:
        if "/resolve/" not in path or request.command == "HEAD":
            return False
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.end_headers()
        request.wfile.write(content[start : start + 1000])
        request.close_connection = True
        return True

    hub.intercept = drop
    folder = fetch_files("owner/large", None, ["model.safetensors"])
    assert (folder / "model.safetensors").read_bytes() == content


def test_a_record_that_names_too_many_files_is_refused(hub: LocalHub) -> None:
    names = {str(number): "0" * 64 for number in range(endpoint.MOST_FILES)}
    hub.create("owner/record", {"export.json": json.dumps({"files": names}).encode()})
    with pytest.raises(HubError, match=r"names 10,001 files; expected at most 10,000"):
        fetch_recorded("owner/record", None)


MALFORMED = ("a login page", "a redirect to a login page", "nothing", "an empty answer", "cut JSON", "a list")


@pytest.mark.parametrize("case", MALFORMED)
def test_failed_pushes_give_one_sentence(hub: LocalHub, case: str) -> None:
    hub.intercept = ANSWERS[case]
    with pytest.raises(PushError, match="^[^\n]{20,600}$"):
        composer.push("lolcats", "owner/spec")


def test_failed_data_downloads_give_one_sentence(hub: LocalHub) -> None:
    for case in MALFORMED:
        hub.intercept = ANSWERS[case]
        with pytest.raises(DataError, match="^hub:owner/data .*cannot be read: [^\n]{20,600}$"):
            next(read_hub(HubData(name="owner/data")))
