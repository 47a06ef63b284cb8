"""MQAR equals Zoology's ``multiquery_ar`` for the same random numbers, and has its stated properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.errors import TaskError
from composer.tasks.base import Sample, Split
from composer.tasks.mqar import Mqar, multiquery_ar
from composer.tasks.writer import Writer


def zoology(vocabulary: int, examples: int, length: int, seed: int, power: float, pairs: int) -> tuple[list[Any], list[Any]]:
    """Draw symbol by symbol from NumPy's global generator: all keys, then all values, then all gaps, each without replacement."""
    np.random.seed(seed)
    half = vocabulary // 2
    keys = [np.random.choice(np.arange(1, half), replace=False, size=pairs).tolist() for _ in range(examples)]
    values = [np.random.choice(np.arange(half, vocabulary), replace=False, size=pairs).tolist() for _ in range(examples)]
    space = (length - 2 * pairs) // 2
    likely = [power * gap ** (power - 1) for gap in range(1, space + 1)]
    share = np.array(likely) / np.array(likely).sum()
    gaps = [np.random.choice(np.arange(space), replace=False, p=share, size=pairs).tolist() for _ in range(examples)]
    inputs, labels = [], []
    for row in range(examples):
        symbols = [symbol for pair in zip(keys[row], values[row], strict=True) for symbol in pair] + [0] * (length - 2 * pairs)
        wanted = [-100] * length
        for key, value, gap in zip(keys[row], values[row], gaps[row], strict=True):
            symbols[2 * pairs + 2 * gap] = key
            wanted[2 * pairs + 2 * gap] = value
        inputs.append(symbols)
        labels.append(wanted)
    return inputs, labels


@pytest.mark.parametrize(
    ("vocabulary", "examples", "length", "pairs", "power"),
    [(8192, 5, 64, 4, 0.01), (8192, 3, 256, 16, 0.01), (8192, 2, 512, 64, 0.01), (40, 9, 32, 8, 1.0), (33, 7, 20, 5, 0.3)],
)
@pytest.mark.parametrize("seed", [0, 7, 123456])
def test_samples_equal_those_of_zoology(vocabulary: int, examples: int, length: int, pairs: int, power: float, seed: int) -> None:
    inputs, labels = multiquery_ar(vocabulary, examples, length, seed, power, pairs, random_non_queries=False)
    wanted = zoology(vocabulary, examples, length, seed, power, pairs)
    assert inputs.tolist() == wanted[0]
    assert labels.tolist() == wanted[1]


@given(pairs=st.integers(1, 12), spare=st.integers(0, 30), more=st.integers(2, 60), seed=st.integers(0, 2**32 - 1))
def test_samples_have_the_required_structure(pairs: int, spare: int, more: int, seed: int) -> None:
    vocabulary, length = 2 * pairs + more, 4 * pairs + 2 * spare
    filled, labels = multiquery_ar(vocabulary, 2, length, seed, pairs=pairs)
    bare, same = multiquery_ar(vocabulary, 2, length, seed, pairs=pairs, random_non_queries=False)
    assert (labels == same).all()
    assert (filled[bare != 0] == bare[bare != 0]).all()  # only what stands between is random
    assert filled.max() < vocabulary
    for symbols, wanted in zip(bare.tolist(), labels.tolist(), strict=True):
        stated = dict(zip(symbols[: 2 * pairs : 2], symbols[1 : 2 * pairs : 2], strict=True))
        assert len(stated) == len(set(stated.values())) == pairs
        assert all(0 < key < vocabulary // 2 <= value for key, value in stated.items())
        asked_places = [place for place, value in enumerate(wanted) if value != -100]
        assert len(asked_places) == pairs
        assert all(place >= 2 * pairs and place % 2 == 0 for place in asked_places)
        assert {symbols[place]: wanted[place] for place in asked_places} == stated


def test_gaps_follow_the_power_law() -> None:
    _, labels = multiquery_ar(64, 4000, 42, 0, power=0.01, pairs=1)
    gaps = (np.nonzero(labels != -100)[1] - 2) // 2
    likely = np.arange(1, 21) ** -0.99
    seen = np.bincount(gaps, minlength=20) / 4000
    assert np.abs(seen - likely / likely.sum()).max() < 0.02


def test_labels_are_the_values_of_the_keys(letters: Writer) -> None:
    made = Mqar(samples=5, pairs=6, vocabulary=100)
    ordinary = letters.ordinary[:100]
    for sample in made.draw(letters, 66, "train"):
        symbols = [ordinary.index(token) for token in sample.ids[1:]]
        assert len(symbols) == 64  # an even number, after BOS
        stated = dict(zip(symbols[:12:2], symbols[1:12:2], strict=True))
        known = [place - 1 for place, wanted in enumerate(sample.answer) if wanted]
        assert len(known) == 6
        assert {symbols[place - 1]: symbols[place] for place in known} == stated
        assert sample.ids[0] == letters.begin[0]


def test_impossible_sizes_are_refused(letters: Writer) -> None:
    for options, length, message in [
        ({"pairs": 8}, 30, "mqar needs at least 32 symbols for 8 pairs and their queries, not 28"),
        ({"pairs": 50, "vocabulary": 100}, 500, "mqar needs a vocabulary of at least 102 for 50 different keys, not 100"),
        ({"vocabulary": 100_000}, 500, r"mqar: the tokenizer has \d+ tokens that are not special, not 100000"),
    ]:
        with pytest.raises(TaskError, match=message):
            list(Mqar.model_validate(options).draw(letters, length, "train"))
    with pytest.raises(TaskError, match="mqar has an even number of symbols, not 33"):
        multiquery_ar(64, 1, 33, 0)


def test_all_samples_of_both_splits_differ(letters: Writer) -> None:
    splits: tuple[Split, ...] = ("train", "evaluation")
    samples: list[Sample] = [sample for split in splits for sample in Mqar(samples=20).draw(letters, 64, split)]
    assert len({sample.ids for sample in samples}) == 40
