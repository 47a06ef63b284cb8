"""Nothing outside of `blocks` checks the class or the kind of a part: parts declare their properties."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from blocks.catalogue import CATALOGUE
from blocks.part import Part
from tests.test_house import ROOT, named, parts_defined


def concrete_parts() -> set[str]:
    """Return the classes of parts with a kind, and of parts without one that compute."""
    parts_defined()
    parts, waiting = set[str](), [Part]
    while waiting:
        part = waiting.pop()
        waiting += part.__subclasses__()
        if part.__module__.startswith("blocks.") and ("kind" in part.model_fields or not part.__subclasses__()):
            parts.add(part.__name__)
    return parts


def asked_kinds(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the places where a file checks the class of a value, and the class: isinstance, issubclass, type(…) is …, or match."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        nodes: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"isinstance", "issubclass"}:
            nodes = list(node.args[1:])
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and ast.unparse(node.left.func) == "type":
            nodes = list(node.comparators)
        if isinstance(node, ast.MatchClass):
            nodes = [node.cls]
        for name in (name for nodes in nodes for name in ast.walk(nodes)):
            own = not ast.unparse(name).startswith("ast.")  # a syntax tree's class may be called as a part is
            if isinstance(name, ast.Name | ast.Attribute) and own:
                yield node.lineno if hasattr(node, "lineno") else 0, ast.unparse(name).rpartition(".")[2]


def test_modules_outside_blocks_do_not_test_for_particular_parts() -> None:
    """The role of a part may be checked (a memory, a read), but not which part it is."""
    parts = concrete_parts()
    assert {"Window", "StateMemory", "Alone", "Entry", "Hedgehog"} <= parts
    assert not {"Part", "Memory", "Recurrent", "Read", "Gate", "Mixer", "FeatureMap", "Score"} & parts
    files = [path for folder in ("composer", "converters") for path in (ROOT / folder).rglob("*.py")]
    assert files
    asking = [f"{named(path)}:{line}: {name}" for path in files for line, name in asked_kinds(path) if name in parts]
    assert not asking


def test_the_part_test_finder_finds_every_kind_of_test(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "isinstance(a, A)\nisinstance(a, (b.B, C | D))\nissubclass(a, E)\ntype(a) is F\ntype(a) == type(b)\n"
        "match a:\n    case G(x=1):\n        isinstance(a, str)\nH(a)\nx is I\n"
    )
    assert {name for _, name in asked_kinds(path)} >= {"A", "B", "C", "D", "E", "F", "G", "str"}
    assert not {name for _, name in asked_kinds(path)} & {"H", "I"}


def compared_kinds(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the places where a file compares a value's ``kind`` with words, and the words."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(re.fullmatch(r"(.*\W)?kind|getattr\(.*'kind'.*\)", ast.unparse(side)) for side in sides):
                words = (node.value for side in sides for node in ast.walk(side) if isinstance(node, ast.Constant))
                yield from ((node.lineno, word) for word in words if isinstance(word, str) and word != "kind")


def test_modules_outside_blocks_do_not_compare_kinds_of_parts() -> None:
    """Stages, workloads and columns also have kinds, none of which is a part's."""
    kinds = {kind for parts in CATALOGUE.values() for kind in parts}
    files = [path for folder in ("composer", "converters") for path in (ROOT / folder).rglob("*.py")]
    comparisons = [(path, line, word) for path in files for line, word in compared_kinds(path)]
    assert comparisons
    assert not [f"{named(path)}:{line}: {word}" for path, line, word in comparisons if word in kinds]


def test_the_comparison_finder_finds_every_kind_of_comparison(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "a.kind == 'a'\n'b' != b.c.kind\nkind in ('c', 'd')\ngetattr(a, 'kind', 'e') == 'f'\n"
        "a.unkind == 'g'\na.kinds == 'h'\na['kind'] = 'i'\nx.kind is Kind.KEY\n"
    )
    assert {word for _, word in compared_kinds(path)} == {"a", "b", "c", "d", "e", "f"}
