"""A short causal convolution over the tokens of each head, before the features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from blocks import initialise
from blocks.flow import Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, FLA, Call, Form, Kind, Operation, Port, Slot, State, row_obstacle
from blocks.part import FieldError, Fresh, Parameters, Part, Per, Shown, Silu, in_order
from blocks.registry import Role
from blocks.taps import CONVOLUTION, Filtering, filter_by_kernel, filter_inputs, filter_step, obstacle

ConvolvedInput = Literal["q", "k", "v"]
NAMES = {"q": "query", "k": "key", "v": "value"}


class Convolution(Part):
    """A depthwise convolution: each coordinate of each head becomes a weighted sum of its values at the last ``kernel`` tokens
    of the document. Convolved queries and keys are inputs of the feature maps only; exact memories use the original ones.
    Convolved values replace the original ones in all memories. Without an activation, the convolution starts as the
    identity."""

    role: ClassVar[str] = "convolution"
    unread: ClassVar[str] = (
        "of queries and keys the convolution feeds features only, and no memory reads them; remove `conv` (or set it to null), or "
        "set `inputs: [v]`"
    )
    equation: ClassVar[str] = "q̃_t = act(Σ_δ w_δ ⊙ q_{t-δ}), 0 ≤ δ < kernel (k̃ and ṽ likewise)"
    source: ClassVar[str] = (
        "LAWCAT, section 4.1 (r = kernel - 1); with values and SiLU: Yang et al. 2024, arXiv:2412.06464, section 3.4"
    )
    kind: Literal["causal"] = "causal"
    kernel: PositiveInt = 4
    """Number of taps, the current token included."""
    inputs: Annotated[tuple[ConvolvedInput, ...], Field(min_length=1)] = ("q", "k")
    """Inputs of the convolution: queries, keys, values."""
    activation: Annotated[Literal["none", "silu"], Silu] = "none"
    """Activation after the convolution."""
    share: Literal["none", "qk"] = "none"
    """qk: queries and keys have one filter. none: each has its own."""
    per: Per = "query_head"
    """Whether keys have one filter per query head or per key head. Queries have one per query head unless they share the keys'
    filter; values have one per key head."""

    @field_validator("inputs")
    @classmethod
    def _in_order(cls, inputs: tuple[ConvolvedInput, ...]) -> tuple[ConvolvedInput, ...]:
        return in_order(inputs, NAMES)

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> Self:
        listed = " and ".join(self.inputs) + (" alone" if len(self.inputs) == 1 else "")
        if self.share == "qk" and not {"q", "k"} <= set(self.inputs):
            raise FieldError(f"one filter for q and k, and `inputs` has {listed}: remove `share`, or convolve both", "share")
        if self.per == "key_head" and "k" not in self.inputs:
            raise FieldError(f"sets the filters of the keys, and `inputs` has {listed}: remove `per`, or convolve k, too", "per")
        return self

    def key_heads(self, shape: Shape) -> int:
        """Number of heads of the convolved keys."""
        return shape.heads if "k" in self.inputs and self.per == "query_head" else shape.key_heads

    def _convolved_sizes(self, shape: Shape) -> dict[str, tuple[int, int]]:
        """The inputs that are convolved, each with its number of heads and the numbers of a head."""
        size, values = shape.head_dim, shape.value_dim
        sizes = {"q": (shape.heads, size), "k": (shape.key_heads, size), "v": (shape.key_heads, values)}
        return {NAMES[name]: sizes[name] for name in self.inputs}

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        key_filters = shape.heads if self.per == "query_head" else shape.key_heads
        size = shape.head_dim
        rows = {"weight": (key_filters, size)} if self.share == "qk" else {"query": (shape.heads, size), "key": (key_filters, size)}
        rows["value"] = shape.key_heads, shape.value_dim
        used = {"weight", *self._convolved_sizes(shape)}
        return {name: Fresh((*sizes, self.kernel), initialise.current_token) for name, sizes in rows.items() if name in used}

    def state(self, shape: Shape) -> dict[str, Slot]:
        return {name: Slot((self.kernel - 1, *sizes), "pairs") for name, sizes in self._convolved_sizes(shape).items()}

    def shows(self, parameters: Parameters, call: Call, inputs: Mapping[str, Any]) -> dict[str, Shown]:
        description = "weight of the current token, the last tap, and of those before it"
        return {f"taps: {name}": Shown(weight, ("head", "channel", "tap"), description) for name, weight in parameters.items()}

    def flops(self, shape: Shape, tokens: int) -> int:
        keys = {"key": (self.key_heads(shape), shape.head_dim)} if "k" in self.inputs else {}
        return 2 * self.kernel * sum(heads * size for heads, size in (self._convolved_sizes(shape) | keys).values())

    def operation(self, shape: Shape) -> Operation:
        ports = tuple(Port(name, Kind(name), *sizes) for name, sizes in self._convolved_sizes(shape).items())
        return Operation(
            reads=ports,
            gives=tuple(replace(port, heads=self.key_heads(shape)) if port.kind is Kind.KEY else port for port in ports),
            forms=(
                Form(
                    FLA,
                    "causal_conv1d",
                    partial(self._run, filtering=filter_by_kernel),
                    partial(obstacle, taps=self.kernel),
                    missing=CONVOLUTION.missing,
                    refuses=True,
                ),
                Form(EVERY, "all taps at once", partial(self._run, filtering=filter_step), row_obstacle, decode=True),
                Form(EVERY, "as defined", partial(self._run, filtering=filter_inputs)),
            ),
            slots=self.state(shape),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, filtering: Filtering, **inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], State]:
        outputs, state = self.convolve(parameters, inputs, call.tokens, call.state, filtering)
        return tuple(outputs.values()), state

    def convolve(
        self,
        parameters: Parameters,
        inputs: Mapping[str, Float[Tensor, "B T _ _"]],
        tokens: Tokens,
        state: State,
        filtering: Filtering = filter_inputs,
    ) -> tuple[dict[str, Float[Tensor, "B T _ _"]], State]:
        """Convolve queries, keys and values. Return those that are convolved, and the last inputs, which the next call needs.

        inputs: by name. Queries have H heads, keys and values K; convolved keys have H or K heads.
        """
        outputs, carried = dict(inputs), {}
        for name in state:
            weight = parameters[name if name in parameters else "weight"]
            outputs[name], carried[name] = filtering(outputs[name], weight, tokens, state[name])
            if self.activation == "silu":
                outputs[name] = torch.nn.functional.silu(outputs[name])
        return outputs, carried


CONVOLUTIONS = Role("convolution", Convolution, Convolution)
ConvolutionConfig = Annotated[Convolution, CONVOLUTIONS]
