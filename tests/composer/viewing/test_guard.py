"""The live page answers only this machine's browser with its token, and rejects large requests."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from composer.errors import SpecError
from composer.viewing.guard import MOST_BODY
from composer.viewing.reading import EditorContext, resolve_text
from tests.composer.viewing.browser import gradio_or_skip
from tests.composer.viewing.test_reading import MINE, SIZES

PATIENCE = 600.0
"""Seconds, also where other programs use the machine."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a served page."""
    gradio_or_skip()
    from composer.viewing.page import launch, page

    made = page()
    yield launch(made)
    made.close()


def request_page(
    address: str, path: str = "/", *, token: bool = True, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return the status, headers and body of a response. Underscores in the names of headers become hyphens."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        target = f"{path}?{parts.query}" if token else path
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_address_has_a_token_that_becomes_a_cookie(address: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
    assert request_page(address, token=False)[0] == 401
    assert request_page(address.replace("token=", "token=x"))[0] == 401
    status, headers, content = request_page(address)
    assert (status, b"compose view" in content) == (200, True)
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert request_page(address, "/config", token=False, Cookie=cookie.partition(";")[0])[0] == 200
    assert request_page(address, "/config", token=False, Cookie="compose-view=ü")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[", "localhost@evil.example"])
def test_other_names_of_this_machine_are_refused(address: str, host: str) -> None:
    """With DNS rebinding, another site's name resolves to this machine."""
    assert request_page(address, Host=host)[0] == 403


def test_other_sites_are_refused(address: str) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert request_page(address, Origin=origin)[0] == 403
    assert request_page(address, Origin=f"http://{urlsplit(address).netloc}")[0] == 200


def test_large_requests_are_refused(address: str) -> None:
    join = "/gradio_api/queue/join"
    assert request_page(address, join, method="POST", body=b"", Content_Length=str(MOST_BODY + 1))[0] == 413
    assert request_page(address, join, method="POST", body=b"", Content_Length="9" * 5000)[0] in (413, 400)


@pytest.mark.parametrize(
    "path", ["/gradio_api/file=/etc/passwd", "/file=/etc/passwd", "/gradio_api/upload", "/gradio_api/proxy=http://a.b/"]
)
def test_files_are_neither_served_nor_accepted(address: str, path: str) -> None:
    assert request_page(address, path)[0] == 404
    assert request_page(address, path, method="POST", body=b"x")[0] == 404


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../outside.yaml", "/proc/self/environ", "link.yaml", "circle.yaml", '"a\\0b"', "/etc/passwd:x"]
)
def test_a_page_on_a_file_reads_its_folder_alone(path: str, tmp_path: Path) -> None:
    """Messages reveal nothing about files outside it, not even whether they exist."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "outside.yaml").write_text("compose: 1\nname: secret\nhead: {memory: [full]}\n")
    (folder / "link.yaml").symlink_to("../outside.yaml")
    (folder / "circle.yaml").symlink_to("circle.yaml")
    with pytest.raises(SpecError) as refused:
        resolve_text(MINE.format(path), EditorContext("mine.yaml", folder), SIZES)
    assert "mine.yaml:3" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "root:" not in str(refused.value)
    assert "it reads no other files" in str(refused.value)
