"""A dictionary has the papers' form, and each number is a possible answer once."""

from __future__ import annotations

import re

import pytest

from composer.tasks.base import rng_of
from composer.tasks.dictionary import Dictionary
from composer.tasks.writer import Writer


@pytest.mark.parametrize("pairs", [10, 50])
def test_the_prompt_lists_different_words_with_different_numbers(pairs: int, any_text: Writer) -> None:
    sample = Dictionary(pairs=pairs).sample(rng_of(0, "evaluation", 0), any_text, 2000, "evaluation")
    prompt = sample.prompt or ""
    first, *lines, question = prompt.splitlines()
    assert first == "Memorize the following dictionary:"
    dictionary = dict(line.split(":") for line in lines)
    assert len(dictionary) == len(set(dictionary.values())) == pairs
    match = re.fullmatch(r"The value of the key '(\w+)' is", question)
    assert match is not None
    assert sample.answers == (dictionary[match[1]],)
    assert sample.candidates == tuple(dictionary.values())
    assert {len(number) for number in dictionary.values()} == {2}, "no number begins another"
    assert sample.depth == lines.index(f"{match[1]}:{dictionary[match[1]]}") / pairs
