"""A recorded program as lines of Python.

A call has its own line if a variable of the part's code held its result, or if several others use it. Otherwise it is written into
the expression that uses it. Variables have the names that they have in the parts.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import torch

from composer.errors import ExportError
from composer.exporting.call_recording import NARROW, WIDE, Recorded
from composer.exporting.head_recording import Method

FOREVER = 1 << 60
INLINE = frozenset({"index", "attribute", "sign"})
"""Kinds of calls that stand on a line of their own only where several others use them."""
CONVERSIONS = frozenset({"to", "float", "type_as"})
"""Methods that stand on a line of their own only where several others, or a later step, use their result."""
OwnCall = Callable[[str, Mapping[str, Any], Callable[[Any], str]], str]
"""Writes a call of a function of ``blocks``: its name, its arguments, and how a value is written."""


def lines_of(method: Method, own_call: OwnCall, reserved: frozenset[str]) -> list[tuple[int, str]]:
    """Return the lines of a method, each with the number of its step. reserved: names that no variable may have."""
    return _Lines(method, own_call, reserved).all()


def arguments_of(call: Recorded) -> Iterator[Recorded]:
    """Yield the calls whose results a call uses."""
    yield from _calls_in((call.args, dict(call.options)))


def _calls_in(value: Any) -> Iterator[Recorded]:
    if isinstance(value, Recorded):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _calls_in(item)
    elif isinstance(value, dict):
        yield from _calls_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _calls_in((value.start, value.stop, value.step))


def find_needed(method: Method) -> list[Recorded]:
    """Return the calls that the outputs follow from, in order."""
    result: dict[int, Recorded] = {}
    waiting = [*method.outputs.values(), *(call for call in method.calls if call.kind in ("store", "guard") or call.writes)]
    while waiting:
        call = waiting.pop()
        if call.number not in result:
            result[call.number] = call
            waiting += arguments_of(call)
    return [result[number] for number in sorted(result)]


class _Lines:
    def __init__(self, method: Method, own_call: OwnCall, reserved: frozenset[str]) -> None:
        self.method, self.own_call = method, own_call
        self.calls = find_needed(method)
        self.users: dict[int, list[Recorded]] = defaultdict(list)
        for call in self.calls:
            for item in arguments_of(call):
                self.users[item.number].append(call)
        self.final = {call.number for call in method.outputs.values()}
        self.written: dict[int, str] = {}
        """The variables that hold results, by the number of the call."""
        self.own_line = {call.number for call in self.calls if self._wants_line(call)}
        self._keep_before_writes()
        self.last_uses: dict[str, int] = dict.fromkeys((*reserved, "self", "state", "torch", "math", "F"), FOREVER)
        """Until which call each name is in use."""
        for call in self.calls:
            if call.kind == "input" and call.name.isidentifier():
                self.last_uses[call.name] = self._last_use(call)

    def all(self) -> list[tuple[int, str]]:
        """Return all lines, the last of which returns the output and the new state."""
        lines: list[tuple[int, str]] = []
        branches: dict[str, list[str]] = {"kernel": [], "torch": []}
        for call in self.calls:
            if call.kind == "choice":
                lines += ((call.step, line) for line in self._choice(call, branches))
                branches = {"kernel": [], "torch": []}
            elif call.kind == "guard":
                lines += ((call.step, line) for line in self._guard(call))
            elif call.number in self.own_line and call.branch:
                branches[call.branch].append(self._line(call))
            elif call.number in self.own_line:
                lines.append((call.step, self._line(call)))
        outputs = dict(self.method.outputs)
        output = self._value(outputs.pop("output"))
        state = ", ".join(f'"{name}": {self._value(call)}' for name, call in outputs.items())
        last = len(self.method.titles)
        return [*((step, line) for step, line in lines if line), (last, f"return {output}, {{{state}}}")]

    def _choice(self, call: Recorded, branches: Mapping[str, list[str]]) -> Iterator[str]:
        """Yield the lines of a choice. branches: the lines of each branch before its results."""
        kernel = next(item for item in reversed(self.calls[: self.calls.index(call)]) if item.kind == "kernel")
        results = [self._results(side) for side in call.args]
        names = self._names_of_fields(call)
        yield f"if {_last_part(kernel)} is not None and runs_fla(dtype, device):"
        yield from (f"    {line}" for line in (*branches["kernel"], f"{names} = {results[0]}") if line)
        yield "else:"
        yield from (f"    {line}" for line in (*branches["torch"], f"{names} = {results[1]}") if line)

    def _guard(self, call: Recorded) -> Iterator[str]:
        """Yield the lines that call the method for any number of tokens if a condition holds."""
        condition, *row = (self._value(item) for item in call.args)
        yield f"if {plain(f'({condition}).any()')}:"
        yield f"    return self({', '.join(row)}, torch.ones_like(position, dtype=torch.bool), state, rotation)"

    def _results(self, side: tuple[Recorded, ...]) -> str:
        """Return the results of a branch as an expression."""
        source = side[0].args[0] if side[0].kind == "field" else None
        if source is not None and self._is_side(source):
            return plain(self._text(source))
        return ", ".join(plain(self._value(result)) for result in side)

    def _is_side(self, call: Recorded) -> bool:
        """Whether the fields of a call are the results of a branch of a choice, and nothing else uses them."""
        fields = self.users[call.number]
        takers = {taker.number: taker for item in fields for taker in self.users[item.number]}.values()
        return bool(takers) and all(taker.kind == "choice" and tuple(fields) in taker.args for taker in takers)

    def _wants_line(self, call: Recorded) -> bool:
        if call.kind == "store" or (call.writes and not self.users[call.number]):
            return call.kind == "store" or call.number not in self.final
        if call.kind in ("input", "size", "field"):
            return False
        if call.kind == "guard":
            return True
        fields = [item for item in self.users[call.number] if item.kind == "field"]
        if fields:
            return not self._is_side(call)
        named = self.method.names.get(call.number)
        uses = len(self.users[call.number]) + (call.number in self.final)
        is_conversion = call.kind == "method" and call.name in CONVERSIONS
        is_inline = call.kind in INLINE or (is_conversion and all(user.step == call.step for user in self.users[call.number]))
        return uses > 1 or (named is not None and named[1] and uses > 0 and not is_inline)

    def _keep_before_writes(self) -> None:
        """Put a value that is computed before a write into a tensor, and used after it, on a line before the write."""
        for write in (call for call in self.calls if call.writes or call.kind == "store"):
            inside = self._expression_of(write)
            for call in self.calls:
                if call.number >= write.number or call.number in inside or call.kind in ("input", "size", "field"):
                    continue
                if call.number not in self.own_line and self._place(call) > write.number:
                    self.own_line.add(call.number)

    def _expression_of(self, call: Recorded) -> set[int]:
        """Return the calls that are written into a call's own expression."""
        result, waiting = {call.number}, [call]
        while waiting:
            for item in arguments_of(waiting.pop()):
                if item.number not in self.own_line and item.number not in result:
                    result.add(item.number)
                    waiting.append(item)
        return result

    def _place(self, call: Recorded) -> int:
        """Return the number of the call on whose line a call is written."""
        if call.number in self.own_line:
            return call.number
        if call.number in self.final:
            return FOREVER
        return max((self._place(user) for user in self.users[call.number]), default=call.number)

    def _last_use(self, call: Recorded) -> int:
        if call.number in self.final:
            return FOREVER
        return max(
            (user.number if user.number in self.own_line else self._last_use(user) for user in self.users[call.number]),
            default=call.number,
        )

    def _line(self, call: Recorded) -> str:
        if call.kind == "store":
            target, index, value = call.args
            return f"{self._value(target)}[{self._index(index)}] = {self._value(value)}"
        text = plain(self._text(call))
        if not self.users[call.number] and call.number not in self.final:
            return text
        fields = {item.number: item for item in self.users[call.number] if item.kind == "field"}
        if fields and not any(item.name.startswith(".") for item in fields.values()):
            return f"{self._names_of_fields(call)} = {text}"
        output = next((item for item in fields.values() if item.name == ".output"), call)
        name = self._free_name(call, self._wish(output), call.number)
        self.written[call.number] = name
        return "" if name == text else f"{name} = {text}"

    def _names_of_fields(self, call: Recorded) -> str:
        """Return the variables that the fields of a call are assigned to."""
        count = 1 + max(int(item.name) for item in self.method.calls if item.kind == "field" and item.args[0] is call)
        names = ["_"] * count
        for item in self.users[call.number]:
            if item.kind == "field":
                names[int(item.name)] = self.written[item.number] = self._free_name(item, self._wish(item), call.number)
        return f"{', '.join(names)}{',' if count == 1 else ''}"

    def _wish(self, call: Recorded) -> str:
        named = self.method.names.get(call.number)
        if named is not None:
            return named[0]
        name = call.name.rpartition(":")[2].rpartition(".")[2].strip("_")
        return {"@": "product", "*": "scaled", "+": "total", "-": "difference", "/": "ratio"}.get(
            name, name if name.isidentifier() else "part"
        )

    def _free_name(self, call: Recorded, wish: str, now: int) -> str:
        """Return a name that no later line reads. A line reads before it writes."""
        step = self.method.nodes[min(call.step, len(self.method.nodes) - 1)].replace(".", "_")
        function = call.name.rpartition(":")[2].rpartition(".")[2].strip("_")
        of_function = [f"{wish}_{function}"] if function.isidentifier() and function != wish else []
        of_step = [f"{step}_{wish}"] if step != wish else []
        for name in (wish, *of_step, *of_function, *(f"{wish}_{count}" for count in range(2, 99))):
            if self.last_uses.get(name, -1) <= now:
                self.last_uses[name] = self._until(call)
                return name
        raise ExportError(f"a head has too many values with the name {wish}")

    def _until(self, call: Recorded) -> int:
        fields = [item for item in self.users[call.number] if item.kind == "field"]
        return max([self._last_use(call), *(self._last_use(item) for item in fields)])

    def _value(self, value: Any) -> str:
        """Return an argument as it is written."""
        if isinstance(value, Recorded):
            return self.written.get(value.number) or self._text(value)
        if isinstance(value, tuple) and (tensor := _shape_of(value)) is not None:
            return f"{self._value(tensor)}.shape"
        if isinstance(value, tuple):
            return f"({', '.join(self._value(item) for item in value)}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(self._value(item) for item in value)}]"
        if isinstance(value, slice):
            parts = [value.start, value.stop, value.step]
            return f"slice({', '.join(self._value(item) for item in parts)})"
        return constant(value)

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple):
            return ", ".join(self._index(item) for item in index)
        if isinstance(index, slice):
            start, stop, step = ("" if item is None else self._value(item) for item in (index.start, index.stop, index.step))
            return f"{'' if start == '0' else start}:{stop}{f':{step}' if step else ''}"
        return self._value(index)

    def _text(self, call: Recorded) -> str:
        """Return a call as an expression."""
        name, value = call.name, self._value
        first, *others = (*call.args, None)
        texts: dict[str, Callable[[], str]] = {
            "input": lambda: name,
            "operator": lambda: f"({value(first)} {name} {value(others[0])})",
            "reverse": lambda: f"({value(others[0])} {name} {value(first)})",
            "sign": lambda: f"({name}{value(first)})",
            "attribute": lambda: f"{value(first)}.{name}",
            "size": lambda: f"{value(first)}.shape[{name}]",
            "field": lambda: f"{value(first)}{name}" if name.startswith(".") else f"{value(first)}[{name}]",
            "index": lambda: f"{value(first)}[{self._index(others[0])}]",
            "method": lambda: f"{value(first)}.{name}({self._arguments(call.args[1:], call.options)})",
            "function": lambda: f"{name}({self._arguments(call.args, _changed_options(call))})",
            "host": lambda: f"{name}({self._arguments(call.args, call.options)})",
            "kernel": lambda: f"{_last_part(call)}({self._arguments(call.args, call.options)})",
            "own": lambda: self.own_call(name, call.options, value),
        }
        return texts[call.kind]()

    def _arguments(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
        return ", ".join(
            [*(self._value(item) for item in args), *(f"{name}={self._value(item)}" for name, item in options.items())]
        )


def _shape_of(sizes: tuple[Any, ...]) -> Recorded | None:
    """Return the tensor whose sizes these are, all and in order, or None."""
    first = sizes[0] if sizes else None
    if not (isinstance(first, Recorded) and first.kind == "size" and first.args[0].rank == len(sizes)):
        return None
    tensor = first.args[0]
    are_its = (
        isinstance(size, Recorded) and size.kind == "size" and size.args[0] is tensor and size.name == str(number)
        for number, size in enumerate(sizes)
    )
    return tensor if all(are_its) else None


def _last_part(call: Recorded) -> str:
    """Return the name of a function, without its module."""
    return call.name.rpartition(":")[2]


@cache
def _defaults(name: str) -> Mapping[str, Any]:
    """Return the defaults of a function of PyTorch that is written in Python."""
    function = getattr(torch.nn.functional, name.removeprefix("F."), None) if name.startswith("F.") else None
    if not isinstance(function, FunctionType):
        return {"mode": "constant", "value": None} if name == "F.pad" else {}
    return {option: parameter.default for option, parameter in inspect.signature(function).parameters.items()}


def _changed_options(call: Recorded) -> dict[str, Any]:
    """Return the options of a call that differ from their defaults."""
    defaults = _defaults(call.name)
    return {
        name: value
        for name, value in call.options.items()
        if name not in defaults or isinstance(value, Recorded) or type(value) is not type(defaults[name]) or value != defaults[name]
    }


def constant(value: Any) -> str:
    """Return a constant as text. Raises ExportError if it has none."""
    if isinstance(value, torch.dtype):
        return {NARROW: "dtype", WIDE: "precise"}.get(value, str(value))
    if isinstance(value, torch.device):
        return "device"
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    if isinstance(value, float) and math.isfinite(value) and value > 0:
        square = round(value * value)
        if math.sqrt(square) == value and not value.is_integer():
            return f"math.sqrt({square})"
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    raise ExportError(f"a value cannot be written as text: {value!r}, a {type(value).__name__}")


def plain(expression: str) -> str:
    """Return an expression without unneeded parentheses."""
    text = ast.unparse(ast.parse(expression, mode="eval"))
    return text if '"' in text else text.replace("'", '"')
