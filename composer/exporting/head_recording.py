"""The programs of a head, recorded: one for any number of tokens, one for a single token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import EVERY, TORCH, Call, Setting, Slot
from blocks.part import Fresh
from composer.exporting.call_recording import NARROW, WIDE, ProgramRecording, Recorded
from composer.exporting.kernels import with_kernel
from composer.graph.composition import HeadSpec
from composer.graph.graph import INPUTS, SINKS, Node
from composer.graph.lowering import Compiled, compile_head
from composer.graph.program import CoveredOperation, Program, Step, Value
from composer.graph.source import names_of, write_source
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


class LayerPlace(tuple[int, int]):
    """The layer of a head and its place there. is_read: True if anything has read them."""

    is_read = False

    def __iter__(self) -> Iterator[int]:
        self.is_read = True
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        self.is_read = True
        return super().__getitem__(index)


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
    in_place: bool = False,
) -> Method:
    """Record the program of a head with a number of rows and of tokens.

    model_rotates: True if the model around the head rotates queries and keys. mixing: record the steps before the projections of
    queries and keys, in place of those after them; their output is B T C. is_fixed: record the number of tokens, too. in_place: the
    state is overwritten. Raises ExportError if Python reads the numbers of a tensor.
    """
    recording = ProgramRecording(is_fixed=is_fixed, in_place=in_place)
    rotation = ModelRotation(recording) if model_rotates else None
    code = compile_head(with_rotation(head, rotation), shape)
    program = program_of(code, one_token=one_token)
    batch, length = sizes[0], 1 if one_token else sizes[1]

    inputs = _add_inputs(recording, shape, batch, length)
    position = recording.add_input("position", _empty(batch, length, dtype=torch.int64))
    valid = None if one_token else recording.add_input("valid", _empty(batch, length, dtype=torch.bool))
    if rotation is not None:
        rotation.position = position
        rotation.table = (
            recording.add_input("cosine", _empty(batch, length, shape.head_dim)),
            recording.add_input("sine", _empty(batch, length, shape.head_dim)),
        )
    state = {
        name: recording.add_input(f'state["{name}"]', _empty(batch, *_some(slot), dtype=DTYPES[slot.dtype]))
        for name, slot in code.graph.slots.items()
    }
    modules: dict[str, Any] = {}
    for node in code.graph.parts:
        if node.module not in modules:
            modules[node.module] = _add_module(recording, node)
    layer_place = LayerPlace(place)
    call = Call(Tokens(position, None, valid), state, shape, layer_place, in_place)
    steps = program.before if mixing else program.after
    if not (one_token or is_fixed or mixing):
        program = replace(program, after=tuple(with_kernel(step, recording) for step in steps))
    names = _names_of(program)
    last = {step.covers[-1].node.name: index for index, step in enumerate(steps)}

    def watch(covered: CoveredOperation, _: Call, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Name the outputs of an operation, and count the steps."""
        for value, output in zip(covered.gives, outputs, strict=True):
            recording.name(names[value], output, is_of_step=True)
        recording.step = last.get(covered.node.name, recording.step - 1) + 1
        return outputs

    run = write_source(program, mixing=mixing, watched=True).compile(program.title)
    with torch.set_grad_enabled(not in_place), recording:
        recording.step = 0
        output, carried = run(modules, call, *(inputs[:1] if mixing else inputs), watch)
        recording.step = len(steps) - 1
        if output.dtype != NARROW:
            output = output.to(NARROW)
        recording.name("output", output)
        for name, tensor in carried.items():
            recording.name(_new_name(name), tensor)
    result = {"output": output, **carried}
    outputs = {name: call for name, tensor in result.items() if (call := recording.call_of(tensor)) is not None}
    titles, nodes = tuple(_title(step, names) for step in steps), tuple(step.covers[0].node.name for step in steps)
    return Method(tuple(recording.calls), recording.names, outputs, titles, nodes, layer_place.is_read)


def _empty(*size: int, dtype: torch.dtype = NARROW) -> Tensor:
    """Return a computed tensor that needs a gradient: a program that runs with gradients also runs without."""
    tensor = torch.empty(size, dtype=dtype, device="meta")
    return tensor.requires_grad_().clone() if dtype.is_floating_point else tensor


def _add_inputs(recording: ProgramRecording, shape: Shape, batch: int, length: int) -> list[Tensor]:
    """Return the tensors that a head's function receives."""
    sizes = {
        "hidden": (batch, length, shape.hidden_size),
        "query": (batch, length, shape.heads, shape.head_dim),
        "key": (batch, length, shape.key_heads, shape.head_dim),
        "value": (batch, length, shape.key_heads, shape.value_dim),
        **({"sinks": (shape.heads,)} if shape.sinks else {}),
    }
    return [recording.add_input(name, _empty(*size)) for name, size in sizes.items()]


def _add_module(recording: ProgramRecording, node: Node) -> Any:
    """Return the module with the parameters of a part."""
    return _module(
        {
            name: recording.add_input(
                f'self.{node.module}("{name}")', _empty(*fresh.shape, dtype=WIDE if fresh.precise else NARROW)
            )
            for name, fresh in parameters_of(node).items()
        }
    )


def _new_name(slot: str) -> str:
    """Return the variable of a tensor of the new state: ``new_window_key`` of ``window.key``, ``new_state`` of ``state.state``."""
    return "_".join(["new", *dict.fromkeys(slot.split("."))])


def parameters_of(node: Node) -> dict[str, Fresh]:
    """Return the parameters of a part in a head, by name."""
    assert node.part is not None, "the graph's parts are nodes with a part"
    return node.part.parameters(node.shape)


def _some(slot: Slot) -> tuple[int, ...]:
    """Return the shape of a tensor of the state. One that grows has the rows of 5 tokens."""
    return tuple(size or (5 // slot.every) for size in slot.shape)


def _module(parameters: Mapping[str, Tensor]) -> Any:
    return lambda function, *inputs, **options: function(parameters, *inputs, **options)


def _names_of(program: Program) -> dict[Value, str]:
    inputs = {(name, name): name for name in (*INPUTS, SINKS)}
    return inputs | names_of([covered for step in program.steps for covered in step.covers], program.output)


def _title(step: Step, names: Mapping[Value, str]) -> str:
    """Return the comment of a step: the parts with their inputs, and the form."""
    calls = " and ".join(_call_of(covered, names) for covered in step.covers)
    return calls if step.form.backend == EVERY else f"{calls}: {step.form.description}"


def _call_of(covered: CoveredOperation, names: Mapping[Value, str]) -> str:
    """Return an operation as a call with its inputs. An argument has its edge's label, unless the value has that name already."""
    arguments = []
    for port in sorted(covered.node.operation.reads, key=lambda port: port.many):
        for edge in (edge for edge in covered.edges if edge.input == port.name):
            name, argument = names[edge.start, edge.output], f"{edge.label}_{port.name}"
            plain = not port.many or name in (edge.label, argument) or port.name == "partial"
            arguments.append(name if plain else f"{argument}={name}")
    node = covered.node
    function = node.module if node.main or node.name == node.module else node.name
    return f"{function}({', '.join(arguments)})"
