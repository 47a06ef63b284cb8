"""The function of a head: a program as Python source. This text is what runs, what ``compose show --code`` prints, and what a
debugger steps through.

One statement computes one step::

    window, window_evicted, new_window = compute_window(rotated_query, pairs, call.tokens, {"key": …}, size=64)

Values have the names of the operations that compute them. A form is called with what the parameters of its function name: inputs,
the tensors of its state, tokens, and its constants, such as ``size=64``. One with ``parameters`` is called through the module that
has them, ``parts["feature_map"](map_queries, rotated_query)``, so that hooks, adapters and sharded parameters are part of the call.

A form with a parameter ``call`` receives a ``Call`` in place of state and tokens, and all inputs by name::

    (state,), new_state = parts["state"](run_state, call.part(STATE), features=state_features, keys=state_keys, recurrence=STEP)

``run_…`` is its function, and the constant in capitals is the operation: its part, its shape, and the names of its tensors in the
head's state.
"""

from __future__ import annotations

import itertools
import json
import keyword
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature, unwrap
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from blocks.kernels import Refused
from blocks.memories.base import Memory
from blocks.operation import EVERY, Call, Form, Kind
from blocks.part import Part
from blocks.pattern import RunningPart
from composer.graph.graph import INPUTS, OUTPUT, SINKS
from composer.system.notices import warn_fallback

if TYPE_CHECKING:
    from composer.graph.program import CoveredOperation, Program, Step, Value

SHAPES = {
    Kind.HIDDEN: "{dim}",
    Kind.NUMBERS: "{heads}",
    Kind.WEIGHT: "{heads}",
}
"""Shapes of a token, for kinds that do not have ``heads dim`` numbers."""
ASKING = frozenset({Kind.QUERY, Kind.FEATURES})
"""What memories read of queries."""
IN_PIECES = "Without gradients, a long text in pieces, each from the state after the previous one."
WIDTH = 132
INDENT = "    "


def running_part(operation: CoveredOperation, call: Call, module: Callable[..., Any]) -> RunningPart:
    """Return an operation of the head that a form calls itself. module: with the part's parameters."""
    assert operation.node.part is not None, "the head's own inputs and output have no form"
    return RunningPart(operation.node.part, call.part(operation), module, operation.runs)


PROVIDED = {"__package__": __package__, "running_part": running_part, "Refused": Refused, "warn_fallback": warn_fallback}
"""What a source uses beside its forms and operations, and its package. Without ``__name__``, torch.compile reads names from the
namespace, and not from a module of that name."""
RESERVED = frozenset({"parts", "call", "watch", "refusal", "dict", "str", *PROVIDED})


@dataclass(frozen=True)
class HeadSource:
    """The source of one function. name: of the function. text: all of it. namespace: the objects that the text names."""

    name: str
    text: str
    namespace: Mapping[str, Any]

    def compile(self, title: str) -> Callable[..., Any]:
        """Return the function. title: what tracebacks and debuggers show as its file; they also show the lines of the text."""
        file = next(file for file in _file_names(title) if _lines(file) in (None, self.text))
        linecache.cache[file] = len(self.text), None, self.text.splitlines(keepends=True), file
        namespace = dict(self.namespace)
        exec(compile(self.text, file, "exec"), namespace)
        return namespace[self.name]


def _file_names(title: str) -> Iterator[str]:
    """Yield the names of files for a title. Heads that differ in what the title leaves out get a number."""
    yield f"<{title}>"
    yield from (f"<{title} ({number})>" for number in itertools.count(2))


def _lines(file: str) -> str | None:
    """Return the text of a file that ``linecache`` has, or None."""
    entry = linecache.cache.get(file)
    return None if entry is None or len(entry) == 1 else "".join(entry[2])


def write_source(program: Program, *, name: str = "head", mixing: bool = False, watched: bool = False) -> HeadSource:
    """Return the source of ``name(parts, call, hidden, query, key, value)``, which returns the head's output and new state. In a
    model with attention sinks, ``host_sinks`` is a further argument.

    mixing: that of ``name(parts, call, hidden)``, with the steps before the projections in place of those after them. It returns
    the hidden states that queries and keys are projected from. watched: with a further argument ``watch``. It is called after each
    step, with each operation and its outputs, and its results replace these outputs.
    """
    writer = _Writer(program, watched=watched)
    steps = program.before if mixing else program.after
    body = [line for step in steps for line in (*writer.statements(step), *writer.watching(step))]
    result = writer.names[program.mixed if mixing else program.output]
    arguments = ["parts", "call", *inputs_of(program, mixing=mixing), *(["watch"] if watched else [])]
    lines = [f"def {name}({', '.join(arguments)}):", *rotations(steps), *body, *writer.returning(result, steps)]
    text = "\n".join([lines[0], *(f"{INDENT}{line}" for line in lines[1:]), ""])
    return HeadSource(name, text, writer.namespace)


def heading(backend: str, device: str, dtype: str) -> str:
    """Return a description of the setting of printed functions."""
    return f"backend {backend} on {device}, {dtype}. Shapes: B rows, T tokens."


def print_functions(program: Program, decode: Program | None, name: str, *, in_pieces: bool) -> list[str]:
    """Return the text of the functions that run: for any number of tokens, and for one token where they differ.

    decode: the program for one token; None for heads that do not decode. in_pieces: True if long texts are processed in pieces.
    """
    name = name.replace("-", "_")
    name = f"{name}_" if keyword.iskeyword(name) else name
    texts = _write_functions(program, name)
    decode_texts = (
        [] if decode is None else [text for text in _write_functions(decode, f"{name}_one_token") if not _same(text, texts)]
    )
    comment = [f"# {IN_PIECES}\n"] if in_pieces else []
    return [*texts[:-1], "".join([*comment, texts[-1]]), *decode_texts]


def _write_functions(program: Program, name: str) -> list[str]:
    mixing = [write_source(program, name=f"{name}_before_projections", mixing=True).text] if program.before else []
    return [*mixing, write_source(program, name=name).text]


def _same(text: str, texts: list[str]) -> bool:
    """True if a function has the statements of another one, whatever their names."""
    return text.partition("\n")[2] in {other.partition("\n")[2] for other in texts}


def inputs_of(program: Program, *, mixing: bool = False) -> tuple[str, ...]:
    """Return the names of the tensors that the function reads."""
    if mixing:
        return INPUTS[:1]
    has_sinks = any(covered.shape.sinks for step in program.after for covered in step.covers)
    return (*INPUTS, SINKS) if has_sinks else INPUTS


def rotations(steps: Iterable[Step]) -> list[str]:
    """Return a comment for each way in which memories rotate queries and keys."""
    ways: dict[str, list[str]] = {}
    for node in (covered.node for step in steps for covered in step.covers):
        if node.main and isinstance(node.part, Memory) and any(port.kind in ASKING for port in node.operation.reads):
            ways.setdefault(node.part.rotation.description, []).append(node.name)
    return [
        f"# Queries and keys are {f'rotated by {rotation}' if rotation else 'not rotated'} in {', '.join(names)}."
        for rotation, names in ways.items()
    ]


class _Writer:
    """Writes the statements of a program's steps, and collects the objects that they name."""

    def __init__(self, program: Program, *, watched: bool) -> None:
        self.watched = watched
        self.namespace: dict[str, Any] = dict(PROVIDED)
        self._reserved = {*RESERVED, *INPUTS, SINKS}
        covered = [covered for step in program.steps for covered in step.covers]
        self.names: dict[Value, str] = {(name, name): name for name in (*INPUTS, SINKS)}
        for value, name in names_of(covered, program.output).items():
            self.names[value] = self._free(name)
        self._states = {item.node.name: self._free(f"new_{_identifier(item.node.name)}") for item in covered if item.slots}
        self._operations: dict[str, str] = {}
        self._objects: dict[Any, str] = {}
        self._rotated: dict[tuple[Value, Part], str] = {}
        self._new_rotations: list[str] = []
        """The lines that rotate queries of the present step."""

    def statements(self, step: Step) -> list[str]:
        """Return the lines of one step, after those that rotate its queries."""
        statement = self._statement(step)
        rotations, self._new_rotations = self._new_rotations, []
        return [*rotations, *statement]

    def _statement(self, step: Step) -> list[str]:
        """Return the lines of one step, with the steps that follow if its form refuses its inputs."""
        statement = [*_comment(step), *self._assignment(step)]
        if not step.instead:
            return statement
        following = ", ".join(f"{other.form.description} ({other.form.backend})" for other in step.instead)
        remedy = [json.dumps(line, ensure_ascii=False) for line in _wrap(f"In its place: {following}", drop_whitespace=False)]
        others = [line for other in step.instead for line in self._statement(other)]
        return [
            "try:",
            *_indent(statement),
            "except Refused as refusal:",
            *_indent(["warn_fallback(", *_indent(["str(refusal),", *remedy]), ")", *others]),
        ]

    def watching(self, step: Step) -> list[str]:
        """Return the lines that call ``watch`` with the outputs of a step."""
        if not self.watched:
            return []
        return [
            f"{self._outputs(covered)} = watch({self._operation(covered)}, call, ({self._outputs(covered)}))"
            for covered in step.covers
        ]

    def returning(self, result: str, steps: Iterable[Step]) -> list[str]:
        """Return the last statement: the result, and the tensors of the new state by their names in the head's."""
        entries = [
            f'"{full}": {self._states[covered.node.name]}["{name}"]'
            for step in steps
            for covered in step.covers
            for name, full in covered.slots.items()
        ]
        return _call(f"return {result}, {{", entries, "}")

    def _assignment(self, step: Step) -> list[str]:
        targets = [f"({self._outputs(covered)}), {self._states.get(covered.node.name, '_')}" for covered in step.covers]
        parameters = signature(step.form.run).parameters
        if len(step.covers) == 1 and "call" not in parameters:
            return self._plain_assignment(step.covers[0], step.form.run)
        run, constants = self._form(step)
        if len(step.covers) == 1:
            (covered,) = step.covers
            arguments = [run, f"call.part({self._operation(covered)})", *_keywords(self._arguments(covered) | constants)]
            return _call(f'{targets[0]} = parts["{covered.node.module}"](', arguments, ")")
        running_parts, inputs = [], []
        for name, covered in zip(step.names, step.covers, strict=True):
            running_parts.append(f'"{name}": {self._running_part(covered)},')
            inputs += _call(f'"{name}": dict(', _keywords(self._arguments(covered)), "),")
        targets_text = _call("(", [f"({target})" for target in targets], f") = {run}(")
        lists = [line for entries in (running_parts, inputs) for line in ("{", *_indent(entries), "},")]
        return [*targets_text, *_indent([*lists, *(f"{constant}," for constant in _keywords(constants))]), ")"]

    def _plain_assignment(self, covered: CoveredOperation, run: Callable[..., Any]) -> list[str]:
        """Return the call of a function that receives what its parameters name, in place of a ``Call``. It returns its outputs, and
        the new state if it has one. Only a function with ``parameters`` is called through their module."""
        function, constants = (run.func, run.keywords) if isinstance(run, partial) else (run, {})
        state = [f'"{name}": call.state["{full}"]' for name, full in covered.slots.items()]
        values = {"tokens": "call.tokens", "in_place": "call.in_place", "state": "\n".join(_call("{", state, "}"))}
        values |= self._arguments(covered) | self._constants(constants)
        name, parameters = self._function(function), dict(signature(function).parameters)
        start, arguments = (f'parts["{covered.node.module}"](', [name]) if parameters.pop("parameters", None) else (f"{name}(", [])
        is_positional = True
        for parameter in parameters.values():
            argument = values.get(parameter.name)
            if argument is None or (argument == "{}" and parameter.default is not parameter.empty):
                is_positional = False
            else:
                is_positional = is_positional and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                arguments.append(argument if is_positional else f"{parameter.name}={argument}")
        targets = [self.names[value] for value in covered.gives]
        targets += [self._states[covered.node.name]] if covered.slots else []
        return _call(f"{', '.join(targets)} = {start}", arguments, ")")

    def _arguments(self, covered: CoveredOperation) -> dict[str, str]:
        """Return the arguments of the operation's form, by name. A port for several edges gets ``{}`` if it has none."""
        arguments = self._constants(covered.node.options)
        arguments |= {port: self._input(covered, port, value) for port, value in covered.single.items()}
        for port, sources in covered.many.items():
            entries = (f'"{label}": {self.names[value]}' for label, value in sources.items())
            arguments[port] = f"{{{', '.join(entries)}}}"
        entries = (f'"{name}": {self._running_part(called)}' for name, called in covered.maps.items())
        return arguments | ({"maps": f"{{{', '.join(entries)}}}"} if covered.maps else {})

    def _input(self, covered: CoveredOperation, port: str, value: Value) -> str:
        """Return the name of an input: for queries that enter rotated, that of the rotated ones, which all parts share."""
        rotation, kinds = covered.node.rotation, {port.name: port.kind for port in covered.node.operation.reads}
        if rotation is None or rotation.idle or kinds[port] is not Kind.QUERY:
            return self.names[value]
        if (value, rotation) not in self._rotated:
            rotated = self._rotated[value, rotation] = self._free(f"rotated_{self.names[value]}")
            name = self._constant("rotation", rotation)
            self._new_rotations.append(f"{rotated} = {name}.rotate_tokens({self.names[value]}, call.tokens)")
        return self._rotated[value, rotation]

    def _running_part(self, covered: CoveredOperation) -> str:
        """Return an operation that a form calls itself."""
        return f'running_part({self._operation(covered)}, call, parts["{covered.node.module}"])'

    def _constants(self, constants: Mapping[str, Any]) -> dict[str, str]:
        """Return constants as text, by name. Objects are named by their functions or kinds."""
        return {name: self._constant(name, value) for name, value in constants.items()}

    def _constant(self, name: str, value: Any) -> str:
        if value is None or type(value) in (bool, int, float, str):
            return json.dumps(value) if isinstance(value, str) else repr(value)
        key = value if isinstance(value, Part) else id(value)  # equal rotations are one object: they are often compared
        if key not in self._objects:
            function = value.run if isinstance(value, Form) else getattr(value, "func", value)
            label = _identifier(getattr(function, "__name__", getattr(value, "kind", name))).strip("_")
            self._objects[key] = self._add(label if callable(value) else label.upper(), value)
        return self._objects[key]

    def _function(self, function: Callable[..., Any]) -> str:
        """Return the name of a function of tensors: its own."""
        if function not in self._objects:
            self._objects[function] = self._add(_identifier(function.__name__).strip("_"), function)
        return self._objects[function]

    def _outputs(self, covered: CoveredOperation) -> str:
        """Return the names of an operation's outputs, as a tuple without its parentheses."""
        names = ", ".join(self.names[value] for value in covered.gives)
        return f"{names}," if len(covered.gives) == 1 else names

    def _operation(self, covered: CoveredOperation) -> str:
        name = covered.node.name
        if name not in self._operations:
            self._operations[name] = self._add(_identifier(name).upper(), covered)
        return self._operations[name]

    def _form(self, step: Step) -> tuple[str, dict[str, str]]:
        """Return the name of the form's function, and its constants as text, by name."""
        names = dict.fromkeys(_identifier(covered.node.name) for covered in step.covers)
        run = step.form.run
        function, constants = (run.func, run.keywords) if isinstance(run, partial) and not run.args else (run, {})
        return self._add(f"run_{'_and_'.join(names)}", function), self._constants(constants)

    def _add(self, name: str, value: Any) -> str:
        free = self._free(name)
        self.namespace[free] = value
        return free

    def _free(self, name: str) -> str:
        """Return a name that nothing else in the source has."""
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        free = next(free for free in candidates if free not in self._reserved and not keyword.iskeyword(free))
        self._reserved.add(free)
        return free


def names_of(covered: Iterable[CoveredOperation], output: Value) -> dict[Value, str]:
    """Return the name of each output: its operation's, followed by the port if an operation has several."""
    names: dict[Value, str] = {output: OUTPUT}
    for value in (value for item in covered for value in item.gives if value != output):
        node, port = value
        is_only_value = port == "partial" or sum(other[0] == node for item in covered for other in item.gives) == 1
        names[value] = _identifier(node) if is_only_value else f"{_identifier(node)}_{port}"
    return names


def _identifier(name: str) -> str:
    return name.replace(".", "_")


def _comment(step: Step) -> list[str]:
    """Return the comment above a step: the shape of the first output of each operation, and the form with its place."""
    sizes = " and ".join(dict.fromkeys(map(_size, step.covers)))
    form = step.form
    backend = "" if form.backend == EVERY else f"{form.backend}: "
    return _wrap(f"{sizes}  {backend}{form.description} ({place_of(form.run)})", initial_indent="# ", subsequent_indent="#   ")


def _wrap(text: str, **options: Any) -> list[str]:
    """Return the text in lines that fit into indented blocks."""
    return wrap(text, WIDTH - 4 * len(INDENT), break_long_words=False, break_on_hyphens=False, **options)


def place_of(function: Callable[..., Any]) -> str:
    """Return the file and the line of a form's function, such as ``blocks/memories/window.py:120``. A part's function that another
    function or form completes has the place of the latter."""
    while isinstance(function, partial):
        inner = [value.run if isinstance(value, Form) else value for value in function.keywords.values()]
        function = next((value for value in inner if callable(value)), function.func)
    function = unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    file = f"{function.__module__.replace('.', '/')}.py"
    return file if code is None else f"{file}:{code.co_firstlineno}"


def _size(covered: CoveredOperation) -> str:
    port = covered.node.operation.gives[0]
    sizes = SHAPES.get(port.kind, "{heads} {dim}").format(heads=port.heads, dim=port.dim)
    if port.kind is Kind.PAIRS and covered.node.shape.value_dim != port.dim:
        sizes += f"+{covered.node.shape.value_dim}"
    return f"B T {sizes}" if port.per_token else sizes


def _call(start: str, arguments: list[str], end: str) -> list[str]:
    """Return a call on one line, or on several if it is longer than a line."""
    line = f"{start}{', '.join(arguments)}{end}"
    if len(line) <= WIDTH - 4 * len(INDENT) and "\n" not in line:
        return [line]
    return [start, *_indent(line for argument in arguments for line in f"{argument},".splitlines()), end]


def _keywords(arguments: Mapping[str, str]) -> list[str]:
    return [f"{name}={text}" for name, text in arguments.items()]


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"{INDENT}{line}" for line in lines]
