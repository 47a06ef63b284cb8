"""Rules of names: each type has one, modules assign each once, and none is vague."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house import PACKAGES, ROOT, SOURCES, named


def names_assigned_twice(code: str) -> list[str]:
    """Return the names that a module assigns more than once at its top level."""
    nodes = [node for node in ast.parse(code).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = (target for node in nodes for target in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    names = (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    counts = Counter(name.id for name in names if isinstance(name.ctx, ast.Store))
    return [name for name, count in counts.items() if count > 1]


def test_modules_assign_each_name_once() -> None:
    """A second value would replace the first one in functions above it, too."""
    assert names_assigned_twice("A, B = 1, 2\nB: int = 3\nA.b = 4\nC = 5") == ["B"]
    assert not {named(path): names for path in SOURCES if (names := names_assigned_twice(path.read_text(encoding="utf-8")))}


LIBRARIES_CLASSES = {"Path", "Tensor", "Callable", "Mapping", "Sequence", "Iterator", "Iterable"}


def names_of_types(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the classes and type aliases at a module's top level, and whether each is a type variable, which has no meaning
    elsewhere.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, False
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
                made = node.value.func if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
                yield target.id, isinstance(made, ast.Name) and made.id in {"TypeVar", "ParamSpec"}


def test_type_names_are_unique() -> None:
    places: dict[str, set[str]] = {}
    variables: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for name, variable in names_of_types(path):
            if variable:
                variables.add(name)
            elif not name.startswith("_"):
                places.setdefault(name, set()).add(named(path))
    assert len(places) > 400
    assert {"Window", "SpecLike", "FieldPath"} <= set(places)
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not set(places) & variables
    assert not (set(places) | variables) & LIBRARIES_CLASSES


def test_the_type_reader_finds_every_class_and_alias(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'A1b = int | str\nBee: TypeAlias = "A1b"\nCAPITALS = 1\nplain = int\nSee = TypeVar("See")\n'
        "class D:\n    Inner = int\nEl = Literal[0]\n"
    )
    assert dict(names_of_types(path)) == {"A1b": False, "Bee": False, "See": True, "D": False, "El": False}


VAGUE_NAMES = frozenset({"said", "told", "found", "asked", "given", "there", "one"})
VAGUE_IN_PACKAGES = VAGUE_NAMES | {
    "taken",
    "rest",
    "alone",
    "held",
    "whole",
    "made",
    "known",
    "own",
    "counted",
    "fits",
    "each",
    "of",
    "where",
}
ALLOWED_VAGUE_NAMES = {
    "composer/inspection/options.py": ["alone"],  # an option of `compose inspect`
    "composer/spec/layer_rules.py": ["rest"],  # a word of specs
    "composer/inspection/findings.py": ["found"],  # a key of inspection.json
    "composer/weights/record.py": ["given"],  # a key of composition.json
}
"""The names that stay, by file, each as often as it is bound there."""


def names_bound(path: Path) -> Iterator[str]:
    """Yield the names of variables, arguments, attributes, functions and classes that a file binds, once for each place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
            case _:
                pass


def vague_names(path: Path, vague: frozenset[str] = VAGUE_NAMES) -> list[str]:
    """Return the vague names in alphabetical order."""
    return sorted(name for name in names_bound(path) if name.strip("_") in vague)


def test_variable_names_are_not_vague() -> None:
    rules = dict.fromkeys((ROOT / "tests").rglob("*.py"), VAGUE_NAMES)
    rules |= {path: VAGUE_IN_PACKAGES for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert len(rules) > 600
    assert {named(path): names for path, vague in rules.items() if (names := vague_names(path, vague))} == ALLOWED_VAGUE_NAMES


def test_names_of_tests_have_at_least_three_words() -> None:
    names: list[str] = []
    for path in (ROOT / "tests").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        body += [node for group in body if isinstance(group, ast.ClassDef) for node in group.body]
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        names += [name for name in functions if name.startswith("test_")]
    assert len(names) > 1000
    assert not [name for name in names if len(name.split("_")) < 4]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("one = 1", ["one"]),
        ("found: int", ["found"]),
        ("for given in (): pass", ["given"]),
        ("(there := 1)", ["there"]),
        ("[one for one in ()]", ["one"]),
        ("with open('f') as _told: pass", ["_told"]),
        ("self.asked = 1", ["asked"]),
        ("def said(one, /, *given, told=1, **_found): pass", ["_found", "given", "one", "said", "told"]),
        ("async def there(): pass", ["there"]),
        ("lambda one: 1", ["one"]),
        ("class given: pass", ["given"]),
        ("from module import name as found", ["found"]),
        ("try: pass\nexcept OSError as told: pass", ["told"]),
        ("match 1:\n case [one, *there]: pass\n case {**found}: pass", ["found", "one", "there"]),
        ("print(one, module.found, said=1)", []),
        ("one_token = not_found = ones = 1", []),
    ],
)
def test_the_name_reader_finds_every_kind_of_variable(code: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert vague_names(path) == names
