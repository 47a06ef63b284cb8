"""Records what a head's program does to tensors, as calls that can be written out as Python.

The program runs once, on tensors without numbers (the device "meta"). Everything that is not a tensor (schemas, shapes, pairs,
options) is computed by Python and is gone. A ``TorchFunctionMode`` sees each operation of PyTorch. Functions of ``blocks`` that
take tensors and plain values alone are recorded as one call, without the operations inside: the file has these functions, too.
Those of parts from outside are recorded operation by operation.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import blocks
from blocks.external_parts import folders
from composer.errors import ExportError
from composer.exporting.functions import own_functions
from composer.exporting.torch_names import kind_of, writes_into

ROW = ("hidden", "query", "key", "value", "sinks", "position")
"""The first arguments of a head's methods."""
BLOCKS = str(Path(blocks.__file__).parent)
NUMBERS = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero", "__contains__"})
"""Operations by which Python reads numbers."""
NOT_RECORDED = frozenset({"dim", "ndimension", "__len__", "is_floating_point", "element_size", "_set_grad_enabled"})
"""Operations whose results do not differ between calls. What is computed without gradients is detached where it is used."""
GUARDED = "blocks.tensors:is_nowhere"
"""The function by which a part decides, for one token, that there is nothing to do. The file has it as a guard: where it is False,
the method for any number of tokens runs."""
JOINS = frozenset({"cat", "concat", "concatenate"})
"""Operations that return what is in a list of one tensor."""
UNCHANGED = frozenset({"to", "float", "type_as"})
"""Operations that return their tensor where there is nothing to do."""
WIDE = torch.float32
"""The dtype that sums are kept in."""
NARROW = torch.bfloat16
"""The dtype of the model while it is recorded. In the file it is that of the queries."""


@dataclass(eq=False)
class Recorded:
    """One call.

    kind: input, function, method, attribute, operator, reverse, sign, index, store, size, own (a function of ``blocks``), field (of
    the result of another call), kernel (an operation of fla), choice (of the results of two branches), guard (see ``GUARDED``), or
    host. step: the number of the program's step. number: its place among all calls.
    """

    kind: str
    name: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    number: int = 0
    writes: bool = False
    """Whether it writes into its first argument."""
    rank: int | None = None
    """Dimensions of the tensor that it gives."""
    detached: bool = False
    """Whether it gives a floating-point tensor that was computed without gradients."""
    branch: str = ""
    """The branch of a choice that it is in: kernel or torch. Empty outside of choices."""


class SizeNumber(int):
    """A number that follows from the shape of a tensor."""

    call: Recorded

    def __new__(cls, number: int, call: Recorded) -> SizeNumber:
        size = super().__new__(cls, number)
        size.call = call
        return size


def give_operators(numbers: type[int], combine: Callable[[str, int, int, int], Any]) -> None:
    """Give a class of integers the operators that sizes have. combine: receives the symbol, both sides and the result."""
    compute: dict[str, Callable[[int, int], int]] = {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod
    }  # fmt: skip

    def apply(symbol: str, left: Any, right: Any) -> Any:
        if not (isinstance(left, int) and isinstance(right, int)):
            return NotImplemented
        return combine(symbol, left, right, compute[symbol](int(left), int(right)))

    for symbol, function in compute.items():
        name = function.__name__.strip("_")
        setattr(numbers, f"__{name}__", lambda left, right, symbol=symbol: apply(symbol, left, right))
        setattr(numbers, f"__r{name}__", lambda right, left, symbol=symbol: apply(symbol, left, right))


give_operators(SizeNumber, lambda symbol, left, right, number: RECORDING[-1].size("operator", symbol, (left, right), number))
SizeNumber.__neg__ = lambda self: RECORDING[-1].size("sign", "-", (self,), -int(self))  # type: ignore[method-assign]


class ProgramRecording(TorchFunctionMode):
    """While it is entered, calls are recorded. names: of tensors, by the number of their call: the local variables that held them
    (True), or the parameters (False)."""

    def __init__(self, *, is_fixed: bool = False, in_place: bool = False) -> None:
        """is_fixed: the number of tokens is part of what is recorded, so that all sizes but that of rows are numbers. in_place:
        states are overwritten, and what rarely happens is left to another method."""
        super().__init__()
        self.is_fixed, self.in_place = is_fixed, in_place
        self.calls: list[Recorded] = []
        self.names: dict[int, tuple[str, bool]] = {}
        self.step = 0
        self.branch = ""
        self._recorded: dict[int, tuple[Any, Recorded]] = {}
        self._inside: tuple[FrameType, str, dict[str, Any], list[int]] | None = None
        """The function of ``blocks`` that runs and is kept as one call, with its name, its arguments, and their versions."""
        self._profiler: Any = None
        """The profile function of whoever calls, which is set again at the end."""
        self._outside: FrameType | None = None
        """The frame that has entered the recording. Functions of parts run above it."""

    def __enter__(self) -> ProgramRecording:
        RECORDING.append(self)
        self._outside = sys._getframe(1)
        super().__enter__()
        self._profiler = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._profiler if callable(self._profiler) else None)
        enable = getattr(self._profiler, "enable", None)
        if enable is not None:  # cProfile, which Python 3.11 returns as an object that cannot be called
            enable()
        super().__exit__(*error)
        self._outside = None
        RECORDING.pop()

    def add_input(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Add an input of the program, by its name in the file."""
        self._store(tensor, self._call("input", name, (), {}))
        return tensor

    def call_of(self, value: Any) -> Recorded | None:
        """Return the call that a value comes from; None for a value that is known before any call."""
        if isinstance(value, SizeNumber):
            return value.call
        result = self._recorded.get(id(value))
        return None if result is None else result[1]

    def size(self, kind: str, name: str, args: tuple[Any, ...], number: int) -> int:
        """Record a number that was computed from sizes."""
        return number if self._inside else SizeNumber(number, self._call(kind, name, args, {}))

    @contextmanager
    def in_branch(self, branch: str) -> Iterator[None]:
        """Record calls as those of one branch of a choice."""
        self.branch, before = branch, dict(self._recorded)
        try:
            yield
        finally:
            # An operation may return the tensor that it takes, which the other branch uses, too.
            self.branch, self._recorded = "", self._recorded | before

    def host(self, name: str, args: tuple[Any, ...], likes: Any, *, kind: str = "host", options: Mapping[str, Any] = {}) -> Any:
        """Record a call that is not run, such as one of the model's own code. likes: tensors like its results."""
        self._look(sys._getframe(1))
        call = self._call(kind, name, args, options)
        with torch._C.DisableTorchFunction():
            result = tuple(torch.empty_like(item) for item in likes) if isinstance(likes, tuple) else torch.empty_like(likes)
        self._store(result, call)
        return result

    def name(self, label: str, value: Any, *, is_of_step: bool = False) -> None:
        """Name a value that no variable has named. is_of_step: also one that a variable has named in the present step."""
        for suffix, tensor in _tensors_in(value):
            call = self.call_of(tensor)
            if call is None or (self.names.get(call.number, ("", False))[1] and not (is_of_step and call.step == self.step)):
                continue
            self.names[call.number] = label + suffix, True

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        options, name = kwargs or {}, func.__name__
        if self._inside is not None and self._inside[1] == GUARDED and self._may_guard:
            return self._guard(func, args[0])
        if name in NUMBERS and self._inside is None:
            raise ExportError(f"Python reads the numbers of a tensor ({name}) {self._place()}")
        result = self._call_torch(func, args, options)
        if name == "__get__" and self._inside is None:
            return self._attribute(func.__self__.__name__, args[0], result)
        unchanged = name in UNCHANGED and result is args[0]
        if self._inside is not None or name in NOT_RECORDED or unchanged or isinstance(result, torch.dtype):
            return result
        self._look(sys._getframe(1))
        if (same := self._same_as(name, args, result)) is not None:
            self._store(result[0] if isinstance(result, tuple) else result, same)
            return result
        if isinstance(result, int) and not isinstance(result, bool):
            return (
                result if self.is_fixed and args[1:] and args[1] else SizeNumber(result, self._call("method", name, args, options))
            )
        self._store(result, self._call(*kind_of(func, name, args, options), args, options, writes=writes_into(name)))
        return result

    @property
    def _may_guard(self) -> bool:
        """True before the first write: what a guard rejects starts again with another method."""
        return self.in_place and not any(call.writes for call in self.calls)

    def _guard(self, func: Any, condition: Any) -> Any:
        """Record that a condition holds nowhere, where a part reads it."""
        if func.__name__ == "__get__":
            return func.__self__.__name__ == "is_cpu"
        if func.__name__ == "__bool__":
            self._call("guard", "", (condition, *(call for call in self.calls if call.kind == "input" and call.name in ROW)), {})
            return False
        return condition

    def _call_torch(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call a function of PyTorch without the profile function: PyTorch calls many functions of Python on the device meta."""
        sys.setprofile(None)
        try:
            return func(*args, **options)
        finally:
            sys.setprofile(self._profile)

    def _same_as(self, name: str, args: tuple[Any, ...], result: Any) -> Recorded | None:
        """Return the call whose result an operation returns unchanged: a join of one tensor, or a split into one piece."""
        if name in JOINS and len(args[0]) == 1:
            return self.call_of(args[0][0])
        if self.is_fixed and name == "split" and len(result) == 1:
            return self.call_of(args[0])
        return None

    def _attribute(self, name: str, tensor: torch.Tensor, result: Any) -> Any:
        if name == "is_cuda" and self.branch == "kernel":
            return False  # what a form on fla refuses on some GPUs, fla refuses itself
        if name in ("is_cpu", "is_cuda"):
            raise ExportError(f"a part reads the device of a tensor {self._place()}")
        call = self.call_of(tensor)
        if name == "shape":
            if call is None or call.name.startswith("self."):
                return result
            return tuple(
                size
                if axis and (self.is_fixed or self.branch == "kernel")
                else SizeNumber(size, self._call("size", str(axis), (tensor,), {}))
                for axis, size in enumerate(result)
            )
        if isinstance(result, torch.Tensor):
            self._store(result, self._call("attribute", name, (tensor,), {}))
        return result

    def _call(self, kind: str, name: str, args: tuple[Any, ...], options: Mapping[str, Any], *, writes: bool = False) -> Recorded:
        # The calls of the arguments now: a later call may write into the same tensor.
        arguments, named = (
            tuple(self._calls_in(item) for item in args),
            {name: self._calls_in(item) for name, item in options.items()},
        )
        call = Recorded(kind, name, arguments, named, self.step, len(self.calls), writes, branch=self.branch)
        self.calls.append(call)
        return call

    def _calls_in(self, value: Any) -> Any:
        """Return the value with calls in the place of their results."""
        call = value if isinstance(value, Recorded) else self.call_of(value)
        if call is not None:
            return self._record_detach(value, call) if call.detached and torch.is_grad_enabled() and call.kind != "own" else call
        if isinstance(value, torch.Tensor):
            raise ExportError(f"a computation uses a tensor that does not come from an input {self._place()}")
        if isinstance(value, tuple | list):
            items = [self._calls_in(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {name: self._calls_in(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._calls_in(item) for item in (value.start, value.stop, value.step)))
        return value

    def _record_detach(self, value: Any, call: Recorded) -> Recorded:
        """Record a detach for a value that was computed without gradients and is used with gradients."""
        call.detached = False
        if id(value) not in self._recorded:
            return call
        self._recorded[id(value)] = value, self._call("method", "detach", (call,), {})
        return self._recorded[id(value)][1]

    def _store(self, result: Any, call: Recorded) -> None:
        """Store the result of a call. The answer is kept alive, so that no other gets its id."""
        if isinstance(result, torch.Tensor):
            self._recorded[id(result)] = result, call
            with torch._C.DisableTorchFunction():
                call.rank = result.dim()
                call.detached = result.is_floating_point() and not torch.is_grad_enabled()
        elif isinstance(result, tuple | list):
            for index, item in enumerate(result):
                self._store(item, self._call("field", str(index), (call,), {}))
        elif dataclasses.is_dataclass(result):
            for item in dataclasses.fields(result):
                value = getattr(result, item.name)
                if value is not None:
                    self._store(value, self._call("field", f".{item.name}", (call,), {}))
        elif result is not None:
            raise ExportError(f"{call.name} gives a {type(result).__name__} {self._place()}")

    def _profile(self, frame: FrameType, event: str, result: Any) -> None:
        """Called when any function of Python begins or ends."""
        if event == "call" and self._inside is None:
            function_name = own_functions().get(frame.f_code)
            if function_name is None:
                return
            arguments = _arguments_of(frame)
            if any(callable(item) for item in arguments.values()) or not any(_holds_tensor(item) for item in arguments.values()):
                return
            self._look(frame.f_back)
            for name, value in arguments.items():
                if (call := self.call_of(value)) is not None:
                    self._note_name(call.number, name, False)
            self._inside = frame, function_name, arguments, _versions_of(arguments)
        elif event == "return" and self._inside is not None and self._inside[0] is frame:
            (_, function_name, arguments, versions), self._inside = self._inside, None
            writes = _versions_of(arguments) != versions
            if writes or (_holds_tensor(result) and not any(result is item for item in arguments.values())):
                self._store(result, self._call("own", function_name, (), arguments, writes=writes))

    def _look(self, frame: FrameType | None) -> None:
        """Note the names of variables and parameters that hold tensors, in all running functions of parts."""
        places = (BLOCKS, *folders())
        while frame is not None and frame is not self._outside:
            if frame.f_code.co_filename.startswith(places) and not frame.f_code.co_name.startswith("<"):
                code = frame.f_code
                parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                for name, value in frame.f_locals.items():
                    for suffix, tensor in _tensors_in(value):
                        result = self._recorded.get(id(tensor))
                        label = suffix.strip("_") if name == "self" else name.strip("_") + suffix
                        if result is not None and label:
                            self._note_name(result[1].number, label, name not in parameters)
            frame = frame.f_back

    def _note_name(self, number: int, name: str, variable: bool) -> None:
        before = self.names.get(number)
        if before is None or (variable and not before[1]):
            self.names[number] = name, variable

    def _place(self) -> str:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith((BLOCKS, *folders())):
            frame = frame.f_back
        if frame is None:
            return ""
        file = frame.f_code.co_filename
        path = f"blocks/{Path(file).relative_to(BLOCKS)}" if file.startswith(BLOCKS) else file
        return f"({path}, line {frame.f_lineno})"


RECORDING: list[ProgramRecording] = []
"""The recording that runs, which numbers computed from sizes go to."""


def _arguments_of(frame: FrameType) -> dict[str, Any]:
    code, local = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    return {name: local[name] for name in names}


def _versions_of(arguments: Mapping[str, Any]) -> list[int]:
    """Return for each tensor how often it has been written into."""
    with torch._C.DisableTorchFunction():
        return [item._version for item in arguments.values() if isinstance(item, torch.Tensor)]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds_tensor(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(True for _ in _tensors_in(value))
    return isinstance(value, torch.Tensor)


def _tensors_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a variable and of its fields, each with the suffix of its name."""
    if isinstance(value, torch.Tensor):
        yield "", value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            result = getattr(value, item.name, None)
            if isinstance(result, torch.Tensor):
                yield "" if item.name == "output" else f"_{item.name}", result
