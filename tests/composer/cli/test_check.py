"""`compose check` finds every mistake of every spec, says where it stands, and passes what is good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer.spec.shipped import shipped_specs
from tests.composer.cli.conftest import Compose

BEFORE = "compose: 1\nname: wrong\n"


def test_shipped_specs_are_good(compose: Compose) -> None:
    result = compose("check", *shipped_specs())
    assert result.exit_code == 0
    assert result.stdout.count("ok  ") == len(shipped_specs())
    assert result.stderr == ""


def test_on_a_source_it_says_the_hash(compose: Compose, teacher: Path) -> None:
    result = compose("check", "lawcat", "--from", teacher)
    assert result.exit_code == 0
    assert result.stdout.startswith("ok  lawcat  head: state  ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head: {memory: [windwo]}", "wrong.yaml:3:17  head.memory[0].kind: "),
        ("head: {memory: [window]}", "wrong.yaml:3:17  head.memory[0]: pairs older than 64 tokens"),
        ("heads:\n  one: {memory: [full], conv: causal}", "wrong.yaml:4:31  heads.one.conv: "),
        ("head: {feature_map: relu, memory: [{kind: state}, full]}", "head.memory[0]: nothing ever falls out"),
    ],
)
def test_mistakes_have_a_place(compose: Compose, text: str, message: str) -> None:
    Path("wrong.yaml").write_text(BEFORE + text)
    result = compose("check", "wrong.yaml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_map_may_keep_any_dimension_until_there_is_a_source(compose: Compose, teacher: Path) -> None:
    head = "head: {feature_map: {kind: exp, linear: true, skip: true, dim: 96}, memory: [state]}"
    Path("skip.yaml").write_text(BEFORE + head)
    assert compose("check", "skip.yaml").exit_code == 0
    result = compose("check", "skip.yaml", "--from", teacher)
    assert result.exit_code == 2
    assert "head.feature_map.dim: xW + x needs W to keep the dimension: x has 8 numbers" in result.stderr


def test_layers_are_checked_on_a_source(compose: Compose, teacher: Path) -> None:
    Path("layers.yaml").write_text(BEFORE + "extends: hybrid\nlayers: [{at: 7, use: exact}]\n")
    assert compose("check", "layers.yaml").exit_code == 0
    result = compose("check", "layers.yaml", "--from", teacher)
    assert result.exit_code == 2
    assert "layers.yaml:4:15  layers[0].at: layer 7 is not there: the source has 2 layers" in result.stderr


def test_all_are_told(compose: Compose) -> None:
    Path("one.yaml").write_text(BEFORE + "head: {memory: [full], colour: red}\n")
    result = compose("check", "one.yaml", "lawcat", "two.yaml")
    assert result.exit_code == 2
    assert result.stdout.startswith("ok  lawcat ")
    assert "one.yaml:3:24" in result.stderr
    assert '"two.yaml"' in result.stderr
    assert result.stderr.endswith("2 specs of 3 cannot be used\n")


def test_json(compose: Compose, teacher: Path) -> None:
    Path("one.yaml").write_text(BEFORE + "head: {memory: [full], colour: red}\n")
    result = compose("check", "lawcat", "one.yaml", "--from", teacher, "--json")
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert good == {"spec": "lawcat", "ok": True, "says": "head: state", "hash": good["hash"], "mistakes": []}
    assert good["hash"] == json.loads(compose("show", "lawcat", "--from", teacher, "--json").stdout)["hash"]
    assert (wrong["ok"], len(wrong["mistakes"])) == (False, 1)
    assert json.loads(compose("check", "lawcat", "--json").stdout)[0]["hash"] is None
