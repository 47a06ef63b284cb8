"""Pieces of a text are the whole text: no character is broken, and nothing of a stop is delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from composer.serving.engine import REPLACEMENT, PieceDecoder, StopFinder, special_tokens

TEACHER = AutoTokenizer.from_pretrained(Path(__file__).parents[3] / "examples" / "teacher")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, so that most characters have several, and one that ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


BYTES = byte_tokenizer()
TEXTS = st.text(st.sampled_from("aé€🙂ß \n文字"), max_size=30)


def pieces(ids: list[int], tokenizer: PreTrainedTokenizerFast = BYTES, context: tuple[int, ...] = ()) -> list[str]:
    decoder = PieceDecoder(tokenizer, special_tokens(tokenizer), context)
    return [*map(decoder.add, ids), decoder.end()]


@given(TEXTS)
def test_characters_are_never_broken(text: str) -> None:
    parts = pieces(BYTES.encode(text))
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


def test_every_character_is_delivered_with_its_last_byte() -> None:
    assert pieces(BYTES.encode("a🙂b")) == ["a", "", "", "", "🙂", "b", ""]


def test_memory_and_time_do_not_grow_with_bytes_that_are_no_text() -> None:
    decoder = PieceDecoder(BYTES, special_tokens(BYTES))
    lead = BYTES.encode("é")[0]
    for _ in range(200):
        decoder.add(lead)
        assert len(decoder.ids) < 40


def test_special_tokens_are_no_text_and_leave_the_spaces_of_others() -> None:
    ids = TEACHER.encode("the gentle child", add_special_tokens=False)
    parts = pieces([ids[0], TEACHER.eos_token_id, *ids[1:]], TEACHER)
    assert "".join(parts) == "the gentle child"


def test_a_text_that_continues_its_prompt_begins_with_its_space() -> None:
    prompt, ids = TEACHER.encode("the gentle"), TEACHER.encode("child lived", add_special_tokens=False)
    assert "".join(pieces(ids, TEACHER, tuple(prompt))) == " child lived"
    assert "".join(pieces(ids, TEACHER)) == "child lived"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_ends_the_text_wherever_pieces_end(text: str, stops: list[str], data: st.DataObject) -> None:
    """What is delivered ends where a stop begins, and has none."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    finder, delivered = StopFinder(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if not finder.has_stopped:
            delivered += finder.add(text[start:end])
    delivered += "" if finder.has_stopped else finder.end()
    assert finder.has_stopped is any(stop in text for stop in stops)
    assert not any(stop in delivered for stop in stops)
    assert text.startswith(delivered)
    assert delivered == text or any(text.startswith(stop, len(delivered)) for stop in stops)


@pytest.mark.parametrize(
    ("parts", "stops", "delivered"),
    [
        (["one E", "N", "D two"], ["END"], ["one ", "", ""]),
        (["one E", "N", "C"], ["END"], ["one ", "", "ENC"]),
        (["aaab"], ["aab"], ["a"]),
        (["x", "yz"], ["z", "xyz"], ["", ""]),
    ],
)
def test_the_beginning_of_a_stop_is_held_back(parts: list[str], stops: list[str], delivered: list[str]) -> None:
    finder = StopFinder(stops)
    assert [finder.add(part) for part in parts] == delivered
