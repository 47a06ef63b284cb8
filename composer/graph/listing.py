"""A program as text: one line a step, with names, shapes and the form."""

from __future__ import annotations

from collections.abc import Mapping

from blocks.operation import Kind
from composer.graph.graph import INPUTS, OUTPUT
from composer.graph.program import Covered, Program, Step, Value

SHAPES = {
    Kind.HIDDEN: "B T {dim}",
    Kind.QUERY: "B T {heads} {dim}",
    Kind.KEY: "B T {heads} {dim}",
    Kind.VALUE: "B T {heads} {dim}",
    Kind.NUMBERS: "B T {heads}",
    Kind.PAIRS: "B · {heads} {dim}",
    Kind.FEATURES: "B T {heads} {dim}",
    Kind.DECAY: "B T {heads} {dim}",
    Kind.WEIGHT: "{heads}",
    Kind.PARTIAL: "B T {heads} {dim}",
    Kind.OUTPUT: "B T {heads} {dim}",
}


def listing(program: Program) -> list[str]:
    """One line a step; a step that covers several operations has a line for each, joined at the side."""
    names = _names(program)
    rows = [row for step in program.before for row in _rows(step, names)]
    if program.before:
        rows.append(("query, key, value", f"projections({names[program.mixed]}, {names[program.mixed]}, hidden)", "", ""))
    rows += [row for step in program.after for row in _rows(step, names)]
    rows.append(("return", names[program.output], "", ""))
    left = max(len(gives) for gives, *_ in rows[:-1]) if len(rows) > 1 else 0
    middle = max(len(call) for _, call, *_ in rows)
    shape = max(len(size) for *_, size, _ in rows)
    lines = []
    for gives, call, size, form in rows:
        start = f"return {call}" if gives == "return" else f"{gives:<{left}} = {call:<{middle}}  {size:<{shape}}  {form}"
        lines.append(start.rstrip())
    return lines


def _rows(step: Step, names: Mapping[Value, str]) -> list[tuple[str, str, str, str]]:
    rows = []
    for index, one in enumerate(step.covers):
        together = "" if len(step.covers) == 1 else ("┌ " if index == 0 else "└ " if index == len(step.covers) - 1 else "├ ")
        form = f"{step.form.backend}: {step.form.says}" if index == 0 else "in the same step"
        rows.append((", ".join(names[value] for value in one.gives), _call(one, names), _size(one), together + form))
    return rows


def _call(one: Covered, names: Mapping[Value, str]) -> str:
    given = {**dict(one.single), **dict(one.inside)}
    arguments = [names[given[port.name]] for port in one.node.operation.reads if port.name in given]
    for port, sources in one.many:
        arguments += [names[source] if port == "partial" else f"{port}[{label}]={names[source]}" for label, source in sources]
    return f"{_function(one)}({', '.join(arguments)})"


def _function(one: Covered) -> str:
    node = one.node
    return node.module if node.main or node.name == node.module else node.name


def _size(one: Covered) -> str:
    port = one.node.operation.gives[0]
    return SHAPES[port.kind].format(heads=port.heads, dim=port.dim)


def _names(program: Program) -> dict[Value, str]:
    """What each value is called: as its node, with the port behind it where a node gives several."""
    names: dict[Value, str] = {(name, name): name for name in INPUTS}
    for one in (one for step in program.steps for one in step.covers):
        for port in one.gives:
            alone = len(one.gives) == 1 or port[1] == "partial"
            names[port] = one.node.name if alone else f"{one.node.name}_{port[1]}"
    names[program.output] = OUTPUT
    return names
