"""Shape checks of tests, by jaxtyping's letters in the annotations of `blocks`, at every call. jaxtyping's own hook checks the
arguments twice per call, and also wraps functions without shapes. This one checks each argument and result once, and uses
jaxtyping's messages. Equal checks are cached, since the result depends on types, dtypes and shapes alone.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import zlib
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_args, get_type_hints

from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

Function = Callable[..., Any]
NAME = "_stated_shapes"
"""What decorates every function and class of a checked package."""
VERSION = zlib.crc32(Path(__file__).read_bytes())
_READ: dict[tuple[str, CodeType], tuple[dict[str, Any], set[str], CodeType | None]] = {}


def check_shapes(package: str) -> None:
    """Check everything that is imported from a package from now on."""
    sys.meta_path.insert(0, _Finder(package))


def stated_shapes(checked: Any) -> Any:
    """Wrap a function with a tensor shape in its annotations, or the constructor of such a dataclass. pydantic checks the
    others.
    """
    if isinstance(checked, type):
        if dataclasses.is_dataclass(checked) and "__init__" in vars(checked):
            checked.__init__ = _function(checked.__init__)
        return checked
    return _function(checked)


def _function(function: Function) -> Function:
    hints, stated, written = _hints(function)
    if not stated:
        return function
    function.__annotations__ = hints
    checked, passed, answers = beartype(function), dict[Any, set[Any]](), []

    @functools.cache
    def answered() -> Function:
        """Return the checker of a function's result."""
        return beartype(functools.wraps(function)(lambda *_, **__: answers.pop()))

    def anew(checked_arguments: Any, arguments: Sequence[Any], options: dict[str, Any], *answer: Any) -> Any:
        """Return the result, checked unless an equal call was checked before."""
        answers.extend(answer)
        options = {name: value for name, value in options.items() if value is not defaults.get(name, inspect.Parameter.empty)}
        call = functools.partial(answered() if answer else checked, *arguments, **options)
        try:
            with jaxtyped("context"):
                result = call()
        except BeartypeCallHintViolation:
            jaxtyped(function, typechecker=beartype)(*arguments, **options)
            raise
        passed.setdefault(checked_arguments, set()).add(_look(result, True))
        return result

    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    place = {"_function": function, "_passed": passed, "_anew": anew, "_look": _look, "_Tensor": Tensor, "_defaults": defaults}
    exec(written, place)
    return functools.wraps(function)(place["in_its_letters"])


def _written(function: Function, stated: set[str]) -> CodeType:
    """Return a generated function with the same arguments. It is called hundreds of thousands of times, so it looks at each
    argument, calls the function, and looks at the result directly.
    """

    def seen(name: str, is_stated: bool = True) -> str:
        if not is_stated:
            return f"({name}.__class__, {name}) if {name}.__class__ is str else {name}.__class__"
        return f"({name}.dtype, {name}.shape) if {name}.__class__ is _Tensor else _look({name}, True)"

    parameters, keys, places, options = [], [], [], []
    signature = inspect.signature(function)
    several = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    for name, parameter in signature.parameters.items():
        if (
            parameter.kind is parameter.KEYWORD_ONLY
            and "*" not in parameters
            and not any(name.startswith("*") for name in parameters)
        ):
            parameters.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        parameters.append(star + name + ("" if parameter.default is parameter.empty else f"=_defaults[{name!r}]"))
        if star:
            keys.append(f"_look({'tuple' if star == '*' else 'dict'}({name}), {name in stated})")
        else:
            keys.append(seen(name, name in stated))
        if parameter.kind is parameter.KEYWORD_ONLY or (parameter.default is not parameter.empty and not several):
            options.append(f"{name}={name}")
        else:
            (options if star == "**" else places).append(star + name)
    call, keywords = ", ".join([*places, *options]), f"dict({', '.join(options)})"
    source = f"""
def in_its_letters({", ".join(parameters)}):
    _given = ({", ".join(f"({key})" for key in keys)},)
    _before = _passed.get(_given)
    if _before is None:
        return _anew(_given, ({", ".join(places)},), {keywords})
    _answer = _function({call})
    if ({seen("_answer")}) in _before:
        return _answer
    return _anew(_given, ({", ".join(places)},), {keywords}, _answer)
"""
    return compile(source, f"<the shapes of {function.__qualname__}>", "exec")


def _look(value: Any, stated: bool) -> Any:
    """Return everything of a value that an annotation can check: its type, and the value itself for words without a shape."""
    kind = type(value)
    if stated and kind is Tensor:
        return value.dtype, value.shape
    if not stated:
        return (kind, value) if kind is str else kind
    if isinstance(value, Tensor):
        return kind, value.dtype, value.shape
    if kind is tuple or kind is list:
        return kind, *[_look(inner, True) for inner in value]
    if kind is dict:
        return kind, *value, *[_look(inner, True) for inner in value.values()]
    return (kind, value) if kind is str else kind


def _hints(function: Function) -> tuple[dict[str, Any], set[str], CodeType | None]:
    """Return the annotations, the names with shapes, and their checkers, read once, also for functions defined inside functions."""
    place = function.__module__, function.__code__
    if place not in _READ:
        hints = {name: _hint(function, name) for name in function.__annotations__}
        stated = {name for name, hint in hints.items() if _states_shape(hint)}
        _READ[place] = hints, stated, _written(function, stated) if stated else None
    return _READ[place]


def _hint(function: Function, name: str) -> Any:
    """Return an annotation, or Any if it names something that does not exist while the module is imported."""

    def alone() -> None: ...

    alone.__annotations__ = {name: function.__annotations__[name]}
    try:
        return get_type_hints(alone, function.__globals__, include_extras=True)[name]
    except NameError:
        return Any


def _states_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_states_shape(inner) for inner in get_args(hint))


class _Decorate(ast.NodeTransformer):
    """Add the innermost decorator of a function, and the outermost of a class, so that a dataclass is complete."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list.append(self._decorator(node))
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, self._decorator(node))
        return self.generic_visit(node)

    def _decorator(self, node: ast.AST) -> ast.expr:
        return ast.copy_location(ast.Name(NAME, ast.Load()), node)  # pyright: ignore[reportArgumentType]


class _Loader(SourceFileLoader):
    """Load compiled files from beside those of undecorated modules, under a name that changes with this file."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:
        return compile(_Decorate().visit(ast.parse(data, path)), path, "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        return super().get_data(_beside(path))

    def set_data(self, path: str, data: Any, **how: Any) -> None:
        super().set_data(_beside(path), data, **how)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[NAME] = stated_shapes
        super().exec_module(module)


def _beside(path: str) -> str:
    return path.removesuffix("pyc") + f"shapes-{VERSION}.pyc" if path.endswith(".pyc") else path


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
