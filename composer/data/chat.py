"""Conversations in a tokenizer's chat template, and the places in the text that the assistant wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from composer.data.chat_templates import Rendered, TemplateError, render_starts
from composer.data.conversation import ASSISTANT, Conversation
from composer.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The statement by which a template marks what the assistant writes."""
PROBE = "composer"
"""A text that no template changes, used to find what a template writes after it."""
MOST_RENDERED = 2**26
"""Characters of a conversation times the number of the assistant's turns in it."""


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
    starts = [(len(messages), generation_prompt)]
    return _starts(tokenizer, messages, starts, tools=tools, documents=documents, settings=settings)[0]


def _starts(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    starts: Sequence[tuple[int, bool]],
    *,
    tools: list[Any] | None,
    documents: list[Any] | None,
    settings: Mapping[str, Any] | None,
) -> list[Rendered]:
    """Render several starts of a conversation. starts: the number of messages of each, and whether a generation prompt follows."""
    try:
        template = tokenizer.get_chat_template(None, tools)
        rendered = render_starts(
            tokenizer,
            messages,
            starts,
            **{
                **(settings or {}),
                "tools": tools,
                "documents": documents,
                "chat_template": template,
                "return_assistant_tokens_mask": MARKERS.search(template) is not None,
            },
        )
    except (TemplateError, ValueError) as error:
        raise DataError(f"the chat template refuses these messages: {error}") from error
    return [
        Rendered(rendering.text, tuple((start, end) for start, end in rendering.answers if start < end)) for rendering in rendered
    ]


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the control token that the template writes after a turn of the assistant; None if it writes none."""
    turns = [{"role": "user", "content": PROBE}, {"role": ASSISTANT, "content": PROBE}]
    try:
        text = render(tokenizer, turns).text
    except DataError:
        return None
    after = text.rpartition(PROBE)[2].lstrip()
    controls = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    control = max((content for content in controls if content.strip() and after.startswith(content)), key=len, default=None)
    return None if control is None else controls[control]


def end_tokens(model: Any) -> list[int]:
    """Return the tokens that end a text, by the generation config of a model."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def ends_of(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end an answer: those of the model's settings, EOS, and the one after a turn in the chat template."""
    every = [*end_tokens(model), tokenizer.eos_token_id]
    if tokenizer.chat_template:
        every.append(end_of_turn(tokenizer))
    return sorted({token for token in every if token is not None})


def first_messages(system: str | None) -> list[Message]:
    """Return the turns before the user's first one."""
    return [] if system is None else [{"role": "system", "content": system}]


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], model: str) -> Any:
    """Return the tokens of a conversation up to where the model answers, as tensors. Raises DataError, which names the model."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{model} has no chat template, so it reads no conversations: continue a text with `compose generate` without --chat, "
            "or copy chat_template.jinja of the model that it was made from into its folder"
        )
    try:
        text = render(tokenizer, messages, generation_prompt=True).text
    except DataError as error:
        raise DataError(f"{model}: {error}") from error
    return tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False)


def render_answers(conversation: Conversation, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]) -> list[Rendered]:
    """Return the texts to learn the assistant's turns from, with the ``answers`` at these turns.

    There is one text, of the whole conversation, if the template marks the assistant's text, or if it writes each turn
    independently of what follows. Otherwise there is one text for each turn of the assistant, which ends with that turn and has the
    earlier turns as the model sees them when it answers. settings: variables of the template that the conversation does not set.
    Raises DataError.
    """
    messages = conversation.messages
    options: dict[str, Any] = {
        "tools": conversation.tools,
        "documents": conversation.documents,
        "settings": {**settings, **conversation.settings},
    }
    has_markers = MARKERS.search(tokenizer.get_chat_template(None, conversation.tools)) is not None
    numbers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT and number >= conversation.prompt]
    size = len(str(messages))
    if size * len(numbers) > MOST_RENDERED and not has_markers:
        raise DataError(
            f"{len(messages):,} messages of {size:,} characters are too many: each assistant message is rendered with all "
            "messages before it. Split the conversation"
        )
    prompted_turns = [conversation.prompt] if has_markers else numbers
    starts = [(len(messages), False), *((number, True) for number in prompted_turns if number)]
    starts += [(number + 1, False) for number in numbers if number + 1 < len(messages) and not has_markers]
    try:
        rendered = _starts(tokenizer, messages, starts, **options)
    except DataError:
        # Some templates add the content to a text, also where a message only calls tools.
        filled = [{"role": message["role"], "content": "", **message} for message in messages]
        if filled == messages:
            raise
        messages, rendered = filled, _starts(tokenizer, filled, starts, **options)
    by_start = dict(zip(starts, rendered, strict=True))
    conversation_text = rendered[0]

    def begin_of(number: int, text: str) -> int:
        return _begin(text, messages, number, by_start[number, True].text, tokenizer, options) if number else 0

    if has_markers:
        return [_mark(conversation_text, begin_of(conversation.prompt, conversation_text.text))]
    texts = []
    for number in numbers:
        text = by_start[number + 1, False].text
        texts.append(Rendered(text, ((begin_of(number, text), len(text)),)))
    spans = tuple(span for text in texts for span in text.answers)
    bounds = [bound for span in spans for bound in span]
    if all(conversation_text.text.startswith(text.text) for text in texts) and bounds == sorted(bounds):
        return [Rendered(conversation_text.text, spans)]
    return texts


def _mark(conversation: Rendered, begin: int) -> Rendered:
    """Return the conversation with the template's own marks, without those in the prompt, which ends at the character ``begin``."""
    spans = tuple((max(start, begin), end) for start, end in conversation.answers if end > begin)
    if not spans:
        raise DataError("the chat template has {% generation %}, but marks no text of the assistant in this conversation")
    return Rendered(conversation.text, spans)


def _begin(
    text: str,
    messages: list[dict[str, Any]],
    number: int,
    prompt: str,
    tokenizer: PreTrainedTokenizerBase,
    options: dict[str, Any],
) -> int:
    """Return the character of a text at which the message of this number begins: where the model starts to write.

    prompt: the messages before it, with the prompt for the assistant's turn.

    A generation prompt may begin the assistant's turn differently, such as with ``<think>``. Then the turn begins where the two
    texts differ, as in TRL. A template may also end every conversation with the same words. Raises DataError if the template
    changes the messages before the turn.
    """
    if text.startswith(prompt):
        return len(prompt)
    before = render(tokenizer, messages[:number], **options).text
    begin = _count_shared(before, text)
    if begin + _count_shared(before[::-1], text[::-1]) < len(before):
        raise DataError(
            f"the chat template changes earlier messages as soon as the assistant has written message {number + 1}, so that "
            "message cannot be found. Mark it in the template with {% generation %} and {% endgeneration %}, or use columns "
            "prompt+completion of text"
        )
    return max(begin, _count_shared(prompt, text))


def _count_shared(first: str, second: str) -> int:
    """Return the number of characters at the start that two texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
