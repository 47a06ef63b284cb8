"""The functions of ``blocks`` that a file needs: collected from the calls, folded, and written out."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import linecache
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

import blocks
from composer.errors import ExportError
from composer.exporting.folding import NO_NUMBERS, REWRITTEN, ArgumentFact, NotNone, fact_of, fold, is_written_out, join_facts

TYPES = frozenset({
    "Tensor", "None", "int", "float", "bool", "str", "torch", "dtype", "device", "slice", "tuple", "list", "Sequence", "Callable",
    "Any", "RingSlot", "Float", "Int", "Bool", "Shaped",
})  # fmt: skip
"""Words in the annotations of a function of tensors and plain values."""
ENTERED = frozenset({"as_dtype"})
"""Small functions that are not kept as calls."""


@cache
def syntax(path: str) -> tuple[str, ast.Module]:
    text = "".join(linecache.getlines(path))
    return text, ast.parse(text)


def definition(module: ModuleType, name: str) -> ast.stmt:
    """Return the statement that defines a function or a class of a module."""
    assert module.__file__ is not None
    return next(
        item for item in syntax(module.__file__)[1].body if isinstance(item, ast.FunctionDef | ast.ClassDef) and item.name == name
    )


def takes_tensors_alone(function: FunctionType) -> bool:
    """Whether all parameters of a function are tensors and plain values, by their annotations."""
    if function.__code__.co_freevars or function.__code__.co_flags & inspect.CO_GENERATOR or function.__name__ in ENTERED:
        return False
    node = definition(sys.modules[function.__module__], function.__name__)
    assert isinstance(node, ast.FunctionDef)
    parameters = [*node.args.args, *node.args.kwonlyargs, *([node.args.vararg] if node.args.vararg else [])]
    annotations = ["Part" if item.annotation is None else ast.unparse(item.annotation) for item in parameters]
    plain = [re.sub(r"\[Tensor, *['\"][^'\"]*['\"]\]", "", item) for item in annotations]
    return bool(parameters) and all(set(re.findall(r"[A-Za-z_]\w*", item)) <= TYPES for item in plain)


@cache
def own_functions() -> dict[CodeType, str]:
    """Return the functions of ``blocks`` that take tensors and plain values alone, as ``module:name``, by their code."""
    result = {}
    for info in pkgutil.walk_packages(blocks.__path__, "blocks."):
        if info.name.startswith("blocks.fused") or info.name.endswith(("fla_kernels", "fla_forms", "triton_forms", "_fla")):
            continue
        module = import_module(info.name)
        for name, function in vars(module).items():
            original = inspect.unwrap(function) if callable(function) else None
            if isinstance(original, FunctionType) and original.__module__ == module.__name__ and takes_tensors_alone(original):
                result[original.__code__] = f"{module.__name__}:{name}"
    return result


Facts = Mapping[str, ArgumentFact]
WRITTEN_OTHERWISE = frozenset({*NO_NUMBERS, *REWRITTEN})


@dataclass(frozen=True)
class Function:
    """A function of ``blocks``, as its file has it. key: module:name."""

    key: str

    @cached_property
    def module(self) -> ModuleType:
        return sys.modules[self.key.partition(":")[0]]

    @property
    def name(self) -> str:
        return self.key.partition(":")[2]

    @cached_property
    def tree(self) -> ast.FunctionDef:
        node = definition(self.module, self.name)
        assert isinstance(node, ast.FunctionDef)
        return node

    @property
    def parameters(self) -> list[ast.arg]:
        arguments = self.tree.args
        return [*arguments.args, *([arguments.vararg] if arguments.vararg else []), *arguments.kwonlyargs]

    def facts_of_call(self, call: ast.Call, facts: Facts, *, more: bool = False) -> dict[str, ArgumentFact | None] | None:
        """Return the fact about each parameter in a call; None if it passes starred arguments. facts: of the caller's own.
        more: further arguments follow (of a ``partial``)."""
        if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
            return None
        arguments = self.tree.args
        names = [item.arg for item in arguments.args]
        result: dict[str, ArgumentFact | None] = dict.fromkeys(item.arg for item in self.parameters)
        if not more:
            defaults = zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True)
            keywords = zip((item.arg for item in arguments.kwonlyargs), arguments.kw_defaults, strict=True)
            result |= {name: fact_of(default, {}) for name, default in (*defaults, *keywords) if default is not None}
        result |= {name: fact_of(value, facts) for name, value in zip(names, call.args, strict=False)}
        return result | {item.arg: fact_of(item.value, facts) for item in call.keywords if item.arg}


class Functions:
    """The functions that calls need, those that they call, and the classes and numbers of both.

    calls: the name of each called function, and what is known of its arguments. reserved: names of the file itself. fields: of
    results, that the heads read.
    """

    def __init__(self, calls: Iterable[tuple[str, Facts]], reserved: Iterable[str], fields: Iterable[str] = ()) -> None:
        self._calls, self._fields = list(calls), set(fields)
        self.unread: frozenset[str] = frozenset()
        """Optional fields of dataclasses that nothing reads. Classes and calls are written without these."""
        self._functions: dict[str, Function] = {}
        self.facts: dict[str, dict[str, ArgumentFact]] = {}
        while True:
            before = self.facts, self.unread
            self.facts, self.unread = self._collect(), self._unread()
            if (self.facts, self.unread) == before:
                break
        self.names = self._names(set(reserved))
        self.short = {
            key: expression
            for key, tree in self.trees.items()
            if (expression := _short_expression(tree, self.function(key).tree)) is not None
        }
        """Functions that are written as their expression in place of a call: what is left of them is a name, a number, or one
        method or index of an argument."""

    def function(self, key: str) -> Function:
        """The function of this name."""
        return self._functions.setdefault(key, Function(key))

    def _collect(self) -> dict[str, dict[str, ArgumentFact]]:
        """Fold all functions with what is known so far, and gather anew what their calls have in common."""
        facts_of_calls: dict[str, list[Mapping[str, ArgumentFact | None] | None]] = {}
        for key, facts in self._calls:
            facts_of_calls.setdefault(key, []).append(facts)
        self.trees: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, type] = {}
        self.numbers: dict[str, tuple[Any, str]] = {}
        self.locals: set[str] = set()
        waiting = list(dict.fromkeys(key for key, _ in self._calls))
        while waiting:
            key = waiting.pop(0)
            if key in self.trees:
                continue
            function, facts = self.function(key), self.facts.get(key, {})
            tree, all_facts = _fold_once(function, facts, self.unread)
            self.trees[key] = tree
            for called, facts_of_one in self._used_functions(function, tree, all_facts):
                waiting.append(called)
                facts_of_calls.setdefault(called, []).append(facts_of_one)
        return {key: self._common(key, calls) for key, calls in facts_of_calls.items()}

    def _unread(self) -> frozenset[str]:
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        read = self._fields | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return frozenset(
            field.name
            for cls in self.classes.values()
            if dataclasses.is_dataclass(cls)
            for field in dataclasses.fields(cls)
            if field.default is None and field.name not in read
        )

    def _common(self, key: str, calls: list[Mapping[str, ArgumentFact | None] | None]) -> dict[str, ArgumentFact]:
        if any(facts_of_one is None for facts_of_one in calls):
            return {}
        # A parameter that the function assigns anew is not what its calls have in common.
        assigned = {item.id for item in ast.walk(self.trees[key]) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
        names = [item.arg for item in self.function(key).parameters if item.arg not in assigned]
        facts = {name: join_facts(facts_of_one.get(name) for facts_of_one in calls if facts_of_one is not None) for name in names}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def _used_functions(
        self, function: Function, tree: ast.FunctionDef, facts: Facts
    ) -> Iterator[tuple[str, Mapping[str, ArgumentFact | None] | None]]:
        """Yield the functions that a folded one uses, with the facts about their arguments. Note its classes and numbers."""
        names_here = own_names(tree)
        self.locals |= names_here
        inside = [item for statement in tree.body for item in ast.walk(statement)]
        called: dict[int, Mapping[str, ArgumentFact | None] | None] = {}
        for node in inside:
            if isinstance(node, ast.ImportFrom):
                raise ExportError(f"{function.key} imports {node.module}, which the file cannot do")
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            more = node.func.id == "partial"
            name = node.args[0] if more and node.args else node.func
            call = ast.Call(name, node.args[1:], node.keywords) if more else node
            if isinstance(name, ast.Name) and isinstance(other := meant_by(function.module, name.id), FunctionType):
                called[id(name)] = self.function(key_of(other)).facts_of_call(call, facts, more=more)
        defaults = [*tree.args.defaults, *(item for item in tree.args.kw_defaults if item is not None)]
        for node in (*inside, *(item for default in defaults for item in ast.walk(default))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (node.id not in names_here or id(node) in called):
                meant = meant_by(function.module, node.id)
                if isinstance(meant, FunctionType):
                    yield key_of(meant), called.get(id(node))
                elif isinstance(meant, type):
                    self.classes[node.id] = meant
                    yield from self._functions_of_class(meant)
                elif meant is not None:
                    self._note_number(node.id, meant, function.module)

    def _functions_of_class(self, cls: type) -> Iterator[tuple[str, None]]:
        """The functions that the methods of a class call."""
        module = sys.modules[cls.__module__]
        for node in ast.walk(definition(module, cls.__name__)):
            meant = meant_by(module, node.id) if isinstance(node, ast.Name) else None
            if isinstance(meant, FunctionType):
                yield key_of(meant), None
            elif isinstance(meant, int | float | str | tuple) and isinstance(node, ast.Name):
                self._note_number(node.id, meant, module)

    def _note_number(self, name: str, value: Any, module: ModuleType) -> None:
        before = self.numbers.setdefault(name, (value, module.__name__))
        if before[0] != value:
            raise ExportError(f"{name} is {before[0]} in {before[1]}, and {value} in {module.__name__}")

    def _names(self, reserved: set[str]) -> dict[str, str]:
        """A name for each function: its own without underscores, with its module before it where another thing has that."""
        names: dict[str, str] = {}
        for key in self.trees:
            module, _, name = key.partition(":")
            plain, folder = name.strip("_"), module.split(".")[-2:]
            wishes = [plain, *(f"{item}_{plain}" for item in reversed(folder)), f"{'_'.join(folder)}_{plain}"]
            names[key] = next(item for item in wishes if item not in reserved and item not in self.locals)
            reserved.add(names[key])
        return names

    def call(self, key: str, values_by_name: Mapping[str, Any], text: Callable[[Any], str]) -> str:
        """A call of a function, as it is written in the file. values_by_name: its arguments."""
        arguments, facts = self.function(key).tree.args, self.facts[key]
        if key in self.short:
            values = {name: ast.parse(text(value), mode="eval").body for name, value in values_by_name.items()}
            return ast.unparse(with_arguments(self.short[key], values))
        words = []
        defaults = dict(zip(reversed([item.arg for item in arguments.args]), reversed(arguments.defaults), strict=False))
        skipped = False
        for item in arguments.args:
            if is_written_out(facts.get(item.arg)):
                continue
            value = text(values_by_name[item.arg])
            if item.arg in defaults and ast.unparse(defaults[item.arg]) == value:
                skipped = True
                continue
            words.append(f"{item.arg}={value}" if skipped else value)
        if arguments.vararg is not None:
            words += [text(item) for item in values_by_name[arguments.vararg.arg]]
        written = [item.arg for item in arguments.kwonlyargs if not is_written_out(facts.get(item.arg))]
        words += [f"{name}={text(values_by_name[name])}" for name in written]
        return f"{self.names[key]}({', '.join(words)})"


_FOLDED: dict[tuple[str, str, frozenset[str]], tuple[ast.FunctionDef, dict[str, ArgumentFact]]] = {}
"""Functions that have been folded, by their names and the facts. Nobody writes into them."""


def _fold_once(function: Function, facts: Facts, unread: frozenset[str]) -> tuple[ast.FunctionDef, dict[str, ArgumentFact]]:
    key = function.key, repr(sorted((name, repr(fact)) for name, fact in facts.items())), unread
    if key not in _FOLDED:
        _FOLDED[key] = fold(_without_fields(function, unread), {**facts, **dict(_facts_of_results(function))})
    return _FOLDED[key]


def _facts_of_results(function: Function) -> Iterator[tuple[str, ArgumentFact]]:
    """The functions that a function names and that never return None, by their annotations."""
    for node in ast.walk(function.tree):
        meant = meant_by(function.module, node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and isinstance(meant, FunctionType):
            returns = Function(key_of(meant)).tree.returns
            if returns is not None and "None" not in ast.unparse(returns):
                yield f"{node.id}()", NotNone()


def _without_fields(function: Function, unread: frozenset[str]) -> ast.FunctionDef:
    """The function, with dataclasses made without fields that nothing reads."""
    if not unread:
        return function.tree
    tree = copy.deepcopy(function.tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            cls = meant_by(function.module, node.func.id)
            if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                node.keywords = [keyword for keyword in node.keywords if keyword.arg not in unread]
    return tree


def _short_expression(tree: ast.FunctionDef, original: ast.FunctionDef) -> ast.expr | None:
    """Return the expression that replaces a call of a function; None if a call is clearer.

    A function that returns an argument or a number has no content. One method or index of an argument is written out where the
    function was longer and lost its branches.
    """
    body = [statement for statement in tree.body if not _is_docstring(statement)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return None
    value, names = body[0].value, [argument.arg for argument in tree.args.args]
    if isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in names):
        return value
    inner = value.func if isinstance(value, ast.Call) else value
    inner = inner.value if isinstance(inner, ast.Attribute | ast.Subscript) else None
    names_read = [node for node in ast.walk(value) if isinstance(node, ast.Name)]
    was_longer = len(original.body) > len(tree.body) or ast.dump(original.body[-1]) != ast.dump(tree.body[-1])
    is_short = isinstance(inner, ast.Name) and inner.id in names and len(names_read) == 1
    return value if is_short and was_longer else None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def with_arguments(expression: ast.AST, values: Mapping[str, ast.expr]) -> Any:
    """An expression or a statement with values in the place of names."""

    class Replaced(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return values.get(node.id, node)

    return Replaced().visit(copy.deepcopy(expression))


def meant_by(module: ModuleType, name: str) -> Any:
    """The function, class or number of ``blocks`` that a name of a module means; None for anything else."""
    result = vars(module).get(name)
    if callable(result):
        result = inspect.unwrap(result)
    if isinstance(result, FunctionType):
        return result if result.__module__.startswith("blocks.") and result.__name__ not in WRITTEN_OTHERWISE else None
    if isinstance(result, type):
        return result if result.__module__.startswith("blocks.") else None
    return result if isinstance(result, int | float | str | tuple) else None


def own_names(tree: ast.FunctionDef) -> set[str]:
    """The parameters and variables of a function, and the functions in it."""
    names: set[str] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.arg):
            names.add(item.arg)
        elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            names.add(item.id)
        elif isinstance(item, ast.FunctionDef) and item is not tree:
            names.add(item.name)
    return names


def key_of(function: FunctionType) -> str:
    """The name of a function with its module."""
    return f"{function.__module__}:{function.__name__}"
