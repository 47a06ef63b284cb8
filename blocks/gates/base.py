"""What every gate answers: how much of a state survives one token, as a natural logarithm."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks import initialise
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters, Part, Per
from blocks.tensors import accumulating, affine, as_dtype

DecayRank = Literal["none", "head", "channel"]
MatrixRank = int | Literal["full"]


class Gate(Part):
    """A gate owns no kernel: a recurrence asks for its decay's rank alone, so a new gate runs on every kernel of that rank.

    It reads one of the head's inputs, by the name of its port: hidden states, unless its operation says another.
    """

    role: ClassVar[str] = "gate"
    rank_of_decay: ClassVar[DecayRank]
    steps: ClassVar[bool] = False
    """Beside the decay it gives the step that it is made of, one a state head, in a port of that name."""

    def key_heads(self, shape: Shape, incoming: int) -> int:
        """State heads that this gate asks for where the keys come in with ``incoming`` heads."""
        return incoming

    def operation(self, shape: Shape) -> Operation:
        width = shape.features if self.rank_of_decay == "channel" else 1
        return Operation(
            reads=(Port("hidden", Kind.HIDDEN, dim=shape.hidden_size),),
            gives=(Port("decay", Kind.DECAY, shape.state_heads, width),),
            forms=(Form(EVERY, "as defined", self._run),),
        )

    def _run(self, parameters: Parameters, call: Call, *, hidden: Tensor) -> tuple[tuple[Tensor | None], State]:
        return (self.log_decay(parameters, hidden, call.shape),), {}

    def log_decay(
        self, parameters: Parameters, inputs: Tensor, shape: Shape, /
    ) -> Float[Tensor, "B T N"] | Float[Tensor, "B T N F"] | None:
        """log α_t ≤ 0, one a state head (rank head) or one a feature of it (rank channel); None: nothing decays.

        inputs: what the gate reads, hidden states B T C in most of them.
        """
        raise NotImplementedError


class PerOwnHead(Gate):
    """A gate with one decay, or one row of parameters, for each of its own heads."""

    per: Per = "query_head"
    """query_head: each query head has a decay, and so a state, of its own. key_head: query heads of a key head share it."""

    def key_heads(self, shape: Shape, incoming: int) -> int:
        return shape.heads if self.per == "query_head" else incoming

    def own_heads(self, shape: Shape) -> int:
        """How many it has."""
        return shape.heads if self.per == "query_head" else shape.key_heads


def bias_of_rate(rate: Float[Tensor, " n"], temperature: float) -> Float[Tensor, " n"]:
    """b, so that logsigmoid(b) / temperature = -rate: σ(b) = exp(-temperature · rate)."""
    wanted = temperature * rate
    return -wanted - torch.log(-torch.expm1(-wanted))


def matrices(width: int, columns: int, rank: MatrixRank) -> dict[str, Fresh]:
    """The matrices from hidden states to so many logits: one, or two through ``rank`` columns."""
    if rank == "full":
        return {"weight": Fresh((columns, width), initialise.normal(width))}
    return {
        "down": Fresh((rank, width), initialise.normal(width)),
        "up": Fresh((columns, rank), initialise.normal(rank)),
    }


def logits(parameters: Parameters, hidden: Float[Tensor, "B T C"]) -> Float[Tensor, "B T columns"]:
    """x W + b through those matrices, in the accumulating dtype."""
    dtype = accumulating(hidden.dtype)
    if "weight" in parameters:
        return affine(hidden, parameters["weight"], parameters["bias"], dtype)
    down = parameters["down"]
    return affine(torch.nn.functional.linear(as_dtype(hidden, down.dtype), down), parameters["up"], parameters["bias"], dtype)


def flops_of_matrices(width: int, columns: int, rank: MatrixRank) -> int:
    """What they take a token."""
    return 2 * width * columns if rank == "full" else 2 * rank * (width + columns)
