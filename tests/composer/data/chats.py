"""Conversations, and their documents compared with the text of transformers."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from composer.data.formats import DAY, drafts, encode
from composer.data.packing import Document
from composer.data.reading import DataRecord
from composer.data.references import FileData

Messages = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "once upon a time"}
TALK: Messages = [
    {"role": "user", "content": "a child near the river"},
    {"role": "assistant", "content": "he found a letter"},
    {"role": "user", "content": "his teacher"},
    {"role": "assistant", "content": "there was an old house"},
]
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
CALLED: Messages = [
    {"role": "user", "content": "where is the house"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "river", "far": None}}}],
    },
    {"role": "tool", "content": "an old house", "name": "look", "tool_call_id": "abc"},
    {"role": "assistant", "content": "near the river"},
]


def documents(fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase, **options: Any) -> list[Document]:
    made = drafts(DataRecord("here, record 1", fields), FileData(path="here", **options), tokenizer)
    return [encode(document, tokenizer) for document in made]


def document(fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase, **options: Any) -> Document:
    (made,) = documents(fields, tokenizer, **options)
    return made


def written(tokenizer: PreTrainedTokenizerBase, messages: Messages, **options: Any) -> list[int]:
    """Return the tokens that transformers writes."""
    encoded: Any = tokenizer.apply_chat_template(messages, date_string=DAY, return_dict=False, **options)
    return list(encoded)


def learned(made: Document, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of the runs of learned tokens."""
    texts: list[list[int]] = [[]]
    for token, of_assistant in zip(made.ids.tolist(), made.learned.tolist(), strict=True):
        if of_assistant:
            texts[-1].append(token)
        elif texts[-1]:
            texts.append([])
    return [str(tokenizer.decode(ids)) for ids in texts if ids]
