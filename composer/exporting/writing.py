"""The functions and classes of ``blocks`` that a file needs, as text."""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from composer.errors import ExportError
from composer.exporting.folding import REWRITTEN, NotNone
from composer.exporting.functions import Function, Functions, is_gone, key_of, meant_by, own_names
from composer.exporting.source import definition, syntax
from composer.exporting.wrapping import WIDTH, wrapped

SHAPED = re.compile(r"(?:Float|Int|Bool|Shaped)\[Tensor, *['\"]([^'\"]*)['\"]\]")


def class_texts(functions: Functions) -> Iterator[str]:
    """The dataclasses of ``blocks`` that the functions use, with the shapes of their fields as comments."""
    for cls in functions.classes.values():
        module = sys.modules[cls.__module__]
        node = definition(module, cls.__name__)
        if not dataclasses.is_dataclass(cls) or not isinstance(node, ast.ClassDef):
            raise ExportError(f"{cls.__module__}.{cls.__name__} is not a dataclass, so it cannot be written to the file")
        text, _ = syntax(module.__file__ or "")
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        names = {key.partition(":")[2]: name for key, name in functions.names.items() if key.startswith(f"{module.__name__}:")}
        rows = [_class_line(line, names) for line in text.splitlines()[first - 1 : node.end_lineno]]
        docstring = node.body[0]
        assert isinstance(docstring, ast.Expr), "every dataclass of blocks has a docstring"
        last = docstring.end_lineno or docstring.lineno
        shortened = f'    """{_first_sentences(ast.literal_eval(docstring.value))}"""'
        yield "\n".join([*rows[: docstring.lineno - first], shortened, *rows[last - first + 1 :]])


def _class_line(line: str, names: Mapping[str, str]) -> str:
    """A line of a class. names: of the functions that it may call, in the file."""
    shapes = [one.strip() for one in SHAPED.findall(line)]
    plain = SHAPED.sub("Tensor", line).replace("Tensor | Tensor", "Tensor")
    plain = re.sub(r"\baccumulating\([^()]*\)", REWRITTEN["accumulating"], plain)
    for before, after in names.items():
        plain = re.sub(rf"(?<![\w.]){before}\(", f"{after}(", plain)
    return f"{plain}  # {' or '.join(shapes)}" if shapes and not plain.strip().startswith("def ") else plain


def function_texts(functions: Functions) -> Iterator[str]:
    """The text of each function, behind those that call it."""
    for key, tree in functions.trees.items():
        if key not in functions.same:
            yield _text(functions, functions.function(key), tree)


def _text(functions: Functions, function: Function, tree: ast.FunctionDef) -> str:
    renamed = _Renamed(functions, function)
    body = [renamed.visit(one) for one in copy.deepcopy(tree).body]
    text, _ = syntax(function.module.__file__ or "")
    whole = any(is_gone(fact) for fact in functions.facts[function.key].values())
    lines = [*_head(functions, function, tree)]
    originals = {ast.dump(one): one for one in ast.walk(function.tree) if isinstance(one, ast.stmt)}
    for index, statement in enumerate(body):
        if index == 0 and whole and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            lines.append(f'    """{_first_sentences(str(statement.value.value))}"""')
        else:
            lines += _statement(statement, originals, text.splitlines(), 4)
    return "\n".join(lines)


def _head(functions: Functions, function: Function, tree: ast.FunctionDef) -> Iterator[str]:
    arguments, facts, rows = tree.args, functions.facts[function.key], list[tuple[str, str]]()
    positional = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    defaults = {one.arg: default for one, default in positional}
    defaults |= {one.arg: default for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default}
    starred = arguments.vararg is not None
    for one in function.parameters:
        if is_gone(facts.get(one.arg)):
            continue
        if one in function.tree.args.kwonlyargs and not starred:
            rows.append(("*", ""))
            starred = True
        plain, shape = annotation(one.annotation)
        if isinstance(facts.get(one.arg), NotNone):
            plain = plain.replace(" | None", "")
        star = "*" if function.tree.args.vararg is one else ""
        default = f" = {ast.unparse(defaults[one.arg])}" if one.arg in defaults else ""
        rows.append((f"{star}{one.arg}: {plain}{default}", shape))
    plain, shape = annotation(tree.returns)
    line = f"def {functions.names[function.key]}({', '.join(row for row, _ in rows)}) -> {plain}:"
    shapes = (
        f"  # {', '.join(comment for _, comment in rows if comment)} -> {shape}"
        if shape or any(comment for _, comment in rows)
        else ""
    )
    if len(line) + len(shapes) <= WIDTH:
        yield line + shapes.replace("  #  -> ", "  # -> ")
        return
    width = max(len(row) for row, _ in rows) + 1
    yield f"def {functions.names[function.key]}("
    yield from (f"    {f'{row},':<{width}}  # {comment}".rstrip(" #") for row, comment in rows)
    yield f") -> {plain}:" + (f"  # {shape}" if shape else "")


def annotation(node: ast.expr | None) -> tuple[str, str]:
    """An annotation without shapes, and the shapes."""
    text = "None" if node is None else ast.unparse(node)
    shapes = dict.fromkeys(shape.strip() for shape in SHAPED.findall(text))
    plain = re.sub(r"\bRingSlot\b", "Tensor", SHAPED.sub("Tensor", text))
    return " | ".join(dict.fromkeys(plain.split(" | "))), " or ".join(shapes)


def _first_sentences(docstring: str) -> str:
    """The first paragraph, which says nothing of single arguments."""
    return re.sub(r"\s+", " ", docstring.strip().split("\n\n")[0])


def _statement(node: ast.stmt, originals: Mapping[str, ast.stmt], lines: list[str], indent: int) -> list[str]:
    """A statement: as it stands in the source, comments included, where nothing was folded in it."""
    original = originals.get(ast.dump(node))
    space = " " * indent
    if original is not None:
        first = original.lineno
        while lines[first - 2].strip().startswith("#") and lines[first - 2].startswith(" " * original.col_offset):
            first -= 1
        own = lines[first - 1 : original.end_lineno]
        return [space + line[original.col_offset :] if line.strip() else "" for line in own]
    if isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.FunctionDef):
        inner = [line for one in node.body for line in _statement(one, originals, lines, indent + 4)]
        bare = ast.unparse(ast.fix_missing_locations(_without_body(node)))
        head = wrapped(space + bare.splitlines()[-2 if isinstance(node, ast.FunctionDef) else 0])
        if isinstance(node, ast.FunctionDef):
            head = [space + SHAPED.sub("Tensor", bare.splitlines()[0])]
        below = [line for one in getattr(node, "orelse", []) for line in _statement(one, originals, lines, indent + 4)]
        return [*head, *inner, *([f"{space}else:", *below] if below else [])]
    return wrapped(space + _bare_tuples(ast.unparse(ast.fix_missing_locations(node))))


def _without_body(node: Any) -> Any:
    emptied = type(node)(**dict(ast.iter_fields(node)))
    emptied.body = [ast.Pass()]
    if hasattr(emptied, "orelse"):
        emptied.orelse = []
    return emptied


def _bare_tuples(line: str) -> str:
    """An assignment or a return of a tuple, without the parentheses around it."""
    found = re.fullmatch(r"((?:return)|(?:.* =)) \((.*)\)", line)
    if found is None:
        return line
    bare = f"{found[1]} {found[2]}"
    try:
        same = ast.dump(ast.parse(bare)) == ast.dump(ast.parse(line))
    except SyntaxError:
        return line
    return bare if same else line


class _Renamed(ast.NodeTransformer):
    """Calls of other functions of the file by their names there, without the arguments that are gone."""

    def __init__(self, functions: Functions, function: Function) -> None:
        self.functions, self.function, self.own = functions, function, own_names(function.tree)

    def _key(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Name) or node.id in self.own:
            return None
        meant = meant_by(self.function.module, node.id)
        return key_of(meant) if isinstance(meant, FunctionType) and key_of(meant) in self.functions.names else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        key = self._key(node) if isinstance(node.ctx, ast.Load) else None
        return node if key is None else ast.copy_location(ast.Name(self.functions.names[key], node.ctx), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (key := self._key(node.func)) in self.functions.same:
            return self.visit(node.args[self.functions.same[key or ""]])
        if ast.unparse(node.func) == "partial" and (key := self._key(node.args[0])) is not None:
            args, keywords = self._left(key, node.args[1:], node.keywords)
            name = self.visit(node.args[0])
            if not args and not keywords:
                return name
            return self.generic_visit(ast.copy_location(ast.Call(node.func, [name, *args], keywords), node))
        if (key := self._key(node.func)) is not None:
            args, keywords = self._left(key, node.args, node.keywords)
            node = ast.copy_location(ast.Call(node.func, args, keywords), node)
        return self.generic_visit(node)

    def _left(self, key: str, args: list[ast.expr], keywords: list[ast.keyword]) -> tuple[list[ast.expr], list[ast.keyword]]:
        facts, names = self.functions.facts[key], [one.arg for one in Function(key).tree.args.args]
        kept = [value for name, value in zip(names, args, strict=False) if not is_gone(facts.get(name))]
        return [*kept, *args[len(names) :]], [one for one in keywords if not is_gone(facts.get(one.arg or ""))]
