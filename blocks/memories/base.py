"""The base of all memories: name, position and weight of a memory, and the properties that rules and forms depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints

from blocks import initialise
from blocks.calibration import WIDEST, Attended, States
from blocks.gates import gates_of
from blocks.legend import Float, Number, Shape, Tensor, torch
from blocks.operation import EVERY, EVICTED, Form, Kind, Operation, Port, Slot, State
from blocks.part import FieldPath, Fresh, Parameters, Part, Problem
from blocks.positions import NoPosition, Position, PositionConfig
from blocks.tensors import accumulating, as_dtype

if TYPE_CHECKING:
    from blocks.feature_maps.base import UnitLength
    from blocks.gates.base import Gate
    from blocks.rates import Rate

LARGEST_FACTOR = 0.99
"""The largest factor of a mass that calibration sets."""
LOLCATS_FACTOR = math.log(0.1 / 0.9)
"""The logit of LoLCATs' initial window factor, σ = 0.1."""


DECAYS = {"none": "no decay", "head": "one decay per head", "channel": "a separate decay for each feature"}
"""A description of a gate's decay, by its rank."""


Misplaced = tuple[str, FieldPath | str]
"""A problem with the memories around a memory, and its place: a field of the memory, or the name of a memory below, whose edge
is meant."""


class Memory(Part):
    """A memory stores past pairs in some form, and computes a partial attention for each query.

    Its forms return the partial, with the evicted pairs if the memory is bounded, and the new state. ``Form`` describes what they
    receive.
    """

    role: ClassVar[str] = "memory"
    # Properties that the rules, the graph and the laws depend on, instead of a memory's class. The defaults describe an unbounded
    # memory of constant size that computes its output from pairs, and has neither a gate nor a softmax.

    # First what most memories set: their input, and what their state holds.
    reads: ClassVar[Kind] = Kind.PAIRS
    """The kind of its input beside queries: pairs, features of pairs, or the hidden states that the head mixes."""
    bounded: ClassVar[bool] = False
    """Whether it holds a fixed number of pairs, and so evicts pairs. ``Holding`` sets it."""
    grows: ClassVar[bool] = False
    """Whether its state grows with the text."""
    exact: ClassVar[bool] = False
    """Whether it is softmax attention over its pairs, with logits q·k / √D."""
    decay_ranks: ClassVar[frozenset[str]] = frozenset()
    """The ranks of decay that it supports, if it has a gate."""
    takes_several: ClassVar[bool] = False
    """Whether it accepts several evicted pairs at one token."""

    # Then the exceptions, each of which one shipped memory sets.
    answers_from_pairs: ClassVar[bool] = True
    """Whether its output depends on the pairs that it receives. Otherwise it evicts all of them (``meta``)."""
    sifts: ClassVar[bool] = False
    """Whether it keeps some pairs permanently, so that their tokens pass no pair to the memories below (``first``)."""
    receives_rotated: ClassVar[bool] = True
    """Whether its queries arrive rotated. Otherwise it rotates them itself (``compressed``)."""
    per_query_head: ClassVar[bool] = False
    """Whether each query head holds its own pairs (``sparse``)."""
    by_coordinate: ClassVar[bool] = False
    """Whether each coordinate of a value has its own weight in the output, so that no single weight of a token determines it
    (``gdn2``)."""
    joins_values: ClassVar[bool] = False
    """Whether a coordinate of its output depends on all coordinates of values, of all key heads (``compressed``)."""
    to_have_mass: ClassVar[str] = ""
    """The setting with which its output has a mass, for messages (``state``)."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    """The name of its parameters. Default: its kind, with _ in place of a dot."""
    position: PositionConfig | None = None
    """Rotation of queries and keys in this memory. Default: that of the head."""
    weight: Literal["learned", "token"] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Its weight σ among the memories of the head, per query head: ``learned`` (from σ = 0.1, as in LoLCATs), ``token`` (a
    linear function of each token's hidden state, after ``mix_input``), a fixed number, or none."""

    @property
    def is_softmax_over_all(self) -> bool:
        """Whether it is softmax attention over all tokens so far, with logits q·k / √D."""
        return False

    @property
    def rotates_restored_keys(self) -> bool:
        """Whether it rotates keys of earlier calls by their position alone."""
        return False

    @property
    def sees_ahead(self) -> bool:
        """Whether the tokens of an image see each other in it, where the source lets them."""
        return False

    def has_mass(self) -> bool:
        """Whether its output has a mass, so that it can share a denominator with others."""
        return True

    def problem(self, shape: Shape) -> Problem | None:
        """Return the problem with its direction or its gate, if there is one."""
        problem, gate = self.problem_both_ways(), self.gates
        if shape.both_ways and problem:
            return f"{problem}, and the spec has `direction: bidirectional`; change one of them", ()
        if gate is not None and gate.rank_of_decay not in self.decay_ranks:
            fitting = ", ".join(f"`{kind}`" for kind in gates_of(self.decay_ranks))
            decays = f"the gate `{gate.kind}` has {DECAYS[gate.rank_of_decay]}"
            return f"{decays}, which a `{self.kind}` memory does not support; it supports {fitting}", ("gate",)
        return None

    def misfit(self, shape: Shape) -> Problem | None:
        """Return the problem with its position, if there is one."""
        problem = self.rotation.misfit(shape)
        return problem and (problem[0], ("position", *problem[1]))

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        """Yield the problems with the memories around it.

        above: the memory that feeds it, then the one that feeds that one, and so on. below: the memories that it feeds, by
        name. edges: whether the spec names the edges between memories.
        """
        return iter(())

    def problem_both_ways(self) -> str | None:
        """Return why it cannot compute outputs of tokens that also see later tokens; None if it can."""
        return f"a `{self.kind}` memory is causal"

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if self.weight == "token":
            return {"weight": Fresh((shape.heads, shape.hidden_size), initialise.fan_in(shape.hidden_size))}
        if self.weight == "learned":
            return {"weight": Fresh((shape.heads,), initialise.constant(LOLCATS_FACTOR))}
        return {}

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Compute a learned weight σ with which the memory has the teacher's mean share in each head, by bisection. The factor of a
        mass stays below 1."""
        if self.weight != "learned" or attended.balanced is None:
            return {}
        weight = parameters["weight"]
        factor = torch.nn.functional.logsigmoid(weight.double()) + attended.shift()
        return {"weight": torch.logit(factor.clamp(min=-WIDEST, max=math.log(LARGEST_FACTOR)).exp()).to(weight.dtype)}

    def begin(self, states: States, shape: Shape) -> dict[str, Tensor]:
        """Compute first values for some of the parameters, from queries and pairs that are not rotated."""
        return {}

    @property
    def brings_values(self) -> tuple[str, ...]:
        """The names of parameters from which the memory makes further values beside those of tokens. Its output is linear
        in both."""
        return ()

    @property
    def called(self) -> str:
        """Its name in the head: ``name``, or else its kind."""
        return self.name or self.word

    @property
    def declared_size(self) -> int:
        """Its ``size`` in a spec, to which its state is proportional; 0 if it has none."""
        return 0

    @property
    def capacity(self) -> int:
        """The entries that it holds before it evicts any, if it is bounded."""
        return self.declared_size

    @property
    def rotation(self) -> Position:
        """The rotation of queries and keys."""
        return self.position or NoPosition()

    @property
    def drops(self) -> bool:
        """Whether evicted pairs are discarded."""
        return False

    def dropping(self) -> Self:
        """Return the same memory with evicted pairs discarded."""
        return self

    @property
    def features_as(self) -> UnitLength | None:
        """How features are normalised to unit length, for any feature map. None: they are not, and exponential features are passed
        as logarithms."""
        return None

    @property
    def evicts_together(self) -> bool:
        """Whether it may evict several pairs at one token."""
        return False

    @property
    def evicted_at_once(self) -> int:
        """The largest number of pairs that it evicts at one token; 1 if it evicts none."""
        return 1

    @property
    def reads_below(self) -> bool:
        """Whether it reads the state that it feeds before it evicts a pair."""
        return False

    @property
    def chooses_by_value(self) -> bool:
        """Whether the weights of its output depend on the values."""
        return False

    @property
    def weighs_values(self) -> bool:
        """Whether its output is a weighted mean of values."""
        return self.has_mass()

    @property
    def gates(self) -> Gate | None:
        """Its gate; None if it does not forget."""
        return None

    def rates(self) -> Mapping[str, Rate]:
        """Return the numbers that each pair's token provides for this memory, by the names of the numbers."""
        return {}

    def sums(self, shape: Shape) -> tuple[Number, ...]:
        """Return the numbers that a window above sums for this memory over the time that a pair is in the window."""
        return ()

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Return the state after this many tokens."""
        return self.state(shape)

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        """Return the pairs that one key head's share of the memory holds after this many tokens, as LoLA's table 1 counts
        them."""
        raise NotImplementedError

    def why_slow(self, shape: Shape) -> str | None:
        """Return why PyTorch's forms read a text token by token, and the setting of the spec that is faster. None if they do
        not."""
        return None

    def within(self, window: int) -> str | None:
        """For a memory that holds every pair: return, as YAML, a memory that holds only the last ``window`` pairs and returns the
        same outputs if a query sees only these. None if there is none."""
        return None

    def matrix(self, state: State) -> Float[Tensor, "B N F V"] | None:
        """Return the matrix in which this state sums pairs, as in the equation, whatever the layout of the state: in float64,
        without normaliser. None if there is no such matrix."""
        return None

    def operation(self, shape: Shape) -> Operation:
        """Build the memory's operation. It returns the partial attention and, for bounded memories, the evicted pairs."""
        heads = shape.heads if self.per_query_head else shape.key_heads
        evicted = Port(EVICTED, Kind.PAIRS, heads, shape.head_dim, needed=False)
        return Operation(
            reads=self.inputs(shape),
            gives=(Port("partial", Kind.PARTIAL, shape.heads, shape.value_dim), *([evicted] if self.bounded else [])),
            forms=self.forms_both_ways(shape) if shape.both_ways else self.forms(shape),
            slots={} if shape.both_ways else self.state(shape),
        )

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        """Return the input ports."""
        return (Port("query", Kind.QUERY, shape.heads, shape.head_dim), Port("pairs", Kind.PAIRS, dim=shape.head_dim))

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        """Return the forms for causal attention."""
        raise NotImplementedError

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        """Return the forms for tokens that also see later tokens; empty for a causal memory."""
        return ()

    def weighing(self, shape: Shape) -> Operation | None:
        """Build the operation that computes its weight in the read; None if it has no weight."""
        if self.weight is None or self.weight == "same":
            return None
        hidden = Port("hidden", Kind.HIDDEN, dim=shape.hidden_size)
        weight = Port("weight", Kind.WEIGHT, shape.heads, 1, per_token=self.weight == "token")
        if isinstance(self.weight, float):
            constant = math.log(self.weight) - math.log1p(-self.weight)
            run: Callable[..., Tensor] = partial(fixed_logit, heads=shape.heads, logit=constant)
        else:
            run = token_logit if self.weight == "token" else learned_logit
        return Operation(reads=(hidden,), gives=(weight,), forms=(Form(EVERY, "as defined", run),))

    def flops_of_weight(self, shape: Shape) -> int:
        """Return the floating-point operations of its weight per token."""
        return 2 * shape.hidden_size * shape.heads if self.weight == "token" else 0


def token_logit(parameters: Parameters, hidden: Float[Tensor, "B T C"]) -> Float[Tensor, "B T H"]:
    """Return a weight of each token before its sigmoid, in the accumulating dtype."""
    weight = parameters["weight"]
    return as_dtype(torch.nn.functional.linear(as_dtype(hidden, weight.dtype), weight), accumulating(hidden.dtype))


def learned_logit(parameters: Parameters, hidden: Float[Tensor, "B T C"]) -> Float[Tensor, " H"]:
    """Return a learned weight before its sigmoid, in the accumulating dtype of the hidden states."""
    return as_dtype(parameters["weight"], accumulating(hidden.dtype))


def fixed_logit(hidden: Float[Tensor, "B T C"], *, heads: int, logit: float) -> Float[Tensor, " H"]:
    """Return a fixed weight before its sigmoid, in the accumulating dtype of the hidden states."""
    return hidden.new_full((heads,), logit, dtype=accumulating(hidden.dtype))
