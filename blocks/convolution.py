"""A short causal convolution over the tokens of each head, before the features."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from blocks import initialise
from blocks.flow import Tokens, repeat_heads
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Fresh, Parameters, Part, Per, Slot, State, bare, kinds

Input = Literal["q", "k"]


class Convolution(Part):
    """Depthwise: each coordinate of each head is a weighted sum of itself over the last ``kernel`` tokens of its document.

    Feeds the features only: exact memories see the raw queries and keys. Starts as the identity.
    """

    role: ClassVar[str] = "convolution"
    equation: ClassVar[str] = "q̃_t = Σ_δ w_δ ⊙ q_{t-δ}, 0 ≤ δ < kernel (k̃ likewise)"
    source: ClassVar[str] = "LAWCAT, section 4.1 (r = kernel - 1)"
    kind: Literal["causal"] = "causal"
    kernel: PositiveInt = 4
    """Taps, the current token included."""
    inputs: Annotated[tuple[Input, ...], Field(min_length=1)] = ("q", "k")
    """What is convolved."""
    share: Literal["none", "qk"] = "none"
    """qk: one filter for queries and keys."""
    per: Per = "query_head"
    """Whose filters the keys have: one a query head or one a key head. Queries have one a query head, unless shared."""

    @field_validator("inputs")
    @classmethod
    def _in_order(cls, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
        if len(set(inputs)) < len(inputs):
            raise ValueError("names an input twice")
        return tuple(sorted(inputs, reverse=True))

    def key_heads(self, shape: Shape) -> int:
        """Heads of the convolved keys."""
        return shape.heads if "k" in self.inputs and self.per == "query_head" else shape.key_heads

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        own = shape.heads if self.per == "query_head" else shape.key_heads
        rows = {"weight": own} if self.share == "qk" else {"query": shape.heads, "key": own}
        used = {"weight", *({"q": "query", "k": "key"}[name] for name in self.inputs)}
        return {
            name: Fresh((heads, shape.head_dim, self.kernel), initialise.current_token)
            for name, heads in rows.items()
            if name in used
        }

    def state(self, shape: Shape) -> dict[str, Slot]:
        heads = {"q": ("query", shape.heads), "k": ("key", shape.key_heads)}
        slots = (heads[name] for name in self.inputs)
        return {name: Slot((self.kernel - 1, count, shape.head_dim), "pairs") for name, count in slots}

    def flops(self, shape: Shape, tokens: int) -> int:
        heads = {"q": shape.heads, "k": self.key_heads(shape)}
        return 2 * self.kernel * shape.head_dim * sum(heads[name] for name in self.inputs)

    def convolve(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        key: Float[Tensor, "B T K D"],
        tokens: Tokens,
        state: State,
    ) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B T N D"], State]:
        """Return the convolved queries and keys (H or K heads), and the inputs that the next call still needs."""
        outputs, carried = {"query": query, "key": key}, {}
        for name in state:
            weight = parameters.get("weight", parameters.get(name))
            assert weight is not None
            outputs[name], carried[name] = _filter(outputs[name], weight, tokens, state[name])
        return outputs["query"], outputs["key"], carried


def _filter(
    inputs: Float[Tensor, "B T h D"],
    weight: Float[Tensor, "w D kernel"],
    tokens: Tokens,
    earlier: Float[Tensor, "B P h D"],
) -> tuple[Tensor, Tensor]:
    """Filter one input; its heads or the filters' are repeated, whichever are fewer."""
    length, past = inputs.shape[1], earlier.shape[1]
    extended = torch.cat((earlier, inputs), dim=1)
    segment = tokens.extended_segment(past)
    heads = max(weight.shape[0], inputs.shape[2])
    weight = weight.to(inputs.dtype).repeat_interleave(heads // weight.shape[0], dim=0)
    output = inputs.new_zeros(())
    for tap in range(past + 1):
        seen = extended[:, tap : tap + length]
        if segment is not None:
            seen = seen * (segment[:, tap : tap + length] == segment[:, past:])[..., None, None]
        output = output + repeat_heads(seen, heads) * weight[..., tap]
    carried = tokens.tail(extended, past)
    current = tokens.tail_is_current(past)
    return output, carried if current is None else carried * current[..., None, None]


ConvolutionConfig = Annotated[Convolution, BeforeValidator(bare)]
CONVOLUTIONS = kinds(ConvolutionConfig)
