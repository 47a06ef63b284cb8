"""Rules of the repository: imports in one direction, a complete catalogue, valid specs, small files, clear names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

import blocks
from blocks.catalogue import CATALOGUE
from blocks.part import Part
from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Dimensions, resolve
from composer.spec.shipped import shipped_specs
from pages.write import SCHEMA, schema

ROOT = Path(__file__).parent.parent
PACKAGES = ("blocks", "converters", "composer")
SOURCES = sorted(
    path for folder in (*PACKAGES, "tests", "examples", "benchmarks", "pages", "evidence") for path in (ROOT / folder).rglob("*.py")
)
TEXTS = sorted(
    path
    for path in (
        *ROOT.glob("*"),
        *SOURCES,
        *(ROOT / "specs").rglob("*"),
        *(ROOT / "docs").rglob("*"),
        *ROOT.glob("examples/*"),
        *ROOT.glob("evidence/specs/*"),
    )
    if path.suffix in {".py", ".md", ".yaml", ".toml", ".txt", ".sh"} or path.name == "Makefile"
)
SIZE = Dimensions(hidden_size=64, layers=4, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
LONGEST_FILE = 400
LONGEST_LINE = 132


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path, *, module_level: bool = False) -> Iterator[str]:
    """Yield the packages that a file imports. module_level: without imports in functions and under ``if TYPE_CHECKING``."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if module_level and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0] if not node.level else path.relative_to(ROOT).parts[0]
        nodes += ast.iter_child_nodes(node)


def parts_defined() -> list[type[Part]]:
    """Return every class of `blocks` with a ``kind`` for specs."""
    for module in pkgutil.walk_packages(blocks.__path__, "blocks."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":  # which is for Linux alone; its kernels are no parts
                raise
    parts, waiting = [], [Part]
    while waiting:
        part = waiting.pop()
        waiting += part.__subclasses__()
        if "kind" in part.model_fields and part.__module__.startswith("blocks."):
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("floor", "others"),
    [("blocks", {"converters", "composer"}), ("converters", {"blocks", "composer"})],
    ids=["blocks", "converters"],
)
def test_blocks_and_converters_import_neither_each_other_nor_composer(floor: str, others: set[str]) -> None:
    files = sorted((ROOT / floor).rglob("*.py"))
    assert files
    wrong = {named(path): matches for path in files if (matches := others & set(imports(path)))}
    assert not wrong


BY_CALL = ("blocks.registry", "blocks.external_parts")
"""A role looks for installed parts when it is first read: the one import that goes up."""


def test_blocks_import_in_one_direction() -> None:
    """Vocabulary (``flow``, ``operation``, ``part``) imports nothing that uses it, annotations included."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "blocks").rglob("*.py")
    }
    graph = networkx.DiGraph()
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "blocks":
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                graph.add_edges_from((module, name if name in modules else node.module) for name in names)
    assert {"blocks.flow", "blocks.part", "blocks.pattern"} <= set(graph)
    graph.remove_edge(*BY_CALL)
    assert networkx.is_directed_acyclic_graph(graph), networkx.find_cycle(graph)


def test_heavy_packages_are_imported_late() -> None:
    light = [path for path in SOURCES if path.is_relative_to(ROOT / "converters") or path.is_relative_to(ROOT / "composer" / "cli")]
    wrong = [named(path) for path in light if {"torch", "transformers"} & set(imports(path, module_level=True))]
    assert light
    assert not wrong


UNPICKLING = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
NAMED_BY_ITS_USER = {"converters/lolcats.py": 'torch.load(path, map_location="cpu", weights_only=True, mmap=True)'}
"""The one call that opens a pickle: others publish some, and one is opened where a user names the file, for its tensors alone."""


def test_no_module_unpickles_files() -> None:
    """A folder may come from anybody, and unpickling would run its code."""
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]
    assert files
    wrong = {named(path): matches for path in files if (matches := UNPICKLING & set(imports(path)))}
    calls = re.compile(r"\btorch\.load\(|distributed\.checkpoint|allow_pickle|weights_only|read_pickle")
    code = {named(path): path.read_text(encoding="utf-8") for path in files}
    assert all(code[path].count(call) == 1 for path, call in NAMED_BY_ITS_USER.items())
    code |= {path: code[path].replace(call, "") for path, call in NAMED_BY_ITS_USER.items()}
    wrong |= {path: matches[0] for path, text in code.items() if (matches := calls.search(text))}
    assert not wrong


def test_the_import_reader_finds_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b.c\n"
        "def f():\n    from d.e import g\nclass H:\n    import i as j\ntry:\n    import k\nexcept ImportError:\n    pass\n"
    )
    assert set(imports(path)) == {"a", "b", "d", "i", "k"}
    assert set(imports(path, module_level=True)) == {"b", "i", "k"}


def test_the_catalogue_has_every_part() -> None:
    listed = {part for kinds in CATALOGUE.values() for part in kinds.values()}
    assert {part.__qualname__ for part in parts_defined()} == {part.__qualname__ for part in listed}
    for role, kinds in CATALOGUE.items():
        for kind, part in kinds.items():
            assert part.role == role
            assert part.model_fields["kind"].default == kind
            assert part.equation
            assert part.source
            assert part.__dict__.get("__doc__"), f"{part.__qualname__} says nothing of itself"


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_specs_load_and_have_clean_lines(name: str) -> None:
    path = shipped_specs()[name]
    lines = path.read_text(encoding="utf-8").split("\n")
    assert all(resolve(spec, None if spec.trunk else SIZE).hash for spec in load_specs(name).values())
    assert load_spec(path).name == path.stem
    assert lines[-1] == ""
    assert lines[-2]
    assert all(line == line.rstrip() and "\t" not in line and len(line) <= LONGEST_LINE for line in lines)


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_specs_name_their_schema(name: str) -> None:
    path = shipped_specs()[name]
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    match = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert match, f"the first line of {named(path)} is: {first}"
    assert (path.parent / match[1]).resolve() == SCHEMA


def test_the_schema_file_equals_the_schema_of_the_parts() -> None:
    stale = SCHEMA.read_text(encoding="utf-8") != schema()
    assert not stale, "specs/schema.json is not the schema of the parts as they are: write it anew with `make docs`"


def test_files_stay_small() -> None:
    lines = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE}


def test_only_bounded_py_formats_system_errors() -> None:
    """An error may have no reason from the system, and a message would read "None"."""
    homes = {
        named(path) for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES and ".strerror" in path.read_text("utf-8")
    }
    assert homes == {"converters/bounded.py"}


RAW_READ = re.compile(
    r"(?<![\w.])open\(|\bos\.open\(|\.open\((?!\"[xw]b?\")|\.read_(?:text|bytes)\(|\bjson\.load\(|\bnp\.(?:fromfile|load|memmap)\("
    r"|\byaml\.(?:safe_|full_)?load\(|\bsafe_open\(|\bload_file\(|\bfile_digest\("
)
"""A call that opens a path, or reads one, by itself."""
READS_OF_THEIR_OWN = {
    "composer/cli/entry.py": 2,  # the null device and the standard input of this process
    "composer/exporting/folder.py": 1,  # the licence of this package
    "composer/exporting/gguf/folder.py": 1,  # what its own process wrote
    "composer/exporting/gguf/worker.py": 1,  # what the process that started it wrote
    "composer/exporting/comparison.py": 2,  # what its own process wrote
    "composer/exporting/comparison_worker.py": 1,  # what the process that started it wrote
    "composer/benching/memory.py": 1,  # the kernel's file about this process
    "composer/system/devices.py": 4,  # the kernel's files about this machine
    "composer/graph/measured.py": 1,  # a table of this package
    "composer/system/files.py": 2,  # a file that has just been written, to sync it; the digest of an opened file
    "composer/system/locks.py": 1,  # opened to write, which waits for no pipe
    "composer/training/checkpoint.py": 1,  # safe_open, after the checksum of the same file
    "composer/training/streamed.py": 1,  # safe_open, after check_file
    "composer/data/chat_template_worker.py": 1,  # the kernel's file about this process
    "composer/weights/adapted.py": 1,  # load_file, after read_shard of the same file
    "composer/training/stored_logits.py": 1,  # safe_open, after check_file
    "composer/viewing/page.py": 3,  # specs that ship, and the browser
    "composer/tasks/ruler.py": 1,  # words of an installed package
    "composer/data/hub.py": 1,  # yaml.safe_load of text that was read within bounds
    "converters/licences.py": 1,  # the same
}
"""How many of these calls a file may have, outside of converters/bounded.py, and why."""


def test_only_bounded_py_opens_user_files() -> None:
    """A path may be a pipe, a device or endless. converters/bounded.py opens only regular files."""
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("composer", "converters")]
    counts = {named(path): len(RAW_READ.findall(path.read_text(encoding="utf-8"))) for path in files}
    counts.pop("converters/bounded.py")
    assert sum(counts.values()) > 5, "the search finds none"
    assert not {name: count for name, count in counts.items() if count > READS_OF_THEIR_OWN.get(name, 0)}


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ('open(path, "rb")', True),
        ("path.open()", True),
        ('path.open("a")', True),
        ('path.open("xb")', False),
        ("path.read_text()", True),
        ("read_text(path, MOST_TEXT)", False),
        ("with opened(path) as stream:", False),
        ("json.load(stream)", True),
        ("json.loads(text)", False),
        ("webbrowser.reopen(page)", False),
        ('safe_open(path, "pt")', True),
    ],
)
def test_the_raw_read_check_finds_every_kind_of_read(code: str, reads: bool) -> None:
    assert bool(RAW_READ.search(code)) is reads


FORBIDDEN = {
    "an absolute path of somebody's machine": r"(?<![\w.~:/-])/(work|root|home|opt|Users)/\w",
    "a registry's host": r"\bpypi\.org|pythonhosted\.org|registry\.npmjs",
    "an unfinished thought": r"\b(TO" + r"DO|FIX" + r"ME)\b",
    "the number of an issue": r"\bissue #?\d",
    "a table's cell that is still to be filled": r"\| [A-Z]{4,}\d+ (?=\|)",
    "this package as if an index had it, instead of pip install '.[view]'": r"attention-composer\[|pip install.{0,2}attention-"
    + "composer",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_repository_mentions_no_foreign_topics(what: str) -> None:
    names = [named(path) for path in TEXTS if re.search(FORBIDDEN[what], path.read_text(encoding="utf-8"))]
    assert TEXTS
    assert not names, f"{what} stands in {', '.join(names)}"
