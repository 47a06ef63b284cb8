"""ListOps equals the Long Range Arena's: trees, symbols, lengths and values."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.errors import TaskError
from composer.tasks.base import Sample, Split
from composer.tasks.listops import ListOps, Tree, operation
from composer.tasks.writer import Writer

SPLITS: tuple[Split, ...] = ("train", "evaluation")


def samples(writer: Writer, length: int, **options: Any) -> list[Sample]:
    return list(ListOps.model_validate({"samples": 10} | options).draw(writer, length, "evaluation"))


def read(symbols: list[str]) -> tuple[int, int, int]:
    """Return the value, the depth and the largest number of arguments of an expression, by a stack."""
    stack: list[list[Any]] = [["", []]]
    deepest, widest = 1, 0
    for symbol in symbols:
        if symbol.startswith("["):
            stack.append([symbol, []])
            deepest = max(deepest, len(stack))
        elif symbol == "]":
            name, values = stack.pop()
            widest = max(widest, len(values))
            assert len(values) >= 2
            ordered = sorted(values)
            middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) // 2
            stack[-1][1].append({"[MIN": ordered[0], "[MAX": ordered[-1], "[MED": middle, "[SM": sum(values) % 10}[name])
        else:
            stack[-1][1].append(int(symbol))
    ((_, (value,)),) = stack
    return value, deepest, widest


@pytest.mark.parametrize(
    ("symbols", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 1 2 3 4 ]", 2),
        ("[MED 8 1 5 ]", 5),
        ("[SM 5 9 7 ]", 1),
        ("[SM [MED 3 4 ] [MAX 0 1 ] ]", 4),
    ],
)
def test_the_test_reads_expressions(symbols: str, value: int) -> None:
    assert read(symbols.split())[0] == value


def test_answers_are_the_values_of_expressions_within_the_limits(letters: Writer) -> None:
    expressions, deepest, widest = [], 0, 0
    for sample in samples(letters, 20_000, samples=30):
        assert sample.prompt
        symbols = sample.prompt.split(" ")
        assert 500 < len(symbols) < 2000
        assert set(symbols) <= {"[MIN", "[MAX", "[MED", "[SM", "]", *"0123456789"}
        value, depth, arguments = read(symbols)
        assert sample.answers == (str(value),)
        deepest, widest = max(deepest, depth), max(widest, arguments)
        expressions.append(len(symbols))
    assert deepest == 10
    assert widest == 10
    assert max(expressions) > 1200


@given(
    seed=st.integers(0, 10**9),
    above=st.integers(1, 20),  # deeper and wider trees of about 30 symbols are one in a hundred thousand
    room=st.integers(10, 60),
    depth=st.integers(5, 10),
    most=st.integers(3, 10),
)
def test_trees_have_the_requested_sizes(seed: int, above: int, room: int, depth: int, most: int) -> None:
    made = ListOps(above=above, below=above + room, depth=depth, arguments=most, probability=0.5)
    tree = made.tree(random.Random(seed), above + room)
    assert above < len(tree.symbols) < above + room
    value, deepest, widest = read(list(tree.symbols))
    assert value == tree.value
    assert deepest <= depth
    assert widest <= most


def test_trees_equal_those_of_the_original() -> None:
    """The same random numbers give the same tree in the original's order of draws."""

    def original(rng: random.Random, depth: int) -> tuple[list[str], int]:
        if depth == 10 or rng.random() > 0.25:
            digit = rng.choice(range(10))
            return [str(digit)], 1
        parts = [original(rng, depth + 1) for _ in range(rng.randint(2, 10))]
        name = rng.choice(["[MIN", "[MAX", "[MED", "[SM"])
        return [name, *(symbol for part, _ in parts for symbol in part), "]"], 2 + sum(length for _, length in parts)

    for seed in range(300):
        symbols, length = original(random.Random(seed), 1)
        assert list(ListOps().node(random.Random(seed), 1, 10**9).symbols) == symbols
        assert len(symbols) == length


def test_a_quarter_of_the_nodes_above_the_last_level_are_operations() -> None:
    rng = random.Random(0)
    made = ListOps()
    operations = [len(made.node(rng, 9, 100).symbols) > 1 for _ in range(4000)]
    assert statistics.mean(operations) == pytest.approx(0.25, abs=0.03)
    assert all(len(made.node(rng, 10, 100).symbols) == 1 for _ in range(100))


def test_expressions_with_parentheses_have_the_same_values(letters: Writer) -> None:
    (sample,) = samples(letters, 900, above=4, below=40, parentheses=True, samples=1)
    assert sample.prompt
    symbols = sample.prompt.replace("( ", "").replace(" )", "").split(" ")
    assert 4 < len(symbols) < 40
    assert sample.prompt.count("( ") == sample.prompt.count(" )") == len(symbols) - 1
    assert sample.answers == (str(read(symbols)[0]),)
    assert operation("[SM", [operation("[MAX", [Tree(1, ("1",), "1")] * 2), Tree(5, ("5",), "5")]) == Tree(
        6, ("[SM", "[MAX", "1", "1", "]", "5", "]"), "( ( ( [SM ( ( ( [MAX 1 ) 1 ) ] ) ) 5 ) ] )"
    )


def test_trees_that_exceed_the_length_are_omitted(letters: Writer) -> None:
    for length in (1300, 1500):
        for sample in samples(letters, length, samples=2):
            assert sample.prompt
            assert len(sample.ids) <= length
            assert len(sample.prompt.split(" ")) > 500


def test_lengths_too_short_for_an_expression_are_refused(letters: Writer) -> None:
    with pytest.raises(TaskError, match=r"listops of more than 500 symbols needs at least \d{3,4} tokens, not 400"):
        samples(letters, 400)
    least = letters.count("[MAX " + "0 " * 19 + "] 0")
    with pytest.raises(TaskError, match=r"listops: of \d+ (expressions|trees)"):
        samples(letters, least, above=20, below=200, depth=10, arguments=2)


def test_symbols_unknown_to_the_tokenizer_are_refused(words: Writer) -> None:
    with pytest.raises(TaskError, match=r'cannot write "\[MIN"'):
        samples(words, 2000)


@pytest.mark.parametrize(("written", "right"), [(" 7", 1), ("7.", 1), ("It is 7, not 3", 1), (" 3 7", 0), (" 77", 0), ("", 0)])
def test_only_the_first_number_is_scored(written: str, right: float) -> None:
    assert ListOps().score(Sample((), (), "", "", ("7",)), written) == right


def test_training_and_evaluation_share_no_sample(letters: Writer) -> None:
    made = ListOps(above=3, below=6, samples=300)
    train, evaluation = ({sample.text for sample in made.draw(letters, 100, split)} for split in SPLITS)
    assert not train & evaluation
    assert len(evaluation) > 20
