"""What the memories share: a name, a position of their own, and a weight in the head's read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints

from blocks import initialise
from blocks.calibration import WIDEST, Attended
from blocks.gates import gates_of
from blocks.legend import Float, Number, Shape, Tensor, torch
from blocks.operation import EVERY, FALLEN, Call, Form, Kind, Operation, Port, Slot, State
from blocks.part import FieldPath, Fresh, Parameters, Part, Problem
from blocks.positions import NoPosition, Position, PositionConfig
from blocks.tensors import accumulating, as_dtype

if TYPE_CHECKING:
    from blocks.feature_maps.base import UnitLength
    from blocks.gates.base import Gate
    from blocks.rates import Rate

LARGEST_FACTOR = 0.99
"""Of what a teacher's attention gives a memory to start with."""
LOLCATS_FACTOR = math.log(0.1 / 0.9)
"""LoLCATs starts its window factors at σ = 0.1."""


FORGETS = {"none": "nothing", "head": "at one pace a head", "channel": "at a pace of its own for each feature"}
"""What the rank of a gate's decay means."""


Misplaced = tuple[str, FieldPath | str]
"""What is wrong with what stands around a memory, and where: a field of it, or, by its name, the edge to a memory below."""


class Memory(Part):
    """Holds past pairs in some form, and answers a query with a partial attention.

    Every form of every memory has one signature: its parameters, the ``Call`` with the tokens and the memory's state, and its
    inputs by name; it returns the partial, with the pairs that fall where it is bounded, and the new state.
    """

    role: ClassVar[str] = "memory"
    bounded: ClassVar[bool]
    """It holds a fixed number of pairs, so pairs fall out of it."""
    reads: ClassVar[Kind]
    """What it is fed beside queries: pairs as they are, their features, or the hidden states that the head mixes."""
    answers_from_pairs: ClassVar[bool] = True
    """Its answer is of the pairs that it gets; otherwise it has one without them, and hands all of them on."""
    exact: ClassVar[bool] = False
    """It weighs its pairs by softmax of q·k / √D."""
    grows: ClassVar[bool] = False
    """Its state grows with the text."""
    per_query_head: ClassVar[bool] = False
    """Each query head holds pairs of its own."""
    sifts: ClassVar[bool] = False
    """It keeps some pairs for good, so the tokens that they came with bring none to the memories below."""
    decay_ranks: ClassVar[frozenset[str]] = frozenset()
    """The ranks of decay that it can forget by, where it has a gate."""
    takes_several: ClassVar[bool] = False
    """Several pairs may fall into it at one token."""
    by_coordinate: ClassVar[bool] = False
    """Each coordinate of a value has a weight of its own in the answer, so no single weight of a token gives the answer."""
    to_have_mass: ClassVar[str] = ""
    """What a user would set so that its answer has a mass."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    """What its parameters are called by; left out, its kind, with _ for a dot."""
    position: PositionConfig | None = None
    """How queries and keys are turned in this memory. Left out: as the head says."""
    weight: Literal["learned", "token"] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Its weight σ among the memories of the head, one a head: learned (from σ = 0.1, as LoLCATs), a linear function of each
    token's (mixed) hidden state, fixed, or none."""

    @property
    def is_softmax_over_all(self) -> bool:
        """Whether it is softmax attention over every token so far, with logits q·k / √D."""
        return False

    def has_mass(self) -> bool:
        """Whether its answer comes with a mass, so that it can share a denominator."""
        return True

    def problem(self, shape: Shape) -> Problem | None:
        """Of its direction and its gate."""
        problem, gate = self.problem_both_ways(), self.gates
        if shape.both_ways and problem:
            return f"{problem}, and the spec says `direction: bidirectional`; change one of them", ()
        if gate is not None and gate.rank_of_decay not in self.decay_ranks:
            fitting = ", ".join(f"`{kind}`" for kind in gates_of(self.decay_ranks))
            forgets = f"the gate `{gate.kind}` forgets {FORGETS[gate.rank_of_decay]}"
            return f"{forgets}, which a `{self.kind}` memory cannot; it takes {fitting}", ("gate",)
        return None

    def misfit(self, shape: Shape) -> Problem | None:
        """Of its position."""
        turn = self.turn.misfit(shape)
        return turn and (turn[0], ("position", *turn[1]))

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        """What is wrong with what stands around it.

        above: the memory that feeds it, then the one that feeds that, and so on. below: those that it feeds, by name. edges: the
        spec names the edges between memories.
        """
        return iter(())

    def problem_both_ways(self) -> str | None:
        """Why it cannot answer tokens that see those after them, too; None where it can."""
        return f"a `{self.kind}` memory only looks back"

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if self.weight == "token":
            return {"weight": Fresh((shape.heads, shape.hidden_size), initialise.normal(shape.hidden_size))}
        if self.weight == "learned":
            return {"weight": Fresh((shape.heads,), initialise.constant(LOLCATS_FACTOR))}
        return {}

    def calibrated(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """A learned weight σ, so that the memory's mean share of each head is the teacher's: found by halving an
        interval. A factor of a mass stays below 1."""
        if self.weight != "learned" or attended.balanced is None:
            return {}
        weight = parameters["weight"]
        factor = torch.nn.functional.logsigmoid(weight.double()) + attended.shift()
        return {"weight": torch.logit(factor.clamp(min=-WIDEST, max=math.log(LARGEST_FACTOR)).exp()).to(weight.dtype)}

    @property
    def brings_values(self) -> tuple[str, ...]:
        """Its parameters that values of its own come from, which it answers with beside those of tokens: linear in both."""
        return ()

    @property
    def called(self) -> str:
        """Its name in the head: its own, or its kind."""
        return self.name or self.word

    @property
    def room(self) -> int:
        """The `size` that it has in a spec, of which its state is a multiple; 0 where it has none."""
        return 0

    @property
    def turn(self) -> Position:
        """How queries and keys are turned."""
        return self.position or NoPosition()

    @property
    def drops(self) -> bool:
        """Whether what it evicts goes nowhere."""
        return False

    def dropping(self) -> Self:
        """The same memory, where what it evicts goes nowhere."""
        return self

    @property
    def features_as(self) -> UnitLength | None:
        """How features are divided by their length, whatever the map. None: as they are, exponential ones by their logarithms."""
        return None

    @property
    def falls_together(self) -> bool:
        """Whether several pairs may fall out of it at one token."""
        return False

    @property
    def falling_at_once(self) -> int:
        """How many pairs fall out of it together, where any do."""
        return 1

    @property
    def looks_below(self) -> bool:
        """Whether it looks at the state that it feeds before it lets a pair fall."""
        return False

    @property
    def chooses_by_value(self) -> bool:
        """Whether the weights of its answer depend on the values."""
        return False

    @property
    def weighs_values(self) -> bool:
        """Whether its answer is a mean of values, weighed."""
        return self.has_mass()

    @property
    def gates(self) -> Gate | None:
        """How fast it forgets, where it does."""
        return None

    def rates(self) -> Mapping[str, Rate]:
        """What the token of a pair brings for this memory, by the name that it travels under."""
        return {}

    def sums(self, shape: Shape) -> tuple[Number, ...]:
        """What a window above sums up for this memory while a pair stands there."""
        return ()

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """The state once so many tokens are in it."""
        return self.state(shape)

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        """Pairs of a key and a value that one key head's share of it holds after so many tokens, as LoLA's table 1 counts them."""
        raise NotImplementedError

    def within(self, window: int) -> str | None:
        """Of one that holds every pair: a memory that answers the same where a query sees so many pairs, and holds these alone, as
        a spec says it. None where there is none."""
        return None

    def matrix(self, state: State) -> Float[Tensor, "B N F D"] | None:
        """What pairs are summed up in, by this state, as the equation has it and whatever it is kept over: in float64, without a
        normaliser. None where there is no such matrix."""
        return None

    def operation(self, shape: Shape) -> Operation:
        """Its answer, and what falls out of it, if anything may."""
        heads = shape.heads if self.per_query_head else shape.key_heads
        fallen = Port(FALLEN, Kind.PAIRS, heads, shape.head_dim, needed=False)
        return Operation(
            reads=self.inputs(shape),
            gives=(Port("partial", Kind.PARTIAL, shape.heads, shape.head_dim), *([fallen] if self.bounded else [])),
            forms=self.forms_both_ways(shape) if shape.both_ways else self.forms(shape),
            slots={} if shape.both_ways else self.state(shape),
        )

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        """What it reads."""
        return (Port("query", Kind.QUERY, shape.heads, shape.head_dim), Port("pairs", Kind.PAIRS, dim=shape.head_dim))

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        """Where tokens see those before them."""
        raise NotImplementedError

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        """Where tokens see those after them, too; none of one that only looks back."""
        return ()

    def weighing(self, shape: Shape) -> Operation | None:
        """What gives its weight in the read; None where it has none of its own."""
        if self.weight is None or self.weight == "same":
            return None
        hidden = Port("hidden", Kind.HIDDEN, dim=shape.hidden_size)
        weight = Port("weight", Kind.WEIGHT, shape.heads, 1, per_token=self.weight == "token")
        return Operation(reads=(hidden,), gives=(weight,), forms=(Form(EVERY, "as defined", self._weigh),))

    def _weigh(self, parameters: Parameters, call: Call, *, hidden: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.logit(parameters, hidden, call.shape.heads),), {}

    def flops_of_weight(self, shape: Shape) -> int:
        """Operations that ``logit`` takes a token."""
        return 2 * shape.hidden_size * shape.heads if self.weight == "token" else 0

    def logit(self, parameters: Parameters, inputs: Float[Tensor, "B T C"], heads: int) -> Tensor:
        """The weight before its sigmoid, in the accumulating dtype: one a head (H), or one a token and head (B T H)."""
        dtype = accumulating(inputs.dtype)
        if self.weight == "token":
            weight = parameters["weight"]
            return as_dtype(torch.nn.functional.linear(as_dtype(inputs, weight.dtype), weight), dtype)
        if self.weight == "learned":
            return as_dtype(parameters["weight"], dtype)
        assert isinstance(self.weight, float), "a memory without a weight is not asked for it"
        return inputs.new_full((heads,), math.log(self.weight) - math.log1p(-self.weight), dtype=dtype)
