"""A spec is found and loaded with the places of its paths, errors name these places, and torch is not needed."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.errors import GraphError, SpecError
from composer.spec import Spec, inherit, load_spec, locate, shipped, shipped_specs
from composer.spec.loading import variants_of
from composer.spec.places import Place
from tests.composer.spec.error_messages import message_of

TEXT = """\
compose: 1
name: x
head:
  position: rope
  memory:
    - {kind: window, size: 8}
    - kind: state
      gate:
        kind: channel
        rank: 4
"""


def test_every_shipped_spec_loads_by_name_and_by_path() -> None:
    assert {"softmax", "lolcats", "lawcat"} <= shipped_specs().keys()
    for name, path in shipped_specs().items():
        assert load_spec(name) == load_spec(f"{name}.yaml") == load_spec(path) == load_spec(str(path))
        assert load_spec(name).name == Path(name).name


def test_wheels_contain_the_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "composer")
    for file in ("specs/a.yaml", "specs/ablations/b.yaml", "specs/readme.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert shipped_specs() == {"a": tmp_path / "specs/a.yaml", "ablations/b": tmp_path / "specs/ablations/b.yaml"}
    (tmp_path / "composer/specs").mkdir(parents=True)
    (tmp_path / "composer/specs/c.yaml").touch()
    assert shipped_specs() == {"c": tmp_path / "composer/specs/c.yaml"}


def test_names_refer_to_files_and_never_to_folders(write: Callable[[str, str], Path]) -> None:
    Path("lawcat").mkdir()
    assert load_spec("lawcat").name == "lawcat"
    write("soft", TEXT)
    assert load_spec("soft").name == "x"
    assert re.match('no file "lawct.yaml" here, .* did you mean "lawcat"', message_of("lawct.yaml"))
    Path("sub").mkdir()
    assert message_of(Path("sub")).startswith('"sub" is a folder')


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("name",), "x.yaml:2:7"),
        (("head",), "x.yaml:3:1"),
        (("head", "position"), "x.yaml:4:13"),
        (("head", "position", "kind"), "x.yaml:4:13"),
        (("head", "memory", 0, "size"), "x.yaml:6:28"),
        (("head", "memory", 1), "x.yaml:7:7"),
        (("head", "memory", 1, "gate"), "x.yaml:8:7"),
        (("head", "memory", 1, "gate", "rank"), "x.yaml:10:15"),
        (("head", "memory", 1, "gate", "bias"), "x.yaml:8:7"),
        (("head", "memory", 7), "x.yaml:5:3"),
        (("head", "read", "scale"), "x.yaml:3:1"),
        (("layers", 0), "x.yaml:1:1"),
        ((), "x.yaml:1:1"),
    ],
)
def test_place_returns_file_line_and_column(write: Callable[[str, str], Path], path: tuple, place: str) -> None:
    spec = load_spec(write("x.yaml", TEXT))
    assert str(spec.place(path)) == place
    assert str(locate(GraphError("is wrong", path), spec)).startswith(f"{place}  ")


def test_errors_of_the_graph_are_located(write: Callable[[str, str], Path]) -> None:
    error = GraphError("asks too much", ("head", "memory", 1, "gate"))
    located = locate(error, load_spec(write("x.yaml", TEXT)))
    assert str(located) == "x.yaml:8:7  head.memory[1].gate: asks too much"
    assert type(located) is SpecError
    assert str(locate(error, Spec(compose=1, name="x"))) == "head.memory[1].gate: asks too much"
    assert str(locate(GraphError("is empty"), Spec(compose=1, name="x"))) == "is empty"


def test_places_are_not_part_of_equality_or_dumps(write: Callable[[str, str], Path]) -> None:
    first, other = load_spec(write("x.yaml", TEXT)), load_spec(write("y.yaml", f"# moved\n{TEXT}"))
    plain = Spec.model_validate(json.loads(first.model_dump_json()))
    assert first == other == plain
    assert first.model_dump() == other.model_dump() == plain.model_dump()
    assert repr(first) == repr(other) == repr(plain)
    assert plain.place(("name",)) is None
    for copied in (copy.deepcopy(first), pickle.loads(pickle.dumps(first)), first.model_copy(update={"name": "y"})):
        assert copied.place(("name",)) == Place("x.yaml", 2, 7)


def test_files_are_shown_as_relative_paths(write: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("sub/x.yaml", "compose: 2\nname: x\n")
    for source in (path, path.absolute(), "./sub/x.yaml"):
        assert message_of(source).startswith("sub/x.yaml:1:10  ")
    Path("other").mkdir()
    monkeypatch.chdir("other")
    assert message_of("../sub/x.yaml").startswith("../sub/x.yaml:1:10  ")


def test_reading_a_spec_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys\n"
        "from composer.spec import json_schema, load_spec, shipped_specs\n"
        "for name in shipped_specs():\n"
        "    load_spec(name, ['paper=x'])\n"
        "json_schema()\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys(), sorted(sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False
    )
    assert run.returncode == 0, run.stderr


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            f"layers: [{{at: '0:{NINES}', use: head}}]",
            "layers[0].at: expected a whole number, a list or `all` or a range such as 0:8:2",
        ),
        (f"layers: [{{at: '::-{NINES}', use: head}}]", "layers[0].at: expected"),
        (f"layers: [{{at: {NINES}, use: head}}]", "the number needs more than 64 bits"),
        (f"layers: [{{at: 0, use: [{{head: head, heads: 1/{NINES}}}]}}]", "heads: expected a whole number, a share such as 1/4, "),
        ("layers: [" + "{at: all, use: head}," * 5000 + "]", "layers: expected a list of at most 4096, got a list"),
        ("layers: [{at: 0, use: [" + "{head: head, heads: 1}," * 300 + "]}]", "a list of at most 256, got a list"),
        ("heads: {b: {memory: [" + "full," * 40 + "]}}", "heads.b.memory: expected a list of at most 32, got a list"),
        (
            "trunk: {width: 64, layers: 1, heads: 4, vocabulary: 64, labels: 20000000}",
            "trunk.labels: expected a number of at most 100000",
        ),
        (
            "trunk: {width: 64, layers: 1, heads: 4, vocabulary: 64, theta: 1e30}",
            "trunk.theta: expected a number of at most 1e+12, got 1e+30",
        ),
    ],
)
def test_documents_that_expand_without_bound_are_refused(tmp_path: Path, more: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(f"compose: 1\nname: x\nhead: {{memory: [full]}}\n{more}\n")
    expected_message = message_of(tmp_path / "x.yaml")
    assert message in expected_message
    assert len(expected_message) < 500


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        (None, (), "a spec is a name, a file, a mapping or a `Spec`, not None"),
        (["softmax"], (), r"a spec is a name, a file, a mapping or a `Spec`, not \['softmax'\]"),
        ("softmax", 5, "overrides are `path=value`, several of them, or a mapping, not 5"),
    ],
    ids=str,
)
def test_arguments_that_are_not_specs_are_refused(spec: Any, overrides: Any, message: str) -> None:
    for read in (load_spec, variants_of):
        with pytest.raises(SpecError, match=message):
            read(spec, overrides)


def test_one_activation_has_two_names() -> None:
    """A spec with either name is the same spec, for each part with the activation."""
    trunk = "trunk={width: 64, layers: 1, heads: 4, vocabulary: 600}"
    paths = ("head.output={{kind: gate, activation: {}}}", "head.conv={{kernel: 4, activation: {}}}", "trunk.mlp.activation={}")
    silu, swish = (load_spec("lawcat", overrides=[trunk, *(path.format(name) for path in paths)]) for name in ("silu", "swish"))
    assert silu == swish
    assert "swish" not in swish.model_dump_json()


def test_changing_a_loaded_spec_raises_with_the_way_to_change_it() -> None:
    spec = load_spec("lolcats")
    assert spec.head is not None
    with pytest.raises(AttributeError, match=r'Window\.size cannot be changed\..*overrides=\["head\.memory\.0\.size=16"\]'):
        spec.head.memory[0].size = 16  # pyright: ignore
    with pytest.raises(AttributeError, match=r"Spec\.name cannot be changed"):
        spec.name = "other"  # pyright: ignore


def test_nothing_in_the_folder_replaces_a_shipped_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A file needs a separator or an extension in its name there. Which of both is used is logged."""
    monkeypatch.chdir(tmp_path)
    own = "compose: 1\nname: own\nhead: {memory: [full]}\n"
    for name in ("lolcats", "lola.yaml"):
        (tmp_path / name).write_text(own)
    (tmp_path / "gla").mkdir()
    (tmp_path / "mine.yaml").write_text("compose: 1\nname: mine\nextends: lolcats\n")
    caplog.set_level("INFO", logger="composer")
    inherit._tell_shipped.cache_clear()
    assert load_spec("gla").name == "gla"
    for _ in range(2):
        assert load_spec("lolcats").name == "lolcats"
    assert caplog.messages == [
        f"{name} is the shipped spec. Write ./{name} for the file or the folder of this name." for name in ("gla", "lolcats")
    ]
    assert load_spec("mine.yaml").head == load_spec("lolcats").head
    assert [load_spec(name).name for name in ("./lolcats", "lola.yaml", "lola")] == ["own", "own", "lola"]
