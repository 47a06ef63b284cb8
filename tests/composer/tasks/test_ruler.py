"""The shared parts of RULER's tasks equal RULER's: word lists, numbers and score."""

from __future__ import annotations

import random
import re
import uuid

import pytest

from composer.tasks.base import Sample
from composer.tasks.catalogue import TASKS
from composer.tasks.ruler import distinct, number, random_uuid, word_pair, words

RULER = sorted(name for name in TASKS if name.startswith(("niah-", "variable", "common", "frequent")))


def test_all_tasks_of_ruler_except_document_questions_exist() -> None:
    assert len(RULER) == 11


@pytest.mark.parametrize("name", RULER)
@pytest.mark.parametrize(
    ("answers", "written", "right"),
    [
        (("1234567",), " 1234567.", 1),
        (("1234567",), "The number is 91234567", 1),
        (("1234567",), " 123456", 0),
        (("1234567",), "", 0),
        (("ab12-F",), "it is AB12-f, I think", 1),
        (("VAR", "WAR", "XAR", "YAR"), "var, yar", 0.5),
        (("one", "two", "three"), "1. Three 2. four 3. onerous", 2 / 3),
    ],
)
def test_the_score_is_the_share_of_answers_in_the_written_text(
    name: str, answers: tuple[str, ...], written: str, right: float
) -> None:
    assert TASKS[name].model_validate({}).score(Sample((), (), "", "", answers), written) == pytest.approx(right)


def test_words_equal_those_of_the_package() -> None:
    import wonderwords.random_word

    for part in ("adjective", "noun", "verb"):
        assert list(words(part)) == wonderwords.random_word._get_words_from_text_file(f"{part}list.txt")
        assert len(words(part)) > 900


def test_drawn_numbers_uuids_and_words_have_their_form() -> None:
    rng = random.Random(0)
    for _ in range(300):
        assert re.fullmatch(r"[1-9]\d{6}", number(rng))
        assert uuid.UUID(random_uuid(rng)).version == 4
        pair = word_pair(rng)
        assert any(pair == f"{adjective}-{noun}" for adjective, noun in splits(pair))


def splits(pair: str) -> list[tuple[str, str]]:
    """Return an adjective and a noun of the lists that form the word."""
    cuts = [(pair[:place], pair[place + 1 :]) for place, mark in enumerate(pair) if mark == "-"]
    return [(first, last) for first, last in cuts if first in words("adjective") and last in words("noun")]


def test_distinct_values_keep_the_order_of_the_draws() -> None:
    draws = iter("abacabd")
    assert distinct(4, lambda: next(draws)) == ["a", "b", "c", "d"]
