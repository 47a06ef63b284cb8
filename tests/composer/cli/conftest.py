"""A command to run, a tiny teacher to build from, and a student that was built from it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from composer.cli.main import app
from tests.checkpoints import llama

Compose = Callable[..., Any]
WORDS = ("<unk>", "once", "upon", "a", "time", "there", "was", "cat", "and", "it", "slept")

# Typer reads the signatures of all commands at every call; they stay as they are.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """Run ``compose …`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, stdin=None: CliRunner().invoke(app, list(map(str, arguments)), input=stdin, prog_name="compose")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers and four heads with a tokenizer of eleven words."""
    folder = llama(tmp_path_factory.mktemp("teacher"))
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}))
    return folder


@pytest.fixture(scope="session")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoLCATs student of the teacher."""
    folder = tmp_path_factory.mktemp("students") / "lolcats"
    result = CliRunner().invoke(app, ["build", "lolcats", "--from", str(teacher), "-o", str(folder)])
    assert result.exit_code == 0, result.output
    return folder
