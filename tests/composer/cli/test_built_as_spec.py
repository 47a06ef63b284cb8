"""Wherever a command accepts a spec, it accepts the folder of a built model as the spec of that model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import composer
from composer.errors import SpecError
from composer.spec.loading import load_spec
from composer.weights.record import read_record
from tests.composer.cli.conftest import Compose


@pytest.fixture
def here(compose: Compose, student: Path, teacher: Path) -> Path:
    """Put `model` and `teacher` into the working folder."""
    for name, folder in (("model", student), ("teacher", teacher)):
        Path(name).symlink_to(folder)
    return Path("model")


def test_commands_accept_a_built_model_as_a_spec(compose: Compose, here: Path) -> None:
    record = read_record(here)
    assert record is not None
    assert load_spec("model") == load_spec("lolcats")
    Path("shown.yaml").write_text(compose("show", "model", "--set", "head.memory.0.size=32").stdout)
    assert load_spec("shown.yaml") == load_spec("lolcats", ["head.memory.0.size=32"])
    assert compose("diff", "model", "lolcats").stdout == "the same meaning on every source\n"
    assert compose("diff", "model", "lolcats", "--from", "model").stdout.startswith("the same meaning on model: ")
    (answer,) = json.loads(compose("check", "model", "--json").stdout)
    assert (answer["ok"], answer["hash"]) == (True, record.spec_hash)
    assert json.loads(compose("explain", "model", "--json").stdout)["hash"] == record.spec_hash
    assert compose("explain", "model").stdout.startswith("lolcats on model\n")
    assert composer.explain("model", sequence=64).hash == record.spec_hash
    assert compose("build", "model", "--from", "teacher", "-o", "again").exit_code == 0
    again = read_record(Path("again"))
    assert again is not None
    assert (again.spec, again.spec_hash) == (record.spec, record.spec_hash)


def test_built_models_can_be_copied_and_extended_as_specs(compose: Compose, here: Path) -> None:
    assert compose("new", "mine", "--like", "model").exit_code == 0
    assert "# Begun as a copy of model.\n" in Path("mine.yaml").read_text()
    assert load_spec("mine.yaml") == load_spec("lolcats").model_copy(update={"name": "mine"})
    Path("child.yaml").write_text("compose: 1\nname: child\nextends: model\nhead: {memory: [{kind: windw}]}\n")
    result = compose("check", "child.yaml")
    assert (result.exit_code, result.stderr.splitlines()[0][:48]) == (2, "child.yaml:4:24  head.memory[0].kind: unknown ki")
    Path("child.yaml").write_text("compose: 1\nname: child\nextends: model\nhead: {position: none}\n")
    assert load_spec("child.yaml") == load_spec("lolcats", ["name=child", "head.position=none"])


def test_a_resolved_spec_in_a_file_has_the_same_hash(compose: Compose, here: Path) -> None:
    text = compose("show", "lolcats", "--from", "teacher").stdout
    Path("resolved.yaml").write_text(text)
    named_hash = text.splitlines()[0].rpartition(" ")[2]
    assert compose("show", "resolved.yaml", "--from", "teacher").stdout == text
    (answer,) = json.loads(compose("check", "resolved.yaml", "--json").stdout)
    assert (answer["ok"], answer["hash"]) == (True, named_hash)
    assert json.loads(compose("explain", "resolved.yaml", "--json").stdout)["hash"] == named_hash
    result = compose("build", "resolved.yaml", "--fresh")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this spec has no `trunk`" in result.stderr


def test_built_models_and_resolved_specs_need_no_source(compose: Compose, here: Path) -> None:
    """`explain`, `show --code` and `draw` need no --from for a built model, a resolved spec or a spec with a trunk."""
    Path("resolved.yaml").write_text(compose("show", "lolcats", "--from", "teacher").stdout)
    trunk = "trunk: {width: 32, layers: 2, heads: 4, key_heads: 2, vocabulary: 64}"
    Path("whole.yaml").write_text(f"compose: 1\nname: lolcats\nextends: lolcats\n{trunk}\n")
    sizes = "the sizes that it was resolved for"
    for spec, on in (("model", "model"), ("resolved.yaml", sizes), ("whole.yaml", "its own trunk")):
        assert composer.explain(spec).on == on
        assert json.loads(compose("explain", spec, "--json").stdout)["on"] == on
        assert compose("explain", spec).stdout.startswith(f"lolcats on {on}\n")
        code = compose("show", spec, "--code")
        assert code.exit_code == 0, code.stderr
        assert code.stdout.startswith(f"# lolcats on {on}: backend auto on cpu, ")
    assert code.stdout.partition("\n")[2] == compose("show", "whole.yaml", "--fresh", "--code").stdout.partition("\n")[2]
    drawn = composer.draw("resolved.yaml").svg
    assert sizes in drawn
    assert "Llama-3.2-1B" not in drawn
    assert "Llama-3.2-1B" in composer.draw("lolcats").svg
    refused = compose("show", "lolcats", "--code")
    assert (refused.exit_code, "Add a source: --from SOURCE" in refused.stderr) == (2, True)


def test_models_without_a_record_are_read_from_their_config(compose: Compose, here: Path) -> None:
    """Without a record, the config still has the resolved heads."""
    shutil.copytree(here.resolve(), "alone")
    Path("alone/composition.json").unlink()
    record = read_record(here)
    assert record is not None
    (answer,) = json.loads(compose("check", "alone", "--json").stdout)
    assert (answer["ok"], answer["hash"]) == (True, record.spec_hash)


def test_a_shipped_spec_keeps_its_name(compose: Compose, student: Path) -> None:
    """A folder with a shipped spec's name is used only if it is written with a slash."""
    Path("lawcat").symlink_to(student)
    assert load_spec("lawcat").name == "lawcat"
    assert load_spec("./lawcat").name == "lolcats"


def test_the_spec_in_a_record_reads_no_other_file(here: Path) -> None:
    shutil.copytree(here.resolve(), "forged")
    Path("secret.yaml").write_text("compose: 1\nname: secret\nhead: {memory: [full]}\n")
    record = json.loads(Path("forged/composition.json").read_text())
    record["spec"] = {"compose": 1, "name": "mine", "extends": str(Path("secret.yaml").resolve())}
    Path("forged/composition.json").write_text(json.dumps(record))
    for read in (composer.show, composer.load_spec):
        with pytest.raises(SpecError, match="extends: a stored spec is whole, and extends no other file"):
            read("forged")
    (check,) = [check for check in composer.verify("forged").failed if check.what == "spec"]
    assert check.detail == "a stored spec is whole, and extends no other file"


@pytest.mark.parametrize("text", ["{", "[]", '{"spec": 3}', '{"spec": {"compose": 1, "name": "x", "head": 3}}'])
def test_a_damaged_record_is_refused(compose: Compose, text: str) -> None:
    Path("broken").mkdir()
    Path("broken/composition.json").write_text(text)
    result = compose("check", "broken")
    assert result.exit_code == 2
    assert result.stderr.startswith("broken/co")
    assert "does not describe the model's heads" in result.stderr or "head: expected a mapping" in result.stderr


def test_folders_without_a_model_are_refused(compose: Compose, teacher: Path) -> None:
    result = compose("show", teacher)
    assert result.exit_code == 2
    assert "is a folder, and no built model" in result.stderr
