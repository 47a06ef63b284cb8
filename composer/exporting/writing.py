"""The functions and classes of ``blocks`` that a file needs, as text."""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from composer.errors import ExportError
from composer.exporting.folding import REWRITTEN, NotNone
from composer.exporting.functions import (
    Function,
    Functions,
    definition,
    is_written_out,
    key_of,
    meant_by,
    own_names,
    syntax,
    with_arguments,
)
from composer.exporting.wrapping import WIDTH, wrap

SHAPED = re.compile(r"(?:Float|Int|Bool|Shaped)\[Tensor, *['\"]([^'\"]*)['\"]\]")


def class_texts(functions: Functions) -> Iterator[str]:
    """Yield the dataclasses of ``blocks`` that the functions use, with the shapes of their fields as comments."""
    for cls in functions.classes.values():
        module = sys.modules[cls.__module__]
        node = definition(module, cls.__name__)
        if not dataclasses.is_dataclass(cls) or not isinstance(node, ast.ClassDef):
            raise ExportError(f"{cls.__module__}.{cls.__name__} is not a dataclass, so it cannot be written to the file")
        text, _ = syntax(module.__file__ or "")
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        names = {key.partition(":")[2]: name for key, name in functions.names.items() if key.startswith(f"{module.__name__}:")}
        rows = [_class_line(line, names) for line in text.splitlines()[first - 1 : node.end_lineno]]
        docstring = node.body[0]
        assert isinstance(docstring, ast.Expr), "every dataclass of blocks has a docstring"
        last = docstring.end_lineno or docstring.lineno
        shortened = f'    """{_first_sentences(ast.literal_eval(docstring.value))}"""'
        fields = [row for row in rows[last - first + 1 :] if row.strip().partition(":")[0] not in functions.unread]
        yield "\n".join([*rows[: docstring.lineno - first], shortened, *fields])


def _class_line(line: str, names: Mapping[str, str]) -> str:
    """Return a line of a class. names: of the functions that it may call, in the file."""
    shapes = [item.strip() for item in SHAPED.findall(line)]
    plain = SHAPED.sub("Tensor", line).replace("Tensor | Tensor", "Tensor")
    plain = re.sub(r"\baccumulating\([^()]*\)", REWRITTEN["accumulating"], plain)
    for before, after in names.items():
        plain = re.sub(rf"(?<![\w.]){before}\(", f"{after}(", plain)
    return f"{plain}  # {' or '.join(shapes)}" if shapes and not plain.strip().startswith("def ") else plain


def function_texts(functions: Functions) -> Iterator[str]:
    """Yield the text of each function, after those that call it."""
    for key, tree in functions.trees.items():
        if key not in functions.short:
            yield _text(functions, functions.function(key), tree)


def _text(functions: Functions, function: Function, tree: ast.FunctionDef) -> str:
    renamed = _Renamed(functions, function)
    body = [item for statement in copy.deepcopy(tree).body if (item := renamed.visit(statement)) is not None]
    body = _without_aliases(body, functions.names.values())
    text, _ = syntax(function.module.__file__ or "")
    is_specialised = any(is_written_out(fact) for fact in functions.facts[function.key].values())
    lines = [*_head(functions, function, tree)]
    originals = {ast.dump(item): item for item in ast.walk(function.tree) if isinstance(item, ast.stmt)}
    for index, statement in enumerate(body):
        if index == 0 and is_specialised and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            gone = [name for name, fact in functions.facts[function.key].items() if is_written_out(fact)]
            lines.append(f'    """{_first_sentences(str(statement.value.value), gone)}"""')
        else:
            lines += _statement(statement, originals, text.splitlines(), 4)
    return "\n".join(lines)


def _without_aliases(body: list[ast.stmt], functions: Collection[str]) -> list[ast.stmt]:
    """Return the statements without variables that are another name of a function. functions: the names of functions."""
    stored = Counter(
        node.id for item in body for node in ast.walk(item) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    aliases: dict[str, ast.expr] = {
        item.targets[0].id: item.value
        for item in body
        if isinstance(item, ast.Assign)
        and isinstance(item.targets[0], ast.Name)
        and isinstance(item.value, ast.Name)
        and item.value.id in functions
        and stored[item.targets[0].id] == 1
    }
    statements = [item for item in body if not (isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) in aliases)]
    return [with_arguments(item, aliases) for item in statements] if aliases else body


def _head(functions: Functions, function: Function, tree: ast.FunctionDef) -> Iterator[str]:
    arguments, facts, rows = tree.args, functions.facts[function.key], list[tuple[str, str]]()
    positional = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    defaults = {item.arg: default for item, default in positional}
    defaults |= {item.arg: default for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default}
    starred = arguments.vararg is not None
    for item in function.parameters:
        if is_written_out(facts.get(item.arg)):
            continue
        if item in function.tree.args.kwonlyargs and not starred:
            rows.append(("*", ""))
            starred = True
        fact = facts.get(item.arg)
        plain, shape = annotation(item.annotation, fact.rank if isinstance(fact, NotNone) else None)
        if isinstance(fact, NotNone):
            plain = plain.replace(" | None", "")
        star = "*" if function.tree.args.vararg is item else ""
        default = f" = {ast.unparse(defaults[item.arg])}" if item.arg in defaults else ""
        if default == " = None" and isinstance(fact, NotNone) and not any(" = " in row for row, _ in rows):
            default = ""
        rows.append((f"{star}{item.arg}: {plain}{default}", shape))
    plain, shape = annotation(tree.returns)
    line = f"def {functions.names[function.key]}({', '.join(row for row, _ in rows)}) -> {plain}:"
    comment = ", ".join(comment for _, comment in rows if comment) + (f" -> {shape}" if shape else "")
    shapes = f"  # {comment.strip()}" if comment else ""
    if len(line) + len(shapes) <= WIDTH:
        yield line + shapes
        return
    for index in reversed(range(1, len(rows))):
        if not rows[index][1] and not rows[index - 1][1]:  # parameters without a shape share a line
            rows[index - 1 : index + 1] = [(f"{rows[index - 1][0]}, {rows[index][0]}", "")]
    width = max((len(row) for row, comment in rows if comment), default=0) + 1
    yield f"def {functions.names[function.key]}("
    yield from (f"    {f'{row},':<{width}}  # {comment}".rstrip(" #") for row, comment in rows)
    yield f") -> {plain}:" + (f"  # {shape}" if shape else "")


def annotation(node: ast.expr | None, rank: int | None = None) -> tuple[str, str]:
    """Return an annotation without shapes, and the shapes. rank: the dimensions of the tensor, if all calls have the same."""
    text = "None" if node is None else ast.unparse(node)
    shapes = [shape.strip() for shape in SHAPED.findall(text)]
    fitting = [shape for shape in shapes if rank is None or "..." in shape or "*" in shape or len(shape.split()) == rank]
    plain = re.sub(r"\bRingSlot\b", "Tensor", SHAPED.sub("Tensor", text))
    joined = ", ".join(shapes) if text.startswith("tuple[") else " or ".join(dict.fromkeys(fitting or shapes))
    return " | ".join(dict.fromkeys(plain.split(" | "))), joined


def _first_sentences(docstring: str, gone: Sequence[str] = ()) -> str:
    """Return the first paragraph of a docstring, without sentences on arguments that are gone."""
    text = re.sub(r"\s+", " ", docstring.strip().split("\n\n")[0])
    for name in gone:
        text = re.sub(rf"\s*\b{re.escape(name)}: [^.]*\.", "", text)
    return text


def _statement(node: ast.stmt, originals: Mapping[str, ast.stmt], lines: list[str], indent: int) -> list[str]:
    """Return a statement: as in the source, comments included, if nothing was folded in it."""
    original = originals.get(ast.dump(node))
    space = " " * indent
    if original is not None:
        first = original.lineno
        while lines[first - 2].strip().startswith("#") and lines[first - 2].startswith(" " * original.col_offset):
            first -= 1
        branch = lines[first - 1 : original.end_lineno]
        if branch[0].lstrip().startswith("elif "):  # the branches before it are gone
            branch[0] = branch[0].replace("elif ", "if ", 1)
        return [space + line[original.col_offset :] if line.strip() else "" for line in branch]
    if isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.FunctionDef):
        inner = [line for item in node.body for line in _statement(item, originals, lines, indent + 4)]
        bare = ast.unparse(ast.fix_missing_locations(_without_body(node)))
        head = wrap(space + bare.splitlines()[-2 if isinstance(node, ast.FunctionDef) else 0])
        if isinstance(node, ast.FunctionDef):
            head = [space + SHAPED.sub("Tensor", bare.splitlines()[0])]
        below = [line for item in getattr(node, "orelse", []) for line in _statement(item, originals, lines, indent + 4)]
        return [*head, *inner, *([f"{space}else:", *below] if below else [])]
    return wrap(space + _bare_tuples(ast.unparse(ast.fix_missing_locations(node))))


def _without_body(node: Any) -> Any:
    emptied = type(node)(**dict(ast.iter_fields(node)))
    emptied.body = [ast.Pass()]
    if hasattr(emptied, "orelse"):
        emptied.orelse = []
    return emptied


def _bare_tuples(line: str) -> str:
    """An assignment or a return of a tuple, without the parentheses around it."""
    result = re.fullmatch(r"((?:return)|(?:.* =)) \((.*)\)", line)
    if result is None:
        return line
    bare = f"{result[1]} {result[2]}"
    try:
        same = ast.dump(ast.parse(bare)) == ast.dump(ast.parse(line))
    except SyntaxError:
        return line
    return bare if same else line


class _Renamed(ast.NodeTransformer):
    """Calls of other functions of the file by their names there, without the arguments that are gone."""

    def __init__(self, functions: Functions, function: Function) -> None:
        self.functions, self.function, self.local_names = functions, function, own_names(function.tree)

    def _key(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Name) or node.id in self.local_names:
            return None
        meant = meant_by(self.function.module, node.id)
        return key_of(meant) if isinstance(meant, FunctionType) and key_of(meant) in self.functions.names else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        key = self._key(node) if isinstance(node.ctx, ast.Load) else None
        return node if key is None else ast.copy_location(ast.Name(self.functions.names[key], node.ctx), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        return None if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (key := self._key(node.func)) in self.functions.short:
            names = [argument.arg for argument in Function(key or "").tree.args.args]
            values = dict(zip(names, (self.visit(value) for value in node.args), strict=False))
            values |= {keyword.arg: self.visit(keyword.value) for keyword in node.keywords if keyword.arg}
            return with_arguments(self.functions.short[key or ""], values)
        if ast.unparse(node.func) == "partial" and (key := self._key(node.args[0])) is not None:
            args, keywords = self._left_arguments(key, node.args[1:], node.keywords)
            name = self.visit(node.args[0])
            if not args and not keywords:
                return name
            return self.generic_visit(ast.copy_location(ast.Call(node.func, [name, *args], keywords), node))
        if (key := self._key(node.func)) is not None:
            args, keywords = self._left_arguments(key, node.args, node.keywords)
            node = ast.copy_location(ast.Call(node.func, args, keywords), node)
        return self.generic_visit(node)

    def _left_arguments(
        self, key: str, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> tuple[list[ast.expr], list[ast.keyword]]:
        facts, names = self.functions.facts[key], [item.arg for item in Function(key).tree.args.args]
        values = [value for name, value in zip(names, args, strict=False) if not is_written_out(facts.get(name))]
        return [*values, *args[len(names) :]], [item for item in keywords if not is_written_out(facts.get(item.arg or ""))]
