"""Requested tasks are read correctly, or rejected with the nearest name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import EvaluationError
from composer.evaluation.arguments import KINDS, Perplexity, read_lengths, read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.tasks.babilong import BabilongQa1
from composer.tasks.niah import TextNiah
from composer.tasks.passkey import Passkey
from composer.tasks.recall import Recall

HAY, BABI = Path("hay.txt"), Path("babi")


def test_tasks_are_read_with_their_options() -> None:
    options = EvaluationOptions(samples=7, seed=3)
    tasks = read_tasks(["passkey,form=original, depth=0.5,recall", "recall,pairs=4"], options)
    assert [task.label for task in tasks] == ["passkey,form=original,depth=0.5", "recall", "recall,pairs=4"]
    assert [task.task for task in tasks] == [
        Passkey(form="original", depth=0.5, samples=7, seed=3),
        Recall(samples=7, seed=3),
        Recall(pairs=4, samples=7, seed=3),
    ]


def test_the_default_is_100_samples() -> None:
    (task,) = read_tasks(["recall"], EvaluationOptions())
    assert (task.task.samples, task.label) == (100, "recall")


def test_task_objects_keep_their_samples() -> None:
    task = Recall(samples=2, seed=9)
    (task_read,) = read_tasks([task], EvaluationOptions(samples=7))
    assert (task_read.task, task_read.label) == (task, "recall")


def test_files_reach_the_tasks_that_accept_them() -> None:
    options = EvaluationOptions(haystack=HAY, babi=BABI, text=Path("book.txt"))
    references = ["niah-single-2,passkey,babilong-qa1,perplexity,niah-single-2,haystack=other.txt"]
    first, second, third, fourth, fifth = (read_task.task for read_task in read_tasks(references, options))
    assert isinstance(first, TextNiah)
    assert isinstance(third, BabilongQa1)
    assert isinstance(fourth, Perplexity)
    assert isinstance(fifth, TextNiah)
    assert (first.haystack, fifth.haystack) == (HAY, Path("other.txt"))
    assert second == Passkey(samples=100)
    assert (third.babi, third.haystack) == (BABI, HAY)
    assert fourth.text == Path("book.txt")


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("paskey", {}, 'No task "paskey"; did you mean "passkey"? `compose tasks` lists all.'),
        ("niah", {}, 'did you mean "niah-single-1" or "niah-single-2" or "niah-single-3"? `compose tasks` lists all.'),
        ("xyz", {}, 'No task "xyz". `compose tasks` lists all.'),
        ("passkey,form=plane", {}, "passkey,form=plane: form = "),
        ("passkey,dept=1", {}, 'passkey,dept=1: unknown option "dept"; did you mean "depth"? Options: form, depth.'),
        ("stories,learn=all", {}, 'unknown option "learn". It has none.'),
        ("passkey,samples=3", {}, "samples is the same for all tasks: --samples."),
        ("passkey,length=3", {}, "length is the same for all tasks: --lengths."),
        ("recall,seed=3", {}, "seed is the same for all tasks: --seed."),
        ("pairs=3,recall", {}, '"pairs=3" follows no task'),
        ("recall,=3", {}, '"=3" follows no task'),
        ("recall,pairs=3,pairs=4", {}, "recall: pairs is set twice; set it once."),
        ("recall,pairs=1", {}, "recall,pairs=1: pairs = "),
        ("recall,passkey,recall", {}, "The task recall is named twice"),
        ("recall,", {}, 'No task "".'),
        ("perplexity", {}, "perplexity needs text: set --text (`stories` has built-in texts and the same score)."),
        ("passkey", {"haystack": HAY}, "--haystack: none of the chosen tasks reads this file. Tasks that do: niah-single-2, "),
        ("passkey", {"text": HAY}, "--text: none of the chosen tasks reads this file. Tasks that do: perplexity."),
        ("niah-single-2", {"babi": BABI}, "--babi: none of the chosen tasks reads this file. Tasks that do: babilong-qa1, "),
        ("niah-single-2,haystack=stories", {"haystack": HAY}, "--haystack: none of the chosen tasks reads this file."),
    ],
)
def test_invalid_arguments_are_refused(reference: str, options: dict[str, Path], message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        read_tasks([reference], EvaluationOptions(**options))
    assert message in str(caught.value)


def test_lengths_are_sorted_without_duplicates_or_refused() -> None:
    assert read_lengths([512, 64, 512]) == (64, 512)
    with pytest.raises(EvaluationError, match="--lengths 512,1024"):
        read_lengths([])
    with pytest.raises(EvaluationError, match="^--lengths: expected a whole number of at least 2, got 1"):
        read_lengths([5, 1])


def test_every_task_is_shown_as_it_was_requested() -> None:
    assert all(kind.model_fields["kind"].default == name for name, kind in KINDS.items())


@pytest.mark.parametrize(("reference", "what"), [({"passkey": {"depth": 0.5}}, "dict"), ([7], "int")])
def test_unknown_tasks_are_refused(reference: Any, what: str) -> None:
    with pytest.raises(EvaluationError, match=f"tasks: expected names.* type {what}"):
        composer.evaluate("teacher", reference, 128)
