"""Each record format becomes the right tokens, of which only the answers are learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from composer.data import formats
from composer.data.formats import TextDraft, TextPiece, alpaca_prompt, drafts, encode, form_of
from composer.data.reading import DataRecord
from composer.data.references import FileData
from composer.errors import DataError
from tests.composer.data.chats import document

BOS, EOS = 1, 2
TALK = [
    {"role": "system", "content": "once"},
    {"role": "user", "content": "a child near the river"},
    {"role": "assistant", "content": "he found a letter"},
    {"role": "user", "content": "his teacher"},
    {"role": "assistant", "content": " there was "},
]


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def message_of(fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        document(fields, tokenizer, **options)
    assert str(caught.value).startswith("here, record 1")
    return str(caught.value)


def test_every_token_of_a_text_is_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    made = document({"text": "once upon a time"}, tokenizer)
    assert made.ids.tolist() == [BOS, *ids_of(tokenizer, "once upon a time"), EOS]
    assert made.learned[1:].all()
    assert (made.ids.dtype, made.learned.dtype) == (np.int32, np.bool_)


def test_text_columns_of_another_name_are_read(tokenizer: PreTrainedTokenizerBase) -> None:
    fields = {"story": "once upon", "text": "a time"}
    assert document(fields, tokenizer, column="story").ids.tolist() == document({"text": "once upon"}, tokenizer).ids.tolist()


def test_prompts_are_not_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    made = document({"prompt": "once upon a", "completion": " time there was"}, tokenizer)
    prompt, answer = ids_of(tokenizer, "once upon a"), ids_of(tokenizer, " time there was")
    assert made.ids.tolist() == [BOS, *prompt, *answer, EOS]
    assert made.learned.tolist() == [False] * (1 + len(prompt)) + [True] * (len(answer) + 1)


def test_instructions_have_the_alpaca_prompt_and_only_outputs_are_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    assert alpaca_prompt("Say it.") == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSay it.\n\n### Response:\n"
    )
    assert alpaca_prompt("Say it.", "it") == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSay it.\n\n### Input:\nit\n\n### Response:\n"
    )
    for optional in ({}, {"input": ""}, {"input": None}, {"input": "the river"}):
        made = document({"instruction": "once {upon}", "output": "a time", "text": "other", **optional}, tokenizer)
        prompt = ids_of(tokenizer, alpaca_prompt("once {upon}", optional.get("input") or ""))
        assert made.ids[: 1 + len(prompt)].tolist() == [BOS, *prompt]
        assert made.learned.tolist() == [False] * (1 + len(prompt)) + [True] * (len(made) - 1 - len(prompt))
        assert made.ids[-1] == EOS


def test_prompts_are_tokenised_separately(tokenizer: PreTrainedTokenizerBase) -> None:
    whole = ids_of(tokenizer, "there was")
    cut = next(at for at in range(1, 9) if ids_of(tokenizer, "there was"[:at]) != whole[: len(ids_of(tokenizer, "there was"[:at]))])
    prompt, answer = "there was"[:cut], "there was"[cut:]
    made = encode(TextDraft((TextPiece(prompt, False), TextPiece(answer, True))), tokenizer)
    assert made.ids.tolist() == [BOS, *ids_of(tokenizer, prompt), *ids_of(tokenizer, answer), EOS]


def spaced() -> PreTrainedTokenizerBase:
    """A tokenizer that adds a space before each text, as Llama 2's and Mistral's."""
    letters = ["<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz:?.\n"]
    merged = [f"\u2581{letter}" for letter in "adnoty"]
    vocabulary = {token: place for place, token in enumerate([*letters, *merged])}
    model = models.BPE(vocabulary, [("\u2581", token[1]) for token in merged], unk_token="<unk>")
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.Metaspace(prepend_scheme="first")  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("once upon ", "a time"), ("why?\nanswer: ", "yes"), ("the a", "nswer"), ("line\n", "a line"), ("once", " upon a time")],
)
def test_prompt_and_answer_are_joined_without_a_space(prompt: str, answer: str) -> None:
    """Prompt and answer are joined without an added space, also within a word."""
    tokenizer = spaced()
    assert tokenizer.convert_ids_to_tokens(ids_of(tokenizer, "a yes")) == ["\u2581a", "\u2581y", "e", "s"]
    made = document({"prompt": prompt, "completion": answer}, tokenizer)
    assert tokenizer.decode(made.ids) == prompt + answer
    assert made.ids[: len(ids_of(tokenizer, prompt))].tolist() == ids_of(tokenizer, prompt)
    learned = tokenizer.convert_ids_to_tokens(made.ids[made.learned].tolist())
    assert "".join(learned).replace("\u2581", " ") == answer


def test_only_assistant_messages_are_learned(chatty: PreTrainedTokenizerBase) -> None:
    made = document({"messages": TALK}, chatty)
    assert made.ids.tolist() == ids_of(chatty, str(chatty.apply_chat_template(TALK, tokenize=False)))
    runs = np.split(np.arange(len(made)), np.flatnonzero(np.diff(made.learned)) + 1)
    learned = [str(chatty.decode(made.ids[run])) for run in runs]
    flags = [bool(made.learned[run[0]]) for run in runs]
    assert flags == [False, True, False, True]
    assert [part.strip() for part in learned[1::2]] == ["he found a letter<eos>", "there was<eos>"]
    assert "his teacher" in learned[2]


def test_words_after_the_last_answer_are_not_learned(chatty: PreTrainedTokenizerBase) -> None:
    made = document({"messages": TALK[:4]}, chatty)
    assert not made.learned[-1]
    assert made.targets == len(ids_of(chatty, "he found a letter")) + 1


def test_conversations_may_start_with_the_assistant(chatty: PreTrainedTokenizerBase) -> None:
    made = document({"messages": [TALK[2], TALK[1]]}, chatty)
    assert made.learned[1]
    assert not made.learned[-1]


def test_templates_do_not_use_the_current_time(chatty: PreTrainedTokenizerBase) -> None:
    """Templates such as Llama's call `strftime_now` only without a date_string."""
    asks = "{% if date_string is not defined %}{{ strftime_now('%d %b %Y') }}{% else %}{{ date_string }}{% endif %}"
    chatty.chat_template = asks + str(chatty.chat_template)
    (made,) = drafts(DataRecord("", {"messages": TALK}), FileData(path=""), chatty)
    assert made.pieces[0].text.startswith("26 Jul 2024[")


def test_tokenizers_without_an_end_add_no_token() -> None:
    class Bare:
        bos_token_id = 5
        eos_token_id = None

        def __call__(self, text: str, **_: Any) -> Any:
            return type("Encoding", (), {"input_ids": [ord(sign) for sign in text]})

    made = encode(TextDraft((TextPiece("ab", False), TextPiece("c", True))), Bare())  # type: ignore[arg-type]
    assert made.ids.tolist() == [97, 98, 99]
    assert made.learned.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("columns", "form"),
    [
        (["messages", "prompt", "completion"], "messages"),
        (["instruction", "input", "output", "text"], "alpaca"),
        (["prompt", "completion", "text"], "completion"),
        (["instruction", "text", "id"], "text"),
    ],
)
def test_columns_are_selected_by_precedence(columns: list[str], form: str) -> None:
    assert form_of(DataRecord("here", dict.fromkeys(columns)), FileData(path="")) == form


def test_empty_columns_are_ignored() -> None:
    """In a file of conversations and texts, every record has the columns of both. Empty ones are ignored."""
    fields = {"messages": None, "text": "once"}
    assert form_of(DataRecord("here", fields), FileData(path="")) == "text"
    assert form_of(DataRecord("here", fields | {"text": None}), FileData(path="")) == "messages"


def test_the_format_may_be_set(tokenizer: PreTrainedTokenizerBase) -> None:
    fields = {"instruction": "once", "output": "upon", "text": "a time"}
    assert document(fields, tokenizer, format="text").ids.tolist() == document({"text": "a time"}, tokenizer).ids.tolist()
    assert 'no column "prompt" for format=completion' in message_of(fields, tokenizer, format="completion")


def test_unknown_columns_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    message = message_of({"txt": "once", "label": 3}, tokenizer)
    assert 'its columns: txt, label; did you mean "text"?' in message
    assert "Understood: messages | conversations | instruction+output | prompt+completion | text; or column=NAME" in message
    assert "its columns: none." in message_of({}, tokenizer)
    assert 'no column "stori"; its columns: story; did you mean "stori"?' in message_of({"story": "x"}, tokenizer, column="stori")
    with pytest.raises(
        DataError, match="column=a: a column of text or of messages is for format=text or format=messages, not alpaca"
    ):
        document({"a": "x"}, tokenizer, column="a", format="alpaca")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": None}, "text is missing; fix the record, or skip such records: empty=skip"),
        ({"text": " \n"}, "text is blank"),
        ({"instruction": "once", "output": ""}, "output is blank"),
        ({"instruction": None, "output": "once"}, "instruction is missing"),
        ({"prompt": "", "completion": "once"}, "prompt is blank"),
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "messages is empty"),
        ({"messages": TALK[:2]}, "no assistant message, so there is nothing to learn (roles: system, user)"),
        ({"messages": [{"role": "user", "content": None}]}, "message 1: content is missing"),
        ({"messages": [{"role": "assistant", "content": " ", "name": "it"}]}, "message 1: content is blank"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text", "text": ""}]}]}, "message 1: content is blank"),
        ({"conversations": [{"from": "gpt", "value": None}]}, "message 1: content is missing"),
        ({"prompt": TALK[:2], "completion": []}, "completion is empty"),
        ({"prompt": TALK[:3], "completion": TALK[3:4]}, "no assistant message"),
    ],
)
def test_empty_records_are_refused_or_omitted(fields: dict[str, Any], message: str, chatty: PreTrainedTokenizerBase) -> None:
    assert message in message_of(fields, chatty)
    assert drafts(DataRecord("here", fields), FileData(path="", empty="skip"), chatty) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": 3}, "text is 3, of type int; expected text"),
        ({"text": ["once"]}, "text is a list, of type list; expected text"),
        ({"text": "on\ud83dce"}, "with half of a character; expected text"),
        ({"messages": "once"}, 'message 1 is "once"; expected a mapping with role and content'),
        (
            {"messages": [{"content": "once"}]},
            "message 1 is a mapping; expected a mapping with role and content, or from and value",
        ),
        ({"messages": [{"role": "assistant", "content": 5}]}, "message 1: content is 5, of type int; expected text"),
        ({"messages": [{"role": "assistant", "content": "on\ud83dce"}]}, "message 1: content is"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "text"}]}]},
            'message 1: content has a part of type "text", no text',
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 'content has a part of type "image", no text; expected'),
        ({"messages": [{"role": "user", "content": [7]}]}, "message 1: content has the part 7, no text"),
        ({"messages": "[{"}, 'messages is "[{", which is no JSON'),
        ({"messages": TALK, "tools": "look"}, 'tools is "look", which is no JSON'),
        ({"messages": TALK, "tools": ["{}", "3"]}, "tools is a list; expected a list of objects"),
        ({"messages": TALK, "tools": {"name": "look"}}, "tools is a mapping; expected a list of objects"),
        ({"messages": TALK, "chat_template_kwargs": [1]}, "chat_template_kwargs is a list; expected an object"),
        ({"messages": TALK, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs sets tokenize"),
        (
            {"conversations": [{"from": "humen", "value": "once"}]},
            'message 1: from is "humen"; did you mean "human"? Expected one of',
        ),
        ({"prompt": "once", "completion": TALK[2:3]}, 'message 1 is "once"; expected a mapping'),
    ],
)
def test_records_without_text_are_refused(fields: dict[str, Any], message: str, chatty: PreTrainedTokenizerBase) -> None:
    assert message in message_of(fields, chatty, empty="skip")


def test_templates_that_do_not_separate_roles_are_refused(
    tokenizer: PreTrainedTokenizerBase, chatty: PreTrainedTokenizerBase
) -> None:
    assert "messages need a chat template" in message_of({"messages": TALK}, tokenizer)
    chatty.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert "changes earlier messages as soon as the assistant has written message 3" in message_of({"messages": TALK}, chatty)
    chatty.chat_template = "{{ raise_exception('roles must alternate') }}"
    assert "the chat template refuses these messages: roles must alternate" in message_of({"messages": TALK}, chatty)


def test_records_of_several_forms_name_the_precedence_and_the_option(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    formats._announce.cache_clear()
    record = DataRecord("texts.jsonl, record 1", {"text": "a b", "messages": [{"role": "user", "content": "a"}]})
    with caplog.at_level("INFO"):
        assert [form_of(record, FileData(path="")) for _ in range(2)] == ["messages", "messages"]
    assert caplog.messages == ["Records have columns of messages, text; they are read as messages. To choose another: format=text"]
    with pytest.raises(DataError, match=r"has none\. Use a tokenizer with one, or format=text"):
        drafts(record, FileData(path=""), tokenizer)
    assert form_of(record, FileData(path="", format="text")) == "text"
