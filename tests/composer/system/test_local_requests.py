"""A server answers to the names of its machine alone, and to no other site."""

from __future__ import annotations

import socket

import pytest

from composer.system.local_requests import foreign_request, headers_of

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
OWN_NAME = socket.gethostname().lower()


@pytest.mark.parametrize(
    ("listens_on", "host", "passes"),
    [
        (HERE, "127.0.0.1:8000", True),
        (HERE, "localhost", True),
        (HERE, "LOCALHOST:1", True),
        (HERE, "[::1]:8000", True),
        (HERE, "192.168.0.7:8000", False),
        (HERE, "evil.example", False),
        (HERE, "localhost.evil.example", False),
        (HERE, "evil.example@localhost:8000", True),  # what a browser sends has no user, and this one's host is ours
        (HERE, "localhost@evil.example", False),
        (HERE, "", False),
        (HERE, "[", False),
        (HERE, "[evil.example]", False),
        (EVERYWHERE, "192.168.0.7:8000", True),
        (EVERYWHERE, "[fe80::1]:8000", True),
        (EVERYWHERE, "localhost", True),
        (EVERYWHERE, f"{OWN_NAME}:8000", True),
        (EVERYWHERE, "evil.example", False),
        (EVERYWHERE, f"{OWN_NAME}.evil.example", False),
        ("models.example", "models.example:8000", True),
        ("Models.example", "models.example", True),
        ("models.example", "evil.example", False),
    ],
)
def test_only_requests_to_the_host_of_the_server_pass(listens_on: str, host: str, passes: bool) -> None:
    assert (foreign_request({"host": host}, listens_on) is None) is passes


def test_a_request_without_a_host_is_refused() -> None:
    assert foreign_request({}, HERE) is not None


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("http://localhost:8000", True),
        ("https://localhost:8000", True),
        ("http://localhost:8001", False),
        ("http://127.0.0.1:8000", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
        ("[", False),
    ],
)
def test_only_requests_from_the_origin_of_the_server_pass(origin: str, passes: bool) -> None:
    assert (foreign_request({"host": "localhost:8000", "origin": origin}, HERE) is None) is passes


def test_names_of_headers_have_no_case() -> None:
    assert headers_of({"headers": [(b"HOST", b"a"), (b"x", b"\xff")]}) == {"host": "a", "x": "\xff"}
