"""BABILong: the facts of a bAbI story, in order, at random places of a background text, and a question about them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from composer.errors import TaskError
from composer.system.files import MOST_SENTENCES, failing_as, read_text_file
from composer.tasks.babi import BUILT_IN, GIVERS, PLACES, THINGS, Question, ask
from composer.tasks.base import Sample, Scored, Split, Task, make_sample, origin, stamp
from composer.tasks.haystack import TRAINING_SHARE, Haystack, HaystackText, haystack_origin
from composer.tasks.writer import Writer, fit
from converters.bounded import within

PEOPLE_AND_THINGS = (*(person.lower() for person in GIVERS), *THINGS)
TRIES = 100
MOST_FACTS = 2000
"""Facts of a story: each of its questions keeps all those before it. bAbI's longest story has 320 lines."""
"""Stories that are drawn at most until one fits."""


class Babilong(Task):
    """As much background as fits; how many facts there are, and which, is the story's."""

    source: ClassVar[str] = "Kuratov et al. 2024 (BABILong), arXiv:2406.10149; facts: Weston et al. 2015 (bAbI), arXiv:1502.05698"
    scored: ClassVar[Scored] = "written"
    number: ClassVar[int]
    labels: ClassVar[tuple[str, ...]] = PLACES

    babi: Literal["simulated"] | Path = "simulated"
    """``simulated``, facts and questions of this project in bAbI's forms (its files do not ship with it), or the folder with bAbI's
    files, such as ``qa1_single-supporting-fact_train.txt``. Training uses the file ``_train``, and evaluation ``_test``. If only
    one of them exists, training uses four fifths of its stories, evaluation the rest."""
    haystack: HaystackText = "stories"
    """The background: ``stories``, small ones of this project (the original's, PG19, does not ship with it), or a text file, of
    which training uses the first four fifths and evaluation the rest."""
    instruction: str | None = None
    """An instruction before the context, for models that were not trained on the task; the context is then between <context> and
    </context>. Left out: the context, the question and the answer, one after another, as models learn it."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        question = self._question(rng, writer, length, split)
        for sentence in (*question.facts, f"{question.text} {question.answer}"):
            writer.check(sentence)
        shares = sorted(rng.random() for _ in question.facts)
        haystack = Haystack(self.haystack, random.Random(rng.getrandbits(64)), split)

        def context(words: int) -> tuple[str, float]:
            sentences = haystack.take(words)
            places = [int(share * (len(sentences) + 1)) for share in shares]
            mixed = list(sentences)
            for place, fact in reversed(list(zip(places, question.facts, strict=True))):
                mixed.insert(place, fact)
            needle = places[max(question.supports)]
            return " ".join(mixed), needle / len(sentences) if sentences else 0.0

        def prompt(words: int) -> str:
            return self.prompt(context(words)[0], question.text)

        words = fit(
            lambda words: writer.count(f"{prompt(words)} {question.answer}"), length, self.name, haystack.max_words, haystack.unit
        )
        return make_sample(writer, prompt(words), question.answer, depth=context(words)[1])

    @property
    def provenance(self) -> dict[str, str]:
        return {"babi": _origin(self.babi, self.number), "haystack": haystack_origin(self.haystack)}

    def prompt(self, context: str, question: str) -> str:
        if self.instruction is None:
            return f"{context} {question}"
        return f"{self.instruction}\n<context>\n{context}\n</context>\nQuestion: {question}"

    def score(self, sample: Sample, written: str) -> float:
        """1 where the answer is the only label in the first sentence, in lower case; those of the question do not count."""
        assert sample.prompt
        assert sample.answers
        first_sentence = re.split(r"\.|<context>|<example>", written.lower())[0]
        # By its first word: the sentence before it may have been cut, and has no end then.
        question = re.split(r"\b(?=(?:Where|What|Who)\b)", sample.prompt)[-1].lower()
        labels = {label for label in self.labels if label in first_sentence and label not in question}
        return float(labels == {sample.answers[0].lower()})

    def _question(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Question:
        """Return one that fits without any background."""
        draw, least = questions_of(self.babi, self.number, split), None
        for _ in range(TRIES):
            question = draw(rng)
            tokens = writer.count(f"{self.prompt(' '.join(question.facts), question.text)} {question.answer}")
            if tokens <= length:
                return question
            least = min(tokens, least or tokens)
        raise TaskError(f"{self.name} needs at least {least} tokens, not {length}: the shortest of {TRIES} stories does not fit.")


class BabilongQa1(Babilong):
    """One supporting fact."""

    kind: Literal["babilong-qa1"] = "babilong-qa1"
    number: ClassVar[int] = 1


class BabilongQa2(Babilong):
    """Two supporting facts."""

    kind: Literal["babilong-qa2"] = "babilong-qa2"
    number: ClassVar[int] = 2


class BabilongQa3(Babilong):
    """Three supporting facts."""

    kind: Literal["babilong-qa3"] = "babilong-qa3"
    number: ClassVar[int] = 3


class BabilongQa4(Babilong):
    """Two arguments of a relation."""

    kind: Literal["babilong-qa4"] = "babilong-qa4"
    number: ClassVar[int] = 4


class BabilongQa5(Babilong):
    """Three arguments of a relation."""

    kind: Literal["babilong-qa5"] = "babilong-qa5"
    number: ClassVar[int] = 5
    labels: ClassVar[tuple[str, ...]] = PEOPLE_AND_THINGS


def questions_of(babi: str | Path, number: int, split: Split) -> Callable[[random.Random], Question]:
    """Return the function that draws a question of a task for a split. Raises ``TaskError`` as ``of_split`` does."""
    if babi == BUILT_IN:
        return lambda rng: ask(number, rng, split)
    read = of_split(Path(babi), number, split)
    return lambda rng: rng.choice(read)


def _origin(babi: str | Path, number: int) -> str:
    """As ``Task.provenance`` records it."""
    if babi == BUILT_IN:
        return "built-in: simulated people, things and places of this project in bAbI's forms, not bAbI's files"
    return "; ".join(origin(path) for paths in files_of(Path(babi), number).values() for path in paths)


def of_split(folder: Path, number: int, split: Split) -> tuple[Question, ...]:
    """Return all questions of a split. Raises ``TaskError`` if the folder has none of the task."""
    files = files_of(folder, number)
    wanted = files["train" if split == "train" else "test"]
    (path, *_) = wanted or files["train"] or files["test"]
    has_both = bool(files["train"] and files["test"])
    return _of_split(path, None if has_both else split, stamp(path))


@lru_cache(maxsize=16)
def _of_split(file: Path, split: Split | None, _: tuple[int, int]) -> tuple[Question, ...]:
    """split: of the file; None uses all of it."""
    stories = read(file)
    cut = int(len(stories) * TRAINING_SHARE)
    if split is not None:
        stories = stories[:cut] if split == "train" else stories[cut:]
    if not stories:
        raise TaskError(f"{file} has too few stories to keep training and evaluation apart.")
    questions = tuple(question for story in stories for question in story)
    if not questions:
        raise TaskError(
            f"{file} has no question in the stories for {split or 'training and evaluation'}; expected lines with a question."
        )
    return questions


def files_of(folder: Path, number: int) -> dict[str, list[Path]]:
    """Return the files of a task in the folder, by bAbI's part. Raises ``TaskError`` if there are none."""
    files = {part: sorted(folder.glob(f"qa{number}_*_{part}.txt")) for part in ("train", "test")}
    if not any(files.values()):
        raise TaskError(f"{folder} has no file of bAbI's task {number}, such as qa{number}_…_train.txt.")
    for path in (*files["train"], *files["test"]):
        with failing_as(TaskError, f"{path} cannot be read as text"):
            within(folder, path.name)
    return files


def read(path: Path) -> list[list[Question]]:
    """Return the stories of a bAbI file, each as its questions. A line is ``number fact``, or ``number
    question<tab>answer<tab>supports``; a story begins where the number is 1."""
    lines = read_text_file(path, TaskError, MOST_SENTENCES).splitlines()
    stories: list[list[Question]] = []
    facts: dict[str, str] = {}
    for place, line in enumerate(lines, start=1):
        number, _, content = line.strip().partition(" ")
        if number == "1":
            stories.append([])
            facts = {}
        match content.split("\t"):
            case [fact] if stories and fact:
                facts[number] = fact
                if len(facts) > MOST_FACTS:
                    raise TaskError(f"{path}:{place}: a story has more than {MOST_FACTS:,} facts; expected fewer.")
            case [question, answer, supports] if stories and set(supports.split()) <= facts.keys():
                numbers = list(facts)
                places = tuple(numbers.index(support) for support in supports.split())
                stories[-1].append(Question(tuple(facts.values()), question.strip(), answer, places))
            case _:
                raise TaskError(
                    f"{path}:{place} is no line of bAbI: expected a number and a fact, or a number, a question, its answer and the "
                    "numbers of the facts that answer it, with tabs between."
                )
    return stories
