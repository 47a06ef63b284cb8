"""The values of a record's columns, and from them to a conversation, as chat templates read it.

A message keeps all its keys, so that a template sees ``tool_calls``, ``reasoning_content``, ``name`` and any other key.
Keys whose value is None are left out, as transformers does: Parquet stores them in every message as soon as one message has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from composer.data.reading import DataRecord
from composer.data.streams import too_long
from composer.errors import DataError
from composer.spec.places import brief, nearest
from composer.system.files import MOST_TEXT
from converters.bounded import parse_json

HALF = re.compile("[\ud800-\udfff]")
"""Half of a character of UTF-16. JSON can contain one, and no tokenizer accepts it."""


class Empty(DataError):
    """A record without content."""


def text_of(place: str, fields: Mapping[str, Any], column: str) -> str:
    """Return the text of a column. Raises Empty if it is missing or blank, and DataError where it is no text."""
    text = fields[column]
    if text is None or (isinstance(text, str) and not text.strip()):
        shown = "missing" if text is None else "blank"
        raise Empty(f"{place}: {column} is {shown}; fix the record, or skip such records: empty=skip")
    if not isinstance(text, str):
        raise DataError(f"{place}: {column} is {brief(text)}, of type {type(text).__name__}; expected text")
    if len(text) > MOST_TEXT:
        raise too_long(f"{place}: {column}")
    check_characters(place, column, text)
    return text


def check_characters(place: str, column: str, text: str) -> None:
    """Raise DataError if a text contains half of a character."""
    if HALF.search(text):
        raise DataError(f"{place}: {column} is {brief(text)}, with half of a character; expected text")


def parse_column(place: str, column: str, value: Any) -> Any:
    """Return the value of a column that may store JSON as text, as many data sets of the Hub do. A blank text is None.

    Raises DataError.
    """
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except ValueError as error:
        raise DataError(f"{place}: {column} is {brief(value)}, which is no JSON ({error}); expected a list or an object") from error


ASSISTANT = "assistant"
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "bing": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bard": ASSISTANT,
    "model": ASSISTANT,
    "function_call": ASSISTANT,
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""The roles of ShareGPT's ``from``."""
CALL = "function_call"
TEXT_PARTS = (None, "text", "input_text", "output_text")
"""The types of the parts of a message that are text."""
RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "conversations",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
    }
)
"""Arguments of chat templates that a record's ``chat_template_kwargs`` cannot set."""


@dataclass(frozen=True)
class Conversation:
    """Messages, and the further arguments of the chat template. prompt: the number of leading messages that are never learned."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    prompt: int = 0


def conversation_of(record: DataRecord, column: str | None = None) -> Conversation:
    """Return the conversation of a record.

    column: the column of the messages; None for a record whose columns ``prompt`` and ``completion`` are messages, as in TRL.
    Raises DataError, and Empty if there is nothing to learn.
    """
    fields, place = record.fields, record.place
    if column is None:
        prompt, completion = (_messages(place, fields, name) for name in ("prompt", "completion"))
        messages, prompt_count = prompt + completion, len(prompt)
    else:
        messages, prompt_count = _messages(place, fields, column), 0
        system = fields.get("system")
        if column == "conversations" and isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
            check_characters(place, "system", system)
            messages.insert(0, {"role": "system", "content": system})
    if all(message["role"] != ASSISTANT for message in messages[prompt_count:]):
        roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
        raise Empty(f"{place}: no assistant message, so there is nothing to learn (roles: {roles}); empty=skip skips such records")
    return Conversation(
        messages,
        tools=_objects(place, fields, "tools"),
        documents=_documents(fields.get("documents")),
        settings=_settings(place, fields),
        prompt=prompt_count,
    )


def is_messages(value: Any) -> bool:
    """True if a column's value is a list of messages, or one message, and not a text."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value))


def _messages(place: str, fields: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    value = fields[column]
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = parse_column(place, column, value)
    if isinstance(value, Mapping) and value and all(isinstance(items, list) for items in value.values()):
        # A `Sequence` of structs, as older data sets of the Hub have it, is stored as one list a key.
        value = [dict(zip(value, items, strict=True)) for items in zip(*value.values(), strict=False)]
    if not value:
        raise Empty(f"{place}: {column} is empty; fix the record, or skip such records: empty=skip")
    return [_message(place, number, item) for number, item in enumerate(value if isinstance(value, list) else [value], 1)]


def _message(place: str, number: int, value: Any) -> dict[str, Any]:
    here = f"{place}, message {number}"
    if not isinstance(value, Mapping) or not ("role" in value or "from" in value):
        raise DataError(f"{place}: message {number} is {brief(value)}; expected a mapping with role and content, or from and value")
    message = {str(key): item for key, item in value.items() if item is not None}
    message = message if "role" in value else _from_sharegpt(here, message)
    role = text_of(here, {"role": None, **message}, "role")
    if "tool_calls" in message:
        message["tool_calls"] = parse_column(here, "tool_calls", message["tool_calls"])
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = content = _join_parts(here, content, from_tool=role == "tool")
    if isinstance(content, str):
        check_characters(here, "content", content)
    elif content is not None and role != "tool":  # a tool may return an object, which templates write as JSON
        raise DataError(f"{here}: content is {brief(content)}, of type {type(content).__name__}; expected text")
    further = any(item for key, item in message.items() if key not in ("role", "content", "name"))
    if role in ("user", ASSISTANT) and not further:
        text_of(here, {"content": content}, "content")
    return message


def _join_parts(here: str, parts: list[Any], *, from_tool: bool) -> Any:
    """Return the text of a message that is a list of parts. Other parts than text are an error, except in the result of a tool."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS else part
        if not isinstance(text, str):
            if from_tool:
                return parts
            shown = f"a part of type {brief(part.get('type'))}" if isinstance(part, Mapping) else f"the part {brief(part)}"
            raise DataError(f'{here}: content has {shown}, no text; expected text, or parts such as {{"type": "text", "text": …}}')
        texts.append(text)
    return "".join(texts)


def _from_sharegpt(here: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with ``from`` and ``value`` as one with ``role`` and ``content``. A function call becomes ``tool_calls``."""
    speaker = text_of(here, message | {"from": message.get("from")}, "from")
    role = SPEAKERS.get(speaker.strip().lower())
    if role is None:
        speakers = ", ".join(SPEAKERS)
        raise DataError(f"{here}: from is {brief(speaker)}{nearest(speaker, SPEAKERS) or '.'} Expected one of: {speakers}")
    content = message.get("value")
    message = {"role": role} | {key: item for key, item in message.items() if key not in ("from", "value", "role")}
    if content is not None:
        message["content"] = content
    if speaker.strip().lower() == CALL and isinstance(content, str):
        calls = _calls(content)
        if calls is not None:
            message |= {"content": "", "tool_calls": calls}
    return message


def _calls(text: str) -> list[dict[str, Any]] | None:
    """Return the tool calls that a text holds as JSON: an object with name and arguments, or a list of them. None for other
    texts."""
    try:
        value = parse_column("", CALL, text)
    except DataError:
        return None
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [{"type": "function", "function": {"arguments": {}, **call}} for call in calls]


def _objects(place: str, fields: Mapping[str, Any], column: str) -> list[Any] | None:
    """Return the objects of a column, each of which may be JSON in a text."""
    value = parse_column(place, column, fields.get(column))
    if value is None:
        return None
    objects = [parse_column(place, column, item) for item in value] if isinstance(value, list) else None
    if objects is None or not all(isinstance(item, Mapping) for item in objects):
        raise DataError(f"{place}: {column} is {brief(value)}; expected a list of objects, or such a list as JSON")
    return objects


def _documents(value: Any) -> list[Any] | None:
    """Return the documents that a template may quote. None where the column is something else, which is not part of the
    conversation."""
    try:
        documents = parse_column("", "documents", value)
    except DataError:
        return None
    is_list = isinstance(documents, list) and documents and all(isinstance(item, Mapping) for item in documents)
    return documents if is_list else None


def _settings(place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's own arguments for the chat template."""
    value = parse_column(place, "chat_template_kwargs", fields.get("chat_template_kwargs"))
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f'{place}: chat_template_kwargs is {brief(value)}; expected an object such as {{"enable_thinking": false}}')
    refused = sorted(RESERVED & value.keys())
    if refused:
        raise DataError(
            f"{place}: chat_template_kwargs sets {refused[0]}, which is no variable of a template; leave it out, and put messages, "
            "tools and documents into separate columns"
        )
    return {str(key): item for key, item in value.items()}
