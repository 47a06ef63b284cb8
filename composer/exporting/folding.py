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
    """An argument that is never None. rank: of the tensor that it is; None: not the same in all calls, or no tensor."""

    rank: int | None = None


ArgumentFact = Known | NotNone
NO_NUMBERS = {"may_look": False, "derives_by_hand": False, "has_numbers": False, "all_present": False}
"""Functions that say whether Python may read numbers. The file never does."""
ALWAYS = {"torch.is_grad_enabled()": True}
NOTHING = "repeat(None)"
"""What a loop runs over beside others, for a variable that is always None."""
REWRITTEN = {
    "accumulating": "torch.float32",
    "settled": "{0}",
    "as_dtype": "{0}.to({1})",
    "least_mass": "1e8 * torch.finfo({0}).tiny",
}
"""Small functions, by what stands for a call of them."""


def joined(facts: Iterable[ArgumentFact | None]) -> ArgumentFact | None:
    """What is true of an argument in all of these calls; None: nothing."""
    facts = list(facts)
    first = facts[0]
    if any(fact is None or fact == Known(None) for fact in facts):
        return first if all(fact == first for fact in facts) else None
    if all(fact == first and _typed(fact) == _typed(first) for fact in facts):
        return first
    return NotNone()


def _typed(fact: ArgumentFact | None) -> Any:
    """True and 1 are equal, and not the same constant."""
    return type(fact.value) if isinstance(fact, Known) else None


def fact_of(node: ast.expr, facts: Mapping[str, ArgumentFact]) -> ArgumentFact | None:
    """What is known of an argument, as it is written in a call."""
    if isinstance(node, ast.Constant):
        return Known(node.value)
    if isinstance(node, ast.Name):
        return facts.get(node.id)
    if isinstance(node, ast.BinOp | ast.Tuple | ast.List):
        return NotNone()
    if isinstance(node, ast.Subscript | ast.Attribute):
        return NotNone() if fact_of(node.value, facts) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return NotNone() if fact_of(node.func.value, facts) or ast.unparse(node.func.value) == "torch" else None
    return None


def folded(function: ast.FunctionDef, facts: Mapping[str, ArgumentFact]) -> ast.FunctionDef:
    """The function with these facts about its parameters."""
    tree = copy.deepcopy(function)
    while True:
        before = ast.dump(tree)
        assigned = Counter(one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
        known = {name: fact for name, fact in facts.items() if name not in assigned}
        parameters = {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
        once = {name for name, count in assigned.items() if count == 1 and name not in parameters}
        fold = _Fold(known, once)
        tree.body = fold.block(tree.body)
        _Unused(tree).drop()
        if ast.dump(tree) == before:
            return ast.fix_missing_locations(tree)


class _Fold(ast.NodeTransformer):
    """facts: about names; once: variables with one assignment, which may turn out to be constants."""

    def __init__(self, facts: Mapping[str, ArgumentFact], once: set[str]) -> None:
        self.facts, self.once = dict(facts), once
        self.endless: set[str] = set()
        """Variables that hold ``repeat(None)``."""

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, up to the first that always returns."""
        out: list[ast.stmt] = []
        for statement in body:
            found = self.visit(statement)
            out += [] if found is None else found if isinstance(found, list) else [found]
            if out and isinstance(out[-1], ast.Return | ast.Raise):
                break
        return out

    def visit_Name(self, node: ast.Name) -> ast.expr:
        fact = self.facts.get(node.id)
        if isinstance(node.ctx, ast.Load) and isinstance(fact, Known) and isinstance(fact.value, bool | str | None):
            return ast.copy_location(ast.Constant(fact.value), node)
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
            arguments = [ast.unparse(self.visit(one)) for one in node.args]
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
        left, right, how = node.left, node.comparators[0], type(node.ops[0])
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            answers = {ast.Is: left.value is right.value, ast.IsNot: left.value is not right.value,
                       ast.Eq: left.value == right.value, ast.NotEq: left.value != right.value}  # fmt: skip
            if how in answers:
                return ast.copy_location(ast.Constant(answers[how]), node)
        if how in (ast.Is, ast.IsNot) and isinstance(right, ast.Constant) and right.value is None and fact_of(left, self.facts):
            return ast.copy_location(ast.Constant(how is ast.IsNot), node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.copy_location(ast.Constant(not node.operand.value), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        kept: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                if bool(value.value) != decides:
                    continue
                # What stands before it has no effect beside its value.
                kept = [value] if isinstance(value.value, bool) else [*kept, value]
                break
            kept.append(value)
        if not kept:
            return node.values[-1]
        return kept[0] if len(kept) == 1 else ast.copy_location(ast.BoolOp(node.op, kept), node)

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
        for target, run in _zipped(node):
            if isinstance(target, ast.Name) and ast.unparse(run) == NOTHING and target.id in self.once:
                self.facts[target.id] = Known(None)
            elif isinstance(target, ast.Name) and target.id in self.once:
                self.facts[target.id] = NotNone()
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
            return _assigned(both, node)
        return node

    def _is_constant(self, target: ast.Name, value: ast.expr) -> bool:
        """Whether an assignment says nothing: of a variable to itself, or of a constant that its readers have by now."""
        if isinstance(value, ast.Name) and value.id == target.id:
            return True
        if isinstance(value, ast.Constant) and target.id in self.once and (value.value is None or isinstance(value.value, bool)):
            self.facts[target.id] = Known(value.value)
        elif target.id in self.once and ast.unparse(value) == NOTHING:
            self.endless.add(target.id)
        elif target.id in self.once and (fact := fact_of(value, self.facts)) is not None and not isinstance(fact, Known):
            self.facts[target.id] = fact
        return False


def _assigned(both: list[tuple[ast.expr, ast.expr]], like: ast.Assign) -> ast.Assign | None:
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
            self.read = {one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
            self.tree.body = [kept for one in self.tree.body if (kept := self.visit(one)) is not None]
            if ast.dump(self.tree) == before:
                return

    def _is_read(self, target: ast.expr) -> bool:
        return not (isinstance(target, ast.Name) and target.id not in self.read)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            pairs = zip(target.elts, node.value.elts, strict=True)
            kept = [(left, right) for left, right in pairs if self._is_read(left)]
            return node if len(kept) == len(target.elts) else _assigned(kept, node)
        return node if self._is_read(target) else None

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        both = _zipped(node)
        kept = [(target, run) for target, run in both if self._is_read(target)]
        if kept and len(kept) < len(both):
            assert isinstance(node.iter, ast.Call)
            node.target = ast.Tuple([target for target, _ in kept], ast.Store())
            node.iter = ast.Call(node.iter.func, [run for _, run in kept], node.iter.keywords)
        return node


def _zipped(node: ast.For) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of a loop over a zip, each with what it runs over; empty for another loop."""
    run, target = node.iter, node.target
    if not (isinstance(run, ast.Call) and ast.unparse(run.func) == "zip" and isinstance(target, ast.Tuple)):
        return []
    if len(run.args) != len(target.elts) or any(isinstance(one, ast.Starred) for one in (*run.args, *target.elts)):
        return []
    return list(zip(target.elts, run.args, strict=True))
