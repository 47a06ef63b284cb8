"""A short causal convolution over the tokens of each head, before the features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator

from blocks import initialise
from blocks.flow import Tokens
from blocks.legend import Float, Shape, Tensor
from blocks.operation import EVERY, FLA, Call, Form, Kind, Operation, Port, unbroken
from blocks.part import FieldError, Fresh, Parameters, Part, Per, Shown, Slot, State, bare, kinds
from blocks.taps import CONVOLUTION, Filtering, filtered, filtered_by_kernel, filtered_one, fits

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

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> Self:
        (first, *others) = self.inputs
        if self.share == "qk" and not others:
            raise FieldError(f"one filter for q and k, and `inputs` has {first} alone: remove `share`, or convolve both", "share")
        if self.per == "key_head" and "k" not in self.inputs:
            raise FieldError("says whose filters the keys have, and `inputs` has q alone: remove `per`, or convolve k, too", "per")
        return self

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

    def shows(self, parameters: Parameters, call: Call, inputs: Mapping[str, Any]) -> dict[str, Shown]:
        says = "weight of the current token, the last tap, and of those before it"
        return {f"taps: {name}": Shown(weight, ("head", "channel", "tap"), says) for name, weight in parameters.items()}

    def flops(self, shape: Shape, tokens: int) -> int:
        heads = {"q": shape.heads, "k": self.key_heads(shape)}
        return 2 * self.kernel * shape.head_dim * sum(heads[name] for name in self.inputs)

    def operation(self, shape: Shape) -> Operation:
        size = shape.head_dim
        return Operation(
            reads=(Port("query", Kind.QUERY, shape.heads, size), Port("key", Kind.KEY, shape.key_heads, size)),
            gives=(Port("query", Kind.QUERY, shape.heads, size), Port("key", Kind.KEY, self.key_heads(shape), size)),
            forms=(
                Form(
                    FLA,
                    "causal_conv1d",
                    partial(self._run, filtering=filtered_by_kernel),
                    partial(fits, taps=self.kernel),
                    missing=CONVOLUTION.missing,
                    refuses=True,
                ),
                Form(EVERY, "all taps at once", partial(self._run, filtering=filtered_one), unbroken, decode=True),
                Form(EVERY, "as defined", partial(self._run, filtering=filtered)),
            ),
            slots=self.state(shape),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, query: Tensor, key: Tensor, filtering: Filtering
    ) -> tuple[tuple[Tensor, Tensor], State]:
        query, key, state = self.convolve(parameters, query, key, call.tokens, call.state, filtering)
        return (query, key), state

    def convolve(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        key: Float[Tensor, "B T K D"],
        tokens: Tokens,
        state: State,
        filtering: Filtering = filtered,
    ) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B T N D"], State]:
        """Return the convolved queries and keys (H or K heads), and the inputs that the next call still needs."""
        outputs, carried = {"query": query, "key": key}, {}
        for name in state:
            weight = parameters.get("weight", parameters.get(name))
            assert weight is not None
            outputs[name], carried[name] = filtering(outputs[name], weight, tokens, state[name])
        return outputs["query"], outputs["key"], carried


ConvolutionConfig = Annotated[Convolution, BeforeValidator(bare)]
CONVOLUTIONS = kinds(ConvolutionConfig)
