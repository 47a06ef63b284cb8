"""A request is read as OpenAI's clients send it, or refused with the name of its field and one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.serving.requests import ChatRequest, CompletionRequest, RequestError, TextRequest, read_request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Hello"}


def read(kind: type[TextRequest], fields: dict[str, Any]) -> Any:
    """Return the request with these fields beside those that it needs."""
    return read_request(kind, json.dumps({**(CHAT if kind is ChatRequest else TEXT), **fields}).encode())


BOTH: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": 3}, "model", "a valid string, got 3"),
    ({"model": None}, "model", "is missing"),
    ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
    ({"max_tokens": -5}, "max_tokens", "at least 1"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"temperature": -1}, "temperature", "at least 0"),
    ({"temperature": 2.1}, "temperature", "at most 2"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": float("nan")}, "temperature", "finite"),
    ({"top_p": 1.5}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"min_p": -0.1}, "min_p", "at least 0"),
    ({"n": 0}, "n", "at least 1"),
    ({"n": 9}, "n", "at most 8"),
    ({"n": 10**30}, "n", ""),
    ({"seed": 2**63}, "seed", "at most"),
    ({"seed": "a"}, "seed", "integer"),
    ({"stop": ["a"] * 5}, "stop", "at most 4 texts"),
    ({"stop": ""}, "stop", "none of them empty"),
    ({"stop": [1]}, "stop", "a text"),
    ({"stop": "x" * 501}, "stop", "500 characters"),
    ({"presence_penalty": 3}, "presence_penalty", "at most 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "at least -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "more than 0"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "token ids as keys, got"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "-100 to 100, got 101"),
    ({"logit_bias": {"1": True}}, "logit_bias", "-100 to 100, got True"),
    ({"logit_bias": [1]}, "logit_bias", "a mapping"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "at most 1,024"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream_options": {"include_use": True}}, "stream_options.include_use", "not supported"),
    ({"stream_options": 3}, "stream_options", ""),
    ({"temprature": 1}, "temprature", 'unknown field; did you mean "temperature"?'),
    ({"generation_config": {"num_beams": 100_000}}, "generation_config", "unknown field"),
    ({"x" * 5000: 1}, "x" * 80 + "…", "unknown field"),
]
OF_CHATS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": "Hello"}, "messages", "list"),
    ({"messages": [3]}, "messages[0]", ""),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'system', 'developer', 'user' or 'assistant'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "expected a text"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "expected a text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:/x"}}]}]},
        "messages[0].content",
        "are not supported: this server reads text alone",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "expected parts such as"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls", "not supported"),
    ({"messages": CHAT["messages"] * 2049}, "messages", "at most 2048"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"logprobs": 3}, "logprobs", "boolean"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
    ({"prompt": "x"}, "prompt", "unknown field"),
]
OF_TEXTS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": None}, "prompt", "is missing"),
    ({"prompt": []}, "prompt", "expected a text"),
    ({"prompt": [["a"]]}, "prompt", "expected a text"),
    ({"prompt": ["a", 1]}, "prompt", "expected a text"),
    ({"prompt": [1.5]}, "prompt", "expected a text"),
    ({"prompt": [[]]}, "prompt", "expected a text"),
    ({"prompt": ["a"] * 17}, "prompt", "at most 16 texts"),
    ({"logprobs": 6}, "logprobs", "at most 5"),
    ({"logprobs": True}, "logprobs", "integer"),
]
UNSUPPORTED = [
    (ChatRequest, {"tools": [{"type": "function"}]}),
    (ChatRequest, {"tool_choice": "required"}),
    (ChatRequest, {"functions": [{}]}),
    (ChatRequest, {"response_format": {"type": "json_object"}}),
    (ChatRequest, {"modalities": ["audio"]}),
    (ChatRequest, {"audio": {"voice": "x"}}),
    (ChatRequest, {"prediction": {}}),
    (ChatRequest, {"reasoning_effort": "low"}),
    (ChatRequest, {"chat_template": "{{ 1 }}"}),
    (ChatRequest, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
    (CompletionRequest, {"suffix": "end"}),
    (CompletionRequest, {"echo": True}),
    (CompletionRequest, {"best_of": 2}),
    (CompletionRequest, {"best_of": True}),
]
TABLE = [
    *((kind, *row) for row in BOTH for kind in (ChatRequest, CompletionRequest)),
    *((ChatRequest, *row) for row in OF_CHATS),
    *((CompletionRequest, *row) for row in OF_TEXTS),
    *((kind, fields, next(iter(fields)), "is not supported by this server: leave it out.") for kind, fields in UNSUPPORTED),
]


@pytest.mark.parametrize(("kind", "fields", "param", "message"), TABLE, ids=lambda value: str(value)[:40])
def test_invalid_arguments_are_refused(kind: type[TextRequest], fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(kind, fields)
    error = refused.value.document()["error"]
    assert error.keys() == {"message", "type", "code", "param"}
    assert (refused.value.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"3",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"model": "\\ud800"}',
        b'{"n": ' + b"9" * 5000 + b"}",
        '{"model": "m"}'.encode("utf-16"),
    ],
    ids=lambda body: str(body[:20]),
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="The body is") as refused:
        read_request(CompletionRequest, body)
    assert refused.value.status == 400


def test_habitual_fields_change_nothing() -> None:
    habitual = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "stop": None,
        "seed": None,
        "logit_bias": None,
    }
    assert read(ChatRequest, habitual) == read(ChatRequest, {})
    assert read(CompletionRequest, {"suffix": "", "echo": False, "best_of": 1}) == read(CompletionRequest, {})


def test_an_answer_that_a_client_sends_back_is_a_message() -> None:
    answer = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "tool_calls": None, "audio": None}
    parts = {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    messages = read(ChatRequest, {"messages": [parts, answer]}).messages
    assert [message.for_template() for message in messages] == [
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_prompts_become_lists_of_texts_or_tokens(prompt: Any, prompts: list[Any]) -> None:
    assert read(CompletionRequest, {"prompt": prompt}).prompt == prompts


def test_numbers_of_tokens_and_logprobs_are_read() -> None:
    assert read(ChatRequest, {"max_tokens": 3}).most_tokens == 3
    assert read(ChatRequest, {"max_tokens": 3, "max_completion_tokens": 4}).most_tokens == 4
    assert read(CompletionRequest, {}).most_tokens is None
    assert read(ChatRequest, {"top_logprobs": None}).most_logprobs is None
    assert read(ChatRequest, {"logprobs": True}).most_logprobs == 0
    assert read(ChatRequest, {"logprobs": True, "top_logprobs": 4}).most_logprobs == 4
    assert read(CompletionRequest, {"logprobs": 2}).most_logprobs == 2
    assert read(CompletionRequest, {"logit_bias": {"5": 3}}).logit_bias == {5: 3.0}
