"""A long text in pieces: a head's program takes them one by one, each from the state that the one before has left.

What is computed of a piece stays near the processor, and the next piece uses its memory again, where a long text would ask the
system for more at each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocks.legend import torch
from blocks.operation import REFERENCE, State
from composer.graph.graph import SINKS, HeadGraph
from composer.graph.program import CallContext, Modules, Program

NUMBERS = 2**18
"""Of a piece's queries, in all rows and heads: 1 MiB in float32."""
SHORTEST = 256
"""Tokens of a piece at least; pieces have this many times a power of two, so that chunks of a recurrence stay whole."""


def takes_pieces(graph: HeadGraph, backend: str, device: str) -> bool:
    """Whether a long text goes through such a head in pieces: on a CPU, where the head looks back at a state that does not grow.

    One that grows would be copied at each piece, and a GPU is the faster the more it has at once. The reference is the definition,
    of whole texts. Angles that depend on all positions of a call are those of the whole text.
    """
    return (
        backend != REFERENCE
        and device == "cpu"
        and not any(node.shape.both_ways or memory.grows or memory.turn.by_call for node, memory in graph.memories)
    )


def piece_length(graph: HeadGraph, numbers: int) -> int:
    """Tokens of a piece, which is no shorter than what a memory holds, as each piece copies that. numbers: of a token's queries."""
    held = max((slot.shape[0] for slot in graph.slots.values() if slot.dtype == "pairs"), default=0)
    length = SHORTEST
    while length < held or 2 * length * numbers <= NUMBERS:
        length *= 2
    return length


def run_in_pieces(
    program: Program, length: int, modules: Modules, inputs: Mapping[str, Any], context: CallContext, *, entering: Any = None
) -> tuple[Any, State]:
    """``Program.run``, ``length`` tokens after ``length`` tokens."""
    tokens, state, carried, outputs = context.tokens, context.state, State(), []
    for start in range(0, tokens.position.shape[1], length):
        columns = slice(start, start + length)
        own = tokens.once(("cut", start, length), lambda columns=columns: tokens.cut(columns))
        cut = {name: value if name == SINKS else value[:, columns] for name, value in inputs.items()}
        call = CallContext(own, state, context.place, context.in_place)
        output, carried = program.run(modules, cut, call, entering=None if entering is None else entering[:, columns])
        state = {**state, **carried}
        outputs.append(output)
    return torch.cat(outputs, dim=1), carried
