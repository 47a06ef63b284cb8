"""Named pass keys are hidden at random places, scores are exact matches, and chance is the task's."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks.base import Sample
from composer.tasks.catalogue import TASKS
from composer.tasks.needles import Multikey, Multivalue, Needles, TwoNeedles
from composer.tasks.passkey import TASK
from composer.tasks.recall import KEYS
from composer.tasks.writer import Writer

GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NAMES = ("multikey", "multivalue", "two-needles")


def made(name: str, **options: Any) -> Needles:
    task = TASKS[name].model_validate({"samples": 30} | options)
    assert isinstance(task, Needles)
    return task


def parted(sample: Sample) -> tuple[list[tuple[str, str]], str, str]:
    """Return the needles of a text in order, the filler without them, and the question."""
    start = TASK.format(it="it") + " "
    assert sample.text.startswith(start)
    hidden, question = sample.text.removeprefix(start).split("What is")
    needle = r"The pass key of (\w+) is (\d{5})\. "
    return re.findall(needle, hidden), re.sub(needle, "", hidden), question


def test_the_answer_of_multikey_is_the_pass_key_of_the_name_in_the_question(words: Writer) -> None:
    for sample in made("multikey", keys=5).draw(words, 256, "train"):
        needles, filler, question = parted(sample)
        match = re.fullmatch(r" the pass key of (\w+)\? The pass key of \1 is (\d{5})", question)
        assert match
        assert len(dict(needles)) == len({key for _, key in needles}) == 5
        assert {name for name, _ in needles} <= set(KEYS)
        assert dict(needles)[match[1]] == match[2]
        assert sample.answers == (match[2],)
        assert (GRASS * 9).startswith(filler)
        assert 256 - 5 < len(sample.ids) <= 256
        assert sum(sample.answer) == 5
        assert all(sample.answer[-5:])


def test_the_answers_of_multivalue_are_all_pass_keys_of_a_single_name(words: Writer) -> None:
    for sample in made("multivalue", values=3).draw(words, 256, "train"):
        needles, filler, question = parted(sample)
        match = re.fullmatch(r" the pass key of (\w+)\? Find all of them\. The pass key of \1 is ([\d ]+)", question)
        assert match
        assert {name for name, _ in needles} == {match[1]}
        assert match[2].split() == [key for _, key in needles] == list(sample.answers or ())
        assert len({key for _, key in needles}) == 3
        assert (GRASS * 9).startswith(filler)
        assert sum(sample.answer) == 15


def test_the_answers_of_two_needles_are_the_pass_keys_of_both_names(words: Writer) -> None:
    orders = Counter[bool]()
    for sample in made("two-needles").draw(words, 256, "train"):
        needles, filler, question = parted(sample)
        match = re.fullmatch(r" the pass key of (\w+) and of (\w+)\? The pass key of \1 and of \2 is (\d{5}) (\d{5})", question)
        assert match
        assert dict(needles) == {match[1]: match[3], match[2]: match[4]}
        assert sample.answers == (match[3], match[4])
        assert (GRASS * 9).startswith(filler)
        assert sum(sample.answer) == 10
        orders[needles[0][0] == match[1]] += 1
    assert min(orders[True], orders[False]) > 5  # either may stand first


@pytest.mark.parametrize("name", NAMES)
def test_needles_are_uniformly_placed(name: str, words: Writer) -> None:
    quarters = Counter[int]()
    for sample in made(name, samples=150).draw(words, 250, "evaluation"):
        sentences = re.findall(r"[A-Z][^.]*\.", parted(sample)[1])
        text, filler = sample.text, len(sentences)
        for result in re.finditer(r"The pass key of \w+ is \d{5}\.", text):
            before = len(re.findall(r"(?:green|blue|yellow|go|again)\.", text[: result.start()]))
            quarters[min(4 * before // filler, 3)] += 1
    total = quarters.total()
    assert all(0.15 * total < quarters[quarter] < 0.35 * total for quarter in range(4)), quarters


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_depth_is_that_of_the_requested_needle(depth: float, words: Writer) -> None:
    for sample in made("multikey", depth=depth, samples=10).draw(words, 400, "evaluation"):
        assert sample.depth == pytest.approx(depth, abs=0.02)
        before = len(
            re.findall(r"(?:green|blue|yellow|go|again)\.", sample.text[: sample.text.index((sample.answers or ("",))[0])])
        )
        filler = len(re.findall(r"(?:green|blue|yellow|go|again)\.", sample.text))
        assert before / filler == sample.depth


@pytest.mark.parametrize(
    ("task", "answers", "written", "right"),
    [
        (Multikey(), ("01234",), " 01234", 1),
        (Multikey(), ("01234",), " 01234. 99999", 1),
        (Multikey(), ("01234",), " 99999 01234", 0),
        (Multikey(), ("01234",), " 0123", 0),
        (TwoNeedles(), ("01234", "56789"), " 01234 56789", 1),
        (TwoNeedles(), ("01234", "56789"), " 01234 and 56789. 11111", 1),
        (TwoNeedles(), ("01234", "56789"), " 56789 01234", 0),
        (TwoNeedles(), ("01234", "56789"), " 01234", 0),
        (Multivalue(), ("01234", "56789"), " 01234 56789", 1),
        (Multivalue(), ("01234", "56789"), " 56789 01234", 1),
        (Multivalue(), ("01234", "56789"), " 56789 56789", 0),
        (Multivalue(), ("01234", "56789"), " 11111 01234 56789", 0),
        (Multivalue(), ("01234", "56789"), "", 0),
    ],
)
def test_scores_are_exact(task: Needles, answers: tuple[str, ...], written: str, right: int) -> None:
    assert task.score(Sample((), (), "", "", answers), written) == right


@pytest.mark.parametrize(("name", "options"), [("multikey", {}), ("multikey", {"keys": 2}), ("two-needles", {})])
def test_chance_is_the_score_of_a_random_key_of_the_text(name: str, options: dict[str, Any], words: Writer) -> None:
    """Chance is the score of answering 600 texts with their keys in random order."""
    task, rng, scores = made(name, samples=600, **options), random.Random(0), list[float]()
    for sample in task.draw(words, 100, "evaluation"):
        keys = re.findall(r"is (\d{5})\.", sample.text)
        scores.append(task.score(sample, " ".join(rng.sample(keys, len(keys)))))
    assert sum(scores) / 600 == pytest.approx(task.chance, abs=4 * (task.chance * (1 - task.chance) / 600) ** 0.5)


def test_chance_if_all_keys_of_the_text_are_requested() -> None:
    assert Multivalue(values=2).chance == pytest.approx(1e-10)


@pytest.mark.parametrize(("name", "least"), [("multikey", 97), ("multivalue", 117), ("two-needles", 84)])
def test_texts_too_short_for_the_needles_are_refused(name: str, least: int, words: Writer) -> None:
    (sample,) = made(name, samples=1).draw(words, least, "train")
    assert len(sample.ids) == least
    with pytest.raises(TaskError, match=f"{name} needs at least {least} tokens, not {least - 1}"):
        list(made(name, samples=1).draw(words, least - 1, "train"))
