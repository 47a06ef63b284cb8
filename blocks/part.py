"""The base of all parts: a closed, frozen schema with its mathematics. A part declares its parameters and its state before anything
is built, and computes with plain functions of tensors: their arguments are parameters and state, and they return outputs and the
new state. A part owns no tensor, so a spec can be checked and explained without torch.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticKnownError

from blocks.legend import Shape, Tensor
from blocks.operation import Call, Operation, Slot

if TYPE_CHECKING:
    import torch

    from blocks.calibration import Attended, OutputSizes

FieldPath = tuple[str | int, ...]
Problem = tuple[str, FieldPath]
"""A message for a user, with the problem and the remedy, and the path of the field."""
Word = TypeVar("Word", bound=str)
Per = Literal["query_head", "key_head"]
Parameters = Mapping[str, "Tensor"]


class Closed(BaseModel):
    """A frozen schema that rejects unknown keys. to_change: what a user does who assigns to a field, for the error."""

    to_change: ClassVar[str] = "To change it, make a copy by model_copy(update={...})"

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name in type(self).model_fields:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be changed. {self.to_change}")
        super().__setattr__(name, value)


@cache
def field_docs(schema: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings of a schema's fields: the strings below them in its source. A class whose source is not known has
    none.

    They are read where they are shown. pydantic would read them at import, which is a quarter of the time of a short command.
    """
    docs: dict[str, str] = {}
    for base in reversed([base for base in schema.__mro__ if issubclass(base, Closed)]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):
            continue
        for field, below in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = inspect.cleandoc(text)
    return docs


TO_CHANGE_A_SPEC = (
    'To change a spec, load it again with overrides, such as load_spec("lolcats", overrides=["head.memory.0.size=16"])'
)


class FieldError(ValueError):
    """Fields of a schema contradict each other. path: of the field that the message is about."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def _check_integer(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise PydanticKnownError("int_type")
    return value


Integer = BeforeValidator(_check_integer)
"""For numbers in a ``Literal``, which otherwise accepts all values that equal them: true and 1.0 for 1."""
Silu = BeforeValidator(lambda value: "silu" if isinstance(value, str) and value == "swish" else value)
"""For the name of an activation: x·sigmoid(x) is ``silu``, as in PyTorch, and its other name ``swish`` is read, too."""


@dataclass(frozen=True)
class Fresh:
    """A parameter that is in no checkpoint: its shape, and a function that fills it in place from a seeded generator.

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
class Shown:
    """Numbers that describe a part for `compose inspect`, the names of their axes, and their meaning.

    Where the first axis is "token", the batch rows come before it; otherwise the numbers depend on the parameters alone.
    """

    numbers: torch.Tensor
    axes: tuple[str, ...]
    description: str


class Part(Closed):
    """Base of every part in the catalogue."""

    to_change: ClassVar[str] = TO_CHANGE_A_SPEC
    if TYPE_CHECKING:
        kind: Any = ""
        """Its name in a spec: a field of each part with its own type."""
    role: ClassVar[str]
    equation: ClassVar[str]
    source: ClassVar[str]
    incidental: ClassVar[frozenset[str]] = frozenset()
    """Fields that trained parameters do not depend on, such as their initialisation or the number of pairs. Where only these
    change, a model that is built anew keeps its values."""
    idle: ClassVar[bool] = False
    """It leaves everything as it is, so that words and pictures leave it out."""
    unread: ClassVar[str] = "nothing in this head reads its output; remove it"
    """The message for a head in which nothing reads the part's output."""

    @property
    def word(self) -> str:
        """The kind as a name of parameters and nodes, which have no dot."""
        return str(self.kind).replace(".", "_")

    def operation(self, shape: Shape) -> Operation:
        """Return the part's operation in a head of this shape."""
        raise NotImplementedError

    def problem(self, shape: Shape) -> Problem | None:
        """Return why such a head cannot have the part, whatever its sizes, or None."""
        return None

    def misfit(self, shape: Shape) -> Problem | None:
        """Return why the part cannot have these sizes, or None."""
        return None

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        """Return the fresh parameters, by name."""
        return {}

    def state(self, shape: Shape) -> dict[str, Slot]:
        """Return the tensors of the state, which is passed from call to call, by name, for one batch row."""
        return {}

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """First values for some of the parameters, computed from a teacher's attention; empty where all keep their own."""
        return {}

    def rescale(self, parameters: Parameters, sizes: OutputSizes, shape: Shape) -> dict[str, Tensor]:
        """First values for some of the parameters, with which the head's output has the size of the teacher's; empty where the
        part cannot scale it."""
        return {}

    def shows(self, parameters: Parameters, call: Call, inputs: Mapping[str, Any]) -> dict[str, Shown]:
        """Numbers to show people on these inputs, by name, beside the part's outputs: ``compose inspect`` draws them."""
        return {}

    def flops(self, shape: Shape, tokens: int) -> int:
        """Floating-point operations of one token in decode, after ``tokens`` others; a multiply-add counts as two."""
        return 0

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Floating-point operations of one token in a prefill of ``tokens``, on average, in the chunked form."""
        return self.flops(shape, tokens)


class Unnamed(Part):
    """A part that no spec names. Its kind is the name of its class."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


def bare(value: Any) -> Any:
    """Read a word ``x`` as ``{kind: x}``."""
    return {"kind": value} if isinstance(value, str) else value


def in_order(inputs: tuple[Word, ...], order: Iterable[str]) -> tuple[Word, ...]:
    """Return the names of a user's list, sorted as in ``order``. Raise ValueError if a name occurs twice."""
    if len(set(inputs)) < len(inputs):
        raise ValueError("names an input twice")
    return tuple(sorted(inputs, key=list(order).index))
