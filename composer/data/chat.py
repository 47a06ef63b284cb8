"""Conversations in a tokenizer's chat template, and the places in the text that the assistant wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from composer.data.conversation import ASSISTANT, Conversation
from composer.errors import DataError
from composer.templates import Rendered, TemplateError, render_many

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The statement by which a template marks what the assistant writes."""


MOST_RENDERED = 2**26
"""Characters of a conversation, times the turns of the assistant that are rendered one by one."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: list[Any] | None = None,
    documents: list[Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    generation_prompt: bool = False,
) -> Rendered:
    """Return what ``tokenizer.apply_chat_template`` writes. All templates are rendered here.

    - settings: further variables of the template.
    - generation_prompt: whether the text ends where the assistant's next turn begins.

    The ``answers`` are those between ``{% generation %}`` and ``{% endgeneration %}``. A template without them has none. Raises
    DataError with the template's own reason.
    """
    try:
        template = tokenizer.get_chat_template(None, tools)
        (rendered,) = render_many(
            tokenizer,
            [messages],
            **{
                **(settings or {}),
                "tools": tools,
                "documents": documents,
                "chat_template": template,
                "return_assistant_tokens_mask": MARKERS.search(template) is not None,
                "add_generation_prompt": generation_prompt,
            },
        )
    except (TemplateError, ValueError) as error:
        raise DataError(f"the chat template refuses these messages: {error}") from error
    return Rendered(rendered.text, tuple((start, end) for start, end in rendered.answers if start < end))


def render_answers(conversation: Conversation, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]) -> list[Rendered]:
    """Return the texts to learn the assistant's turns from, with the ``answers`` at these turns.

    One text, of the whole conversation, where the template marks what the assistant writes, or where it writes each turn in the
    same way whatever follows it. Otherwise one text for each turn of the assistant, which ends with that turn: earlier turns are in
    it as they are when the model answers. settings: variables of the template that the conversation does not set. Raises DataError.
    """
    messages = conversation.messages
    options: dict[str, Any] = {
        "tools": conversation.tools,
        "documents": conversation.documents,
        "settings": {**settings, **conversation.settings},
    }
    try:
        whole = render(tokenizer, messages, **options)
    except DataError:
        # Some templates add the content to a text, also where a message only calls tools.
        filled = [{"role": message["role"], "content": "", **message} for message in messages]
        if filled == messages:
            raise
        messages, whole = filled, render(tokenizer, filled, **options)
    if MARKERS.search(tokenizer.get_chat_template(None, conversation.tools)):
        return [_marked(whole, messages, conversation.prompt, tokenizer, options)]
    turns = sum(message["role"] == ASSISTANT for message in messages)
    if len(whole.text) * turns > MOST_RENDERED:
        raise DataError(
            f"{len(messages):,} messages of {len(whole.text):,} characters are too many, as every turn of the assistant is "
            "rendered with all those before it: split the conversation"
        )
    texts = []
    for number in range(conversation.prompt, len(messages)):
        if messages[number]["role"] == ASSISTANT:
            text = whole.text if number + 1 == len(messages) else render(tokenizer, messages[: number + 1], **options).text
            begin = _begin(text, messages, number, tokenizer, options)
            texts.append(Rendered(text, ((begin, len(text)),)))
    spans = tuple(span for text in texts for span in text.answers)
    bounds = [bound for span in spans for bound in span]
    if all(whole.text.startswith(text.text) for text in texts) and bounds == sorted(bounds):
        return [Rendered(whole.text, spans)]
    return texts


def _marked(
    whole: Rendered, messages: list[dict[str, Any]], prompt: int, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> Rendered:
    """The conversation with the template's own marks, without those in the prompt."""
    begin = _begin(whole.text, messages, prompt, tokenizer, options) if prompt else 0
    spans = tuple((max(start, begin), end) for start, end in whole.answers if end > begin)
    if not spans:
        raise DataError("the chat template has {% generation %}, but marks no text of the assistant in this conversation")
    return Rendered(whole.text, spans)


def _begin(
    text: str, messages: list[dict[str, Any]], number: int, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> int:
    """The character of a text at which the message of this number begins: where the model starts to write.

    A template may begin the assistant's turn otherwise when it asks for it, such as with ``<think>``. Then the turn begins where
    the two texts part, as in TRL. It may also end every conversation with the same words. Raises DataError where the template
    changes the messages before the turn.
    """
    if not number:
        return 0
    asked = render(tokenizer, messages[:number], generation_prompt=True, **options).text
    if text.startswith(asked):
        return len(asked)
    before = render(tokenizer, messages[:number], **options).text
    begin = _shared(before, text)
    if begin + _shared(before[::-1], text[::-1]) < len(before):
        raise DataError(
            f"the chat template changes earlier messages as soon as the assistant has written message {number + 1}, so that "
            "message cannot be found. Mark it in the template with {% generation %} and {% endgeneration %}, or use columns "
            "prompt+completion of text"
        )
    return max(begin, _shared(asked, text))


def _shared(first: str, second: str) -> int:
    """The number of characters at the start that two texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
