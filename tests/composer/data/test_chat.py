"""Conversations have the tokens of `apply_chat_template`, and only the assistant's turns are learned, for any template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.data import chat_templates as templates
from composer.data.chat import end_of_turn, render
from composer.data.formats import DAY
from composer.errors import DataError
from tests.composer.data.chats import CALLED, SYSTEM, TALK, TOOL, Messages, document, documents, learned, written
from tests.composer.data.templates import TEMPLATES, tokenizer_with

THINKING: Messages = [
    {"role": "user", "content": "where is the house"},
    {"role": "assistant", "reasoning_content": "they said near the river", "content": "near the river"},
    {"role": "user", "content": "and the letter"},
    {"role": "assistant", "reasoning_content": "a child found it", "content": "in the house"},
]


LEARNED = {
    "chatml": ["he found a letter<|im_end|>\n", "there was an old house<|im_end|>\n"],
    "marked": ["he found a letter<|im_end|>", "there was an old house<|im_end|>"],
    "llama": ["he found a letter<|eot|>", "there was an old house<|eot|>"],
    "mistral": [" he found a letter<eos>", " there was an old house<eos>"],
    "gemma": ["he found a letter<end_of_turn>\n", "there was an old house<end_of_turn>\n"],
    "deepseek": ["he found a letter<eos>", "there was an old house<eos>"],
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_conversation_is_one_document(name: str) -> None:
    tokenizer = tokenizer_with(name)
    made = document({"messages": TALK}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK)
    assert learned(made, tokenizer) == LEARNED[name]


@pytest.mark.parametrize("name", set(LEARNED) - {"gemma"})
def test_system_messages_are_not_learned(name: str) -> None:
    tokenizer = tokenizer_with(name)
    made = document({"messages": [SYSTEM, *TALK]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, [SYSTEM, *TALK])
    assert learned(made, tokenizer) == LEARNED[name]


def test_templates_without_a_system_role_are_reported() -> None:
    with pytest.raises(DataError, match="^here, record 1: the chat template refuses these messages: System role not supported"):
        documents({"messages": [SYSTEM, *TALK]}, tokenizer_with("gemma"))


def test_generation_marks_of_the_template_are_the_mask() -> None:
    """The mask equals `return_assistant_tokens_mask`."""
    tokenizer = tokenizer_with("marked")
    encoded: Any = tokenizer.apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
    assert document({"messages": TALK}, tokenizer).learned.tolist() == list(map(bool, encoded["assistant_masks"]))


def test_empty_generation_marks_are_an_error() -> None:
    tokenizer = tokenizer_with(
        "{% for m in messages %}{{ m.content }}{% if m.role == 'none' %}{% generation %}{% endgeneration %}{% endif %}{% endfor %}"
    )
    with pytest.raises(DataError, match="record 1: the chat template has {% generation %}, but marks no text of the assistant"):
        documents({"messages": TALK}, tokenizer)


@pytest.mark.parametrize("talk", [TALK, THINKING])
def test_templates_that_rewrite_earlier_turns_give_one_document_per_turn(talk: Messages) -> None:
    """Each document is what the model sees and writes when it answers: without earlier thoughts, with the last one."""
    tokenizer = tokenizer_with("qwen")
    first, second = documents({"messages": talk}, tokenizer)
    assert first.ids.tolist() == written(tokenizer, talk[:2])
    assert second.ids.tolist() == written(tokenizer, talk)
    for made, number in ((first, 1), (second, 3)):
        prompt = written(tokenizer, talk[:number], add_generation_prompt=True)
        assert made.ids[: len(prompt)].tolist() == prompt
        assert made.learned.tolist() == [False] * len(prompt) + [True] * (len(made) - len(prompt))
        thought = talk[number].get("reasoning_content", "")
        assert learned(made, tokenizer) == [f"<think>\n{thought}\n</think>\n\n{talk[number]['content']}<|im_end|>\n"]


def test_a_single_turn_of_such_a_template_is_one_document() -> None:
    tokenizer = tokenizer_with("qwen")
    assert document({"messages": THINKING[:2]}, tokenizer).ids.tolist() == written(tokenizer, THINKING[:2])


def test_templates_with_tools_before_the_last_question_are_supported() -> None:
    """Earlier turns are learned with the tools in the place where the model sees them when it answers."""
    tokenizer = tokenizer_with("mistral")
    first, second = documents({"messages": TALK, "tools": [TOOL]}, tokenizer)
    assert first.ids.tolist() == written(tokenizer, TALK[:2], tools=[TOOL])
    assert second.ids.tolist() == written(tokenizer, TALK, tools=[TOOL])
    assert [learned(first, tokenizer), learned(second, tokenizer)] == [[text] for text in LEARNED["mistral"]]


def test_prompts_that_begin_a_thought_are_not_learned() -> None:
    """Learning begins where the conversation differs from the generation prompt."""
    tokenizer = tokenizer_with("deepseek")
    made = document({"messages": TALK[:2]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK[:2])
    assert learned(made, tokenizer) == LEARNED["deepseek"][:1]


@pytest.mark.parametrize("name", ["qwen", "llama"])
@pytest.mark.parametrize("stored", ["objects", "a text", "texts"])
def test_tools_and_calls_reach_the_template(name: str, stored: str) -> None:
    tokenizer = tokenizer_with(name)
    tools = {"objects": [TOOL], "a text": json.dumps([TOOL]), "texts": [json.dumps(TOOL)]}[stored]
    made = documents({"messages": CALLED, "tools": tools}, tokenizer)[-1]
    assert made.ids.tolist() == written(tokenizer, CALLED, tools=[TOOL])
    text = tokenizer.decode(made.ids)
    for piece in ('"properties"', '"at": "river", "far": null', "an old house", "near the river"):
        assert piece in text
    assert documents({"messages": CALLED, "tools": None}, tokenizer)[-1].ids.tolist() == written(tokenizer, CALLED)


def test_calls_are_learned() -> None:
    tokenizer = tokenizer_with("llama")
    assert learned(document({"messages": CALLED}, tokenizer), tokenizer) == [
        'look({"at": "river", "far": null})<|eot|>',
        "near the river<|eot|>",
    ]


def test_a_call_without_content_is_empty_text_where_the_template_needs_text() -> None:
    tokenizer = tokenizer_with("chatml")
    empty = [CALLED[0], {**CALLED[1], "content": ""}, *CALLED[2:]]
    assert document({"messages": CALLED}, tokenizer).ids.tolist() == written(tokenizer, empty)


ECHO = (
    "{% for m in messages %}{% for key in m | list | sort %}[{{ key }}:{{ m[key] }}]{% endfor %}{% endfor %}"
    "{% for d in documents or [] %}({{ d.title }}){% endfor %}{{ mood }}"
)


def test_every_key_of_a_message_reaches_the_template() -> None:
    """`name`, `tool_call_id` and other keys reach the template, as do documents and a row's variables."""
    tokenizer = tokenizer_with(ECHO)
    messages = [
        {"role": "user", "content": "once", "name": "it", "weather": "old"},
        {"role": "assistant", "content": "upon", "thinking": "a"},
    ]
    fields = {"messages": messages, "documents": [{"title": "house", "text": "a"}], "chat_template_kwargs": {"mood": "funny"}}
    wanted = written(tokenizer, messages, documents=fields["documents"], mood="funny")
    assert documents(fields, tokenizer)[-1].ids.tolist() == wanted
    text = tokenizer.decode(wanted)
    for piece in ("[name:it]", "[weather:old]", "[thinking:a]", "(house)", "funny"):
        assert piece in text
    as_text = {name: json.dumps(value) for name, value in fields.items()}
    assert documents(as_text, tokenizer)[-1].ids.tolist() == wanted


def test_rows_may_enable_thinking() -> None:
    tokenizer = tokenizer_with("qwen")
    made = document({"messages": TALK[:2], "chat_template_kwargs": {"enable_thinking": False}}, tokenizer)
    assert learned(made, tokenizer) == ["he found a letter<|im_end|>\n"]
    made = document({"messages": TALK[:2]}, tokenizer)
    assert learned(made, tokenizer) == ["<think>\n\n</think>\n\nhe found a letter<|im_end|>\n"]


def test_an_end_token_after_the_conversation_is_learned() -> None:
    tokenizer = tokenizer_with("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ eos_token }}")
    made = document({"messages": TALK[:2]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK[:2])
    assert learned(made, tokenizer) == ["[assistant]he found a letter<eos>"]
    assert [made.ids.tolist() for made in documents({"messages": TALK}, tokenizer)] == [
        written(tokenizer, TALK[:2]),
        written(tokenizer, TALK),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_the_completion_of_a_prompt_of_messages_is_learned(name: str) -> None:
    """As in TRL, prompt and completion are one text of which the completion is learned."""
    tokenizer = tokenizer_with(name)
    made = document({"prompt": TALK[:3], "completion": TALK[3:]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, TALK)
    answer = "<think>\n\n</think>\n\nthere was an old house<|im_end|>\n" if name == "qwen" else LEARNED[name][1]
    assert learned(made, tokenizer) == [answer]


def test_a_completion_may_use_tools() -> None:
    """Results of tools are not learned."""
    tokenizer = tokenizer_with("llama")
    made = document({"prompt": CALLED[:1], "completion": CALLED[1:], "tools": [TOOL]}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, CALLED, tools=[TOOL])
    assert len(learned(made, tokenizer)) == 2


@pytest.mark.parametrize("talk", [TALK[:1], TALK[:3], [SYSTEM, *TALK[:3]]])
@pytest.mark.parametrize("name", set(TEMPLATES) - {"gemma"})
def test_prompts_equal_those_of_transformers(name: str, talk: Messages) -> None:
    tokenizer = tokenizer_with(name)
    for generation_prompt in (False, True):
        rendered = render(tokenizer, talk, settings={"date_string": DAY}, generation_prompt=generation_prompt).text
        assert rendered == tokenizer.apply_chat_template(
            talk, tokenize=False, add_generation_prompt=generation_prompt, date_string=DAY
        )


def test_tokens_that_overlap_an_answer_are_learned() -> None:
    """The text is tokenised as a whole, as in transformers, so a learned token may begin in the prompt."""
    tokenizer = tokenizer_with("{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "there w"}, {"role": "assistant", "content": "as a time"}]
    made = document({"messages": messages}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, messages)
    assert str(tokenizer.decode(made.ids[made.learned])).endswith("as a time")
    assert not made.learned[0]


def test_characters_of_several_tokens_are_learned_whole() -> None:
    tokenizer = tokenizer_with("chatml")
    messages = [{"role": "user", "content": "é🙂"}, {"role": "assistant", "content": "🙂é"}]
    made = document({"messages": messages}, tokenizer)
    assert made.ids.tolist() == written(tokenizer, messages)
    prompt_length = len(written(tokenizer, messages[:1], add_generation_prompt=True))
    assert made.learned.tolist() == [False] * prompt_length + [True] * (len(made) - prompt_length)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *(("chatml", "<|im_end|>"), ("marked", "<|im_end|>"), ("qwen", "<|im_end|>"), ("llama", "<|eot|>"), ("mistral", "<eos>")),
        *(("gemma", "<end_of_turn>"), ("deepseek", "<eos>"), ("{% for m in messages %}{{ m.content }}!{% endfor %}", None)),
        ("{{ raise_exception('no') }}", None),
    ],
)
def test_the_end_token_of_a_turn_is_learned(name: str, end: str | None) -> None:
    tokenizer = tokenizer_with(name)
    assert end_of_turn(tokenizer) == (None if end is None else tokenizer.convert_tokens_to_ids(end))


def test_long_conversations_are_refused() -> None:
    """Long conversations are refused, also if the template omits most of the turns."""
    talk = [{"role": role, "content": "once"} for _ in range(3000) for role in ("user", "assistant")]
    tokenizer = tokenizer_with("chatml")
    for template in (tokenizer.chat_template, "{{ messages[0].content }}"):
        tokenizer.chat_template = template
        with pytest.raises(
            DataError, match=r"here, record 1: 6,000 messages of [\d,]+ characters are too many: each assistant message"
        ):
            documents({"messages": talk}, tokenizer)


def test_slow_templates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 1)
    monkeypatch.setattr(templates, "_client", templates._Client())
    tokenizer = tokenizer_with("chatml")
    tokenizer.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match="here, record 1: the chat template refuses these messages: it needs more than 1 seconds"):
        documents({"messages": TALK}, tokenizer)
    templates._client.stop()
