"""The common part of mixers: they mix hidden states over time, before each token only or before and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from blocks import initialise
from blocks.flow import Tokens
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.norms import rms_norm
from blocks.operation import Call, Form, Kind, Operation, Port, Slot, State
from blocks.part import Fresh, Parameters, Part, Problem
from blocks.tensors import accumulating, as_dtype

EPSILON = 1e-5
"""Added to the mean square, where what is mixed becomes queries and keys."""
OneWay = Callable[..., tuple["Tensor", State]]
BACKWARD = "backward_"
"""What the parameters of the way back are called by, before their names."""


class Mixer(Part):
    """Mixes each layer's hidden states over time before other parts read them. A subclass defines one direction; `both ways` uses
    two of it."""

    role: ClassVar[str] = "mix input"
    unread: ClassVar[str] = (
        "nothing in this head reads the mixed states: a `latents` memory and a `weight: token` read `feeds: inputs`, and queries "
        "and keys, which latents do not have, read `feeds: qk`; set the other one, or add such a memory"
    )

    feeds: Literal["inputs", "qk"] = "inputs"
    """inputs: what latents, and weights of one a token, look at. qk: the projections of queries and keys, after RMSNorm."""
    both_ways: bool = False
    """Also process each document from its end, with separate parameters, and add the two results. There is then no state between
    calls: every call has whole documents."""

    def own_parameters(self, width: int, *, ahead: bool = False) -> dict[str, Fresh]:
        """Return the fresh parameters of one way over C = ``width`` channels; ahead: of the way back, from what is ahead."""
        raise NotImplementedError

    def own_state(self, width: int) -> dict[str, Slot]:
        """Return the tensors of the state of one direction, by name."""
        raise NotImplementedError

    def own_flops(self, width: int) -> int:
        """Return the floating-point operations of one token in one direction."""
        raise NotImplementedError

    @property
    def one_way(self) -> tuple[Form, ...]:
        """The forms of one direction, in order: run(parameters, hidden, tokens, state) returns B T C and the new state."""
        raise NotImplementedError

    def operation(self, shape: Shape) -> Operation:
        hidden = Port("hidden", Kind.HIDDEN, 1, shape.hidden_size)
        return Operation(
            reads=(hidden,),
            gives=(hidden,),
            forms=tuple(replace(form, run=partial(self._run, follow=form.run)) for form in self.one_way),
            slots=self.state(shape),
        )

    def _run(self, parameters: Parameters, call: Call, *, hidden: Tensor, follow: OneWay) -> tuple[tuple[Tensor], State]:
        mixed, state = self.mix(parameters, hidden, call.tokens, call.state, follow)
        return (mixed,), state

    def problem(self, shape: Shape) -> Problem | None:
        if self.both_ways and not shape.both_ways:
            return "a causal head may not see tokens ahead; remove `both_ways`", ("both_ways",)
        return None

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        fresh = self.own_parameters(shape.hidden_size)
        if self.feeds == "qk":
            fresh |= {"norm": Fresh((shape.hidden_size,), initialise.constant(1.0))}
        if not self.both_ways:
            return fresh
        back = self.own_parameters(shape.hidden_size, ahead=True)
        return fresh | {f"{BACKWARD}{name}": parameter for name, parameter in back.items()}

    def state(self, shape: Shape) -> dict[str, Slot]:
        return {} if self.both_ways else self.own_state(shape.hidden_size)

    def flops(self, shape: Shape, tokens: int) -> int:
        once = self.own_flops(shape.hidden_size)
        return 2 * once + shape.hidden_size if self.both_ways else once

    def mix(
        self, parameters: Parameters, hidden: Float[Tensor, "B T C"], tokens: Tokens, state: State, follow: OneWay
    ) -> tuple[Float[Tensor, "B T C"], State]:
        """Return the mixed states, in hidden's dtype, and the new state."""
        mixed, carried = self._ways(parameters, hidden, tokens, state, follow)
        if self.feeds == "qk":
            mixed = rms_norm(mixed, parameters["norm"], EPSILON)
        return as_dtype(mixed, hidden.dtype), carried

    def _ways(self, parameters: Parameters, hidden: Tensor, tokens: Tokens, state: State, follow: OneWay) -> tuple[Tensor, State]:
        if not self.both_ways:
            return follow(parameters, hidden, tokens, state)
        back = {name: parameters[f"{BACKWARD}{name}"] for name in parameters if f"{BACKWARD}{name}" in parameters}
        start, order = self._empty(hidden), reversal(tokens)
        behind, _ = follow(parameters, hidden, tokens, start)
        ahead, _ = follow(back, _gather(hidden, order), tokens, start)
        return behind + _gather(ahead, order), {}

    def _empty(self, hidden: Float[Tensor, "B T C"]) -> State:
        batch, _, width = hidden.shape
        return {
            name: hidden.new_full(
                (batch, *slot.shape), slot.empty, dtype=hidden.dtype if slot.dtype == "pairs" else accumulating(hidden.dtype)
            )
            for name, slot in self.own_state(width).items()
        }


def reversal(tokens: Tokens) -> Int[Tensor, "B T"]:
    """Return the columns of the tokens with each document reversed in its place; applied twice, it is the identity. The places of
    documents and padding do not change, so the facts about the tokens hold in the new order."""
    run = torch.zeros_like(tokens.position) if tokens.segment is None else tokens.segment
    if tokens.valid is not None:
        # Padding is reversed separately, after the document that it counts as.
        run = 2 * run + ~tokens.valid
    run = run.contiguous()
    first, behind = torch.searchsorted(run, run), torch.searchsorted(run, run, right=True)
    return first + behind - 1 - torch.arange(run.shape[1], device=run.device)


def _gather(states: Float[Tensor, "B T C"], order: Int[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
    return states.gather(1, order[..., None].expand_as(states))
