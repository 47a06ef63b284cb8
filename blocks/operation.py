"""What a part does in a head: the ports that it reads and gives, and the forms that compute it.

A head is a graph of operations. An edge joins a port that gives to a port that reads, both of one kind. A form is one way to
compute an operation on one backend; it says of itself what it is, and where it does not fit. Forms of one operation give the same,
up to rounding: the reference is the definition, and all others are held to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from blocks.flow import Tokens
from blocks.legend import Float, Shape, Tensor

if TYPE_CHECKING:
    from blocks.part import Part, Slot, State
    from blocks.positions import Position

EVERY = "every"
"""The backend of a form that is the only one: it computes its operation on all of them."""
FALLEN = "fallen"
"""The port of a memory that gives the pairs that it evicts."""
REFERENCE, TORCH, FLA, TRITON = "reference", "torch", "fla", "triton"


class Kind(StrEnum):
    """What flows along an edge, and what it is in Python: a tensor, or a type of ``blocks.flow``."""

    HIDDEN = "hidden"
    """B T C."""
    QUERY = "query"
    """B T H D."""
    KEY = "key"
    """B T K D, or one a query head."""
    VALUE = "value"
    """B T K D."""
    NUMBERS = "numbers"
    """B T n: what travels with the pairs beside key and value."""
    PAIRS = "pairs"
    """``Pairs``: those that enter, or those that a memory evicts."""
    FEATURES = "features"
    """``Mapped``: the queries' features, and how keys are mapped."""
    DECAY = "decay"
    """log α, B T N or B T N F; None where nothing decays."""
    WEIGHT = "weight"
    """A memory's logit in the read, H or B T H."""
    PARTIAL = "partial"
    """``Partial``."""
    SINKS = "sinks"
    """H: of each head, a logit that nothing stands behind."""
    OUTPUT = "output"
    """B T H D."""


@dataclass(frozen=True)
class Port:
    """One input or output of an operation. name: of the argument, or of what is given.

    heads, dim: the sizes of what flows; None on an input that takes any. many: an input that takes several edges, as a mapping
    by their labels. needed: whether an input must be wired, and an output be read if the part is to have an effect. per_token:
    whether each token has its own, or all have the same.
    """

    name: str
    kind: Kind
    heads: int | None = None
    dim: int | None = None
    many: bool = False
    needed: bool = True
    per_token: bool = True


@dataclass(frozen=True)
class Setting:
    """Where and how an operation is to run: what a form may have to refuse.

    one_token: the call is a step of decode. documents: a row holds several. padded: some rows end in padding. gradients: they
    are asked for. every_pair: of a memory, that it sees each token's pair as it comes; sifted: that one above it keeps some tokens'
    pairs for good; one_pair: that at most one pair falls into it at a token. mass_asked, maximum_asked: that a read asks
    for its lse, or for its largest logit. capped: that the model around it caps its logits. shape: the sizes that the operation
    works on.
    """

    device: str = "cpu"
    dtype: str = "float32"
    one_token: bool = False
    documents: bool = False
    padded: bool = False
    gradients: bool = False
    every_pair: bool = False
    sifted: bool = False
    one_pair: bool = True
    mass_asked: bool = True
    maximum_asked: bool = False
    capped: bool = False
    shape: Shape | None = None


def unbroken(setting: Setting) -> str | None:
    """The ``fits`` of a form for rows that are one document each, without padding."""
    return "a row has padding, or several documents" if setting.documents or setting.padded else None


def one_pair_at_most(setting: Setting) -> str | None:
    """The ``fits`` of a form that takes the pairs one a token."""
    return None if setting.one_pair else "several pairs may fall in at a token"


def anywhere(setting: Setting) -> str | None:
    """The ``fits`` of a form that runs in every setting."""
    return None


def everywhere(options: Mapping[str, Mapping[str, Any]]) -> bool:
    """The ``where`` of a pattern that no option keeps away."""
    return True


def nothing_missing() -> str | None:
    """The ``missing`` of a form that takes nothing but PyTorch."""
    return None


@dataclass(frozen=True)
class Form:
    """One way to compute an operation.

    says: what it does, in words. run: called with the part's parameters, the ``Call`` and the inputs by name; it returns what the
    operation gives, in the order of its ports, and the new state. fits: the reason why it cannot run in a setting, or None.
    decode: it is for calls of one token, and nobody looks at it for others. missing: what it takes and is not installed, in words
    that say what to do, or None. refuses: its ``run`` may raise ``Refused`` of ``blocks.kernels``, with nothing changed; the form
    that would have been taken without it answers then. picks: of one of PyTorch's, the kernels that are picked for it on a GPU by
    itself, which are those that are wanted there. by_rank: of a recurrence that calls another kernel for each rank of decay (none,
    head, channel), what it says in place of ``says`` where the rank is known.
    """

    backend: str
    says: str
    run: Callable[..., Any]
    fits: Callable[[Setting], str | None] = anywhere
    decode: bool = False
    missing: Callable[[], str | None] = nothing_missing
    refuses: bool = False
    picks: str | None = None
    by_rank: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Operation:
    """Ports, forms, and the tensors that are handed from call to call, for one batch row."""

    reads: tuple[Port, ...]
    gives: tuple[Port, ...]
    forms: tuple[Form, ...]
    slots: Mapping[str, Slot] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """What an operation knows beside its inputs: the tokens, its own state, its shape, and its place: the layer, and the first of
    its heads in it. in_place: nobody else holds the state, so it may be written over. mass_asked: of a memory, that a read asks for
    its lse. turned: the queries of this call of the head, turned, by how; several operations ask for the same.
    """

    tokens: Tokens
    state: State
    shape: Shape
    place: tuple[int, int] = (0, 0)
    in_place: bool = False
    mass_asked: bool = True
    turned: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def turn(self, query: Float[Tensor, "B T H D"], by: Position) -> Float[Tensor, "B T H D"]:
        """The head's queries as they stand at the tokens; convolved ones are others."""
        base = by.base
        last = self.turned.get(base)
        if last is None or last[0] is not query:
            last = self.turned[base] = query, by.turn(query, self.tokens)
        return last[1]


@dataclass(slots=True)
class Bound:
    """A part in a running head. ``compute(function, *inputs)`` calls a function of the part with its parameters before the inputs,
    through the module that holds them, so that forward hooks see the call."""

    part: Part
    call: Call
    compute: Callable[..., Any]


@dataclass(frozen=True)
class Pattern:
    """Neighbouring operations that one form computes together.

    nodes: what each of them is, by a name of the pattern's own, in the order of the flow. edges: (start, end, kind) between them.
    forms: of the parts that were found, by those names. Its ``run`` is called with the bound parts and the inputs, both by those
    names, and returns what each of them gives, as its own form would: outputs and state, in the order of ``nodes``.
    asked: whose setting the forms are to fit; the first's, unless it is said. whole: what the nodes before the last give goes to
    each other alone, and the last takes no other partials; so what they give need not come to be. where: asked of the options that
    the operations have in a head, by those names; where it says no, the pattern is not there.
    """

    nodes: Mapping[str, Callable[[Part], bool]]
    edges: tuple[tuple[str, str, Kind], ...]
    forms: Callable[[Mapping[str, Part]], tuple[Form, ...]]
    asked: str = ""
    whole: bool = False
    where: Callable[[Mapping[str, Mapping[str, Any]]], bool] = everywhere
