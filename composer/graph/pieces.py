"""A long text in pieces: a head's program processes them one by one, each from the state after the previous one. The tensors of a
piece fit into the processor's cache, and the next piece reuses their memory; a whole text would allocate more at each step.
"""

from __future__ import annotations

from dataclasses import replace

from blocks.legend import Tensor, torch
from blocks.operation import REFERENCE, Call, State
from composer.graph.graph import HeadGraph
from composer.graph.program import HeadFunctions, HeadInputs, Modules

NUMBERS = 2**18
"""Of a piece's queries, in all rows and heads: 1 MiB in float32."""
SHORTEST = 256
"""The smallest number of tokens of a piece. Pieces have this number times a power of two, so that chunks of a recurrence are not
split."""


def takes_pieces(graph: HeadGraph, backend: str, device: str) -> bool:
    """Whether the head processes a long text in pieces: on a CPU, if its states do not grow. A growing state would be copied at
    each piece, and a GPU is faster with more tokens at once. The reference is the definition, so it processes whole texts. Angles
    that depend on all positions of a call are those of the whole text.
    """
    return (
        backend != REFERENCE
        and device == "cpu"
        and not any(node.shape.both_ways or memory.grows or memory.rotation.by_call for node, memory in graph.memories)
    )


def piece_length(graph: HeadGraph, numbers: int) -> int:
    """Tokens of a piece, which is no shorter than what a memory holds, as each piece copies that. numbers: of a token's queries."""
    capacity = max((slot.shape[0] for slot in graph.slots.values() if slot.dtype == "pairs"), default=0)
    length = SHORTEST
    while length < capacity or 2 * length * numbers <= NUMBERS:
        length *= 2
    return length


def run_in_pieces(functions: HeadFunctions, length: int, modules: Modules, inputs: HeadInputs, call: Call) -> tuple[Tensor, State]:
    """``HeadFunctions.run``, ``length`` tokens after ``length`` tokens."""
    tokens, state, carried, outputs = inputs.tokens, call.state, State(), []
    for start in range(0, inputs.length, length):
        columns = slice(start, start + length)
        piece_tokens = tokens.once(("cut", start, length), lambda columns=columns: tokens.cut(columns))
        piece_call = replace(call, tokens=piece_tokens, state=state)
        output, carried = functions.run(modules, inputs.columns(columns, piece_tokens), piece_call)
        state = {**state, **carried}
        outputs.append(output)
    return torch.cat(outputs, dim=1), carried
