"""What becomes of a head's answer before the output projection: a norm of each head, and a gate of the hidden state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from blocks import initialise
from blocks.flow import rms_norm
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port
from blocks.part import Fresh, Parameters, Part, State, bare, kinds

ONE_OF_SWISH, NEARLY_ONE_OF_SIGMOID = 1.2784645, 4.0
"""Where swish is 1, and sigmoid 0.98: a gate starts open."""


class Norm(Part):
    """RMSNorm over the coordinates of each head, with one weight a coordinate."""

    role: ClassVar[str] = "output"
    equation: ClassVar[str] = "ô_t = o_t / √(mean(o_t²) + ε) ⊙ w"
    source: ClassVar[str] = "Sun et al. 2023, arXiv:2307.08621, eq. 8 (one norm a head); Zhang & Sennrich 2019, arXiv:1910.07467"
    incidental: ClassVar[frozenset[str]] = frozenset({"epsilon"})
    kind: Literal["norm"] = "norm"
    epsilon: PositiveFloat = 1e-5
    """Added to the mean square."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        return {"weight": Fresh((shape.head_dim,), initialise.constant(1.0))}

    def operation(self, shape: Shape) -> Operation:
        answer = Port("output", Kind.OUTPUT, shape.heads, shape.head_dim)
        hidden = Port("hidden", Kind.HIDDEN, dim=shape.hidden_size)
        return Operation(reads=(answer, hidden), gives=(answer,), forms=(Form(EVERY, "as defined", self._run),))

    def _run(self, parameters: Parameters, call: Call, *, output: Tensor, hidden: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.finish(parameters, output, hidden),), {}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * shape.heads * shape.head_dim

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H D"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H D"]:
        """Normalise each head's answer, in the accumulating dtype."""
        return rms_norm(output, parameters["weight"], self.epsilon)


class GatedNorm(Norm):
    """The norm, times an activation of the hidden state: one gate a coordinate. It starts open, as the norm alone."""

    equation: ClassVar[str] = "ô_t = o_t / √(mean(o_t²) + ε) ⊙ w ⊙ act(x_t W + b), W: C × (heads · D), or of a rank"
    source: ClassVar[str] = "Yang et al. 2023, arXiv:2312.06635, section 4.4"
    kind: Literal["gated_norm"] = "gated_norm"  # pyright: ignore[reportIncompatibleVariableOverride]
    activation: Literal["swish", "sigmoid"] = "swish"
    """act."""
    rank: PositiveInt | Literal["full"] = "full"
    """full: one matrix; a number: two, through that many columns."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        width, columns = shape.hidden_size, shape.heads * shape.head_dim
        open_ = ONE_OF_SWISH if self.activation == "swish" else NEARLY_ONE_OF_SIGMOID
        fresh = super().parameters(shape) | {"gate_bias": Fresh((columns,), initialise.constant(open_))}
        nothing = initialise.constant(0.0)
        if self.rank == "full":
            return fresh | {"gate": Fresh((columns, width), nothing)}
        down = Fresh((self.rank, width), initialise.normal(width))
        return fresh | {"gate_down": down, "gate_up": Fresh((columns, self.rank), nothing)}

    def flops(self, shape: Shape, tokens: int) -> int:
        width, columns = shape.hidden_size, shape.heads * shape.head_dim
        gate = width * columns if self.rank == "full" else self.rank * (width + columns)
        return super().flops(shape, tokens) + 2 * gate + 2 * columns

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H D"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H D"]:
        """Normalise, then open and close each coordinate."""
        bias, last = parameters["gate_bias"], parameters["gate" if self.rank == "full" else "gate_up"]
        hidden = hidden.to(bias.dtype)
        if self.rank != "full":
            hidden = torch.nn.functional.linear(hidden, parameters["gate_down"])
        logits = torch.nn.functional.linear(hidden, last, bias).view(output.shape)
        gate = torch.nn.functional.silu(logits) if self.activation == "swish" else logits.sigmoid()
        return super().finish(parameters, output, hidden) * gate.to(output.dtype)


OutputConfig = Annotated[Norm | GatedNorm, Field(discriminator="kind"), BeforeValidator(bare)]
OUTPUTS = kinds(OutputConfig)
