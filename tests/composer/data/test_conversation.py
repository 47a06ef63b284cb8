"""Rows in every form become messages: ShareGPT's, text parts, tool results, keys without a value."""

from __future__ import annotations

import json

import pytest

from tests.composer.data.chats import CALLED, SYSTEM, TALK, TOOL, document, documents, written
from tests.composer.data.templates import tokenizer_with

SHARED = [
    {"from": "system", "value": "once upon a time"},
    {"from": "human", "value": "a child near the river"},
    {"from": "gpt", "value": "he found a letter"},
    {"from": "user", "value": "his teacher"},
    {"from": "chatgpt", "value": "there was an old house"},
]


@pytest.mark.parametrize("column", ["conversations", "messages"])
def test_sharegpt_rows_are_read(column: str) -> None:
    tokenizer = tokenizer_with("chatml")
    wanted = document({"messages": [SYSTEM, *TALK]}, tokenizer)
    made = document({"id": "7", column: SHARED}, tokenizer)
    assert made.ids.tolist() == wanted.ids.tolist()
    assert made.learned.tolist() == wanted.learned.tolist()
    assert document({column: json.dumps(SHARED)}, tokenizer).ids.tolist() == wanted.ids.tolist()
    by_key = {key: [message[key] for message in SHARED] for key in ("from", "value")}
    assert document({column: by_key}, tokenizer).ids.tolist() == wanted.ids.tolist()


@pytest.mark.parametrize("speaker", ["assistant", "GPT", "bing", "bard", "model"])
def test_names_of_the_assistant_role_are_recognised(speaker: str) -> None:
    tokenizer = tokenizer_with("chatml")
    made = document({"conversations": [SHARED[1], {"from": speaker, "value": "he found a letter"}]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK[:2])


def test_the_system_column_of_sharegpt_is_the_system_message() -> None:
    tokenizer = tokenizer_with("chatml")
    made = document({"conversations": SHARED[1:], "system": "once upon a time"}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, [SYSTEM, *TALK])
    assert document({"conversations": SHARED, "system": "other"}, tokenizer).ids.tolist() == made.ids.tolist()
    assert document({"messages": TALK, "system": "other"}, tokenizer).ids.tolist() == written(tokenizer, TALK)


@pytest.mark.parametrize("speaker", ["tool", "observation", "function_response"])
def test_sharegpt_calls_are_read(speaker: str) -> None:
    tokenizer = tokenizer_with("qwen")
    turns = [
        {"from": "human", "value": "where is the house"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "river"}}'},
        {"from": speaker, "value": "an old house"},
        {"from": "gpt", "value": "near the river"},
    ]
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "river"}}}
    wanted = [
        CALLED[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "an old house"},
        CALLED[3],
    ]
    made = documents({"conversations": turns, "tools": json.dumps([TOOL])}, tokenizer)[-1]
    assert made.ids.tolist() == written(tokenizer, wanted, tools=[TOOL])
    words = document({"conversations": [turns[0], {"from": "function_call", "value": "look near"}]}, tokenizer)
    assert words.ids.tolist() == written(tokenizer, [CALLED[0], {"role": "assistant", "content": "look near"}])


def test_parts_of_text_are_joined() -> None:
    tokenizer = tokenizer_with("chatml")
    parts = [{"type": "text", "text": "a child "}, {"type": "text", "text": "near the river", "image": None}]
    made = document({"messages": [{"role": "user", "content": parts}, *TALK[1:]]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK)


def test_tools_may_return_objects() -> None:
    tokenizer = tokenizer_with("llama")
    messages = [*CALLED[:2], {"role": "tool", "content": {"at": ["river", 3]}}, CALLED[3]]
    made = document({"messages": messages}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, messages)
    assert '{"at": ["river", 3]}' in str(tokenizer.decode(made.ids))


def test_an_empty_system_turn_or_result_is_written() -> None:
    tokenizer = tokenizer_with("chatml")
    messages = [{"role": "system", "content": ""}, TALK[0], CALLED[1] | {"content": ""}, {"role": "tool", "content": ""}, TALK[1]]
    assert document({"messages": messages}, tokenizer).ids.tolist() == written(tokenizer, messages)


def test_columns_of_documents_are_not_messages() -> None:
    tokenizer = tokenizer_with("chatml")
    for other in ("a text", ["a", "b"], 3, {}):
        assert document({"messages": TALK, "documents": other}, tokenizer).ids.tolist() == written(tokenizer, TALK)


def test_message_columns_of_another_name_are_read() -> None:
    tokenizer = tokenizer_with("chatml")
    made = document({"dialogue": SHARED[1:], "text": "other"}, tokenizer, column="dialogue", format="messages")
    assert made.ids.tolist() == written(tokenizer, TALK)


def test_keys_without_a_value_are_omitted() -> None:
    """Parquet stores None for each key that only other messages have."""
    tokenizer = tokenizer_with("llama")
    padded = [{"role": "user", "content": None, "tool_calls": None, "name": None, **message} for message in TALK]
    assert document({"messages": padded}, tokenizer).ids.tolist() == written(tokenizer, TALK)


def test_arguments_as_text_are_kept_as_text() -> None:
    calls = [{"function": {"name": "look", "arguments": '{"at":1}'}}]
    tokenizer = tokenizer_with("qwen")
    messages = [CALLED[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    for stored in (calls, json.dumps(calls)):
        made = document({"messages": [CALLED[0], {"role": "assistant", "content": "", "tool_calls": stored}]}, tokenizer)
        assert made.ids.tolist() == written(tokenizer, messages)
        assert '"arguments": {"at":1}}' in str(tokenizer.decode(made.ids))
