"""Needles equal RULER's: its sentences, keys, values, places and score."""

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
    return list(TASKS[name].model_validate({"samples": 12} | options).draw(writer, length, split))


def parts(name: str, sample: Sample) -> tuple[str, str]:
    """Return the haystack before and after the needle if the text has RULER's form."""
    what = "uuid" if name == "niah-single-3" else "number"
    match = re.fullmatch(
        rf"A special magic {what} is hidden within the following text\. Make sure to memorize it\. I will quiz you about the "
        rf"{what} afterwards\.\n(.*)One of the special magic {what}s for (.+?) is: ({VALUES[name]})\.(.*)\nWhat is the "
        rf"special magic {what} for (.+?) mentioned in the provided text\? The special magic {what} for (.+?) "
        rf"mentioned in the provided text is ({VALUES[name]})",
        sample.text,
        flags=re.DOTALL,
    )
    assert match
    before, key, value, after, *numbers, answer = match.groups()
    assert numbers == [key, key]
    assert sample.answers == (value,) == (answer,)
    return before, after


def test_the_haystack_of_niah_single_1_repeats_the_noise_line(letters: Writer) -> None:
    for sample in samples("niah-single-1", letters, 1500):
        before, after = parts("niah-single-1", sample)
        lines = (before + after.removeprefix("\n")).split("\n")
        assert set(lines) == {NOISE}
        assert after.startswith(f"\n{NOISE}")  # never the last line
        assert sample.depth == pytest.approx(before.count("\n") / len(lines))


def test_needles_in_noise_are_uniformly_placed_before_the_end(letters: Writer) -> None:
    places: dict[tuple[int, int], int] = {}
    for sample in samples("niah-single-1", letters, 560, samples=200):
        before, after = parts("niah-single-1", sample)
        place = before.count(NOISE), after.count(NOISE)
        places[place] = places.get(place, 0) + 1
    lines = {sum(place) for place in places}
    assert max(lines) - min(lines) <= 1  # a key has more or fewer tokens
    assert all(before < sum((before, after)) for before, after in places)
    assert len({before for before, _ in places}) == max(lines)
    assert min(sum(count for (before, _), count in places.items() if before == place) for place in range(min(lines))) > 20


@pytest.mark.parametrize("name", ["niah-single-2", "niah-single-3"])
def test_needles_in_stories_are_placed_between_sentences(name: str, letters: Writer) -> None:
    texts = set()
    for sample in samples(name, letters, 1500):
        before, after = parts(name, sample)
        # RULER's spaces stand there even before a text's first word and after its last, which ends no sentence.
        assert before == " " or after == " " or before.endswith((". ", "! ", "? "))
        assert after[0] == " "
        words = (before + after).split()
        assert len(words) > 100
        texts.add(" ".join(words))
    assert len(texts) == 12


def test_values_and_keys_differ(letters: Writer) -> None:
    drawn = samples("niah-single-3", letters, 1000, samples=40)
    assert all(uuid.UUID(sample.answers[0]).version == 4 for sample in drawn if sample.answers)
    assert len({sample.answers for sample in drawn}) == 40


@pytest.mark.parametrize("name", sorted(VALUES))
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_the_requested_depth_sets_the_place_of_the_needle(name: str, depth: float, letters: Writer) -> None:
    for sample in samples(name, letters, 2500, depth=depth, samples=3):
        before, after = parts(name, sample)
        assert sample.depth == pytest.approx(depth, abs=0.05)
        assert len(before) / len(before + after) == pytest.approx(depth, abs=0.08)


def test_a_file_is_divided(letters: Writer, book: Path) -> None:
    def numbers(split: Split) -> list[list[int]]:
        drawn = samples("niah-single-2", letters, 1500, split, haystack=book)
        return [[int(number) for number in re.findall(r"of number (\d+)", sample.text)] for sample in drawn]

    train, evaluation = numbers("train"), numbers("evaluation")
    assert {number for text in train for number in text} <= set(range(400))
    assert {text[0] for text in evaluation} == {400}  # from the beginning of its part, as RULER reads its essays
    assert len({text[0] for text in train}) > 6
    for text in (*train, *evaluation):
        assert len(text) > 20
        assert all(after in (before + 1, 0) for before, after in pairwise(text))


def test_a_file_is_read_once(letters: Writer, tmp_path: Path) -> None:
    book = tmp_path / "five.txt"
    book.write_text(" ".join(f"{word} is the word number {word} here." for word in ("One", "Two", "Three", "Four", "Five")))
    drawn = {sample.text for sample in samples("niah-single-2", letters, 290, "train", haystack=book)}
    assert any("Four is the word number Four here. One is" in text for text in drawn)  # on from the end to the beginning
    for split, words in (("train", 28), ("evaluation", 7)):
        message = rf"niah-single-2: all {words} words of the haystack .*five\.txt that {split} may read make \d+ tokens, not 1000"
        with pytest.raises(TaskError, match=message):
            samples("niah-single-2", letters, 1000, split, haystack=book)


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    path, texts = tmp_path / "text.txt", []
    for word in ("one", "other"):
        path.write_text(f"This is {word} sentence. " * 50)
        texts.append(Haystack(path, random.Random(0), "evaluation").take(4))
    assert texts == [["This is one sentence."], ["This is other sentence."]]


def test_haystacks_are_cut_at_words(book: Path) -> None:
    haystack = Haystack(book, random.Random(0), "evaluation")
    assert haystack.take(0) == []
    assert haystack.take(3) == ["This is the"]
    assert haystack.take(7) == ["This is the sentence of number 400."]
    assert haystack.take(9) == ["This is the sentence of number 400.", "This is"]
    assert haystack.take(3) == ["This is the"]
    assert haystack.max_words == 7 * 100
    assert haystack.take(7 * 100)[-1] == "This is the sentence of number 499."


def test_unreadable_haystacks_are_refused(tmp_path: Path, letters: Writer) -> None:
    (tmp_path / "one.txt").write_text("Only one sentence")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    for name, message in [("none.txt", "cannot be read"), ("one.txt", "has 1 sentences: too few"), ("bytes.txt", "cannot be read")]:
        with pytest.raises(TaskError, match=rf"{name} {message}"):
            samples("niah-single-2", letters, 1000, haystack=tmp_path / name)


def test_needles_unknown_to_the_tokenizer_are_refused(words: Writer) -> None:
    with pytest.raises(TaskError, match=r'cannot write "One of the special magic uuids for [a-z-]+ is: [0-9a-f-]{36}\."'):
        samples("niah-single-3", words, 1000)


NEEDLE = r"One of the special magic (?:number|uuid)s for (.+?) is: ([0-9a-f-]+)\."


def needles(sample: Sample) -> list[tuple[str, str]]:
    """Return the keys and values of the prompt in order."""
    assert sample.prompt
    return re.findall(NEEDLE, sample.prompt)


def test_multikey_texts_have_four_keys_and_a_question_about_any_key(letters: Writer) -> None:
    places = set()
    for sample in samples("niah-multikey-1", letters, 1500):
        pairs = needles(sample)
        assert len(dict(pairs)) == 4
        ends = re.search(
            r"\nWhat is the special magic number for (.+) mentioned in the provided text\? "
            r"The special magic number for (.+) mentioned in the provided text is (\d{7})$",
            sample.text,
        )
        assert ends
        assert ends[1] == ends[2]
        assert sample.text.startswith("A special magic number is hidden")
        assert sample.answers == (ends[3],) == (dict(pairs)[ends[1]],)
        places.add([key for key, _ in pairs].index(ends[1]))
    assert places == {0, 1, 2, 3}


def test_multivalue_texts_have_four_values_of_a_single_key(letters: Writer) -> None:
    orders = set()
    for sample in samples("niah-multivalue", letters, 1500):
        pairs = needles(sample)
        (key,) = {key for key, _ in pairs}
        assert sample.answers
        assert sorted(value for _, value in pairs) == sorted(sample.answers)
        assert len(set(sample.answers)) == 4
        assert sample.text.startswith(
            "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
            "I will quiz you about the numbers afterwards.\n"
        )
        assert sample.text.endswith(
            f"\nWhat are all the special magic numbers for {key} mentioned in the provided text? "
            f"The special magic numbers for {key} mentioned in the provided text are {' '.join(sample.answers)}"
        )
        orders.add(tuple(sample.answers.index(value) for _, value in pairs))
    assert len(orders) > 5  # that of the answers says nothing of the text's


def test_multiquery_answers_have_the_order_of_the_four_keys_in_the_question(letters: Writer) -> None:
    for sample in samples("niah-multiquery", letters, 1500):
        pairs = dict(needles(sample))
        asked_keys = re.search(
            r"What are all the special magic numbers for (.+?), (.+?), (.+?), and (.+?) mentioned in", sample.text
        )
        assert asked_keys
        assert len(pairs) == 4
        assert sample.answers == tuple(pairs[key] for key in asked_keys.groups())
        assert sample.text.count(f"numbers for {', '.join(asked_keys.groups()[:3])}, and {asked_keys[4]} mentioned") == 2


@pytest.mark.parametrize("name", ["niah-multikey-2", "niah-multikey-3"])
def test_haystacks_may_consist_of_needles(name: str, letters: Writer) -> None:
    pattern = NEEDLE if name == "niah-multikey-2" else NEEDLE.replace("(.+?)", "([0-9a-f-]{36})")
    places = set()
    for sample in samples(name, letters, 1500):
        before, *lines, question = (sample.prompt or "").split("\n")
        assert before.startswith("A special magic ")
        matches = [re.fullmatch(pattern, line) for line in lines]
        assert all(matches)
        values = {line[1]: line[2] for line in matches if line}
        assert len(values) == len(lines) > 7
        asked_keys = re.match(r"What is the special magic (?:number|uuid) for (.+) mentioned in the provided text\? ", question)
        assert asked_keys
        assert sample.answers == (values[asked_keys[1]],)
        place = list(values).index(asked_keys[1])
        assert sample.depth == pytest.approx(place / (len(lines) - 1))
        assert place < len(lines) - 1  # never the last one
        places.add(place)
    assert len(places) > 3


def test_keys_of_needles_occur_once(monkeypatch: pytest.MonkeyPatch, letters: Writer) -> None:
    monkeypatch.setattr("composer.tasks.niah.word_pair", lambda rng: f"small-{rng.choice(['fox', 'dog', 'cat'])}")
    for sample in samples("niah-multikey-2", letters, 900, split="train"):
        asked_keys = re.search(r"What is the special magic number for (\S+)", sample.text)
        assert asked_keys
        assert [value for key, value in needles(sample) if key == asked_keys[1]] == list(sample.answers or ())


@pytest.mark.parametrize("name", ["niah-multikey-2", "niah-multikey-3"])
def test_depth_is_the_place_among_the_needles(name: str, letters: Writer) -> None:
    for depth in (0.0, 0.5, 1.0):
        for sample in samples(name, letters, 3000, depth=depth, samples=2):
            assert sample.depth == pytest.approx(depth, abs=0.06)
