"""What was found in a model, as plain numbers: everything that pictures are drawn from, and what stands in the JSON files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from composer.tables import Readable, View

Numbers = np.ndarray[Any, Any]


@dataclass
class Recalled:
    """How well a state gives stored values back when it is asked by their own keys. columns: after how many tokens. stored: pairs
    in it then, a mean over heads. error, cosine: columns × heads, means over what is stored: ‖v̂ - v‖ / ‖v‖, and that between v̂ and
    v. ages: tokens since a pair was read, bins up to these; error_by_age, cosine_by_age: ages × heads, at the end."""

    columns: list[int]
    stored: list[float]
    error: Numbers
    cosine: Numbers
    ages: list[int]
    error_by_age: Numbers
    cosine_by_age: Numbers


@dataclass
class Spectrum:
    """The Gram matrix of some vectors, a head each: its eigenvalues in descending order over their sum, and the effective rank,
    the exponential of their entropy (Roy & Vetterli 2007)."""

    shares: Numbers
    effective_rank: Numbers


@dataclass
class Likeness:
    """Of a group of heads that is given the teacher's hidden states, a number a head each. mse: over the numbers of the answers;
    cosine: between answers, a mean over tokens; divergence: KL(teacher ‖ student) of the weights at the queries, in nats, None
    where the student has negative ones."""

    mse: Numbers
    cosine: Numbers
    divergence: Numbers | None


@dataclass
class ShownNumbers:
    """What a part shows of itself. numbers: by axes; those of tokens are means over bins. says: what they are. entropy: of shares
    over the last axis, in nats, bins × heads; None where the numbers are not of tokens."""

    axes: list[str]
    says: str
    numbers: Numbers
    entropy: Numbers | None = None


@dataclass
class HeadFindings:
    """One group of heads of a layer, from query head ``first`` on.

    weights: by memory, the weight of each bin of tokens in the answers, heads × queries × bins; teacher: the teacher's likewise.
    shares: by memory, heads × queries. stands: by memory, of each head and query, the stretches of columns that it weighs, first
    and last. error: how far the weighed values are from the answer. found, teacher_found: the weight on where the answers stand in
    the text, heads × answers. half_lives: by gate, in tokens, heads or heads × channels. norms: by memory, moments × heads, after
    ``norm_columns``.
    """

    layer: int
    name: str
    first: int
    heads: int
    memories: list[str]
    weights: dict[str, Numbers]
    shares: dict[str, Numbers]
    stands: dict[str, list[list[list[list[int]]]]]
    error: float
    found: Numbers
    half_lives: dict[str, Numbers] = field(default_factory=dict)
    recalled: dict[str, Recalled] = field(default_factory=dict)
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    norm_columns: list[int] = field(default_factory=list)
    norms: dict[str, Numbers] = field(default_factory=dict)
    shown: dict[str, ShownNumbers] = field(default_factory=dict)
    teacher: Numbers | None = None
    teacher_found: Numbers | None = None
    likeness: Likeness | None = None


@dataclass
class Answered:
    """Of each token of an answer, after the true text before it: whether a model's first choice is right, and its loss in nats."""

    right: list[bool]
    loss: list[float]


@dataclass
class Stream:
    """Hidden states before the first layer and behind each: the student's own run beside the teacher's. cosine: between them, a
    mean over tokens; error: ‖x - y‖ / ‖y‖ over all."""

    cosine: list[float]
    error: list[float]


@dataclass(repr=False)
class Findings(Readable):
    """All of it, which shows itself as a line a head.

    answers: their columns. found_at: of each, where it stands in the text before. queries: the columns that were asked about; the
    one before an answer predicts it. bin: columns of a bin.
    """

    model: str
    teacher: str | None
    spec: str
    text: str
    tokens: list[str]
    answers: list[int]
    found_at: list[list[int]]
    queries: list[int]
    bin: int
    heads: list[HeadFindings]
    answered: Answered | None = None
    teacher_answered: Answered | None = None
    stream: Stream | None = None

    def view(self) -> View:
        from composer.inspection.table import table_of

        return View("", (table_of(self),))


def plain(value: Any) -> Any:
    """As JSON has it: numbers to four digits, and null where there is none."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return (float(f"{value:.4g}") or 0) if math.isfinite(value) else None
    return value
