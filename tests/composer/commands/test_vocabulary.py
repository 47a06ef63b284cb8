"""Every command that tokenises for a model rejects tokens without an embedding in the same words, and a build notes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import ComposerError
from tests.composer.training.runs import make_student, make_teacher

BEYOND = {"castle": 70, "dragon": 71}
"""Tokens of the tokenizer; the model has 64 embeddings."""
TEXT = "once upon a time there was a castle "


def with_more_tokens(folder: Path, **special: str) -> Path:
    """Add the tokens ``BEYOND`` to the tokenizer of a folder."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["model"]["vocab"] |= BEYOND
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | special))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_more_tokens(make_teacher(tmp_path_factory.mktemp("larger") / "teacher"))


@pytest.fixture(scope="module")
def model(source: Path) -> Path:
    return make_student(source.parent / "student", source)


COMMANDS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "generate": lambda model, data, _: composer.generate(model, TEXT, max_new_tokens=2),
    "inspect": lambda model, data, _: composer.inspect(model, text=TEXT * 2),
    "evaluate": lambda model, data, _: composer.evaluate(model, f"perplexity,text={data}", 16, samples=1),
    "distill": lambda model, data, out: composer.distill(model, str(data), out / "distilled", share=0.2),
    "select": lambda model, data, out: composer.select(
        "lawcat", model.parent / "teacher", str(data), out / "selected", keep=1, rows=2, share=0.2, overrides=["recipe.sequence=16"]
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_token_without_an_embedding_is_refused(command: str, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text((TEXT * 4 + "\n\n") * 8)
    with pytest.raises(
        ComposerError, match=r"token 70 is not among the model's 64: the tokenizer \(1\d tokens\) does not fit the model"
    ):
        COMMANDS[command](model, data, tmp_path)


def test_other_texts_are_read(model: Path) -> None:
    assert composer.generate(model, "once upon a time", max_new_tokens=2).prompt_tokens == 4


def test_a_sample_needs_an_embedding_to_begin_with(tmp_path: Path) -> None:
    folder = with_more_tokens(make_teacher(tmp_path / "teacher"), bos_token="castle")
    with pytest.raises(ComposerError, match="the beginning of a text: token 70 is not among the model's 64"):
        composer.sample(folder, tmp_path / "texts.jsonl", texts=1, length=4)


def test_builds_note_tokens_without_an_embedding(source: Path, tmp_path: Path) -> None:
    (note,) = (note for note in composer.build_folder("softmax", source, tmp_path / "built").plan.notes if "tokenizer" in note)
    assert note == (
        "The tokenizer has 2 tokens that the model has no embedding for, such as 'castle' (70 of 64): a text with one of them is "
        "refused."
    )
    plain = make_teacher(tmp_path / "plain")
    assert not composer.build_folder("softmax", plain, tmp_path / "other").plan.notes
