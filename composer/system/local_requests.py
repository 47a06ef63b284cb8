"""Which requests over HTTP a server on this machine answers: those to a name of this machine, and from no other site.

A page on another site can make a browser send requests to a local port, under its own name after DNS rebinding. So the ``Host`` and
the ``Origin`` of every request are checked, also where no password protects the server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PATIENCE = 30.0
"""Largest number of seconds to receive the body of a request."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The names under which this machine reaches itself."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of an ASGI request, with names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def foreign_request(headers: Mapping[str, str], listens_on: str) -> str | None:
    """Return why a request is refused, from its headers; None if it may pass. listens_on: the address of the server.

    A server that listens on the network is also reached by its address, and by the name of its machine. Rebinding needs a name of
    the attacker's, so no address is suspicious.
    """
    host = headers.get("host", "")
    name = _name(f"//{host}")
    hosts = LOOPBACK if listens_on in LOOPBACK else LOOPBACK | {listens_on.lower(), socket.gethostname().lower()}
    if name is None or (name not in hosts and (listens_on in LOOPBACK or not _is_address(name))):
        return (
            f"the Host header names another machine; expected localhost, or the address that the server listens on ({listens_on})"
        )
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != host:
        return "this server answers no other site: a page may request only from the address that it was loaded from"
    return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _netloc(address: str) -> str | None:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
