"""What is applied to a head's output before the output projection: a norm, and a gate of the hidden state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from blocks import initialise
from blocks.calibration import HALVINGS, OutputSizes
from blocks.legend import Float, Shape, Tensor, torch
from blocks.norms import rms_norm
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters, Part, Silu
from blocks.registry import Role
from blocks.tensors import as_dtype

ONE_OF_SILU, NEARLY_ONE_OF_SIGMOID = 1.2784645, 4.0
"""Where SiLU is 1, and sigmoid 0.98: a gate starts open."""


class Output(Part):
    """A function of each token's output, which may look at the token's hidden state."""

    role: ClassVar[str] = "output"
    normalises: ClassVar[bool]
    """Divides the output by its own size."""

    def operation(self, shape: Shape) -> Operation:
        heads = Port("output", Kind.OUTPUT, shape.heads, shape.value_dim)
        hidden = Port("hidden", Kind.HIDDEN, dim=shape.hidden_size)
        return Operation(reads=(heads, hidden), gives=(heads,), forms=(Form(EVERY, "as defined", self._run),))

    def _run(self, parameters: Parameters, call: Call, *, output: Tensor, hidden: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.finish(parameters, output, hidden),), {}

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H V"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H V"]:
        """Return the input of the output projection."""
        raise NotImplementedError


class Norm(Output):
    """RMSNorm over the coordinates of each head, with one weight a coordinate or a head, or over those of all heads together."""

    equation: ClassVar[str] = "ô_t = o_t / √(mean(o_t²) + ε) ⊙ w"
    source: ClassVar[str] = (
        "Sun et al. 2023, arXiv:2307.08621, eq. 8 (one norm a head); Zhang & Sennrich 2019, arXiv:1910.07467; "
        "over all heads: Chen et al. 2026, arXiv:2601.22156 (HypeNet), as in its code; one weight a head: Tan et al. 2026, "
        "arXiv:2606.20097 (HydraHead), eq. 13 and 14"
    )
    normalises: ClassVar[bool] = True
    kind: Literal["norm"] = "norm"
    epsilon: PositiveFloat = 1e-5
    """Added to the mean square."""
    over: Literal["head", "heads"] = "head"
    """head: each head by itself, with weights that the heads share. heads: the group's heads as one, each with its own weights."""
    weights: Literal["coordinate", "head"] = "coordinate"
    """coordinate: a weight for each coordinate. head: one number for each head."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        columns = shape.value_dim if self.over == "head" else shape.heads * shape.value_dim
        return {"weight": Fresh((shape.heads if self.weights == "head" else columns,), initialise.constant(1.0))}

    def rescale(self, parameters: Parameters, sizes: OutputSizes, shape: Shape) -> dict[str, Tensor]:
        """The weights, in closed form. A gate after the norm keeps its start: the measured sizes include it."""
        if self.weights == "head":
            of_heads = OutputSizes(*(squares.mean(1, keepdim=True) for squares in (sizes.student, sizes.teacher)))
            factor = of_heads.factor().flatten()
        else:
            factor = sizes.factor(of_all_heads=self.over == "head").flatten()
        return {"weight": parameters["weight"] * factor.to(parameters["weight"].dtype)}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * shape.heads * shape.value_dim

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H V"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H V"]:
        """Normalise, in the accumulating dtype."""
        weight, states = parameters["weight"], output if self.over == "head" else output.flatten(2)
        if self.weights == "head":
            normed = rms_norm(states, weight.new_ones(states.shape[-1]), self.epsilon).view(output.shape)
            return normed * as_dtype(weight, normed.dtype)[:, None]
        return rms_norm(states, weight, self.epsilon).view(output.shape)


class OutputGate(Output):
    """The output as it is, times an activation of the hidden state: one gate a coordinate, on any head. It starts open."""

    equation: ClassVar[str] = "ô_t = o_t ⊙ act(x_t W + b), W: C × (heads · V), or of a rank"
    source: ClassVar[str] = (
        "Qiu et al. 2025, arXiv:2505.06708 (after softmax attention); Chen et al. 2026, arXiv:2601.22156 (HypeNet)"
    )
    normalises: ClassVar[bool] = False
    kind: Literal["gate"] = "gate"
    activation: Annotated[Literal["silu", "sigmoid"], Silu] = "sigmoid"
    """act."""
    rank: PositiveInt | Literal["full"] = "full"
    """full: one matrix; a number: two, through that many columns."""
    bias: bool = True
    """Whether there is a b. Without it, a SiLU gate starts at random and nearly closed, and a sigmoid gate at 1/2."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        return gate_parameters(shape, self.activation, self.rank, bias=self.bias)

    def rescale(self, parameters: Parameters, sizes: OutputSizes, shape: Shape) -> dict[str, Tensor]:
        """b by coordinate: the gate starts as open as the output needs, and a sigmoid at most as open as by default. A gate without
        a bias keeps its start."""
        if not self.bias:
            return {}
        bias = parameters["gate_bias"]
        openness = activate(bias.double(), self.activation) * sizes.factor().flatten()
        return {"gate_bias": bias_of(openness, self.activation).to(bias.dtype)}

    def flops(self, shape: Shape, tokens: int) -> int:
        return gate_flops(shape, self.rank)

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H V"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H V"]:
        """Open and close each coordinate."""
        return output * opening(parameters, hidden, self.activation).view(output.shape).to(output.dtype)


class GatedNorm(Norm):
    """The norm, times an activation of the hidden state: one gate a coordinate. It starts open, as the norm alone."""

    equation: ClassVar[str] = "ô_t = o_t / √(mean(o_t²) + ε) ⊙ w ⊙ act(x_t W + b), W: C × (heads · V), or of a rank"
    source: ClassVar[str] = "Yang et al. 2023, arXiv:2312.06635, section 4.4"
    kind: Literal["gated_norm"] = "gated_norm"  # pyright: ignore[reportIncompatibleVariableOverride]
    first: Literal["norm", "gate"] = "norm"
    """gate: what the gate leaves is normalised, as in Mamba-2."""
    activation: Annotated[Literal["silu", "sigmoid"], Silu] = "silu"
    """act."""
    rank: PositiveInt | Literal["full"] = "full"
    """full: one matrix; a number: two, through that many columns."""
    bias: bool = True
    """Whether there is a b. Without it, a SiLU gate starts at random and nearly closed, and a sigmoid gate at 1/2."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        return super().parameters(shape) | gate_parameters(shape, self.activation, self.rank, bias=self.bias)

    def flops(self, shape: Shape, tokens: int) -> int:
        return super().flops(shape, tokens) + gate_flops(shape, self.rank)

    def finish(
        self, parameters: Parameters, output: Float[Tensor, "B T H V"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H V"]:
        """Normalise, then open and close each coordinate, or the other way round."""
        gate = as_dtype(opening(parameters, hidden, self.activation).view(output.shape), output.dtype)
        if self.first == "gate":
            return super().finish(parameters, output * gate, hidden)
        normed = super().finish(parameters, output, hidden)
        return normed * gate if normed.requires_grad or gate.requires_grad else normed.mul_(gate)


def gate_parameters(shape: Shape, activation: str, rank: int | Literal["full"], *, bias: bool) -> dict[str, Fresh]:
    """Return those of a gate of the hidden state, one a coordinate. With a bias it starts open."""
    width, columns = shape.hidden_size, shape.heads * shape.value_dim
    open_ = ONE_OF_SILU if activation == "silu" else NEARLY_ONE_OF_SIGMOID
    # A SiLU gate without a bias would be 0 with these weights, and with it the gradient of all heads.
    start = initialise.constant(0.0) if bias or activation == "sigmoid" else initialise.fan_in(width if rank == "full" else rank)
    fresh = {"gate_bias": Fresh((columns,), initialise.constant(open_))} if bias else {}
    if rank == "full":
        return fresh | {"gate": Fresh((columns, width), start)}
    down = Fresh((rank, width), initialise.fan_in(width))
    return fresh | {"gate_down": down, "gate_up": Fresh((columns, rank), start)}


def gate_flops(shape: Shape, rank: int | Literal["full"]) -> int:
    """Return the floating-point operations of a gate: its products, its activation, and the product with the output."""
    width, columns = shape.hidden_size, shape.heads * shape.value_dim
    return 2 * (width * columns if rank == "full" else rank * (width + columns)) + 2 * columns


def opening(parameters: Parameters, hidden: Float[Tensor, "B T C"], activation: str) -> Float[Tensor, "B T columns"]:
    """Return the factor of each coordinate of the output."""
    weight = parameters["gate_up" if "gate_down" in parameters else "gate"]
    hidden = as_dtype(hidden, weight.dtype)
    if "gate_down" in parameters:
        hidden = torch.nn.functional.linear(hidden, parameters["gate_down"])
    logits = torch.nn.functional.linear(hidden, weight, parameters.get("gate_bias"))
    if logits.requires_grad:
        return activate(logits, activation)
    return torch.nn.functional.silu(logits, inplace=True) if activation == "silu" else logits.sigmoid_()


def activate(logits: Tensor, activation: str) -> Tensor:
    """Return the activation of a gate's logits."""
    return torch.nn.functional.silu(logits) if activation == "silu" else logits.sigmoid()


def bias_of(openness: Float[Tensor, " columns"], activation: str) -> Float[Tensor, " columns"]:
    """Return the bias of a gate that starts so open, which is above 0. A sigmoid is at most as open as its default start."""
    if activation == "sigmoid":
        return torch.logit(openness, 1e-6).clamp(max=NEARLY_ONE_OF_SIGMOID)
    # SiLU grows with a positive bias, and is less than 0.5 below it; its inverse has no closed form.
    low, high = torch.zeros_like(openness), openness + 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less = activate(middle, activation) < openness
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return (low + high) / 2


OUTPUTS = Role("output", Output, Norm, OutputGate, GatedNorm)
OutputConfig = Annotated[Output, OUTPUTS]
