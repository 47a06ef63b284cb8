"""A program as text: one line per step, in the style of transformers' modeling code, followed by shapes and forms.

``state = state(state_features, window_evicted)  # B T 4 8    torch: chunks of 64`` calls the part of that name. If an input has
several edges, an argument has its edge's label as a keyword, unless the value has that name already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blocks.memories.base import Memory
from blocks.operation import EVERY, Kind
from composer.graph.graph import INPUTS, OUTPUT, SINKS
from composer.graph.program import CoveredOperation, Program, Step, Value

SHAPES = {
    Kind.HIDDEN: "{dim}",
    Kind.NUMBERS: "{heads}",
    Kind.WEIGHT: "{heads}",
}
"""Shapes of a token, for kinds that do not have ``heads dim`` numbers."""
ASKING = frozenset({Kind.QUERY, Kind.FEATURES})
"""What memories read of queries."""
FARTHEST = 56
"""The largest column of the comments. The comment of a longer line follows the line."""
DECODE = "# In decode, a token at a time, otherwise:"
IN_PIECES = "# Without gradients, a long text in pieces, each from the state of the one before."
Row = tuple[str, str, str]
"""A line: the code, the shape of its first output, and the form."""


def heading(backend: str, device: str, dtype: str) -> str:
    """What a listing is of."""
    return f"backend {backend} on {device}, {dtype}. Shapes: B rows, T tokens."


def listing(program: Program) -> list[str]:
    """Return a line for each operation; lines of a step that covers several are joined at the side."""
    return [*_lines(_steps(program)), f"return {OUTPUT}"]


def rotations(program: Program) -> list[str]:
    """Return a comment for each way in which memories rotate queries and keys."""
    ways: dict[str, list[str]] = {}
    for node in (covered.node for step in program.steps for covered in step.covers):
        if node.main and isinstance(node.part, Memory) and any(port.kind in ASKING for port in node.operation.reads):
            ways.setdefault(node.part.rotation.description, []).append(node.name)
    return [
        f"# Queries and keys are {f'rotated by {rotation}' if rotation else 'not rotated'} in {', '.join(names)}."
        for rotation, names in ways.items()
    ]


def inputs_of(program: Program) -> tuple[str, ...]:
    """Return the arguments of the listing: the hidden states alone where it includes the projections, else the projected ones."""
    return INPUTS[:1] if program.before else INPUTS


def otherwise(program: Program, decode: Program) -> list[str]:
    """Return the lines of the steps of decode that the other program does not have. A step of several operations is listed as a
    whole."""
    program_steps = set(_steps(program))
    return _lines([step for step in _steps(decode) if step not in program_steps])


def _lines(steps: list[tuple[Row, ...]]) -> list[str]:
    rows = [row for step in steps for row in step]
    left = max((len(code) for code, *_ in rows if len(code) <= FARTHEST), default=0)
    shape = max((len(size) for _, size, _ in rows), default=0)
    return [f"{code:<{left}}  # {size:<{shape}}  {form}".rstrip(" #") for code, size, form in rows]


def _steps(program: Program) -> list[tuple[Row, ...]]:
    """Return the lines of each step, and of the projections."""
    names = names_of(program)
    before, after = ([tuple(rows_of(step, names)) for step in steps] for steps in (program.before, program.after))
    if not before:
        return after
    mixed = names[program.mixed]
    return [*before, ((f"query, key, value = projections({mixed}, {mixed}, hidden)", "", ""),), *after]


def rows_of(step: Step, names: Mapping[Value, str]) -> Iterable[Row]:
    last = len(step.covers) - 1
    description = step.form.description if step.form.backend == EVERY else f"{step.form.backend}: {step.form.description}"
    for index, covered in enumerate(step.covers):
        bracket = "" if last == 0 else "┌ " if index == 0 else "└ " if index == last else "├ "
        gives = ", ".join(names[value] for value in covered.gives)
        yield f"{gives} = {_call(covered, names)}", _size(covered), bracket + (description if index == 0 else "in the same step")


def _call(covered: CoveredOperation, names: Mapping[Value, str]) -> str:
    arguments = []
    for port in sorted(covered.node.operation.reads, key=lambda port: port.many):
        for edge in (edge for edge in covered.edges if edge.input == port.name):
            name, argument = names[edge.start, edge.output], f"{edge.label}_{port.name}"
            plain = not port.many or name in (edge.label, argument) or port.name == "partial"
            arguments.append(name if plain else f"{argument}={name}")
    node = covered.node
    function = node.module if node.main or node.name == node.module else node.name
    return f"{function}({', '.join(arguments)})"


def _size(covered: CoveredOperation) -> str:
    port = covered.node.operation.gives[0]
    sizes = SHAPES.get(port.kind, "{heads} {dim}").format(heads=port.heads, dim=port.dim)
    if port.kind is Kind.PAIRS and covered.node.shape.value_dim != port.dim:
        sizes += f"+{covered.node.shape.value_dim}"
    return f"B T {sizes}" if port.per_token else sizes


def names_of(program: Program) -> dict[Value, str]:
    """Return the name of each value: its node's, followed by the port if a node has several outputs."""
    nodes = {covered.node.name for step in program.steps for covered in step.covers}
    names: dict[Value, str] = {(name, name): name for name in (*INPUTS, SINKS)}
    for covered in (covered for step in program.steps for covered in step.covers):
        name = covered.node.name.replace(".", "_")
        name = covered.node.name if name in nodes else name
        for port in covered.gives:
            names[port] = name if len(covered.gives) == 1 or port[1] == "partial" else f"{name}_{port[1]}"
    names[program.output] = OUTPUT
    return names
