"""The findings of an inspection as plain numbers: the contents of the JSON files, which pictures are drawn from."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PlainSerializer

from blocks.part import Closed
from composer.reporting.tables import Readable, Table, View


def plain(value: Any) -> Any:
    """Return the value as JSON: numbers to four digits, and null for those that are not finite."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return (float(f"{value:.4g}") or 0) if math.isfinite(value) else None
    return value


PlainArray = Annotated[InstanceOf[np.ndarray[Any, Any]], PlainSerializer(plain, when_used="json")]
Vectors = Literal["query", "key"]
PlainFloat = Annotated[float, PlainSerializer(plain, when_used="json")]


class Found(Closed):
    """A frozen schema of figures, which need not be finite."""

    model_config = ConfigDict(allow_inf_nan=True)


class Recalled(Found):
    """How well a state recalls stored values v, by its answers v̂ to their own keys."""

    columns: tuple[int, ...]
    """The numbers of tokens after which the state was read."""
    stored: tuple[PlainFloat, ...]
    """Pairs in the state then, a mean over heads."""
    error: PlainArray
    """Columns × heads: ‖v̂ - v‖ / ‖v‖, a mean over what is stored."""
    cosine: PlainArray
    """Columns × heads: that between v̂ and v, likewise."""
    ages: tuple[int, ...]
    """Tokens since a pair was read, bins up to these."""
    error_by_age: PlainArray
    """Ages × heads, at the end."""
    cosine_by_age: PlainArray
    """Ages × heads, at the end."""


class Spectrum(Found):
    """The Gram matrix of some vectors, a head each."""

    shares: PlainArray
    """Heads × eigenvalues in descending order, over their sum."""
    effective_rank: PlainArray
    """The exponential of their entropy (Roy & Vetterli 2007)."""
    vectors: Vectors = Field(default="key", exclude=True)
    """The kind of the vectors; in JSON it is the name of the spectrum."""
    stage: str = Field(default="", exclude=True)
    """The step of the head that computed them, such as ``after conv``; empty before the first one."""

    @property
    def name(self) -> str:
        return f"{self.vectors} {self.stage}".strip()


class HeadLikeness(Found):
    """How alike a group of heads and the teacher's are on the teacher's hidden states, a number a head."""

    mse: PlainArray
    """Over the numbers of the answers."""
    cosine: PlainArray
    """Between answers, a mean over tokens."""
    divergence: PlainArray | None
    """KL(teacher ‖ student) of the weights at the queries, in nats; None where the student has negative ones."""


class ShownNumbers(Found):
    """Numbers that a part shows of itself."""

    axes: tuple[str, ...]
    says: str
    """The meaning of the numbers."""
    numbers: PlainArray
    """By axes; those of tokens are means over bins."""
    entropy: PlainArray | None = None
    """Bins × heads: of shares over the last axis, in nats; None where the numbers are not of tokens."""


class Weighed(Found):
    """The attention weights of one group of heads of a layer."""

    layer: int
    name: str
    numbers: tuple[int, ...]
    """Of its query heads in the layer."""
    heads: int
    memories: tuple[str, ...]
    """Their names."""
    kinds: tuple[str, ...]
    """The kinds of the memories, in the same order."""
    weights: dict[str, PlainArray]
    """By memory, the weight of each bin of tokens in the answers: heads × queries × bins."""
    shares: dict[str, PlainArray]
    """By memory, heads × queries."""
    stands: dict[str, tuple[tuple[tuple[tuple[int, int], ...], ...], ...]]
    """By memory, of each head and query, the stretches of columns that it weighs: first and last."""
    error: PlainFloat
    """The largest difference between the weighed values and the answer, over the largest number of either."""
    found: PlainArray
    """Heads × answers: the weight on the columns of the answer in the text."""


class HeadFindings(Weighed):
    """One group of heads of a layer."""

    half_lives: dict[str, PlainArray]
    """By gate, in tokens: heads or heads × channels."""
    recalled: dict[str, Recalled]
    """By memory."""
    spectra: dict[str, Spectrum]
    """Spectra by the names of the vectors, such as ``key after conv``."""
    norm_columns: tuple[int, ...]
    """Numbers of tokens after which norms are measured."""
    norms: dict[str, PlainArray]
    """By memory, of its matrix: moments × heads."""
    shown: dict[str, ShownNumbers]
    """By part and what it shows."""
    teacher: PlainArray | None = None
    """The teacher's weights: heads × queries × bins."""
    teacher_found: PlainArray | None = None
    """As `found`, of the teacher."""
    likeness: HeadLikeness | None = None


class Answered(Found):
    """A model's predictions of the answers' tokens, each after the true text before it."""

    right: tuple[bool, ...]
    """Whether a model's first choice is right."""
    loss: tuple[PlainFloat, ...]
    """In nats."""


class Stream(Found):
    """Hidden states before the first layer and after each: those of the student's own run beside the teacher's."""

    cosine: tuple[PlainFloat, ...]
    """Between them, a mean over tokens."""
    error: tuple[PlainFloat, ...]
    """‖x - y‖ / ‖y‖ over all."""


class Findings(Readable, Found):
    """All findings on one text. They show themselves as a line a head."""

    model: str
    teacher: str | None
    spec: str
    text: str
    tokens: tuple[str, ...]
    answers: tuple[int, ...]
    """The columns of the answers."""
    found_at: tuple[tuple[int, ...], ...]
    """For each answer, its earlier columns in the text."""
    queries: tuple[int, ...]
    """The columns whose weights were computed; the column before an answer predicts it."""
    bin: int
    """Columns of a bin."""
    heads: tuple[HeadFindings, ...]
    answered: Answered | None = None
    teacher_answered: Answered | None = None
    stream: Stream | None = None

    def view(self) -> View:

        return View("", (table_of(self),))


def table_of(findings: Findings) -> Table:
    """Return a row a head, with means over the queries and the tokens of the answer."""
    memories = list(dict.fromkeys(name for head in findings.heads for name in head.shares))
    has_answers = any(head.found.size for head in findings.heads)
    headers = ["head", "of", *(f"{name} %" for name in memories)]
    headers += ["on the answer", "teacher's"] if has_answers else []
    headers += ["MSE", "KL"] if any(head.likeness for head in findings.heads) else []
    rows = tuple(tuple(_row(head, index, memories, headers)) for head in findings.heads for index in range(head.heads))
    title = f"{findings.model} on {findings.text}, {len(findings.tokens):,} tokens"
    return Table(title, tuple(headers), rows, range(2, len(headers)))


def _row(head: HeadFindings, index: int, memories: list[str], headers: list[str]) -> list[str]:
    shares = [f"{100 * head.shares[name][index].mean():.0f}" if name in head.shares else "" for name in memories]
    row = [f"{head.layer}.{head.numbers[index]}", head.name, *shares]
    if "on the answer" in headers:
        teacher = head.teacher_found
        row += [f"{_mean(head.found[index]):.3f}", "" if teacher is None else f"{_mean(teacher[index]):.3f}"]
    if "MSE" in headers:
        like = head.likeness
        row.append("" if like is None else f"{like.mse[index]:.2g}")
        row.append("" if like is None or like.divergence is None else f"{like.divergence[index]:.2g}")
    return row


def _mean(numbers: np.ndarray) -> float:
    return float(numbers.mean()) if numbers.size else float("nan")
