"""Common and frequent words equal RULER's: the counts, the form, and the most frequent words as the answer."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks.base import Sample
from composer.tasks.ruler import words as listed
from composer.tasks.word_counts import CommonWords, FrequentWords, zeta
from composer.tasks.writer import Writer

COMMON = (
    r"Below is a numbered list of words\. In these words, some appear more often than others\. Memorize the ones that appear most "
    r"often\.\n(.*)\nQuestion: What are the 10 most common words in the above list\? Answer: The top 10 words that appear most "
    r"often in the list are: (.*)"
)
FREQUENT = (
    r"Read the following coded text and track the frequency of each coded word\. Find the three most frequently appeared coded "
    r"words\. (.*)\nQuestion: Do not provide any explanation\. Please ignore the dots '\.\.\.\.'\. What are the three most "
    r"frequently appeared words in the above coded text\? Answer: According to the coded text above, the three most frequently "
    r"appeared words are: (.*)"
)


class Spaced(Writer):
    """A tokenizer with one token per word."""

    def encode(self, text: str, *, begin: bool = True) -> list[int]:
        return [1] * len(text.split())

    def check(self, text: str) -> None:
        pass

    def encode_spans(self, text: str, spans: Any) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        ids = self.encode(text)
        return tuple(ids), (False,) * len(ids)


@pytest.fixture(scope="module")
def spaced(letters: Writer) -> Writer:
    return Spaced(letters.tokenizer)


def common(writer: Writer, length: int, **options: Any) -> list[Sample]:
    return list(CommonWords.model_validate({"samples": 4} | options).draw(writer, length, "evaluation"))


def frequent(writer: Writer, length: int, **options: Any) -> list[Sample]:
    return list(FrequentWords.model_validate({"samples": 6} | options).draw(writer, length, "evaluation"))


def entries(numbered: str) -> list[str]:
    """Return the words of ``1. one 2. two`` after checking their numbers."""
    numbered_words = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", numbered)
    assert [int(number) for number, _ in numbered_words] == list(range(1, len(numbered_words) + 1))
    return [word for _, word in numbered_words]


@pytest.mark.parametrize(
    ("length", "example", "often", "seldom"), [(4095, (20, 3, 1), 6, 1), (4096, (40, 10, 3), 30, 3), (6000, (40, 10, 3), 30, 3)]
)
def test_common_words_occur_more_often_than_all_others(
    length: int, example: tuple[int, int, int], often: int, seldom: int, spaced: Writer
) -> None:
    orders = set()
    for sample in common(spaced, length):
        shown, _, question = sample.text.partition("\nBelow is")
        for text, counts in ((shown, example[1:]), (f"Below is{question}", (often, seldom))):
            match = re.fullmatch(COMMON, text, flags=re.DOTALL)
            assert match
            counter, answer = Counter(entries(match[1])), entries(match[2])
            assert len(answer) == 10
            assert [counter.pop(word) for word in answer] == [counts[0]] * 10
            assert set(counter.values()) == {counts[1]}
            if text is shown:
                assert len(counter) == example[0] - 10
            else:
                assert sample.answers == tuple(answer)
                orders.add(tuple(place for place, word in enumerate(entries(match[1])) if word in answer))
        assert length - 2 * 3 - len(sample.text) < 0
        assert length - 2 * seldom * 2 < len(sample.text.split()) <= length
    assert len(orders) == 4  # no place tells a common word


def test_word_frequencies_may_be_set(spaced: Writer) -> None:
    (sample,) = common(spaced, 600, samples=1, common=4, uncommon=2, example=False)
    match = re.fullmatch(COMMON, sample.text, flags=re.DOTALL)
    assert match
    counter = Counter(entries(match[1]))
    assert {counter[word] for word in entries(match[2])} == {4}
    assert sorted(set(counter.values())) == [2, 4]
    with pytest.raises(TaskError, match="common words occur 2 times, and others 2 times"):
        common(spaced, 600, common=2, uncommon=2)


def test_too_few_words_are_refused(spaced: Writer) -> None:
    known = len({*listed("noun"), *listed("adjective"), *listed("verb")})
    message = rf"common-words: all {known - 10} words besides the 10 common ones, each 3 times, make \d+ tokens, not 131072"
    with pytest.raises(TaskError, match=message):
        common(spaced, 131_072, samples=1)


def test_a_list_has_more_than_the_common_words(spaced: Writer) -> None:
    with pytest.raises(TaskError, match="common-words needs room for a less common word: set a length above 189 tokens"):
        common(spaced, 189, samples=1, example=False)
    assert len(common(spaced, 190, samples=1, example=False)) == 1


@pytest.mark.parametrize(("alpha", "length"), [(2.0, 300), (2.0, 4000), (1.5, 4000), (3.5, 1000)])
def test_word_frequencies_follow_a_zeta_distribution(alpha: float, length: int, spaced: Writer) -> None:
    for sample in frequent(spaced, length, alpha=alpha):
        match = re.fullmatch(FREQUENT, sample.text)
        assert match
        counter = Counter(match[1].split(" "))
        ranked = [word for word, _ in counter.most_common()]
        assert ranked[0] == "..."
        assert all(re.fullmatch(r"[a-z]{6}", word) for word in ranked[1:])
        assert sample.answers == tuple(match[2].split(" "))
        assert set(ranked[1:4]) == set(sample.answers)
        rest = [counter[word] for word in ranked[4:]]
        assert counter[sample.answers[2]] > max(rest, default=0)
        # The counts are those of one n: ⌊n k^-alpha / ζ(alpha)⌋ for ranks up to a fiftieth of the length.
        size, total = length // 50, round(counter["..."] * zeta(alpha))
        wanted = [[int(many * rank**-alpha / zeta(alpha)) for rank in range(1, size + 1)] for many in range(total - 3, total + 5)]
        assert [counter[word] for word in ranked] in [[count for count in counts if count] for counts in wanted]


def test_frequent_words_fill_the_length(spaced: Writer) -> None:
    for sample in frequent(spaced, 4000):
        assert 3990 <= len(sample.ids) <= 4000


@pytest.mark.parametrize("length", range(84, 150))
def test_the_third_word_is_never_as_frequent_as_the_fourth(length: int, spaced: Writer) -> None:
    for sample in frequent(spaced, length, vocabulary=30, samples=1):
        match = re.fullmatch(FREQUENT, sample.text)
        assert match
        counts = [count for _, count in Counter(match[1].split(" ")).most_common(5)]
        assert len(counts) == 4 or counts[3] > counts[4]


def test_texts_too_short_for_a_third_word_are_refused(spaced: Writer) -> None:
    with pytest.raises(
        TaskError, match="frequent-words needs at least 4 different words, not 3: set a length of 200 tokens or more"
    ):
        frequent(spaced, 199)
    with pytest.raises(TaskError, match="frequent-words needs more than 83 tokens for a third most frequent word"):
        frequent(spaced, 83, vocabulary=10)


@pytest.mark.parametrize(
    ("exponent", "value"), [(2, math.pi**2 / 6), (4, math.pi**4 / 90), (3, 1.2020569031595942), (1.5, 2.612375348685488)]
)
def test_the_zeta_function_matches_known_values(exponent: float, value: float) -> None:
    assert zeta(exponent) == pytest.approx(value, rel=1e-10)


def test_words_unknown_to_the_tokenizer_are_refused(words: Writer) -> None:
    with pytest.raises(TaskError, match=r'cannot write "[^ ]+( [^ ]+)?": it decodes to'):
        common(words, 1000, example=False)
    with pytest.raises(TaskError, match=r'cannot write "(\.\.\.|[a-z]{6})": it decodes to'):
        frequent(words, 1000)
