"""For every task, lengths are exact, the seed decides everything, and evaluation and training are separate."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from composer.errors import TaskError
from composer.tasks.base import Split, Task, apart, rng_of
from composer.tasks.catalogue import TASKS
from composer.tasks.writer import Writer
from pages.write import TASK_HEADER, TASK_TABLE, list_tasks
from tests.covers import in_turns

SINGLE = {
    "passkey",
    "multikey",
    "niah-single-1",
    "niah-single-2",
    "niah-single-3",
    "niah-multikey-1",
    "niah-multikey-2",
    "niah-multikey-3",
    "dictionary",
} | {
    "babilong-qa1",
    "babilong-qa2",
    "babilong-qa5",
}
"""One answer, which lies somewhere in the prompt."""
SEVERAL = {"multivalue", "two-needles", "niah-multivalue", "niah-multiquery", "variable-tracking", "common-words", "frequent-words"}
WRITTEN = SINGLE | SEVERAL | {"listops"}
OTHERS = {"recall", "mqar", "stories"}
IN_WORDS = ["passkey", "multikey", "multivalue", "two-needles", "recall", "mqar", "stories"]
"""What the shipped teacher's words can say."""
SLACK = {"niah-single-1": 120, "niah-multikey-2": 90, "niah-multikey-3": 150, "variable-tracking": 120, "stories": 0}
"""Tokens of a line of filler; those of a word or a short sentence are 30 at most."""
OPTIONS: dict[str, dict[str, Any]] = {
    "multikey": {"keys": 2},
    "multivalue": {"values": 2},
    "recall": {"pairs": 4},
    "mqar": {"pairs": 4},
    "variable-tracking": {"example": False},
    "common-words": {"example": False, "common": 4},
    "listops": {"above": 20, "below": 60},
}
"""What makes them short."""

SPLITS: tuple[Split, ...] = ("train", "evaluation")


def task(name: str, babi: Path, **options: Any) -> Task:
    own = {"babi": babi} if name.startswith("babilong") else OPTIONS.get(name, {})
    return TASKS[name].model_validate({"samples": 3} | own | options)


def test_every_task_in_the_catalogue_has_a_description_and_a_source() -> None:
    for name, kind in TASKS.items():
        assert kind.model_fields["kind"].default == name
        assert kind.__doc__
        assert kind.source
        assert kind.model_fields["learn"].default == ("all" if name == "stories" else "answer")
    assert {*TASKS} - {"babilong-qa3", "babilong-qa4"} == WRITTEN | OTHERS


def test_the_page_of_tasks_equals_the_catalogue() -> None:
    page = TASK_TABLE.read_text(encoding="utf-8")
    assert list_tasks(page) == page, "docs/tasks.md is not the catalogue as it is: write it anew with `make docs`"
    table = page.partition(TASK_HEADER)[2]
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == list(TASKS)
    (row,) = [line for line in page.splitlines() if line.startswith("| `stories` |")]
    assert list_tasks(page.replace(row, "| `gone` | | | |")) == page


def test_the_page_lists_the_tasks_that_the_shipped_teacher_can_write(words: Writer, babi: Path) -> None:
    for name in sorted({*TASKS} - {"babilong-qa3", "babilong-qa4"}):
        drawn = task(name, babi, samples=1).draw(words, 800, "train")
        if name in IN_WORDS:
            assert len(list(drawn)) == 1
        else:
            with pytest.raises(TaskError, match="The tokenizer cannot write"):
                list(drawn)
    message = "can write `passkey`, `multikey`, `multivalue`, `two-needles`, `recall`, `mqar` and `stories`"
    assert message in " ".join(TASK_TABLE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("name", "length"), in_turns(sorted((WRITTEN | OTHERS) - {"listops", "dictionary"}), [760, 811, 1024]))
def test_samples_nearly_fill_the_requested_length(name: str, length: int, any_text: Writer, babi: Path) -> None:
    made = task(name, babi, samples=2)
    for sample in made.draw(any_text, length, "train"):
        assert len(sample.ids) == len(sample.answer) <= length
        assert len(sample.ids) >= length - SLACK.get(name, 30)
        assert list(sample.ids[: len(any_text.begin)]) == any_text.begin
        assert any(sample.answer) == (name != "stories")


@pytest.mark.parametrize("name", sorted(WRITTEN | {"recall", "mqar"}))
def test_too_small_lengths_are_refused_with_the_least_length(name: str, letters: Writer, babi: Path) -> None:
    with pytest.raises(TaskError, match=rf"{name}( of [\w ]+)? needs at least \d+ (tokens|symbols|different words)"):
        task(name, babi).sample(random.Random(0), letters, 14, "train")


@pytest.mark.parametrize(("name", "length"), in_turns(IN_WORDS, [90, 256, 513]))
def test_samples_in_words_fill_their_length(name: str, length: int, words: Writer, babi: Path) -> None:
    for sample in task(name, babi).draw(words, length, "train"):
        assert length - 5 < len(sample.ids) <= length
        assert name == "mqar" or words.tokenizer.unk_token_id not in sample.ids


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_samples_continue_the_prompt_with_the_answer(name: str, any_text: Writer, babi: Path) -> None:
    made = task(name, babi, samples=2)
    for sample in made.draw(any_text, 900, "evaluation"):
        assert sample.prompt is not None
        assert sample.answers is not None
        assert sample.text.startswith(f"{sample.prompt} ")
        completion = sample.text.removeprefix(f"{sample.prompt} ")
        if name != "common-words":
            assert completion == " ".join(sample.answers)
        assert list(sample.ids) == any_text.encode(sample.text)
        assert list(sample.prompt_ids) == any_text.encode(sample.prompt)[: len(sample.prompt_ids)]
        assert len(sample.prompt_ids) >= len(any_text.encode(sample.prompt)) - (name == "variable-tracking")
        answer = [token for token, wanted in zip(sample.ids, sample.answer, strict=True) if wanted]
        written = any_text.decode(answer)
        assert written.strip() == completion
        assert made.score(sample, written) == 1
        assert made.score(sample, "?") == 0
        assert (sample.depth is not None) == (name in SINGLE)
        assert 0 <= (sample.depth or 0) <= 1
        if name != "listops":
            assert all(answer in sample.prompt for answer in sample.answers)


@pytest.mark.parametrize("name", sorted(WRITTEN | OTHERS))
def test_samples_depend_only_on_the_seed(name: str, letters: Writer, babi: Path) -> None:
    made = task(name, babi, samples=2)
    first = list(made.draw(letters, 800, "evaluation"))
    assert list(made.draw(letters, 800, "evaluation")) == first
    assert list(task(name, babi, samples=1).draw(letters, 800, "evaluation")) == first[:1]
    reseeded = task(name, babi, samples=2, seed=1).draw(letters, 800, "evaluation")
    training = made.draw(letters, 800, "train")
    assert len({sample.text for sample in (*first, *reseeded, *training)}) == 6


@pytest.mark.parametrize("name", IN_WORDS)
def test_training_and_evaluation_share_no_sample(name: str, words: Writer, babi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few texts that both would draw the same ones.
    monkeypatch.setattr("composer.tasks.passkey.five_digits", lambda rng: f"0000{rng.randrange(10)}{rng.randrange(10)}"[-5:])
    monkeypatch.setattr("composer.tasks.needles.five_digits", lambda rng: f"0000{rng.randrange(5)}")
    monkeypatch.setattr("composer.tasks.needles.KEYS", ["otter", "heron", "lion"])
    monkeypatch.setattr("composer.tasks.recall.KEYS", ["otter", "heron", "lion"])
    monkeypatch.setattr("composer.tasks.recall.VALUES", ["velvet", "copper", "marble", "cotton"])
    monkeypatch.setattr("composer.tasks.stories.story", lambda rng: f"{rng.randrange(10)} {rng.randrange(10)}.")
    options = {"recall": {"pairs": 2}, "mqar": {"pairs": 1, "vocabulary": 40, "random_non_queries": False}}.get(name, {})
    length = {"recall": 7, "stories": 5, "mqar": 5}.get(name, 90)
    texts: dict[Split, set[str]] = {
        split: {sample.text for sample in task(name, babi, samples=100, **options).draw(words, length, split)} for split in SPLITS
    }
    assert not texts["train"] & texts["evaluation"]
    assert min(map(len, texts.values())) > 3


def test_every_value_belongs_to_one_split() -> None:
    train = {apart(random.Random(seed), "train", lambda rng: rng.randrange(100)) for seed in range(3000)}
    evaluation = {apart(random.Random(seed), "evaluation", lambda rng: rng.randrange(100)) for seed in range(3000)}
    assert not train & evaluation
    assert train | evaluation == set(range(100))
    assert 5 < len(evaluation) < 25


def test_values_too_few_for_two_splits_are_refused() -> None:
    with pytest.raises(TaskError, match="too few different samples to keep some of them for"):
        [apart(random.Random(0), split, lambda rng: "the only one") for split in SPLITS]


def test_random_streams_differ_between_seeds_splits_and_samples() -> None:
    first = [rng_of(seed, split, index).random() for seed in range(9) for split in SPLITS for index in range(99)]
    assert len(set(first)) == len(first)
    assert rng_of(1, "train", 23).random() == rng_of(1, "train", 23).random() != rng_of(12, "train", 3).random()


def test_the_length_is_that_of_the_caller_or_the_task(words: Writer, babi: Path) -> None:
    assert {len(sample.ids) for sample in task("stories", babi, length=50).draw(words, 200, "train")} == {50}
    assert {len(sample.ids) for sample in task("stories", babi).draw(words, 200, "train")} == {200}
    with pytest.raises(TaskError, match="stories: set the length of its samples"):
        list(task("stories", babi).draw(words, None, "train"))


def test_only_tasks_with_generated_answers_have_a_score(words: Writer, babi: Path) -> None:
    for name in ("recall", "mqar", "stories"):
        made = task(name, babi)
        (sample, *_) = made.draw(words, 100, "train")
        assert (sample.prompt, sample.answers) == (None, None)
        with pytest.raises(TaskError, match=rf"{name} is scored by {made.scored}"):
            made.score(sample, "")


def test_options_are_closed(babi: Path) -> None:
    for name, wrong in [
        ("passkey", {"depht": 0.5}),
        ("passkey", {"depth": 1.5}),
        ("recall", {"pairs": 65}),
        ("dictionary", {"pairs": 51}),
        ("multikey", {"keys": 1}),
        ("multikey", {"keys": 65}),
        ("multivalue", {"values": 1}),
        ("two-needles", {"depth": 0.5}),
        ("mqar", {"samples": 0}),
        ("listops", {"above": 500, "below": 501}),
        ("frequent-words", {"alpha": 1}),
        ("niah-multivalue", {"depth": 0.5}),
    ]:
        with pytest.raises(ValidationError):
            task(name, babi, **wrong)
    with pytest.raises(ValidationError, match="stories have no answers to learn"):
        task("stories", babi, learn="answer")


def test_options_may_be_words_of_a_command(babi: Path) -> None:
    task = TASKS["babilong-qa1"].model_validate({"samples": "12", "babi": str(babi), "haystack": "stories"})
    assert (task.samples, task.model_dump()["babi"], task.model_dump()["haystack"]) == (12, babi, "stories")
    assert TASKS["niah-single-2"].model_validate({"haystack": "a.txt", "depth": "0.5"}).model_dump()["haystack"] == Path("a.txt")
    assert TASKS["mqar"].model_validate({"random_non_queries": "false"}).model_dump()["random_non_queries"] is False


def test_the_catalogue_is_light() -> None:
    script = "import sys, composer.tasks.catalogue; print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_origins_of_external_samples_are_recorded(babi: Path, book: Path) -> None:
    for name in (
        "passkey",
        "multikey",
        "multivalue",
        "two-needles",
        "mqar",
        "recall",
        "stories",
        "listops",
        "variable-tracking",
        "frequent-words",
        "niah-multikey-3",
    ):
        assert task(name, babi).provenance == {}
    words = f"wonderwords {metadata.version('wonderwords')}"
    assert task("common-words", babi).provenance == {"words": words}
    assert task("niah-multikey-2", babi).provenance == {"keys": words}
    own = task("niah-single-2", babi).provenance
    assert own["keys"] == words
    assert own["haystack"].startswith("built-in: small stories of this project")
    read = f"{book}, sha256 {hashlib.sha256(book.read_bytes()).hexdigest()}"
    assert task("niah-multiquery", babi, haystack=book).provenance == {"keys": words, "haystack": read}
    provenance = task("babilong-qa1", babi, haystack=book).provenance
    assert provenance["haystack"] == read
    for part in ("test", "train"):
        path = babi / f"qa1_some-words_{part}.txt"
        assert f"{path}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" in provenance["babi"]
    with pytest.raises(TaskError, match=r"none\.txt cannot be read"):
        assert task("niah-single-3", babi, haystack=book.with_name("none.txt")).provenance
    with pytest.raises(TaskError, match=r"no file of bAbI's task 4"):
        assert task("babilong-qa4", babi).provenance
