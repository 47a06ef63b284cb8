"""What a part is: a closed, frozen schema with the mathematics beside it.

A part declares its parameters and its state before anything is built, and computes with plain functions of tensors: parameters
and state go in, outputs and the new state come out. It owns no tensor, so a spec can be checked and explained without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticKnownError

from blocks.legend import Shape, Tensor

if TYPE_CHECKING:
    import torch

    from blocks.calibration import Attended
    from blocks.operation import Call, Operation

Path = tuple[str | int, ...]
Problem = tuple[str, Path]
"""What is wrong, with what to do, in words for a user, and the field that says so."""
Word = TypeVar("Word", bound=str)
Per = Literal["query_head", "key_head"]
Parameters = Mapping[str, "Tensor"]
State = dict[str, "Tensor"]


class Closed(BaseModel):
    """A frozen schema that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True)


class FieldError(ValueError):
    """Fields of a schema that do not go together. path: the one of them that the message is about."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def _whole(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise PydanticKnownError("int_type")
    return value


Whole = BeforeValidator(_whole)
"""For numbers in a ``Literal``, which by itself takes what equals them: true and 1.0 for 1."""


@dataclass(frozen=True)
class Fresh:
    """A parameter that no checkpoint brings: its shape, and how to fill it in place with a generator of the seed.

    precise: an error in it grows with the number of tokens, as in a frequency or in the logarithm of a decay. It is float32 where
    the rest of the model is narrower, in memory and in files.
    """

    shape: tuple[int, ...]
    fill: Callable[[torch.Tensor, torch.Generator | None], object]
    precise: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Slot:
    """One tensor of a state, per batch row. dtype "pairs" is the model's own, "state" is the accumulating one."""

    shape: tuple[int, ...]
    dtype: Literal["pairs", "state", "int64"]
    empty: float = 0.0

    def bytes(self, pair_bytes: int, state_bytes: int = 4) -> int:
        """Bytes of one batch row, where one number of a pair (of a state) takes ``pair_bytes`` (``state_bytes``)."""
        return math.prod(self.shape) * {"pairs": pair_bytes, "state": state_bytes, "int64": 8}[self.dtype]


@dataclass(frozen=True)
class Shown:
    """Something that a part shows of itself: numbers, what their axes are, and what they say.

    Where the first axis is "token", the batch rows come before it; where it is not, the numbers follow from the parameters alone.
    """

    numbers: torch.Tensor
    axes: tuple[str, ...]
    says: str


class Part(Closed):
    """Base of every part in the catalogue. ``kind`` names it in a spec."""

    role: ClassVar[str]
    equation: ClassVar[str]
    source: ClassVar[str]
    incidental: ClassVar[frozenset[str]] = frozenset()
    """Fields that a trained parameter does not know of, as how it starts or how many pairs are held: where nothing else changes, a
    model that is built anew keeps its values."""
    unread: ClassVar[str] = "nothing in this head reads what it gives; remove it"
    """What to do in a head where nothing reads what the part is there for."""

    def operation(self, shape: Shape) -> Operation:
        """What the part does in a head of this shape."""
        raise NotImplementedError

    def problem(self, shape: Shape) -> Problem | None:
        """Why it cannot mean anything in such a head, whatever its sizes; None where it can."""
        return None

    def misfit(self, shape: Shape) -> Problem | None:
        """Why it cannot stand on these sizes; None where it can."""
        return None

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        """The fresh parameters, by name."""
        return {}

    def state(self, shape: Shape) -> dict[str, Slot]:
        """The tensors that are handed from call to call, by name, for one batch row."""
        return {}

    def calibrated(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Values of some of its parameters by what a teacher attends to, in place of their start; empty: it keeps that."""
        return {}

    def shows(self, parameters: Parameters, call: Call, inputs: Mapping[str, Any]) -> dict[str, Shown]:
        """What it can show of itself on these inputs, by name, beside what it gives: for people who look into a model."""
        return {}

    def flops(self, shape: Shape, tokens: int) -> int:
        """Floating-point operations of one token in decode, after ``tokens`` others; a multiply-add counts as two."""
        return 0

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """The same for a token of a prefill of ``tokens``, on average, in the chunked form."""
        return self.flops(shape, tokens)


def bare(value: Any) -> Any:
    """A bare word ``x`` stands for ``{kind: x}``."""
    return {"kind": value} if isinstance(value, str) else value


def in_order(inputs: tuple[Word, ...], known: Iterable[str]) -> tuple[Word, ...]:
    """Names of a list that a user may write in any order, as ``known`` has them. Raises ValueError where one stands twice."""
    if len(set(inputs)) < len(inputs):
        raise ValueError("names an input twice")
    return tuple(sorted(inputs, key=list(known).index))


def kinds(union: Any) -> dict[str, type[Part]]:
    """The parts of a role's union, by kind: ``kinds(GateConfig)["channel"]``."""
    alternatives = get_args(get_args(union)[0]) or (get_args(union)[0],)
    return {get_args(part.model_fields["kind"].annotation)[0]: part for part in alternatives}
