"""BABILong mixes the facts of a bAbI story into a text in order, and counts only a single answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from composer.errors import TaskError
from composer.tasks import babilong
from composer.tasks.babi import PLACES, Question, ask
from composer.tasks.babilong import (
    MOST_FACTS,
    PEOPLE_AND_THINGS,
    BabilongQa1,
    BabilongQa2,
    BabilongQa3,
    BabilongQa5,
    of_split,
    read,
)
from composer.tasks.base import Sample, Split
from composer.tasks.catalogue import TASKS
from composer.tasks.writer import Writer
from tests.composer.tasks.conftest import ROOT
from tests.composer.tasks.test_tasks import SPLITS

REAL = ROOT.parent / "shared" / "data" / "babi"


def test_a_file_is_read_by_the_question(babi: Path) -> None:
    (story,) = read(babi / "qa1_some-words_test.txt")
    first = ("Mary moved to the bathroom.", "John went to the hallway.")
    assert story == [
        Question(first, "Where is Mary?", "bathroom", (0,)),
        # The question between is no fact, though it has a number.
        Question((*first, "Mary went to the office."), "Where is Mary?", "office", (2,)),
    ]


def test_facts_are_in_order(letters: Writer, babi: Path) -> None:
    places = []
    for sample in BabilongQa2(babi=babi, samples=30).draw(letters, 1200, "evaluation"):
        facts = ["Mary went to the kitchen.", "Mary got the milk there.", "Mary went to the garden."]
        match = re.fullmatch(rf"(.*){re.escape(facts[0])}(.*){re.escape(facts[1])}(.*){re.escape(facts[2])}(.*)", sample.text)
        assert match
        assert sample.text.endswith(" Where is the milk? garden")
        *gaps, last = match.groups()
        background = "".join([*gaps, last.removesuffix("Where is the milk? garden")])
        assert len(background) > 1000
        assert len("".join(gaps)) / len(background) == pytest.approx(sample.depth, abs=0.1)
        places.append(sample.depth)
    assert min(places) < 0.6
    assert max(places) > 0.9


def test_instructions_for_untrained_models_are_added(letters: Writer, babi: Path) -> None:
    (sample,) = BabilongQa1(babi=babi, samples=1, instruction="Answer in one word.").draw(letters, 700, "train")
    assert re.fullmatch(
        r"Answer in one word\.\n<context>\n[^\n]*John went to the hallway\.[^\n]*\n</context>\n"
        r"Question: Where is Mary\? (bathroom|office)",
        sample.text,
    )


@pytest.mark.parametrize(
    ("written", "right"),
    [
        (" garden", 1),
        ("The milk is in the GARDEN. Mary is in the kitchen.", 1),
        ("garden <example> kitchen", 1),
        ("It was in the kitchen, and now it is in the garden.", 0),
        ("I do not know. The garden.", 0),
        ("kitchen", 0),
        ("", 0),
    ],
)
def test_only_the_first_sentence_is_scored_and_may_name_a_single_place(written: str, right: int, babi: Path) -> None:
    sample = Sample((), (), "", "Mary went to the office. Where is the milk?", ("garden",))
    assert BabilongQa2(babi=babi).score(sample, written) == right


def test_labels_in_the_question_are_not_scored(babi: Path) -> None:
    sample = Sample((), (), "", "Mary was there. Where was the apple before the kitchen?", ("garden",))
    assert BabilongQa3(babi=babi).score(sample, "Before the kitchen the apple was in the garden.") == 1
    assert BabilongQa3(babi=babi).score(sample, "Before the kitchen the apple was in the office.") == 0
    cut = Sample((), (), "", "What a day! Then they left the garden for Where is the apple?", ("garden",))
    assert BabilongQa2(babi=babi).score(cut, "garden") == 1, "the background's last sentence is no part of the question"
    people = Sample((), (), "", "<context>\nMary ran.\n</context>\nQuestion: What did Fred give to Bill?", ("Apple",))
    assert BabilongQa5(babi=babi).score(people, "Fred gave Bill the apple") == 1
    assert BabilongQa5(babi=babi).score(people, "Mary gave Bill the apple") == 0


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("babilong")])
def test_without_files_simulated_facts_are_used_and_recorded(name: str, any_text: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without files, this project's facts are used and recorded as such. Each split requests its own (``test_babi`` keeps them
    apart).
    """
    calls: set[tuple[int, Split]] = set()
    monkeypatch.setattr(babilong, "ask", lambda number, rng, split: (calls.add((number, split)), ask(number, rng, split))[1])
    made = TASKS[name].model_validate({"samples": 6})
    for split in SPLITS:
        calls.clear()
        for sample in made.draw(any_text, 1200, split):
            assert 1140 <= len(sample.ids) <= 1200
            assert sample.answers
            assert made.score(sample, sample.answers[0]) == 1
        assert calls == {(int(name[-1]), split)}
    assert made.provenance["babi"] == (
        "built-in: simulated people, things and places of this project in bAbI's forms, not bAbI's files"
    )
    assert made.model_dump()["babi"] == "simulated"


def test_labels_are_single_lower_case_words() -> None:
    assert len(PLACES) == 6
    assert len(PEOPLE_AND_THINGS) == 7
    assert all(len(label.split()) == 1 and label == label.lower() for label in PLACES + PEOPLE_AND_THINGS)


def test_each_split_has_its_file(letters: Writer, babi: Path) -> None:
    (babi / "qa1_some-words_test.txt").write_text("1 Sandra went to the garden.\n2 Where is Sandra? \tgarden\t1\n")
    made = BabilongQa1(babi=babi, samples=20)
    assert not any("Sandra" in sample.text for sample in made.draw(letters, 700, "train"))
    assert all("Sandra" in sample.text for sample in made.draw(letters, 700, "evaluation"))


def test_changed_files_are_read_again(letters: Writer, babi: Path) -> None:
    made = BabilongQa1(babi=babi, samples=1)
    for name in ("Sandra", "Daniel Brown"):
        (babi / "qa1_some-words_test.txt").write_text(f"1 {name} went to the garden.\n2 Where is {name}? \tgarden\t1\n")
        (sample,) = made.draw(letters, 700, "evaluation")
        assert name in sample.text


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_single_file_is_divided(part: str, letters: Writer, babi: Path) -> None:
    for path in babi.glob("qa1_*"):
        path.unlink()
    stories = [f"1 Mary met {number} of them.\n2 Where is Mary? \tgarden\t1\n" for number in range(10)]
    (babi / f"qa1_some-words_{part}.txt").write_text("".join(stories))
    made = BabilongQa1(babi=babi, samples=60)
    digits: dict[Any, set[str]] = {
        split: {digit for sample in made.draw(letters, 100, split) for digit in re.findall(r"met (\d) of", sample.text)}
        for split in ("train", "evaluation")
    }
    assert digits == {"train": set("01234567"), "evaluation": set("89")}


def test_invalid_files_are_refused(letters: Writer, babi: Path) -> None:
    with pytest.raises(TaskError, match="has no file of bAbI's task 3, such as qa3_"):
        list(BabilongQa3(babi=babi).draw(letters, 700, "train"))
    for wrong in ("Mary went.", "1 Where is Mary?\tgarden", "2 Mary went.", "1 Where is Mary?\tgarden\t7"):
        (babi / "qa1_some-words_train.txt").write_text(wrong)
        with pytest.raises(TaskError, match=r"qa1_some-words_train.txt:1 is no line of bAbI"):
            list(BabilongQa1(babi=babi, seed=1).draw(letters, 700, "train"))
    path = babi / "qa1_some-words_train.txt"
    path.write_text("".join(f"{number} Mary went to the garden.\n" for number in range(1, MOST_FACTS + 2)))
    with pytest.raises(TaskError, match=f"train.txt:{MOST_FACTS + 1}: a story has more than 2,000 facts"):
        read(path)
    path.unlink()
    (babi.parent / "else.txt").write_text("1 Mary went.\n")
    path.symlink_to(babi.parent / "else.txt")
    with pytest.raises(TaskError, match="cannot be read as text: it leads out of its folder"):
        list(BabilongQa1(babi=babi, seed=2).draw(letters, 700, "train"))


def test_lengths_too_short_for_any_story_are_refused(letters: Writer, babi: Path) -> None:
    with pytest.raises(TaskError, match=r"babilong-qa1 needs at least \d+ tokens, not 20: the shortest of 100 stories"):
        list(BabilongQa1(babi=babi).draw(letters, 20, "train"))
    (sample,) = BabilongQa1(babi=babi, samples=1).draw(letters, 75, "train")
    assert "Where is Mary?" in sample.text


def test_words_unknown_to_the_tokenizer_are_refused(words: Writer, babi: Path) -> None:
    with pytest.raises(TaskError, match=r'cannot write "Mary moved to the bathroom\."'):
        list(BabilongQa1(babi=babi).draw(words, 300, "train"))


@pytest.mark.skipif(not REAL.is_dir(), reason="bAbI does not lie beside the repository")
@pytest.mark.parametrize("name", ["babilong-qa1", "babilong-qa2", "babilong-qa3"])
def test_tasks_are_drawn_from_the_real_files(name: str, letters: Writer) -> None:
    made = TASKS[name].model_validate({"babi": REAL, "samples": 8})
    for sample in made.draw(letters, 2500, "evaluation"):
        assert 2470 <= len(sample.ids) <= 2500
        assert sample.answers
        assert sample.answers[0] in PLACES
        assert made.score(sample, sample.answers[0]) == 1


def test_files_without_questions_are_refused(babi: Path) -> None:
    for path in babi.glob("qa1_*"):
        path.unlink()
    (babi / "qa1_facts_test.txt").write_text("".join("1 Mary went to the garden.\n" for _ in range(10)))
    with pytest.raises(TaskError, match=r"qa1_facts_test\.txt has no question in the stories for evaluation; expected lines with"):
        of_split(babi, 1, "evaluation")
