"""A function's syntax tree without what cannot happen: branches that are decided by what all its calls have in common."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Known:
    """An argument that is the same in all calls."""

    value: Any


@dataclass(frozen=True)
class NotNone:
    """An argument that is never None. rank: of the tensor that it is; None: not the same in all calls, or no tensor. item_rank: of
    the tensors that it is a tuple of."""

    rank: int | None = None
    item_rank: int | None = None


ArgumentFact = Known | NotNone
NO_NUMBERS = {"may_read_numbers": False, "derives_by_hand": False, "has_numbers": False, "all_present": False, "block_of": 1}
"""Functions that read numbers of tensors, and what they return where Python may not read them, as in an exported file."""
ALWAYS = {"torch.is_grad_enabled()": True}
NOTHING = "repeat(None)"
"""What a loop runs over beside others, for a variable that is always None."""
REWRITTEN = {
    "accumulating": "torch.promote_types({0}, torch.float32)",
    "as_dtype": "({0}).to({1})",
    "least_mass": "1e8 * torch.finfo({0}).tiny",
}
"""Small functions, with the expression that replaces a call."""


def is_written_out(fact: ArgumentFact | None) -> bool:
    """Whether an argument is the same in all calls, and a function of the file has its value in place of a parameter. Sizes stay
    parameters, but 1."""
    if not isinstance(fact, Known):
        return False
    return isinstance(fact.value, bool | str | None) or (type(fact.value) is int and fact.value == 1)


def join_facts(facts: Iterable[ArgumentFact | None]) -> ArgumentFact | None:
    """Return the fact that holds for an argument in all of these calls; None if there is none."""
    facts = list(facts)
    first = facts[0]
    if any(fact is None or fact == Known(None) for fact in facts):
        return first if all(fact == first for fact in facts) else None
    if all(fact == first and _with_type(fact) == _with_type(first) for fact in facts):
        return first
    return NotNone()


def _with_type(fact: ArgumentFact | None) -> Any:
    """Return the type of a known value: True and 1 are equal, and different constants."""
    return type(fact.value) if isinstance(fact, Known) else None


def fact_of(node: ast.expr, facts: Mapping[str, ArgumentFact]) -> ArgumentFact | None:
    """Return the fact that follows from an argument as it is written in a call."""
    if isinstance(node, ast.Constant):
        return Known(node.value)
    if isinstance(node, ast.Name):
        return facts.get(node.id)
    is_of_tensor = isinstance(node, ast.Attribute) and node.attr in ("mT", "T", "shape", "dtype", "device")
    if is_of_tensor or isinstance(node, ast.BinOp | ast.Tuple | ast.List):
        return NotNone()
    if isinstance(node, ast.Subscript | ast.Attribute):
        return NotNone() if fact_of(node.value, facts) else None
    return _fact_of_call(node.func, facts) if isinstance(node, ast.Call) else None


def _fact_of_call(method: ast.expr, facts: Mapping[str, ArgumentFact]) -> ArgumentFact | None:
    """Return the fact about the result of a function, or of a method of a tensor."""
    if not isinstance(method, ast.Attribute):
        return facts.get(f"{ast.unparse(method)}()")
    tensor = fact_of(method.value, facts)
    if method.attr in ("split", "chunk") and isinstance(tensor, NotNone):
        return NotNone(item_rank=tensor.rank)
    return NotNone() if tensor or ast.unparse(method.value) == "torch" else None


def fold(function: ast.FunctionDef, facts: Mapping[str, ArgumentFact]) -> tuple[ast.FunctionDef, dict[str, ArgumentFact]]:
    """Return the function with these facts about its parameters, and the facts about its parameters and variables.

    A fact about ``name()`` is one about the result of the function of that name.
    """
    tree = copy.deepcopy(function)
    while True:
        before = ast.dump(tree)
        assigned = Counter(item.id for item in ast.walk(tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store))
        inner_facts = {name: fact for name, fact in facts.items() if name not in assigned}
        parameters = {item.arg for item in ast.walk(tree) if isinstance(item, ast.arg)}
        once = {name for name, count in assigned.items() if count == 1 and name not in parameters}
        read = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name)}
        fold = _Fold(inner_facts, once, once | ((parameters | read) - assigned.keys()))
        tree.body = fold.block(tree.body)
        _Unused(tree).drop()
        if ast.dump(tree) == before:
            return ast.fix_missing_locations(tree), fold.facts


class _Fold(ast.NodeTransformer):
    """facts: about names; once: variables with one assignment, which may turn out to be constants; fixed: names that keep their
    values."""

    def __init__(self, facts: Mapping[str, ArgumentFact], once: set[str], fixed: set[str]) -> None:
        self.facts, self.once, self.fixed = dict(facts), once, fixed
        self.aliases: dict[str, str] = {}
        """Variables that are other names of a name that keeps its value."""
        self.endless: set[str] = set()
        """Variables that hold ``repeat(None)``."""

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements up to the first that always returns."""
        out: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            out += [] if result is None else result if isinstance(result, list) else [result]
            if out and isinstance(out[-1], ast.Return | ast.Raise):
                break
        return out

    def visit_Name(self, node: ast.Name) -> ast.expr:
        fact = self.facts.get(node.id)
        is_local = node.id in self.once and isinstance(fact, Known) and isinstance(fact.value, int)
        if isinstance(node.ctx, ast.Load) and isinstance(fact, Known) and (is_local or is_written_out(fact)):
            return ast.copy_location(ast.Constant(fact.value), node)
        if node.id in self.aliases and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Name(self.aliases[node.id], node.ctx), node)
        if node.id in self.endless and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.parse(NOTHING, mode="eval").body, node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        text = ast.unparse(node)
        if text in ALWAYS:
            return ast.copy_location(ast.Constant(ALWAYS[text]), node)
        if isinstance(node.func, ast.Name) and node.func.id in NO_NUMBERS:
            return ast.copy_location(ast.Constant(NO_NUMBERS[node.func.id]), node)
        if isinstance(node.func, ast.Name) and node.func.id in REWRITTEN:
            arguments = [ast.unparse(self.visit(item)) for item in node.args]
            written = REWRITTEN[node.func.id].format(*arguments)
            return ast.copy_location(ast.parse(written, mode="eval").body, node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "dim" and isinstance(node.func.value, ast.Name):
            fact = self.facts.get(node.func.value.id)
            if isinstance(fact, NotNone) and fact.rank is not None:
                return ast.copy_location(ast.Constant(fact.rank), node)
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "partial" and len(node.args) == 1 and not node.keywords:
            return node.args[0]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        left, right, operator = node.left, node.comparators[0], type(node.ops[0])
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            results = {ast.Is: left.value is right.value, ast.IsNot: left.value is not right.value,
                       ast.Eq: left.value == right.value, ast.NotEq: left.value != right.value}  # fmt: skip
            if operator in results:
                return ast.copy_location(ast.Constant(results[operator]), node)
        if (
            operator in (ast.Is, ast.IsNot)
            and isinstance(right, ast.Constant)
            and right.value is None
            and fact_of(left, self.facts)
        ):
            return ast.copy_location(ast.Constant(operator is ast.IsNot), node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.copy_location(ast.Constant(not node.operand.value), node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant) and node.right.value == 1:
            return node.left
        if isinstance(node.op, ast.FloorDiv) and isinstance(product := node.left, ast.BinOp) and isinstance(product.op, ast.Mult):
            return product.left if _is_same(product.right, node.right) else node
        left, right = (side.value if isinstance(side, ast.Constant) else None for side in (node.left, node.right))
        if isinstance(left, int) and isinstance(right, int) and isinstance(node.op, ast.Sub):
            return ast.copy_location(ast.Constant(left - right), node)
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.Slice:
        self.generic_visit(node)
        lower = node.lower
        if isinstance(lower, ast.BinOp) and isinstance(lower.op, ast.Sub) and _is_same(lower.left, lower.right):
            node.lower = None
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        is_whole = all(isinstance(item, ast.Slice) and not (item.lower or item.upper or item.step) for item in indices)
        return node.value if is_whole and isinstance(node.ctx, ast.Load) else node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                if bool(value.value) != decides:
                    continue
                # The operands before it have no effect beside their values.
                values = [value] if isinstance(value.value, bool) else [*values, value]
                break
            values.append(value)
        if not values:
            return node.values[-1]
        return values[0] if len(values) == 1 else ast.copy_location(ast.BoolOp(node.op, values), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.copy_location(ast.IfExp(test, self.visit(node.body), self.visit(node.orelse)), node)

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.block(node.body if test.value else node.orelse)
        return ast.copy_location(ast.If(test, self.block(node.body) or [ast.Pass()], self.block(node.orelse)), node)

    def visit_For(self, node: ast.For) -> ast.For:
        node.iter = self.visit(node.iter)
        for target, run in _unzip(node):
            if isinstance(target, ast.Name) and ast.unparse(run) == NOTHING and target.id in self.once:
                self.facts[target.id] = Known(None)
            elif isinstance(target, ast.Name) and target.id in self.once:
                fact = fact_of(run, self.facts)
                if isinstance(fact, NotNone) and fact.item_rank is not None:
                    self.facts[target.id] = NotNone(fact.item_rank)
        node.body = self.block(node.body)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        node.test, node.body = self.visit(node.test), self.block(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = self.block(node.body)
        return node

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Name):
            return None if self._is_constant(target, node.value) else node
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            both = [
                (left, right)
                for left, right in zip(target.elts, node.value.elts, strict=True)
                if not (isinstance(left, ast.Name) and self._is_constant(left, right))
            ]
            return _assign(both, node)
        return node

    def _is_constant(self, target: ast.Name, value: ast.expr) -> bool:
        """Whether an assignment has no effect: of a variable to itself, or of a constant that its readers already contain."""
        if isinstance(value, ast.Name) and value.id == target.id:
            return True
        if isinstance(value, ast.Name) and target.id in self.once and value.id in self.fixed:
            self.aliases[target.id] = self.aliases.get(value.id, value.id)
            return True
        if isinstance(value, ast.Constant) and target.id in self.once and isinstance(value.value, int | None):
            self.facts[target.id] = Known(value.value)
        elif target.id in self.once and ast.unparse(value) == NOTHING:
            self.endless.add(target.id)
        elif target.id in self.once and (fact := fact_of(value, self.facts)) is not None and not isinstance(fact, Known):
            self.facts[target.id] = fact
        return False


def _is_same(item: ast.expr, other: ast.expr) -> bool:
    """Whether both are the same variable."""
    return isinstance(item, ast.Name) and isinstance(other, ast.Name) and item.id == other.id


def _assign(both: list[tuple[ast.expr, ast.expr]], like: ast.Assign) -> ast.Assign | None:
    """The assignment of some values to some targets."""
    if not both:
        return None
    if len(both) == 1:
        return ast.copy_location(ast.Assign([both[0][0]], both[0][1]), like)
    targets = ast.Tuple([left for left, _ in both], ast.Store())
    return ast.copy_location(ast.Assign([targets], ast.Tuple([right for _, right in both], ast.Load())), like)


class _Unused(ast.NodeTransformer):
    """Drops assignments to variables that nothing reads, and loop variables of a zip with what they run over."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree

    def drop(self) -> None:
        """Drop them all."""
        while True:
            before = ast.dump(self.tree)
            self.read = {item.id for item in ast.walk(self.tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}
            self.tree.body = [statement for item in self.tree.body if (statement := self.visit(item)) is not None]
            if ast.dump(self.tree) == before:
                return

    def _is_read(self, target: ast.expr) -> bool:
        return not (isinstance(target, ast.Name) and target.id not in self.read)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            pairs = zip(target.elts, node.value.elts, strict=True)
            read_pairs = [(left, right) for left, right in pairs if self._is_read(left)]
            return node if len(read_pairs) == len(target.elts) else _assign(read_pairs, node)
        return node if self._is_read(target) else None

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        both = _unzip(node)
        read_pairs = [(target, run) for target, run in both if self._is_read(target)]
        if read_pairs and len(read_pairs) < len(both):
            assert isinstance(node.iter, ast.Call)
            node.target = ast.Tuple([target for target, _ in read_pairs], ast.Store())
            node.iter = ast.Call(node.iter.func, [run for _, run in read_pairs], node.iter.keywords)
        return node


def _unzip(node: ast.For) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of a loop over a zip, each with its iterable; nothing for another loop."""
    run, target = node.iter, node.target
    if not (isinstance(run, ast.Call) and ast.unparse(run.func) == "zip" and isinstance(target, ast.Tuple)):
        return []
    if len(run.args) != len(target.elts) or any(isinstance(item, ast.Starred) for item in (*run.args, *target.elts)):
        return []
    return list(zip(target.elts, run.args, strict=True))
