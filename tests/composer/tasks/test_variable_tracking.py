"""Variable tracking equals RULER's: a chain of assignments in lines of noise after an example, with the variables as the answer."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks.base import Sample
from composer.tasks.variable_tracking import VariableTracking
from composer.tasks.writer import Writer

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FORM = (
    r"Memorize and track the chain\(s\) of variable assignment hidden in the following text\.\n\n(.*)\n"
    r"Question: Find all variables that are assigned the value (\d{5}) in the text above\. Answer: According to the chain\(s\) of "
    r"variable assignment in the text above, (\d+) variables are assigned the value \2, they are:  ([A-Z ]+)"
)


def samples(writer: Writer, length: int, **options: Any) -> list[Sample]:
    return list(VariableTracking.model_validate({"samples": 8} | options).draw(writer, length, "evaluation"))


def chains(context: str, size: int) -> dict[str, list[str]]:
    """Return the variables by value. size: letters per variable."""
    assignments: dict[str, list[str]] = {}
    for line in context.split("\n"):
        if line == NOISE:
            continue
        first = re.fullmatch(rf"VAR ([A-Z]{{{size}}}) = (\d{{5}})", line)
        if first:
            assignments[first[2]] = [first[1]]
            continue
        later = re.fullmatch(rf"VAR ([A-Z]{{{size}}}) = VAR ([A-Z]{{{size}}}) ", line)  # with RULER's space
        assert later
        (chain,) = (chain for chain in assignments.values() if chain[-1] == later[2])  # told before
        chain.append(later[1])
    return assignments


def test_texts_have_an_example_and_a_question_in_the_form_of_ruler(letters: Writer) -> None:
    places = set()
    for sample in samples(letters, 1800):
        example, question = sample.text.split("\n\nMemorize")
        for text, size in ((example, 3), (f"Memorize{question}", 5)):
            match = re.fullmatch(FORM, text, flags=re.DOTALL)
            assert match
            context, value, count, answer = match.groups()
            assert count == "5"
            assert chains(context, size) == {value: answer.split(" ")}
            assert 10_000 <= int(value) < 99_999
            if size == 5:
                assert sample.answers == tuple(answer.split(" "))
                lines = context.split("\n")
                assert lines.count(NOISE) == len(lines) - 5 > 5
                assert lines[-1] == NOISE  # as RULER lays them: none is after all of the noise
                places.add(tuple(line == NOISE for line in lines))
            else:
                assert context.split("\n").count(NOISE) >= 5
    assert len(places) > 4


def test_an_example_has_500_tokens_at_most(words: Writer) -> None:
    class Letters(Writer):
        """A tokenizer with one token per letter."""

        def encode(self, text: str, *, begin: bool = True) -> list[int]:
            return [1] * len(text)

    class Words(Writer):
        def encode(self, text: str, *, begin: bool = True) -> list[int]:
            return [1] * len(text.split())

    for writer, fewest, most in ((Letters, 5, 5), (Words, 10, 40)):
        text = VariableTracking().write_example(random.Random(0), writer(words.tokenizer))
        assert fewest <= text.count(NOISE) <= most
        if writer is Words:
            assert 475 <= len(text.split()) - 5 <= 500


def test_options_set_the_chains_and_hops_and_omit_the_example(letters: Writer) -> None:
    for sample in samples(letters, 1500, chains=3, hops=2, example=False):
        match = re.fullmatch(FORM, sample.text, flags=re.DOTALL)
        assert match
        chains_of = chains(match[1], 5)
        assert [len(names) for names in chains_of.values()] == [3, 3, 3]
        assert len({name for names in chains_of.values() for name in names}) == 9
        assert sample.answers == tuple(chains_of[match[2]])
        assert match[3] == "3"


def test_the_shortest_text_has_one_noise_sentence_per_assignment(letters: Writer) -> None:
    (least,) = re.findall(r"at least (\d+) tokens", str(failure(letters, 100)))
    (sample,) = samples(letters, int(least), example=False, samples=1)
    lines = sample.text.split("\n")[2:12]
    assert [line == NOISE for line in lines] == [False, True] * 5  # each of its places is taken
    assert len(sample.ids) == int(least)


def failure(writer: Writer, length: int) -> TaskError:
    with pytest.raises(TaskError, match="variable-tracking needs at least") as raised:
        samples(writer, length, example=False, samples=1)
    return raised.value


def test_variables_unknown_to_the_tokenizer_are_refused(words: Writer) -> None:
    with pytest.raises(TaskError, match=r'cannot write "VAR [A-Z]{5} = \d{5}"'):
        samples(words, 1000)
