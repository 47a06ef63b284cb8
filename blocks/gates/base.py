"""The base of all gates: a gate returns the natural logarithm of the decay at each token."""

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
    """A gate has no separate kernel. A recurrence depends only on the rank of the decay, so a new gate runs on every kernel
    of that rank. Its input is a port of the head: the hidden states, unless its operation declares another one."""

    role: ClassVar[str] = "gate"
    rank_of_decay: ClassVar[DecayRank]
    steps: ClassVar[bool] = False
    """The name of a second output with the step that the decay is made of, one per state head; empty if it has none."""

    def key_heads(self, shape: Shape, incoming: int) -> int:
        """Return the number of state heads with this gate, for keys with ``incoming`` heads."""
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
        """Return log α_t ≤ 0, one number per state head (rank head) or per feature (rank channel); None if nothing decays.
        inputs: the gate's input, in most gates the hidden states B T C."""
        raise NotImplementedError


class PerOwnHead(Gate):
    """A gate with one decay, or one row of parameters, for each of its own heads."""

    per: Per = "query_head"
    """query_head: each query head has its own decay, and so its own state. key_head: query heads that share a key head share
    both."""

    def key_heads(self, shape: Shape, incoming: int) -> int:
        return shape.heads if self.per == "query_head" else incoming

    def own_heads(self, shape: Shape) -> int:
        """Return the number of the gate's own heads."""
        return shape.heads if self.per == "query_head" else shape.key_heads


def bias_of_rate(rate: Float[Tensor, " n"], temperature: float) -> Float[Tensor, " n"]:
    """Return b such that logsigmoid(b) / temperature = -rate. This uses σ(b) = exp(-temperature · rate)."""
    wanted = temperature * rate
    return -wanted - torch.log(-torch.expm1(-wanted))


def matrices(width: int, columns: int, rank: MatrixRank) -> dict[str, Fresh]:
    """Return the matrices from hidden states to this many logits: one, or two with ``rank`` columns between them."""
    if rank == "full":
        return {"weight": Fresh((columns, width), initialise.fan_in(width))}
    return {
        "down": Fresh((rank, width), initialise.fan_in(width)),
        "up": Fresh((columns, rank), initialise.fan_in(rank)),
    }


def logits(parameters: Parameters, hidden: Float[Tensor, "B T C"]) -> Float[Tensor, "B T columns"]:
    """Return x W + b, in the accumulating dtype."""
    dtype = accumulating(hidden.dtype)
    if "weight" in parameters:
        return affine(hidden, parameters["weight"], parameters["bias"], dtype)
    down = parameters["down"]
    return affine(torch.nn.functional.linear(as_dtype(hidden, down.dtype), down), parameters["up"], parameters["bias"], dtype)


def flops_of_matrices(width: int, columns: int, rank: MatrixRank) -> int:
    """Return the floating-point operations of these matrices per token."""
    return 2 * width * columns if rank == "full" else 2 * rank * (width + columns)
