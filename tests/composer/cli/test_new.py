"""`compose new` writes a spec that loads unchanged, and never overwrites a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from composer.spec.loading import load_spec
from composer.spec.shipped import shipped_specs
from tests.composer.cli.conftest import Compose


def uncommented(text: str) -> str:
    """Return the spec with its commented-out keys included."""
    keys = ("conv:", "heads:", "  exact:", "layers:", "  - ", "recipe:", "  transfer:", "  finetune:")
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        bare = line.strip().removeprefix("# ")
        lines.append(indent + bare if line.strip().startswith("# ") and bare.startswith(keys) else line)
    return "\n".join(lines)


def test_the_template_is_a_spec(compose: Compose) -> None:
    result = compose("new", "mine")
    assert (result.exit_code, result.stdout) == (0, "Wrote mine.yaml. Next: compose check mine.yaml\n")
    spec = load_spec(Path("mine.yaml"))
    assert spec.name == "mine"
    assert spec.head is not None
    assert [memory.kind for memory in spec.head.memory] == ["window", "state"]
    assert compose("check", "mine.yaml").exit_code == 0


def test_commented_lines_of_the_template_are_valid(compose: Compose, teacher: Path) -> None:
    compose("new", "mine")
    text = uncommented(Path("mine.yaml").read_text())
    Path("whole.yaml").write_text(text.replace("heads: 4", "heads: 2").replace("heads: 28", "heads: 2"))
    spec = load_spec(Path("whole.yaml"))
    assert spec.recipe is not None
    assert spec.recipe.finetune is not None
    assert set(spec.heads) == {"exact"}
    assert len(spec.layers) == 3
    assert compose("check", "whole.yaml", "--from", teacher).exit_code == 0


@pytest.mark.parametrize("name", shipped_specs())
def test_copies_equal_their_shipped_spec(compose: Compose, name: str) -> None:
    assert compose("new", "folder-free", "--like", name).exit_code == 0
    ours, theirs = load_spec(Path("folder-free.yaml")), load_spec(name)
    assert ours.name == "folder-free"
    assert ours.model_copy(update={"name": theirs.name}) == theirs
    comments = [line for line in shipped_specs()[name].read_text().splitlines() if line.startswith("# ") and "$schema" not in line]
    assert set(comments) <= set(Path("folder-free.yaml").read_text().splitlines())


def test_a_copy_may_keep_its_name(compose: Compose) -> None:
    Path("mine").mkdir()
    result = compose("new", "mine/lawcat", "--like", "lawcat")
    assert result.exit_code == 0, result.stderr
    assert load_spec(Path("mine/lawcat.yaml")) == load_spec("lawcat")
    described = "  data: passkey retrieval, 10K samples of 1162 tokens  # a description: compose distill reads --data"
    assert described in Path("mine/lawcat.yaml").read_text().splitlines()


def test_copies_extend_the_parent_of_their_original(compose: Compose) -> None:
    Path("there").mkdir()
    Path("there/base.yaml").write_text(shipped_specs()["lawcat"].read_text())
    Path("there/child.yaml").write_text("compose: 1\nname: child\nextends: 'base.yaml'  # the same\nhead: {conv: null}\n")
    assert compose("new", "mine", "--like", "there/child.yaml").exit_code == 0
    assert "extends: there/base.yaml  # the same" in Path("mine.yaml").read_text()
    assert load_spec(Path("mine.yaml")).head == load_spec(Path("there/child.yaml")).head


def test_copies_of_copies_have_one_comment(compose: Compose) -> None:
    compose("new", "one", "--like", "lawcat")
    compose("new", "two", "--like", "one.yaml")
    assert Path("two.yaml").read_text().count("yaml-language-server") == 1


def test_schemas_beside_the_spec_are_referenced(compose: Compose) -> None:
    Path("schema.json").write_text(compose("schema").stdout)
    compose("new", "mine")
    assert Path("mine.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_nothing_is_overwritten(compose: Compose) -> None:
    Path("mine.yaml").write_text("precious")
    result = compose("new", "mine")
    assert result.exit_code == 2
    assert "mine.yaml is there already" in result.stderr
    assert Path("mine.yaml").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Mine"], 'no spec can be called "Mine"'),
        (["nowhere/mine"], "No such file or directory"),
        (["mine", "--like", "lawact"], 'did you mean "lawcat"?'),
        (["mine", "--like", "broken.yaml"], "broken.yaml:2:1  nam"),
        (["mine", "--like", "flow.yaml"], "does not have its name on a separate line"),
    ],
)
def test_invalid_arguments_are_refused(compose: Compose, arguments: list[str], message: str) -> None:
    Path("broken.yaml").write_text("compose: 1\nnam: x\nname: x\nhead: {memory: [full]}\n")
    Path("flow.yaml").write_text(yaml.safe_dump({"compose": 1, "name": "x", "head": {"memory": ["full"]}}, default_flow_style=True))
    result = compose("new", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("mine.yaml").exists()
