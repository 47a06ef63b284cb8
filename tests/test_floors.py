"""The packages inside `composer` have an order, and none imports a package beside or above it. Modules import none in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx

import composer

FLOORS = (
    {"errors"},
    {"system"},
    {"reporting"},
    {"graph"},
    {"spec"},
    {"drawing", "model", "tasks"},
    {"data", "weights"},
    {"runs"},
    {"options"},
    {"building"},
    {"evaluation", "generation", "training"},
    {"ablation", "benching", "exporting", "inspection", "laws", "selection", "serving", "viewing"},
    {"publishing", "vllm"},
    {"commands"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
"""The packages and modules of `composer`, the lowest first: each imports those below it, and none beside or above it."""


def rooms_imported(path: Path) -> Iterator[str]:
    """Return the packages and modules of `composer` that a file imports, also in functions and for types alone."""
    rooms = {room for floor in FLOORS for room in floor}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are written out from the top"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for steps in (name.split(".") for name in names):
            if steps[0] == "composer":
                yield steps[1] if steps[1:] and steps[1] in rooms else "__init__"


def test_packages_import_only_packages_below_them() -> None:
    """Imports for types or inside functions count as well."""
    folder = Path(composer.__file__).parent
    files = {path: path.relative_to(folder).parts[0].removesuffix(".py") for path in sorted(folder.rglob("*.py"))}
    place = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    assert set(files.values()) == set(place)
    wrong = {
        str(path.relative_to(folder)): matches
        for path, room in files.items()
        if (matches := {other for other in rooms_imported(path) if other != room and place[other] >= place[room]})
    }
    assert not wrong


def test_the_import_check_finds_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import composer\nimport composer.building.build as b\nfrom composer import errors, load\nif TYPE_CHECKING:\n"
        "    from composer.spec.document import Spec\n"
        "def f():\n    import torch, composer.graph.graph\n    from blocks.part import Part\n"
    )
    assert sorted(rooms_imported(path)) == ["__init__", "__init__", "building", "errors", "graph", "spec"]


def modules_imported(tree: ast.AST) -> Iterator[str]:
    """Return the names of modules, and of what they may contain, that a program imports, also in functions, but for types alone."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case _:
                yield from modules_imported(node)


def circles(texts: Mapping[str, str]) -> list[list[str]]:
    """Return the modules that import each other in a circle. texts: by the modules' names."""
    graph = networkx.DiGraph()
    for name, text in texts.items():
        for imported in modules_imported(ast.parse(text)):
            module = imported if imported in texts else imported.rpartition(".")[0]
            if module in texts and module != name:
                graph.add_edge(name, module)
    return sorted(sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions count as well. Modules may name each other's types."""
    folder = Path(composer.__file__).parent
    paths = {path: path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py")}
    texts = {".".join(name.parts).removesuffix(".__init__"): path.read_text(encoding="utf-8") for path, name in paths.items()}
    assert circles(texts) == []


def test_the_check_for_circles_finds_imports_in_functions() -> None:
    texts = {
        "a": "def f():\n    from b import thing\n",
        "b": "import a\n",
        "c": "if TYPE_CHECKING:\n    import d\n",
        "d": "import c\n",
    }
    assert circles(texts) == [["a", "b"]]
