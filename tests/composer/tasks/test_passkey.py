"""Passkey texts are those of Mohtashami & Jaggi, or the one-line form of the shipped teacher's training."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks.base import Sample
from composer.tasks.passkey import Passkey
from composer.tasks.writer import Writer

GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def samples(writer: Writer, length: int, count: int = 40, **options: Any) -> list[Sample]:
    return list(Passkey.model_validate({"samples": count} | options).draw(writer, length, "evaluation"))


def test_the_plain_form_hides_a_key_of_five_digits_in_a_single_line(words: Writer) -> None:
    for sample in samples(words, 256):
        match = re.fullmatch(
            r"There is an important info hidden inside a lot of irrelevant text\. Find it and memorize it\. I will quiz you about "
            r"the important information there\. (.*)The pass key is (\d{5})\. Remember it\. (\d{5}) is the pass key\. (.*)"
            r"What is the pass key\? The pass key is (\d{5})",
            sample.text,
        )
        assert match
        before, *keys, after, answer = match.groups()
        assert {*keys, answer} == set(sample.answers or ())
        filler = before + after
        assert (GRASS * 20).startswith(filler)
        assert sample.depth == pytest.approx(before.count(".") / filler.count("."))
        assert sum(sample.answer) == 5


def test_the_original_form_has_five_lines_and_a_key_up_to_50000(letters: Writer) -> None:
    for sample in samples(letters, 900, form="original"):
        lines = sample.text.split("\n")
        key = (sample.answers or ("",))[0]
        assert len(lines) == 5
        assert lines[0].startswith("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. ")
        assert lines[0].endswith("I will quiz you about the important information there.")
        assert lines[2] == f"The pass key is {key}. Remember it. {key} is the pass key."
        assert lines[4] == f"What is the pass key? The pass key is {key}"
        assert 1 <= int(key) <= 50_000
        assert key == str(int(key))
        for filler in (lines[1], lines[3]):
            assert (GRASS * 40).startswith(filler)
        assert sample.depth == pytest.approx(len(lines[1]) / (len(lines[1]) + len(lines[3])))


@pytest.mark.parametrize("form", ["plain", "original"])
def test_depths_are_uniform_or_as_requested(form: str, letters: Writer) -> None:
    depths = [sample.depth for sample in samples(letters, 500, 100, form=form)]
    shares = Counter(int(min(depth or 0.0, 0.99) * 4) for depth in depths)
    assert all(10 < shares[quarter] < 40 for quarter in range(4))
    for wanted in (0.0, 0.25, 1.0):
        (sample,) = samples(letters, 1500, 1, form=form, depth=wanted)
        assert sample.depth == pytest.approx(wanted, abs=0.02)
        place, filler = sample.text.index("The pass key is"), sample.text.index("there.") + 7
        assert (place - filler) / (sample.text.index("What is") - filler - 70) == pytest.approx(wanted, abs=0.06)


@pytest.mark.parametrize(
    ("form", "key", "written", "right"),
    [
        ("plain", "01234", " 01234", 1),
        ("plain", "01234", "01234. The grass is green.", 1),
        ("plain", "01234", " 1 of them is 01234.", 1),
        ("plain", "01234", " 0123", 0),
        ("plain", "01234", " 1234", 0),
        ("plain", "01234", " 01235, or 01234", 0),
        ("plain", "01234", " 0 1 2 3 4", 0),
        ("plain", "01234", "", 0),
        ("original", "512", " 512.", 1),
        ("original", "512", " 5123", 0),
        ("original", "512", " 1 or 512", 0),
        ("original", "512", " the grass", 0),
    ],
)
def test_only_the_first_number_in_the_form_of_a_key_is_scored(form: Any, key: str, written: str, right: int) -> None:
    sample = Sample((), (), "", "", (key,))
    assert Passkey(form=form).score(sample, written) == right


def test_texts_too_short_for_the_passkey_are_refused(words: Writer) -> None:
    (sample,) = samples(words, 68, 1)
    assert len(sample.ids) == 68
    assert sample.depth == 0
    with pytest.raises(TaskError, match="passkey needs at least 68 tokens, not 67"):
        samples(words, 67, 1)


def test_long_texts_need_few_token_counts(letters: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = letters.count
    monkeypatch.setattr(letters, "count", lambda text: counted.append(1) or count(text))
    sample = Passkey().sample(random.Random(0), letters, 40_000, "train")
    assert 39_950 < len(sample.ids) <= 40_000
    assert len(counted) < 14
