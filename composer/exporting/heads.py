"""The programs of a head, recorded: one for any number of tokens, one for a single token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import EVERY, TORCH, Call, Setting, Slot
from blocks.part import Fresh
from composer.exporting.kernels import with_kernel
from composer.exporting.recording import NARROW, WIDE, ProgramRecording, Recorded
from composer.graph.composition import HeadSpec
from composer.graph.graph import SINKS, Node
from composer.graph.listing import names_of, rows_of
from composer.graph.lowering import Compiled, compile_head
from composer.graph.program import Program, Step
from composer.model.heads import with_rotation

SIZES = ((3, 7), (2, 9), (2, 600))
"""Rows and tokens of the recordings that must give the same lines. Two differ by little, so that a difference is found early."""
PIECE = 64
PIECES = ((3, PIECE), (2, PIECE))
"""Those of a method for a fixed number of tokens."""
ONE_TOKEN = ((3, 1), (2, 1))
DTYPES = {"pairs": NARROW, "state": WIDE, "int64": torch.int64}


@dataclass(frozen=True)
class Method:
    """A recorded program. calls: in order; names: as in ``ProgramRecording``; outputs: the call of the heads' output and of
    each tensor of the new state; titles, nodes: a description and the name of the first part of each step; asks_place: whether what
    it computes depends on the layer and the place of the head there."""

    calls: tuple[Recorded, ...]
    names: Mapping[int, tuple[str, bool]]
    outputs: Mapping[str, Recorded]
    titles: tuple[str, ...]
    nodes: tuple[str, ...]
    asks_place: bool


class ModelRotation:
    """The rotation of the model around the head, while it is recorded: at the tokens of the call, cosine and sine are inputs; at
    other positions the model's own function computes them."""

    by_call = False

    def __init__(self, recording: ProgramRecording) -> None:
        self._recording = recording
        self.position: Tensor | None = None
        self.table: tuple[Tensor, Tensor] | None = None

    def tables(self, position: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine at positions B T."""
        assert self.table is not None
        if position is self.position:
            return self.table
        cosine, sine = self._recording.host("self.rotary", (like, position), (like, like))
        return cosine, sine

    def apply(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the states B T H D, rotated."""
        return self._recording.host("rotated", (states, cosine, sine), states)


def program_of(code: Compiled, *, one_token: bool) -> Program:
    """Return the program of a head in a file: PyTorch's forms, which run anywhere, with gradients and padding."""
    return code.program(TORCH, Setting("cpu", "bfloat16", one_token=one_token, padded=not one_token, gradients=True))


class _Place(tuple[int, int]):
    """The layer of a head and its place there. is_read: True if anything has read them."""

    is_read = False

    def __iter__(self) -> Iterator[int]:
        self.is_read = True
        return super().__iter__()


def record(
    head: HeadSpec,
    shape: Shape,
    place: tuple[int, int],
    *,
    one_token: bool,
    model_rotates: bool,
    sizes: tuple[int, int],
    mixing: bool = False,
    is_fixed: bool = False,
) -> Method:
    """Record the program of a head with a number of rows and of tokens.

    model_rotates: True if the model around the head rotates queries and keys. mixing: record the steps before the projections of
    queries and keys, in place of those after them; their output is B T C. is_fixed: record the number of tokens, too. Raises
    ExportError if Python reads the numbers of a tensor.
    """
    recording = ProgramRecording(is_fixed=is_fixed)
    rotation = ModelRotation(recording) if model_rotates else None
    code = compile_head(with_rotation(head, rotation), shape)
    program = program_of(code, one_token=one_token)
    batch, length = sizes[0], 1 if one_token else sizes[1]

    def empty(*size: int, dtype: torch.dtype = NARROW) -> Tensor:
        """Return a computed tensor that needs a gradient: a program that runs with gradients also runs without."""
        tensor = torch.empty(size, dtype=dtype, device="meta")
        return tensor.requires_grad_().clone() if dtype.is_floating_point else tensor

    def add_input(name: str, tensor: Tensor) -> Tensor:
        return recording.add_input(name, tensor)

    values = {("hidden", "hidden"): add_input("hidden", empty(batch, length, shape.hidden_size))}
    sizes_of = {
        "query": (shape.heads, shape.head_dim),
        "key": (shape.key_heads, shape.head_dim),
        "value": (shape.key_heads, shape.value_dim),
    }
    for name, size in sizes_of.items():
        values[name, name] = add_input(name, empty(batch, length, *size))
    if shape.sinks:
        values[SINKS, SINKS] = add_input("sinks", empty(shape.heads))
    position = add_input("position", empty(batch, length, dtype=torch.int64))
    valid = None if one_token else add_input("valid", empty(batch, length, dtype=torch.bool))
    if rotation is not None:
        rotation.position = position
        rotation.table = (
            add_input("cosine", empty(batch, length, shape.head_dim)),
            add_input("sine", empty(batch, length, shape.head_dim)),
        )
    state = {
        name: add_input(f'state["{name}"]', empty(batch, *_some(slot), dtype=DTYPES[slot.dtype]))
        for name, slot in code.graph.slots.items()
    }
    modules: dict[str, Any] = {}
    for node in code.graph.parts:
        if node.module not in modules:
            parameters = {
                name: add_input(f"self.{node.module}.{name}", empty(*fresh.shape, dtype=WIDE if fresh.precise else NARROW))
                for name, fresh in parameters_of(node).items()
            }
            modules[node.module] = _module(parameters)
    where = _Place(place)
    call, carried = Call(Tokens(position, None, valid), state, shape, where), {}
    steps = program.before if mixing else program.after
    titles, nodes = _titles(program, steps)
    labels = names_of(program)
    with recording:
        for index, step in enumerate(steps):
            recording.step = index
            is_plain = one_token or is_fixed or mixing
            (step if is_plain else with_kernel(step, recording)).run(modules, values, call, carried)
            for item in step.covers:
                for value in item.gives:
                    recording.name(labels[value], values[value], is_of_step=True)
        output = values[program.mixed if mixing else program.output]
        if output.dtype != NARROW:
            output = output.to(NARROW)
        recording.name("output", output)
        for name, tensor in carried.items():
            recording.name(_new_name(name), tensor)
    result = {"output": output, **carried}
    outputs = {name: call for name, tensor in result.items() if (call := recording.call_of(tensor)) is not None}
    return Method(tuple(recording.calls), recording.names, outputs, titles, nodes, where.is_read)


def _new_name(slot: str) -> str:
    """Return the variable of a tensor of the new state: ``new_window_key`` of ``window.key``, ``new_state`` of ``state.state``."""
    return "_".join(["new", *dict.fromkeys(slot.split("."))])


def parameters_of(node: Node) -> dict[str, Fresh]:
    """Return the parameters of a part in a head, by name."""
    assert node.part is not None, "the graph's parts are nodes with a part"
    return node.part.parameters(node.shape)


def _some(slot: Slot) -> tuple[int, ...]:
    """Return the shape of a tensor of the state; one that grows has a few entries."""
    return tuple(size or 5 for size in slot.shape)


def _module(parameters: Mapping[str, Tensor]) -> Any:
    return lambda function, *inputs, **options: function(parameters, *inputs, **options)


def _titles(program: Program, steps: tuple[Step, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names, titles = names_of(program), []
    for step in steps:
        rows = list(rows_of(step, names))
        calls = " and ".join(re.sub(r"\s+", " ", code.split(" = ", 1)[1]) for code, _, _ in rows)
        titles.append(calls if step.form.backend == EVERY else f"{calls}: {step.form.description}")
    return tuple(titles), tuple(step.covers[0].node.name for step in steps)
