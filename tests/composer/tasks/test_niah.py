"""Single needles are RULER's: its sentences, values, places and score."""

from __future__ import annotations

import random
import re
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks.base import Sample, Split
from composer.tasks.catalogue import TASKS
from composer.tasks.haystack import Haystack
from composer.tasks.writer import Writer

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
VALUES = {"niah-single-1": r"[1-9]\d{6}", "niah-single-2": r"[1-9]\d{6}", "niah-single-3": r"[0-9a-f-]{36}"}


def samples(name: str, writer: Writer, length: int, split: Split = "evaluation", **options: Any) -> list[Sample]:
    return list(TASKS[name].model_validate({"samples": 12} | options).drawn(writer, length, split))


def parts(name: str, sample: Sample) -> tuple[str, str]:
    """The haystack before and after the needle, where the text is RULER's."""
    what = "uuid" if name == "niah-single-3" else "number"
    found = re.fullmatch(
        rf"A special magic {what} is hidden within the following text\. Make sure to memorize it\. I will quiz you about the "
        rf"{what} afterwards\.\n(.*)One of the special magic {what}s for ([a-z]+-[a-z]+) is: ({VALUES[name]})\.(.*)\nWhat is the "
        rf"special magic {what} for ([a-z]+-[a-z]+) mentioned in the provided text\? The special magic {what} for ([a-z]+-[a-z]+) "
        rf"mentioned in the provided text is ({VALUES[name]})",
        sample.text,
        flags=re.DOTALL,
    )
    assert found
    before, key, value, after, *said, answer = found.groups()
    assert said == [key, key]
    assert sample.answers == (value,) == (answer,)
    return before, after


def test_noise(letters: Writer) -> None:
    for sample in samples("niah-single-1", letters, 1500):
        before, after = parts("niah-single-1", sample)
        lines = (before + after.removeprefix("\n")).split("\n")
        assert set(lines) == {NOISE}
        assert after.startswith(f"\n{NOISE}")  # never the last line
        assert sample.depth == pytest.approx(before.count("\n") / len(lines))


@pytest.mark.parametrize("name", ["niah-single-2", "niah-single-3"])
def test_stories(name: str, letters: Writer) -> None:
    texts = set()
    for sample in samples(name, letters, 1500):
        before, after = parts(name, sample)
        assert before == "" or before.endswith((". ", "! ", "? "))
        words = (before + after).split()
        assert len(words) > 100
        texts.add(" ".join(words))
    assert len(texts) == 12


def test_values_and_keys_differ(letters: Writer) -> None:
    found = samples("niah-single-3", letters, 1000, samples=40)
    assert all(uuid.UUID(sample.answers[0]).version == 4 for sample in found if sample.answers)
    assert len({sample.answers for sample in found}) == 40


@pytest.mark.parametrize("name", sorted(VALUES))
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_depth(name: str, depth: float, letters: Writer) -> None:
    for sample in samples(name, letters, 4000, depth=depth, samples=3):
        before, after = parts(name, sample)
        assert sample.depth == pytest.approx(depth, abs=0.05)
        assert len(before) / len(before + after) == pytest.approx(depth, abs=0.08)


def test_a_file_is_divided(letters: Writer, book: Path) -> None:
    def numbers(split: Split) -> list[list[int]]:
        found = samples("niah-single-2", letters, 1500, split, haystack=book)
        return [[int(number) for number in re.findall(r"of number (\d+)", sample.text)] for sample in found]

    train, evaluation = numbers("train"), numbers("evaluation")
    assert {number for text in train for number in text} <= set(range(400))
    assert {text[0] for text in evaluation} == {400}  # from the beginning of its part, as RULER reads its essays
    assert len({text[0] for text in train}) > 6
    for text in (*train, *evaluation):
        assert len(text) > 20
        assert all(after in (before + 1, 0) for before, after in pairwise(text))


def test_a_short_file_begins_again(letters: Writer, tmp_path: Path) -> None:
    book = tmp_path / "five.txt"
    book.write_text("One is one. Two is two! Is three three? Four is four. Five is five.")
    (sample,) = samples("niah-single-2", letters, 1000, "evaluation", haystack=book, samples=1)
    assert sample.text.count("Five is five.") > 20
    (sample,) = samples("niah-single-2", letters, 1000, "train", haystack=book, samples=1)
    assert "Five" not in sample.text
    assert re.search(r"Four is four\. One is one\. Two is two! Is three three\? Four is four\.", sample.text)


def test_haystacks_are_taken_by_the_word(book: Path) -> None:
    haystack = Haystack(book, random.Random(0), "evaluation")
    assert haystack.take(0) == []
    assert haystack.take(3) == ["This is the"]
    assert haystack.take(7) == ["This is the sentence of number 400."]
    assert haystack.take(9) == ["This is the sentence of number 400.", "This is"]
    assert haystack.take(3) == ["This is the"]
    assert haystack.take(7 * 100)[-1] == "This is the sentence of number 499."


def test_haystacks_that_cannot_be_read(tmp_path: Path, letters: Writer) -> None:
    (tmp_path / "one.txt").write_text("Only one sentence")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    for name, said in [("none.txt", "cannot be read"), ("one.txt", "has 1 sentences: too few"), ("bytes.txt", "cannot be read")]:
        with pytest.raises(TaskError, match=rf"{name} {said}"):
            samples("niah-single-2", letters, 1000, haystack=tmp_path / name)


def test_needles_that_the_tokenizer_cannot_write(words: Writer) -> None:
    with pytest.raises(TaskError, match=r'cannot write "One of the special magic uuids for [a-z-]+ is: [0-9a-f-]{36}\."'):
        samples("niah-single-3", words, 1000)


@pytest.mark.parametrize(
    ("answers", "written", "right"),
    [
        (("1234567",), " 1234567.", 1),
        (("1234567",), "The number is 91234567", 1),
        (("1234567",), " 123456", 0),
        (("1234567",), "", 0),
        (("ab12-F",), "it is AB12-f, I think", 1),
        (("1", "2", "3", "4"), "3, 1", 0.5),
    ],
)
def test_score(answers: tuple[str, ...], written: str, right: float) -> None:
    assert TASKS["niah-single-3"].model_validate({}).score(Sample((), (), "", "", answers), written) == right
