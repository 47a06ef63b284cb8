"""Lengths are counted in the tokenizer's tokens, answers are located in them, and filler is added up to the limit."""

from __future__ import annotations

import random
from itertools import accumulate
from types import SimpleNamespace

import pytest

from composer.errors import TaskError
from composer.tasks.writer import Writer, fit
from tests.composer.tasks.conftest import byte_level


def test_texts_begin_with_the_tokenizers_start_tokens(any_text: Writer, words: Writer) -> None:
    for writer in (any_text, words):
        text = "One day Tom went to the park."
        assert writer.encode(text) == writer.tokenizer(text).input_ids
        assert writer.encode(text, begin=False) == writer.encode(text)[len(writer.begin) :]
        assert writer.count(text) == len(writer.encode(text))
        assert writer.decode(writer.encode(text)) == text
    assert words.begin == [words.tokenizer.bos_token_id]
    assert Writer(words.tokenizer).end == [words.tokenizer.eos_token_id]


def test_bos_is_added_only_if_the_tokenizer_adds_it(letters: Writer) -> None:
    assert letters.begin == [0]
    silent = byte_level(bos=False)
    assert (Writer(silent).begin, Writer(silent).end) == ([], [])
    silent.bos_token = "<bos>"
    assert silent.bos_token_id == 0
    assert Writer(silent).begin == []


def test_answers_are_found_in_tokens(any_text: Writer) -> None:
    text = "The pass key is 12345. Remember 67890 too."
    spans = [(text.index(" 12345"), text.index(".")), (text.index(" 67890"), text.index(" too"))]
    ids, answer = any_text.encode_spans(text, spans)
    assert list(ids) == any_text.encode(text)
    runs = [[]]
    for token, wanted in zip(ids, answer, strict=True):
        runs[-1].append(token) if wanted else runs.append([])
    assert [any_text.decode(run).strip() for run in runs if run] == ["12345", "67890"]
    assert not any(any_text.encode_spans(text, [])[1])


def test_ordinary_tokens_are_all_but_the_special_ones(letters: Writer, words: Writer) -> None:
    assert letters.ordinary == list(range(3, len(letters.tokenizer)))  # <own> is special, though no role has it
    assert words.ordinary == list(range(4, 507))


def test_texts_unknown_to_the_tokenizer_are_refused(words: Writer) -> None:
    words.check("The pass key is 12345.")
    assert not words.round_trips("One of the special magic numbers")
    with pytest.raises(TaskError, match=r'cannot write "9e1f-44": it decodes to'):
        words.check("9e1f-44")


def test_slow_tokenizers_are_refused() -> None:
    with pytest.raises(TaskError, match=r"SimpleNamespace does not map .* tokenizer\.json"):
        Writer(SimpleNamespace(is_fast=False))


@pytest.mark.parametrize("rate", [0.1, 0.7, 1.0, 3.0, 250.0])
@pytest.mark.parametrize("limit", [10, 11, 100, 5000, 131072])
def test_fit_returns_the_largest_number_that_fits(rate: float, limit: int) -> None:
    calls: list[int] = []

    def count(units: int) -> int:
        calls.append(units)
        return 10 + int(rate * units)

    most = fit(count, limit, "it")
    assert count(most) <= limit < count(most + 1)
    assert len(calls) < 24


@pytest.mark.parametrize("seed", range(20))
def test_fit_is_right_if_token_counts_grow_in_steps(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 0, 1, 2, 300]) for _ in range(5000)]
    totals = list(accumulate(sizes[1:4999], initial=7 + sizes[0]))
    limit = rng.randrange(7, totals[-1] // 2)
    calls: list[int] = []

    def count(units: int) -> int:
        calls.append(units)
        return totals[min(units, 4998)] if units else 7

    most = fit(count, limit, "it")
    assert count(most) <= limit < count(most + 1)
    assert len(calls) < 60


def test_errors_name_the_needed_length() -> None:
    with pytest.raises(TaskError, match="it needs at least 10 tokens, not 9"):
        fit(lambda units: 10 + units, 9, "it")


@pytest.mark.parametrize("limit", [20, 99, 100, 101])
def test_fit_is_bounded_by_the_number_of_units(limit: int) -> None:
    def count(units: int) -> int:
        assert units <= 90
        return 10 + units

    if limit <= 100:
        assert fit(count, limit, "it", 90, "words of a book") == limit - 10
    else:
        with pytest.raises(TaskError, match="it: all 90 words of a book make 100 tokens, not 101. Set a shorter length"):
            fit(count, limit, "it", 90, "words of a book")
