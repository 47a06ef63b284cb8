"""Any request over HTTP is answered or refused in OpenAI's shape, in bounded time and memory, and never with a fault."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from transformers import AutoTokenizer

from composer.errors import ComposerError
from composer.serving.application import Application
from composer.serving.engine import Engine
from composer.serving.prompts import PromptReader
from composer.weights.opened import open_models
from tests.fuzz.mutations import CUTS, EDITS, TEXTS, as_json, cut, edited
from tests.fuzz.outcomes import bounded, fuzz

TEACHER = Path(__file__).parents[2] / "examples" / "teacher"
TEMPLATE = "{% for message in messages %}{{ message['content'] | trim }} {% endfor %}"
NAME, SECONDS = "teacher", 60
LOG = logging.getLogger("composer.serving")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COMMON: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 2,
    "n": 2,
    "stop": ["a", "the"],
    "seed": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 3, "6": -100},
    "stream_options": {"include_usage": True},
}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (TEXT, COMMON | {"prompt": "the old house", "logprobs": 2}),
    (TEXT, COMMON | {"prompt": [["a"], [5, 6]], "stream": True}),
    (TEXT, COMMON | {"prompt": [[5, 6], [7]]}),
    (CHAT, COMMON | {"messages": [{"role": "user", "content": "the old house"}], "logprobs": True, "top_logprobs": 2}),
    (
        CHAT,
        COMMON
        | {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a"}]},
                {"role": "user", "content": "b", "name": "c"},
            ],
            "stream": True,
            "tools": [],
            "response_format": {"type": "text"},
        },
    ),
)
PATHS = st.sampled_from((CHAT, TEXT, "/v1/models", "/v1/models/", f"/v1/models/{NAME}", "/health", *TEXTS))
METHODS = st.sampled_from(("GET", "HEAD", "PUT", "OPTIONS", "", "\0", "X" * 5000))
HEADERS = st.sampled_from((b"host", b"origin", b"content-length", b"transfer-encoding", b"content-type", b"", b"\xff"))
VALUES = st.sampled_from((b"", b"localhost", b"[", b"//", b"http://localhost", b"-1", b"9" * 5000, b"\xff", b"null"))
EXAMPLES = st.tuples(
    st.integers(0, len(REQUESTS) - 1),
    st.tuples(st.just("tree"), EDITS) | st.tuples(st.just("bytes"), CUTS) | st.tuples(st.just("none"), st.none()),
    st.none() | st.tuples(PATHS, METHODS),
    st.lists(st.tuples(HEADERS, VALUES), max_size=2),
    st.integers(1, 2000),
)
"""Which request, how its body is damaged, another path and method, further headers, and how many bytes arrive at a time."""


@cache
def application() -> Application:
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.chat_template = TEMPLATE
    model = open_models([TEACHER], ComposerError)[0].load(None, "cpu")
    return Application(Engine(model, tokenizer), PromptReader(NAME, model, tokenizer, 64), "localhost")


async def answer(path: str, method: str, headers: list[tuple[bytes, bytes]], body: bytes, size: int) -> tuple[int, bytes]:
    """Send a request to the application and return the status and the body of its answer."""
    chunks = [body[start : start + size] for start in range(0, len(body), size)][:500] or [b""]
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(SECONDS)
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    async with asyncio.timeout(SECONDS):
        await application()(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@fuzz(EXAMPLES, examples=60)
def test_damaged_requests_are_answered_or_refused(
    example: tuple[int, tuple[str, Any], Any, list[tuple[bytes, bytes]], int], folder: Path
) -> None:
    number, (kind, changes), other, more, size = example
    path, document = REQUESTS[number]
    body = as_json(edited(document, changes)) if kind == "tree" else json.dumps(document).encode()
    body = cut(body, changes) if kind == "bytes" else body
    path, method = other or (path, "POST")
    faults: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = faults.append  # type: ignore[method-assign]
    LOG.addHandler(handler)
    try:
        with bounded():
            status, content = asyncio.run(answer(path, method, [*more, (b"host", b"localhost")], body, size))
    finally:
        LOG.removeHandler(handler)
    assert not faults
    assert status in (200, 400, 403, 404, 405, 413)
    if content.startswith(b"data: "):
        assert content.endswith(b"data: [DONE]\n\n")
        return
    answered = json.loads(content)
    if status != 200:
        assert answered.keys() == {"error"}
        assert answered["error"].keys() == {"message", "type", "code", "param"}
        assert 0 < len(answered["error"]["message"]) < 1000
