"""The operation of a part in a head: its input and output ports, and the forms that compute it.

A head is a graph of operations. An edge joins an output port to an input port of the same kind. A form is one way to compute an
operation on one backend; it has a description, and states in which settings it cannot run. Forms of one operation compute the same
function, up to rounding: the reference is the definition, and tests compare all others with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from blocks.flow import Tokens
from blocks.legend import Shape, Tensor

EVERY = "every"
"""The backend of an operation's only form, which computes it on all backends."""
EVICTED = "evicted"
"""The output port of a memory for the pairs that it evicts."""
REFERENCE, TORCH, FLA, TRITON = "reference", "torch", "fla", "triton"


State = dict[str, Tensor]
"""The tensors of a state, by name; each has the batch as its first axis."""


class Kind(StrEnum):
    """The kind of the values on an edge, each with its type in Python: a tensor, or a type of ``blocks.flow``."""

    HIDDEN = "hidden"
    """B T C."""
    QUERY = "query"
    """B T H D."""
    KEY = "key"
    """B T K D, or one a query head."""
    VALUE = "value"
    """B T K V."""
    NUMBERS = "numbers"
    """B T n: numbers of each pair, beside key and value."""
    PAIRS = "pairs"
    """``Pairs``: those that enter, or those that a memory evicts."""
    FEATURES = "features"
    """B T H F: features of the queries."""
    KEYS = "key features"
    """B E N F: features of the keys of pairs that enter a memory; None if none enters."""
    DECAY = "decay"
    """log α, B T N or B T N F; None where nothing decays."""
    WEIGHT = "weight"
    """A memory's logit in the read, H or B T H."""
    PARTIAL = "partial"
    """``Partial``."""
    SINKS = "sinks"
    """H: for each head, the logit of an attention sink, which has no value."""
    OUTPUT = "output"
    """B T H V."""


@dataclass(frozen=True)
class Port:
    """One input or output of an operation. name: of the argument, or of the output.

    heads, dim: the sizes of the values; None on an input of any size. many: an input with several edges, passed as a mapping by
    their labels. needed: whether an input must have an edge, and whether an output must be read for the part to have an effect.
    per_token: whether each token has its own value, or all have the same.
    """

    name: str
    kind: Kind
    heads: int | None = None
    dim: int | None = None
    many: bool = False
    needed: bool = True
    per_token: bool = True


class Setting(NamedTuple):
    """The setting in which an operation runs. A form may not support it. An initial state is not part of it, as every form
    accepts one."""

    device: str = "cpu"
    dtype: str = "float32"
    one_token: bool = False
    """The call is a step of decode."""
    documents: bool = False
    """A row holds several documents."""
    padded: bool = False
    """Some rows end in padding."""
    gradients: bool = False
    """Gradients are needed."""
    every_pair: bool = False
    """The operation receives each token's pair at that token."""
    sifted: bool = False
    """A memory above it keeps the pairs of some tokens permanently."""
    one_pair: bool = True
    """The operation receives at most one pair at a token."""
    needs_mass: bool = True
    """A read needs the memory's lse."""
    needs_maximum: bool = False
    """A read needs the memory's largest logit."""
    capped: bool = False
    """The model caps its logits."""
    shape: Shape | None = None
    """The sizes of the operation."""


def row_obstacle(setting: Setting) -> str | None:
    """Return why a form for rows of one document each, without padding, cannot run, or None."""
    return "a row has padding, or several documents" if setting.documents or setting.padded else None


def size_obstacle(setting: Setting) -> str | None:
    """Return why a form for values of the size of keys cannot run, or None."""
    shape = setting.shape
    return None if shape is None or shape.value_dim == shape.head_dim else "it requires values and keys of the same size"


def pair_obstacle(setting: Setting) -> str | None:
    """Return why a form that supports at most one pair per token cannot run, or None."""
    return None if setting.one_pair else "several pairs may arrive at a token"


def no_obstacle(setting: Setting) -> str | None:
    """Return None: the form runs in every setting."""
    return None


def nothing_missing() -> str | None:
    """Return the ``missing`` of a form that needs nothing but PyTorch."""
    return None


@dataclass(frozen=True)
class Form:
    """One way to compute an operation."""

    backend: str
    description: str
    """Its description, for users."""
    run: Callable[..., Any]
    """A function that is called with what its parameters name: inputs by their ports, ``tokens``, ``state`` (the operation's own
    tensors), ``in_place`` (these may be overwritten), and ``parameters``, first, of the part. It returns the operation's outputs
    in the order of its ports, and then the new state if it has one. With a parameter ``call``, it is called with the part's
    parameters, a ``Call`` and all inputs, and returns a tuple of outputs and the new state."""
    obstacle: Callable[[Setting], str | None] = no_obstacle
    """A function that returns the reason why the form cannot run in a setting, or None."""
    decode: bool = False
    """True if it is only for calls of one token."""
    missing: Callable[[], str | None] = nothing_missing
    """A message on the packages that it needs and that are not installed, or None."""
    refuses: bool = False
    """Its ``run`` may raise ``Refused`` of ``blocks.kernels``, with nothing changed; then the next form runs."""
    picks: str | None = None
    """For a form of PyTorch, the kernels that PyTorch selects itself on a GPU, for the reason that users see. It does not affect
    which form runs."""
    by_rank: Mapping[str, str] = field(default_factory=dict, hash=False)
    """For a recurrence with another kernel for each rank of decay (none, head, channel), the descriptions by rank."""


@dataclass(frozen=True)
class Slot:
    """One tensor of a state, per batch row.

    - minimum, maximum: bounds of the numbers after any text, in the columns of the last axis from ``bounded_from`` on.
    """

    shape: tuple[int, ...]
    dtype: Literal["pairs", "state", "int64"]
    """The model's own dtype is "pairs", the accumulating one "state"."""
    empty: float = 0.0
    """The value before the first token."""
    minimum: float = -math.inf
    maximum: float = math.inf
    bounded_from: int = 0
    order: Literal["any", "ring", "first"] = "any"
    """The order of positions, in a memory that receives every pair as its token is read: "ring" if a pair overwrites the oldest,
    "first" if it is stored at its own position."""
    every: int = 1
    """Number of tokens per row, of a tensor that grows."""

    @property
    def grows(self) -> bool:
        """Whether it has a row for each ``every`` tokens so far: its first axis is empty before the first token."""
        return self.shape[:1] == (0,)

    def bytes(self, pair_bytes: int, state_bytes: int = 4) -> int:
        """Return the bytes of one batch row. pair_bytes, state_bytes: the bytes of one number of a pair, and of a state."""
        return math.prod(self.shape) * {"pairs": pair_bytes, "state": state_bytes, "int64": 8}[self.dtype]


@dataclass(frozen=True)
class Operation:
    """Ports, forms, and the tensors of the state, for one batch row."""

    reads: tuple[Port, ...]
    gives: tuple[Port, ...]
    forms: tuple[Form, ...]
    slots: Mapping[str, Slot] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """The arguments of an operation beside its inputs. A head has a call, too, with the states of all its operations, from which
    theirs are made."""

    tokens: Tokens
    """Positions, documents and padding."""
    state: State
    """The operation's own tensors."""
    shape: Shape
    """The operation's sizes."""
    place: tuple[int, int] = (0, 0)
    """The layer, and the first of the operation's heads in it."""
    in_place: bool = False
    """The state may be overwritten."""
    needs_mass: bool = True
    """A read needs this memory's lse."""

    def part(self, operation: Any) -> Call:
        """Return the call of an operation in the head whose call this is, with the operation's state and shape. operation: a
        ``CoveredOperation`` of ``composer.graph.program``."""
        slots = operation.slots
        state = dict(zip(slots, map(self.state.__getitem__, slots.values()), strict=True)) if slots else {}
        return Call(self.tokens, state, operation.shape, self.place, self.in_place, operation.needs_mass)
