"""OpenAI's own client, and hostile ones, at a real server on a real port."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai import OpenAI
from transformers import AutoTokenizer

import composer
from composer.commands.serve import Server
from composer.serving import application
from composer.serving.prompts import LEAST_BODY
from tests.composer.serving.conftest import TEACHER

PROMPTS = ("the gentle child lived", "the old house", "once upon a time there was an old house near the river")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES: list[Any] = [{"role": "user", "content": PROMPTS[0]}]
PATIENCE = 60
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as made:
        yield made


def fetch(
    server: Server, path: str, body: bytes | None = None, *, method: str | None = None, **headers: str
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    """Return the status, the document and the headers of an answer. Underscores in names of headers become hyphens."""
    parts = urlsplit(server.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        sent = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else {}, answer.headers
    finally:
        connection.close()


def document(server: Server, path: str, **fields: Any) -> bytes:
    """Return the body of a request that would be answered, with these fields in it."""
    needed = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPTS[0]}
    return json.dumps({"model": server.model, "max_tokens": 3, "temperature": 0, **needed, **fields}).encode()


def check_error(answer: tuple[int, dict[str, Any], Any], status: int, **fields: Any) -> str:
    """Check the shape of an error and return its message."""
    code, body, _ = answer
    assert code == status, body
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "code", "param"}
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert {name: body["error"][name] for name in fields} == fields
    return body["error"]["message"]


def test_texts_for_several_callers_equal_those_of_generate(server: Server, client: OpenAI, served_folder: Path) -> None:
    def complete(prompt: str) -> str:
        return client.completions.create(model=server.model, prompt=prompt, temperature=0, max_tokens=12).choices[0].text

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(complete, PROMPTS))
    expected = [composer.generate(served_folder, prompt, max_new_tokens=12) for prompt in PROMPTS]
    assert [prompt + text for prompt, text in zip(PROMPTS, texts, strict=True)] == [text.text for text in expected]
    assert len(set(texts)) == 3


def test_answers_equal_those_of_generate(server: Server, client: OpenAI, served_folder: Path) -> None:
    answer = client.chat.completions.create(model=server.model, messages=MESSAGES, temperature=0, max_completion_tokens=6)
    expected = composer.generate(served_folder, PROMPTS[0], max_new_tokens=6, chat=True)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.new_text)
    assert (choice.finish_reason, choice.logprobs, answer.model) == ("length", None, "lolcats")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 6 + expected.prompt_tokens)


def test_streamed_pieces_add_up_to_the_answer(server: Server, client: OpenAI) -> None:
    options: dict[str, Any] = {"model": server.model, "seed": 3, "max_tokens": 20, "n": 2}
    whole = client.chat.completions.create(messages=MESSAGES, **options)
    texts, finished, usage = ["", ""], {}, None
    for event in client.chat.completions.create(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **options):
        usage = event.usage
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            finished[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert finished == {0: "length", 1: "length"}
    assert usage == whole.usage
    completion = client.completions.create(prompt=list(PROMPTS), **options)
    pieces = dict.fromkeys(range(6), "")
    for piece in client.completions.create(prompt=list(PROMPTS), stream=True, **options):
        pieces[piece.choices[0].index] += piece.choices[0].text
    assert list(pieces.values()) == [choice.text for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == list(range(6))


def test_streams_end_as_those_of_openai(server: Server) -> None:
    parts = urlsplit(server.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    connection.request("POST", TEXT, document(server, TEXT, stream=True), JSON)
    answer = connection.getresponse()
    lines = answer.read().decode().split("\n\n")
    connection.close()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: {") for line in lines[:-2])


def test_a_seed_repeats_a_text_whatever_else_is_generated(server: Server, client: OpenAI) -> None:
    def complete(seed: int | None) -> str:
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        return (
            client.completions.create(model=server.model, prompt=PROMPTS[0], max_tokens=24, temperature=1.2, **options)
            .choices[0]
            .text
        )

    alone = [complete(seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(complete, [0, None, 1, None, 2, None, 3, None]))
    assert beside[::2] == alone
    assert len({*alone, *beside[1::2]}) == 8


def test_stops_end_texts_and_are_not_in_them(server: Server, client: OpenAI) -> None:
    options: dict[str, Any] = {"model": server.model, "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 20}
    text = client.completions.create(**options).choices[0].text
    stop = text[8:13]
    (stopped,) = client.completions.create(stop=["nowhere in it", stop], **options).choices
    assert (stopped.text, stopped.finish_reason) == (text[: text.index(stop)], "stop")
    pieces = [event.choices[0].text for event in client.completions.create(stop=stop, stream=True, **options)]
    assert "".join(pieces) == stopped.text


def test_log_probabilities_match_the_tokens_of_the_text(server: Server, client: OpenAI) -> None:
    options: dict[str, Any] = {"model": server.model, "temperature": 0, "max_tokens": 4}
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **options).choices[0]
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    assert "".join(entry.token for entry in chat.logprobs.content).strip() == chat.message.content
    for entry in chat.logprobs.content:
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0  # the most likely one was chosen
        assert bytes(entry.bytes or []).decode() == entry.token
        assert len(entry.top_logprobs) == 2
    text = client.completions.create(prompt=PROMPTS[0], logprobs=3, **options).choices[0]
    assert text.logprobs is not None
    assert "".join(text.logprobs.tokens or []) == text.text
    assert [len(likely) for likely in text.logprobs.top_logprobs or []] == [3] * 4
    assert [
        text.text[offset:][: len(token)]
        for offset, token in zip(text.logprobs.text_offset or [], text.logprobs.tokens or [], strict=True)
    ] == text.logprobs.tokens
    events = client.completions.create(prompt=PROMPTS[0], logprobs=3, stream=True, **options)
    offsets = [event.choices[0].logprobs.text_offset for event in events if event.choices[0].logprobs is not None]
    assert [offset for some in offsets for offset in some or []] == text.logprobs.text_offset, "events count from the text's start"
    assert [entry.logprob for entry in chat.logprobs.content] != text.logprobs.token_logprobs


def test_token_ids_are_prompts(server: Server, client: OpenAI) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    options: dict[str, Any] = {"model": server.model, "temperature": 0, "max_tokens": 5}
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
    texts = [choice.text for choice in client.completions.create(prompt=list(PROMPTS[:2]), **options).choices]
    assert [choice.text for choice in client.completions.create(prompt=ids, **options).choices] == texts
    assert client.completions.create(prompt=ids[1], **options).choices[0].text == texts[1]


def test_the_model_has_the_folders_name(server: Server, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["lolcats"] == [server.model]
    assert client.models.retrieve("lolcats").object == "model"
    with pytest.raises(openai.NotFoundError, match="is not served here; expected lolcats"):
        client.models.retrieve("another")
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="another", prompt="one")
    assert (refused.value.code, refused.value.param, refused.value.type) == ("model_not_found", "model", "invalid_request_error")
    assert fetch(server, "/health")[:2] == (200, {"status": "ok"})


MISTAKES: list[tuple[str, dict[str, Any], str | None, str]] = [
    (CHAT, {"messages": []}, "messages", "at least 1 item"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "at least 1"),
    (CHAT, {"max_tokens": 10**7}, "max_tokens", "10,000,000 were requested; expected at most 256"),
    (CHAT, {"max_tokens": None, "messages": [{"role": "user", "content": "one " * 300}]}, None, "expected at most 256"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 2**19}]}, "messages", "characters, more than 256 tokens can have"),
    (TEXT, {"prompt": "x" * 2**19}, "prompt", "characters, more than 256 tokens can have"),
    (TEXT, {"prompt": [0] * 2**17}, "max_tokens", "131,072 tokens"),
    (TEXT, {"prompt": [507]}, "prompt", "507 is no token; this model has 507"),
    (TEXT, {"prompt": [-1]}, "prompt", "-1 is no token"),
    (TEXT, {"prompt": [10**30]}, "prompt", "is no token"),
    (TEXT, {"logit_bias": {"507": 1}}, "logit_bias", "507 is no token"),
    (TEXT, {"prompt": ["a"] * 16, "n": 3}, "n", "16 prompts × 3 texts"),
    (CHAT, {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}, "chat_template", "not supported"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "{{ 'x' * 10**10 }}"}}, "chat_template_kwargs", "not supported"),
    (CHAT, {"generation_config": "{}"}, "generation_config", "unknown"),
    (TEXT, {"num_beams": 100_000}, "num_beams", "unknown"),
]


@pytest.mark.parametrize(("path", "fields", "param", "message"), MISTAKES)
def test_mistakes_of_clients_are_refused(
    server: Server, path: str, fields: dict[str, Any], param: str | None, message: str
) -> None:
    assert message in check_error(fetch(server, path, document(server, path, **fields)), 400)


def test_malformed_conversations_are_refused(server: Server) -> None:
    check_error(fetch(server, CHAT, b"{"), 400, param=None)
    answer = fetch(server, CHAT, document(server, CHAT, messages=[{"role": "user", "content": ""}], logit_bias={"2": 100}))
    assert answer[0] == 200


ROUTES = [(CHAT, "POST"), (TEXT, "POST"), ("/v1/models", "GET"), ("/v1/models/lolcats", "GET"), ("/health", "GET")]


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_every_route_is_guarded(server: Server, path: str, method: str) -> None:
    body = document(server, path) if method == "POST" else None
    port = urlsplit(server.address).port
    own = f"127.0.0.1:{port}"
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[",
        "",
        "192.168.0.1",
    ):
        assert "names another machine" in check_error(fetch(server, path, body, method=method, Host=host), 403)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "["):
        check_error(fetch(server, path, body, method=method, Origin=origin), 403)
        check_error(fetch(server, path, method="OPTIONS", Origin=origin), 403)
    for wrong in {"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X"} - {method}:
        assert f"expected {method}" in check_error(fetch(server, path, method=wrong), 405)
    for header in ({"Host": own, "Origin": f"http://{own}"}, {"Host": f"localhost:{port}"}, {"Authorization": "Bearer x"}):
        status, answer, headers = fetch(server, path, body, method=method, **header)
        assert status == 200, answer
        assert headers["server"] is None
        assert "access-control-allow-origin" not in headers
    if method == "POST":
        check_error(fetch(server, path, b" " * (LEAST_BODY + 1), method=method), 413)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/reset",
        "/load_model",
        "/v1/responses",
        "/v1",
        "/docs",
        "/openapi.json",
        "/v1/chat/completions/",
        "//health",
        "/%2e%2e/etc/passwd",
    ],
)
def test_nothing_else_is_served(server: Server, path: str, served_folder: Path) -> None:
    for method in ("GET", "POST"):
        answer = fetch(server, path, b"{}" if method == "POST" else None, method=method)
        assert str(served_folder.parent) not in check_error(answer, 404)


def test_a_large_body_is_refused_as_it_arrives(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a length in advance, in chunks. A client that sends on has its connection closed."""
    monkeypatch.setattr(application, "MOST_DROPPED", 2**20)
    parts = urlsplit(server.address)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as connection:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {parts.netloc}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        chunk, sent = b"%x\r\n%b\r\n" % (2**20, b" " * 2**20), 0
        with suppress(OSError):  # the server has closed the connection
            for _ in range(200):
                connection.sendall(chunk)
                sent += 1
        assert sent < 50


def test_bodies_are_bounded_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_BODIES", 20)
    check_error(fetch(server, TEXT, document(server, TEXT)), 503)
    monkeypatch.undo()
    assert fetch(server, TEXT, document(server, TEXT))[0] == 200


def test_a_slow_body_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "PATIENCE", 0.2)
    parts = urlsplit(server.address)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as connection:
        connection.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 9\r\n\r\n1".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def wait_until_idle(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE
    while server.engine.groups or server.engine.waiting:
        assert time.monotonic() < deadline, "the engine still generates"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_generation_ends_when_the_client_leaves(server: Server, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_idle(server)
    steps: list[float] = []
    handle = server.engine.model.register_forward_pre_hook(lambda *_: steps.append(time.sleep(0.02) or 0.0))
    parts = urlsplit(server.address)
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as connection:
            body = document(server, TEXT, max_tokens=240, stream=stream, logit_bias={"2": -100})
            head = f"POST {TEXT} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            deadline = time.monotonic() + PATIENCE
            while len(steps) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        wait_until_idle(server)
    finally:
        handle.remove()
    assert len(steps) < 120


def test_internal_errors_reveal_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, served_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"cannot open {served_folder}")

    monkeypatch.setattr(application, "read_request", fail)
    message = check_error(fetch(server, TEXT, document(server, TEXT)), 500)
    assert message == "The server failed on this request. Its log has the reason."
    assert str(served_folder) in caplog.text
