"""Guard the live page: it answers only this machine's browser, with the token of its address, and requests of a bounded size.

The address has a token, as Jupyter's has, which the first answer stores in a cookie. ``composer/system/local_requests.py`` checks
the ``Host`` and the ``Origin``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from composer.system.local_requests import PATIENCE, Receive, Scope, Send, foreign_request, headers_of

ADDRESS = "127.0.0.1"
"""The only address that the page is served on."""
MOST_BODY = 2**20
"""Bytes of a request."""
CLOSED = ("upload", "file=", "file/", "proxy=", "component_server", "deep_link", "/mcp", "monitoring", "/stream/")
"""Parts of Gradio's paths that serve files, accept uploads, or fetch other addresses. The page does not use them."""
STARTED = "/gradio_api/startup-events"
"""Gradio requests this path from its own server at its start. It reveals nothing about the page, and needs no token."""
TOKEN = "token"


class Guard:
    """ASGI middleware. token: the value of ``?token=`` in the page's address."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token, self.cookie = app, token, f"compose-view-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = headers_of(scope)
        refusal = "websockets are not served" if scope["type"] != "http" else self._refusal(scope, headers)
        if refusal is not None:
            return await _refuse(scope, send, *((403, refusal) if isinstance(refusal, str) else refusal))

        async def with_cookie(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and scope["path"] != STARTED:
                value = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                headers = [(b"set-cookie", value.encode()), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        return await self.app(scope, _limit_request(receive), with_cookie)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal; None for a request that may pass."""
        if (refusal := foreign_request(headers, ADDRESS)) is not None:
            return 403, refusal
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")[:20]) > MOST_BODY:
            return 413, f"a request has {MOST_BODY:,} bytes at most"
        if any(part in scope["path"] for part in CLOSED):
            return 404, "this page neither serves nor accepts files"
        if scope["path"] != STARTED and not self._has_token(scope, headers):
            return 401, "the address of this page ends with its token: copy the address that `compose view` printed"
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Whether the address or a cookie has the token, compared in constant time."""
        tokens = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(TOKEN, [])
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        tokens += [] if cookie is None else [cookie.value]
        return any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens)


def _limit_request(receive: Receive) -> Receive:
    """Receive a request that ends in time, and within its bound; any other counts as disconnected."""
    size, is_whole = 0, False

    async def receive_bounded() -> MutableMapping[str, Any]:
        nonlocal size, is_whole
        if is_whole:
            return await receive()  # waits until the browser leaves
        try:
            message = await asyncio.wait_for(receive(), PATIENCE)
        except TimeoutError:
            return {"type": "http.disconnect"}
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return message if size <= MOST_BODY else {"type": "http.disconnect"}

    return receive_bounded


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain; charset=utf-8")]})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
