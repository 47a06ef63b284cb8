"""docs/reference/json.md equals the schemas, names every command with JSON output, and commands print its keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from composer.cli.main import app
from composer.inspection.findings import Findings, HeadFindings
from pages.results import PRINTED, WRITTEN, page
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT

RUN: dict[str, tuple[str | int | Path, ...]] = {
    "build": ("build", "lolcats", "--from", "teacher", "-o", "out"),
    "check": ("check", "lolcats"),
    "diff": ("diff", "lolcats", "lawcat"),
    "eval": ("eval", "student", "--tasks", "mqar,pairs=1,vocabulary=8", "--lengths", "8", "--samples", "1"),
    "explain": ("explain", "lolcats", "--from", "teacher"),
    "inspect": ("inspect", "student", "--text", "text.txt", "--queries", "2", "--alone", "-o", "inside"),
    "generate": ("generate", "student", "--prompt", "once upon", "--max-new-tokens", "2"),
    "read": ("read", "student", "--text", "text.txt", "-o", "text.state"),
    "sample": ("sample", ROOT / "examples" / "teacher", "-o", "made/texts.jsonl", "--texts", 1, "--length", 4),
    "logits": ("logits", "teacher", "--data", "text.txt", "--share", 0, "--sequence", 4, "--top-k", 2, "-o", "logits"),
    "parts": ("parts", "hedgehog"),
    "tasks": ("tasks", "passkey"),
    "verify": ("verify", "student"),
}


def test_the_page_equals_the_schemas() -> None:
    stale = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8") != page()
    assert not stale, "docs/reference/json.md is not what the schemas are: write it anew with `make docs`"


def test_the_page_has_every_command_that_prints_json() -> None:
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted({name.partition(" ")[0] for name in PRINTED}) == sorted(
        name for name, command in commands.items() if any("--json" in what.opts for what in command.params)
    )


@pytest.mark.parametrize("command", RUN)
def test_printed_json_matches_the_page(compose: Compose, student: Path, teacher: Path, command: str) -> None:
    for name, folder in (("student", student), ("teacher", teacher)):
        Path(name).symlink_to(folder)
    Path("text.txt").write_text("once upon a time there was a cat")
    result = compose(*RUN[command], "--json")
    assert result.exit_code == 0, result.output
    printed: Any = json.loads(result.stdout)
    shape = PRINTED[command][1]
    if isinstance(shape, tuple):
        assert tuple(printed[0] if isinstance(printed, list) else printed) == shape
    else:
        assert shape is not None
        printed.pop("ok", None)
        assert printed.keys() <= shape.model_fields.keys()
        assert {name for name, field in shape.model_fields.items() if field.is_required()} <= printed.keys()


NOT_OURS = {"config.json", "tokenizer.json", "tokenizer_config.json"}
"""Of transformers, read and not written by this name."""
BETWEEN_CALLS = {"facts.json"}
"""What a run keeps for itself, inside its checkpoints."""
GIVEN = {"measured.json", "schema.json", "texts.jsonl"}
"""A table of this package; the schema of specs, which their page describes; an example's."""


def test_the_page_has_every_json_file_that_commands_write() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "composer").rglob("*.py"))
    written = set(re.findall(r'"([A-Za-z_-]+\.jsonl?)"', code)) - NOT_OURS - BETWEEN_CALLS - GIVEN
    assert {"selection.json", "inspection.json", "log.jsonl"} <= written
    named = set(re.findall(r"`([A-Za-z_-]+\.jsonl?)`", "".join(WRITTEN)))
    assert written <= named


def test_the_summary_of_an_inspection_matches_the_page(compose: Compose, student: Path) -> None:
    Path("text.txt").write_text("once upon a time there was a cat")
    result = compose("inspect", student, "--text", "text.txt", "--queries", "2", "--alone", "-o", "inside", "--json")
    assert result.exit_code == 0, result.output
    printed, summary = json.loads(result.stdout), json.loads(Path("inside/inspection.json").read_text())
    assert list(summary) == [*(name for name in Findings.model_fields if name != "heads"), "heads", "pictures"]
    words, _ = WRITTEN["`inspection.json` of `inspect`"]
    for own, whole in zip(summary["heads"], printed["heads"], strict=True):
        assert all(f"`{key}`" in words for key in own)
        assert own == {key: whole[key] for key in own} != whole
        assert whole.keys() == HeadFindings.model_fields.keys()


REFUSED = {
    "a source": ("explain", "lolcats", "--from", "nowhere"),
    "a spec": ("show", "wrong.yaml"),
    "a model": ("verify", "nowhere"),
    "an option": ("explain", "lolcats", "--form", "x"),
    "a value": ("eval", "x", "--samples", "many"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_json_too(compose: Compose, case: str) -> None:
    Path("wrong.yaml").write_text("compose: 1\nname: wrong\nhead: {memory: [full], colour: red}\n")
    plain, as_json = compose(*REFUSED[case]), compose(*REFUSED[case], "--json")
    assert (plain.exit_code, as_json.exit_code) == (2, 2)
    assert plain.stdout == ""
    assert as_json.stderr == plain.stderr
    (mistake,) = json.loads(as_json.stdout)["mistakes"]
    assert mistake.keys() == {"message", "file", "line", "column", "path"}
    assert mistake["message"].split("\n")[0] in as_json.stderr
    if case == "a spec":
        assert (mistake["file"], mistake["line"], mistake["column"], mistake["path"]) == ("wrong.yaml", 3, 24, "head.colour")


def test_check_reports_a_missing_source_for_each_spec(compose: Compose) -> None:
    """If the source does not exist, this is reported for each spec beside its own mistakes."""
    Path("wrong.yaml").write_text("compose: 1\nname: wrong\nhead: {memory: [full], colour: red}\n")
    result = compose("check", "lolcats", "wrong.yaml", "--from", "nowhere/at/all", "--json")
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert (good["spec"], good["ok"], good["hash"]) == ("lolcats", False, None)
    (mistake,) = good["mistakes"]
    assert "neither a folder here nor" in mistake["message"]
    assert [mistake["path"] for mistake in wrong["mistakes"]] == ["head.colour", None]
