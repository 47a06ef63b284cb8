"""The recall task states pairs in words and asks for them. MQAR draws as Zoology's generator does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from composer.errors import TaskError
from composer.tasks.mqar import UNLABELLED, Mqar, multiquery_ar
from composer.tasks.recall import KEYS, VALUES, Recall
from composer.tasks.writer import Writer


def test_keys_and_values_are_64_distinct_words_each() -> None:
    assert len(KEYS) == len(VALUES) == len(set(KEYS)) == len(set(VALUES)) == 64
    assert not set(KEYS) & set(VALUES)


@pytest.mark.parametrize("pairs", [2, 16, 32])
def test_every_query_has_the_value_of_its_key(pairs: int, words: Writer) -> None:
    for sample in Recall(pairs=pairs, samples=20).draw(words, 256, "train"):
        symbols = sample.text.split()
        keys, values = symbols[::2], symbols[1::2]
        value_of = dict(zip(keys[:pairs], values[:pairs], strict=True))
        assert set(keys) <= set(KEYS)
        assert set(values) <= set(VALUES)
        assert len(set(value_of.values())) == len(value_of) == pairs
        assert [value_of[key] for key in keys] == values
        assert sorted(keys[pairs : 2 * pairs]) == sorted(keys[:pairs])  # each is asked once before any is asked again
        assert len(sample.ids) == 255  # BOS, and an even number of words
        assert list(sample.answer) == [False] * (1 + 2 * pairs) + [False, True] * (len(keys) - pairs)


def test_all_64_pairs_are_queried(words: Writer) -> None:
    """256 tokens have room for all questions but one. At 512 tokens each pair is asked for more than once."""
    for length, queries in ((256, 63), (512, 191)):
        for sample in Recall(pairs=64, samples=5).draw(words, length, "evaluation"):
            symbols = sample.text.split()
            value_of = dict(zip(symbols[:128:2], symbols[1:128:2], strict=True))
            assert set(value_of) == set(KEYS)
            assert set(value_of.values()) == set(VALUES)
            assert [value_of[key] for key in symbols[128::2]] == symbols[129::2]
            assert len(set(symbols[128::2])) == min(queries, 64)
            assert sum(sample.answer) == queries
    with pytest.raises(TaskError, match="recall of 64 pairs needs at least 131 tokens, not 130"):
        list(Recall(pairs=64).draw(words, 130, "train"))


def test_recall_can_be_written_in_any_tokens(any_text: Writer) -> None:
    for sample in Recall(pairs=4, samples=5).draw(any_text, 300, "evaluation"):
        answers = [token for token, wanted in zip(sample.ids, sample.answer, strict=True) if wanted]
        assert any_text.decode(answers).split() == sample.text.split()[9::2]


def test_sizes_that_do_not_fit_are_refused(words: Writer) -> None:
    with pytest.raises(TaskError, match="recall of 32 pairs needs at least 67 tokens, not 66"):
        list(Recall().draw(words, 66, "train"))
    (sample,) = Recall(samples=1).draw(words, 67, "train")
    assert sum(sample.answer) == 1


def as_published(vocabulary: int, examples: int, length: int, seed: int, power: float, pairs: int) -> tuple[Any, Any]:
    """The draws from numpy's global generator are in the original's order: all keys, then all values, then all gaps."""
    np.random.seed(seed)
    half, context = vocabulary // 2, 2 * pairs
    keys = [np.random.choice(np.arange(1, half), replace=False, size=pairs) for _ in range(examples)]
    values = [np.random.choice(np.arange(half, vocabulary), replace=False, size=pairs) for _ in range(examples)]
    space = (length - context) // 2
    p = power * np.arange(1, space + 1) ** (power - 1)
    gaps = [np.random.choice(np.arange(space), replace=False, p=p / p.sum(), size=pairs) for _ in range(examples)]
    inputs = np.zeros((examples, length), dtype=np.int64)
    labels = np.full((examples, length), -100)
    for row in range(examples):
        for pair in range(pairs):
            inputs[row, 2 * pair] = keys[row][pair]
            inputs[row, 2 * pair + 1] = values[row][pair]
            inputs[row, context + 2 * gaps[row][pair]] = keys[row][pair]
            labels[row, context + 2 * gaps[row][pair]] = values[row][pair]
    return inputs, labels


@pytest.mark.parametrize(("vocabulary", "length", "pairs", "power"), [(8192, 64, 4, 0.01), (301, 128, 32, 0.1), (40, 16, 4, 1.0)])
def test_mqar_equals_the_original(vocabulary: int, length: int, pairs: int, power: float) -> None:
    inputs, labels = as_published(vocabulary, 20, length, 5, power, pairs)
    original = multiquery_ar(vocabulary, 20, length, 5, power, pairs, random_non_queries=False)
    np.testing.assert_array_equal(original[0], inputs)
    np.testing.assert_array_equal(original[1], labels)
    noisy, same = multiquery_ar(vocabulary, 20, length, 5, power, pairs)
    np.testing.assert_array_equal(same, labels)
    np.testing.assert_array_equal(noisy[inputs != 0], inputs[inputs != 0])
    assert ((noisy >= 0) & (noisy < vocabulary)).all()
    assert len(np.unique(noisy[inputs == 0])) > min(vocabulary, (inputs == 0).sum()) // 3


def test_labels_are_the_values_of_repeated_keys() -> None:
    inputs, labels = multiquery_ar(100, 50, 64, 0, pairs=8)
    keys, values = inputs[:, 0:16:2], inputs[:, 1:16:2]
    assert keys.min() >= 1
    assert keys.max() < 50 <= values.min()
    assert values.max() < 100
    for row in range(50):
        value_of = dict(zip(keys[row], values[row], strict=True))
        places = np.flatnonzero(labels[row] != UNLABELLED)
        assert len(value_of) == len(places) == 8
        assert (places >= 16).all()
        assert (places % 2 == 0).all()
        assert [value_of[key] for key in inputs[row, places]] == labels[row, places].tolist()


def test_gaps_follow_the_power_law() -> None:
    _, labels = multiquery_ar(100, 4000, 64, 0, power=0.01, pairs=1)
    gaps = (np.argmax(labels != UNLABELLED, axis=1) - 2) // 2 + 1
    weights = np.arange(1, 32) ** -0.99
    for gap in (1, 2, 4, 31):
        wanted = weights[gap - 1] / weights.sum()
        assert (gaps == gap).mean() == pytest.approx(wanted, abs=4 * (wanted / 4000) ** 0.5)


@pytest.mark.parametrize("random_non_queries", [True, False])
def test_mqar_texts_ask_for_the_values_of_repeated_keys(random_non_queries: bool, words: Writer) -> None:
    made = Mqar(pairs=4, samples=30, vocabulary=200, random_non_queries=random_non_queries)
    for sample in made.draw(words, 64, "train"):
        assert len(sample.ids) == 63  # BOS, and an even number of symbols
        symbols = np.array(sample.ids[1:]) - 4  # the special tokens of this tokenizer are its first four
        assert symbols.min() >= 0
        assert symbols.max() < 200
        value_of = dict(zip(symbols[0:8:2].tolist(), symbols[1:8:2].tolist(), strict=True))
        places = np.flatnonzero(sample.answer) - 1
        assert len(places) == 4
        assert (places >= 9).all()
        assert [value_of[key] for key in symbols[places - 1].tolist()] == symbols[places].tolist()
        assert random_non_queries or (np.delete(symbols[8:], [*(places - 8), *(places - 9)]) == 0).all()


def test_impossible_mqar_sizes_are_refused(words: Writer) -> None:
    for options, length, message in [
        ({"vocabulary": 600}, 64, "has 503 tokens that are not special, not 600"),
        ({"pairs": 16}, 64, "at least 64 symbols for 16 pairs and their queries, not 62"),
        ({"vocabulary": 16, "pairs": 8}, 64, "a vocabulary of at least 18 for 8 different keys, not 16"),
    ]:
        with pytest.raises(TaskError, match=message):
            list(Mqar.model_validate(options).draw(words, length, "train"))
    with pytest.raises(TaskError, match="an even number of symbols, not 63"):
        multiquery_ar(100, 1, 63, 0)
