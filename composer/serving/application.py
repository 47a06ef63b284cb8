"""The application that answers OpenAI's HTTP interface, as an ASGI function: routes, bounds of requests, and errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from composer.serving.answers import Answers, ChatAnswers, CompletionAnswers
from composer.serving.engine import BUSY, Engine, Job, WrittenPiece
from composer.serving.prompts import PromptReader
from composer.serving.requests import (
    DEFAULT_ANSWER,
    DEFAULT_COMPLETION,
    ChatRequest,
    CompletionRequest,
    RequestError,
    TextRequest,
    read_request,
)
from composer.system.local_requests import PATIENCE, Receive, Scope, Send, foreign_request, headers_of
from converters.bounded import shorten

LOG = logging.getLogger("composer.serving")
MOST_BODIES = 32 * 2**20
"""Bytes of all requests that are being received or read."""
MOST_DROPPED = 64 * 2**20
"""Bytes of a request that are received without being kept."""
MOST_READ = 2
"""Requests that are parsed and tokenised at a time."""
DONE = b"data: [DONE]\n\n"


class ClientLeftError(Exception):
    """The client has closed the connection."""


class Exchange:
    """A request of HTTP, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.receive, self.send = receive, send
        self.path, self.method, self.headers = scope["path"], scope["method"], headers_of(scope)
        self.is_streaming = False

    async def answer(self, status: int, document: Any) -> None:
        """Send a document as the whole answer."""
        content = json.dumps(document, allow_nan=False).encode()
        # After an error, the rest of the request may not have been received.
        ends = [(b"connection", b"close")] if status >= 400 else []
        await self._begin(status, b"application/json", [(b"content-length", b"%d" % len(content)), *ends])
        await self.send({"type": "http.response.body", "body": content})

    async def begin_stream(self) -> None:
        self.is_streaming = True
        await self._begin(200, b"text/event-stream; charset=utf-8", [])

    async def send_event(self, document: Any) -> None:
        """Send a document as the next event of a stream."""
        event = b"data: " + json.dumps(document, allow_nan=False).encode() + b"\n\n"
        await self.send({"type": "http.response.body", "body": event, "more_body": True})

    async def end_stream(self, last: bytes = DONE) -> None:
        await self.send({"type": "http.response.body", "body": last})

    async def refuse(self, error: RequestError) -> None:
        """Send an error, as the answer or as the last event of a stream."""
        if self.is_streaming:
            await self.send_event(error.document())
            return await self.end_stream(b"")
        await self.answer(error.status, error.document())

    async def wait_until_left(self) -> None:
        """Return when the client closes the connection. The body must have been received."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _begin(self, status: int, kind: bytes, more: list[tuple[bytes, bytes]]) -> None:
        headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), *more]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})


class Application:
    """An ASGI application. listens_on: the address of the server."""

    def __init__(self, engine: Engine, served: PromptReader, listens_on: str) -> None:
        self.engine, self.served, self.listens_on = engine, served, listens_on
        self.received = 0
        self.reading = asyncio.Semaphore(MOST_READ)
        models = "/v1/models"
        self.routes: dict[str, tuple[str, Callable[[Exchange], Awaitable[None]]]] = {
            "/health": ("GET", self._answer_health),
            models: ("GET", lambda exchange: exchange.answer(200, {"object": "list", "data": [served.document]})),
            f"{models}/{served.name}": ("GET", lambda exchange: exchange.answer(200, served.document)),
            "/v1/chat/completions": ("POST", self._answer_chat),
            "/v1/completions": ("POST", self._answer_completion),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(exchange)
        except RequestError as error:
            await exchange.refuse(error)
        except ClientLeftError:
            return
        except Exception as error:  # a fault of this server: the reason is for the log alone
            LOG.error("%s failed", exchange.path, exc_info=error)
            await exchange.refuse(RequestError(500, "The server failed on this request. Its log has the reason."))

    async def _route(self, exchange: Exchange) -> None:
        if (refusal := foreign_request(exchange.headers, self.listens_on)) is not None:
            raise RequestError(403, f"Refused: {refusal}.")
        path, method = exchange.path, exchange.method
        if path not in self.routes:
            if path.startswith("/v1/models/"):
                self.served.check_name(path.removeprefix("/v1/models/"))
            raise RequestError(404, f"There is nothing at {shorten(path)}; expected one of {', '.join(self.routes)}.")
        expected, answer = self.routes[path]
        if method not in (expected, "HEAD" if expected == "GET" else expected):
            raise RequestError(405, f"{path} does not accept {shorten(method)}; expected {expected}.")
        await answer(exchange)

    async def _answer_health(self, exchange: Exchange) -> None:
        if not self.engine.thread.is_alive():
            raise RequestError(503, "The engine has ended.")
        await exchange.answer(200, {"status": "ok"})

    async def _answer_chat(self, exchange: Exchange) -> None:
        request, prompts = await self._read(exchange, ChatRequest, self.served.conversation)
        answers = ChatAnswers(request, prompts, self.served)
        await self._generate(
            exchange, request, prompts, answers, default_limit=DEFAULT_ANSWER, ends=self.served.answer_ends, continues=False
        )

    async def _answer_completion(self, exchange: Exchange) -> None:
        request, prompts = await self._read(exchange, CompletionRequest, self.served.prompts)
        answers = CompletionAnswers(request, prompts, self.served)
        await self._generate(
            exchange, request, prompts, answers, default_limit=DEFAULT_COMPLETION, ends=self.served.ends, continues=True
        )

    async def _read(
        self, exchange: Exchange, kind: Any, prompts_of: Callable[[Any], list[list[int]]]
    ) -> tuple[Any, list[list[int]]]:
        """Return the request, and the tokens of its prompts."""
        body = bytearray()
        try:
            await self._receive(exchange, body)
            async with self.reading:
                return await asyncio.to_thread(self._prepare, kind, prompts_of, bytes(body))
        finally:
            self.received -= len(body)

    async def _receive(self, exchange: Exchange, body: bytearray) -> None:
        """Receive the body of a request. The part of a large one that is not read is received, too, within bounds, as a client may
        read the answer only after it has sent everything."""
        max_bytes, dropped, has_more = self.served.most_bytes, 0, True
        try:
            async with asyncio.timeout(PATIENCE):
                while has_more and dropped <= MOST_DROPPED:
                    message = await exchange.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeftError
                    chunk, has_more = message.get("body", b""), message.get("more_body", False)
                    if dropped or len(body) + len(chunk) > max_bytes:
                        dropped += len(chunk)
                    elif self.received + len(chunk) > MOST_BODIES:
                        raise RequestError(503, BUSY)
                    else:
                        body += chunk
                        self.received += len(chunk)
        except TimeoutError:
            raise RequestError(408, f"The request took longer than {PATIENCE:.0f} seconds to arrive.") from None
        if dropped:
            raise RequestError(413, f"A request has at most {max_bytes:,} bytes.")

    def _prepare(self, kind: Any, prompts_of: Callable[[Any], list[list[int]]], body: bytes) -> tuple[Any, list[list[int]]]:
        request = read_request(kind, body)
        self.served.check_name(request.model)
        return request, prompts_of(request)

    async def _generate(
        self,
        exchange: Exchange,
        request: TextRequest,
        prompts: list[list[int]],
        answers: Answers,
        *,
        default_limit: int,
        ends: frozenset[int],
        continues: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[WrittenPiece | Exception] = asyncio.Queue()

        def deliver(piece: WrittenPiece | Exception) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = Job(request, prompts, self.served.token_limit(request, prompts, default_limit), ends, continues, deliver)
        self.engine.submit(job)
        leaving = asyncio.create_task(exchange.wait_until_left())
        leaving.add_done_callback(lambda _: pieces.put_nowait(ClientLeftError()))
        try:
            if request.stream:
                await exchange.begin_stream()
                for event in answers.first_events():
                    await exchange.send_event(event)
            running = job.rows
            while running:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                running -= piece.finish is not None
                answers.add(piece)
                if request.stream:
                    await exchange.send_event(answers.event(piece))
        finally:
            leaving.cancel()
            job.is_abandoned.set()
        if not request.stream:
            return await exchange.answer(200, answers.body())
        if request.stream_options.include_usage:
            await exchange.send_event(answers.usage_event())
        await exchange.end_stream()
