"""A chat answers as `generate` does on the whole conversation, and reads only tokens that are not in its cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.commands import chat
from composer.commands.chat import Chat
from composer.errors import ComposerError
from tests.composer.programs import ROOT

PLAIN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
SHORTENED = "{% for m in messages %}{{ m.content if m.role == 'user' or loop.last else m.content[:5] }}{{ eos_token }}{% endfor %}"
"""It writes no more than the beginning of earlier answers."""
LINES = ("once upon a time there was a child", "he found a letter near the river", "his teacher")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small teacher with a chat template, and its LoLCATs student."""
    folder = tmp_path_factory.mktemp("chatty")
    shutil.copytree(ROOT / "examples" / "teacher", folder / "teacher")
    (folder / "teacher" / "chat_template.jinja").write_text(PLAIN)
    composer.build_folder("lolcats", folder / "teacher", folder / "student", copy=True)
    return {"teacher": folder / "teacher", "student": folder / "student"}


def begin(folder: Path, template: str | None = None, **options: Any) -> Chat:
    settings: dict[str, Any] = {"max_new_tokens": 8} | options
    talk = composer.chat(folder, **settings)
    if template is not None:
        talk._tokenizer.chat_template = template
    return talk


def count_tokens(talk: Chat, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of tokens of each call of the model."""
    counts: list[int] = []
    before = talk._model.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        counts.append((arguments[0] if arguments else options["input_ids"]).shape[1])
        return before(*arguments, **options)

    monkeypatch.setattr(talk._model, "forward", forward)
    return counts


def answers_anew(talk: Chat) -> list[str]:
    """Return the answers of the model if it reads each conversation from the start without a cache."""
    texts = []
    for number, message in enumerate(talk.messages):
        if message["role"] == "assistant":
            ids = talk._tokenizer.apply_chat_template(
                talk.messages[:number], add_generation_prompt=True, return_tensors="pt", return_dict=False
            )
            answer = talk._model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=talk._options["eos_token_id"])
            texts.append(talk._tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("template", [PLAIN, SHORTENED], ids=["plain", "shortened"])
@pytest.mark.parametrize("name", ["teacher", "student"])
def test_answers_equal_those_for_the_whole_conversation(models: dict[str, Path], name: str, template: str) -> None:
    talk = begin(models[name], template)
    answers = [talk.say(line).text for line in LINES]
    assert [message["content"] for message in talk.messages[1::2]] == answers
    assert answers == answers_anew(talk)
    assert len(set(answers)) == 3


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_the_first_answer_equals_that_of_generate(models: dict[str, Path], name: str) -> None:
    """The answers match for greedy and sampled text, with a system message."""
    every: list[dict[str, Any]] = [{}, {"temperature": 1.5, "seed": 3}, {"system": "they said"}]
    for options in every:
        answer = begin(models[name], **options).say(LINES[0])
        alone = composer.generate(models[name], LINES[0], chat=True, max_new_tokens=8, **options)
        assert (answer.text, answer.tokens) == (alone.new_text, alone.prompt_tokens)
        assert alone.text == alone.new_text


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_only_new_tokens_of_a_turn_are_read(models: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = begin(models[name])
    counts = count_tokens(talk, monkeypatch)
    known = 0
    for line in LINES:
        answer = talk.say(line)
        assert sum(counts) == answer.read_tokens + answer.new_tokens - 1
        # The teacher writes the full stop after a turn otherwise than its tokenizer splits it, so an answer may be read again.
        assert answer.tokens - known <= answer.read_tokens <= answer.tokens - known + 9
        known = answer.tokens
        counts.clear()


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_a_cache_that_fits_is_kept_whole(models: dict[str, Path], name: str) -> None:
    """If the template writes an answer as the model did, only the answer's last token must be read again."""
    talk = begin(models[name])
    first = talk.say(LINES[0])
    cache, known = talk._take_cache([*talk._seen, 5, 6])
    assert known == cache.get_seq_length() == first.tokens + first.new_tokens - 1
    assert talk._take_cache([5, 6, 7]) == (None, 0)


def test_states_are_restored_to_the_last_question(models: dict[str, Path]) -> None:
    """A state cannot be truncated, so a copy from before the answer is used."""
    talk = begin(models["student"])
    first = talk.say(LINES[0])
    original_copy = talk._copied
    assert len(original_copy) == first.tokens - 1
    cache, known = talk._take_cache([*original_copy, 5, 6])
    assert known == cache.get_seq_length() == first.tokens - 1


def test_a_stopped_answer_is_kept_as_far_as_written(models: dict[str, Path]) -> None:
    """The written part of a stopped answer stays, and the next turn is answered as usual."""
    talk = begin(models["student"])
    pieces: list[str] = []

    def stop(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.say(LINES[0], stop)
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    assert talk.messages[1]["content"] == "".join(pieces)
    answer = talk.say(LINES[1])
    assert answer.text == answers_anew(talk)[1]


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_reset_starts_a_new_conversation(models: dict[str, Path], name: str) -> None:
    talk = begin(models[name], system="they said")
    first = talk.say(LINES[0])
    talk.say(LINES[1])
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "they said"}]
    assert talk.say(LINES[0]).text == first.text


def test_streamed_pieces_add_up_to_the_answer(models: dict[str, Path]) -> None:
    pieces: list[str] = []
    answer = begin(models["student"]).say(LINES[0], pieces.append)
    assert "".join(pieces) == answer.text
    assert len(pieces) > 4


def test_each_answer_is_drawn_anew(models: dict[str, Path]) -> None:
    def answers_with(seed: int) -> list[str]:
        talk = begin(models["student"], temperature=2.0, seed=seed)
        return [talk.say(LINES[0]).text for _ in range(2)]

    assert answers_with(1) == answers_with(1) != answers_with(2)
    assert len(set(answers_with(1))) == 2
    assert len(answers_with(2**63 - 1)) == 2


def test_an_answer_ends_with_its_turn(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    talk = begin(models["student"])
    first = talk.say(LINES[0])
    assert not first.complete
    third = talk._seen[first.tokens + 2]
    monkeypatch.setattr(chat, "ends_of", lambda *_: [third])
    answer = begin(models["student"]).say(LINES[0])
    assert (answer.complete, answer.new_tokens) == (True, 3)
    assert first.text.startswith(answer.text)


def test_a_conversation_longer_than_the_positions_is_refused(
    models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trunk = "{width: 32, layers: 1, heads: 4, vocabulary: 512, embedding: learned, length: 16}"
    (tmp_path / "short.yaml").write_text(f"compose: 1\nname: short\nextends: lawcat\ntrunk: {trunk}\n")
    composer.build_folder(tmp_path / "short.yaml", fresh=True, out=tmp_path / "short", tokenizer=models["teacher"])
    talk = begin(tmp_path / "short", PLAIN, max_new_tokens=12)
    talk._options["eos_token_id"] = [511]  # which it does not write
    assert talk.say("once upon a time").new_tokens == 12
    before = list(talk.messages)
    with pytest.raises(
        ComposerError, match=r"short has learned 16 positions, too few for this conversation of \d+ tokens: begin a new"
    ):
        talk.say("there was a child near the river " * 4)
    assert talk.messages == before
    talk.reset()
    talk._max_new_tokens = 500
    answer = talk.say("once upon a time")
    assert answer.tokens + answer.new_tokens == 17
    assert not caplog.records
    begin(models["student"], max_new_tokens=260)._room_for_answer(9)
    assert "is longer than the 256 tokens that" in caplog.text


def test_invalid_arguments_are_refused(models: dict[str, Path]) -> None:
    with pytest.raises(ComposerError, match="teacher has no chat template, so it reads no conversations: continue a text with"):
        composer.chat(ROOT / "examples" / "teacher")
    with pytest.raises(ComposerError, match="no chat template"):
        composer.generate(ROOT / "examples" / "teacher", "once", chat=True)
    with pytest.raises(ComposerError, match="`system` is for a chat: add `chat=True`"):
        composer.generate(models["teacher"], "once", system="upon")
    for other in (["once"], None, "caf\udce9"):
        with pytest.raises(ComposerError, match="is not a message; expected a string"):
            begin(models["teacher"]).say(other)  # pyright: ignore[reportArgumentType]
    talk = begin(models["teacher"], "{{ raise_exception('no more') }}")
    with pytest.raises(ComposerError, match="teacher: the chat template refuses these messages: no more"):
        talk.say("once")
    assert not talk.messages


def test_generate_notes_an_unused_chat_template(models: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "composer")
    composer.generate(models["teacher"], "once", max_new_tokens=1)
    assert "has a chat template, and the prompt is continued without it. For an answer use --chat" in caplog.text
    caplog.clear()
    composer.generate(models["teacher"], "once<eos>", max_new_tokens=1)
    composer.generate(models["teacher"], "once", max_new_tokens=1, chat=True)
    composer.generate(ROOT / "examples" / "teacher", "once", max_new_tokens=1)
    assert not caplog.records
