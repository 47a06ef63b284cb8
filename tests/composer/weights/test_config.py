"""A model with learned positions reads and writes up to their number, and longer requests are rejected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import ComposerError, DataError, InspectionError
from tests.composer.hosts.families import small
from tests.composer.training.runs import make_teacher

LEARNED = 24
"""Positions of each model."""
PROMPT = "once upon a time"
SOURCES = ["gpt2", "gpt_bigcode", "biogpt", "gpt_neo", "opt", "openai-gpt"]
STUDENTS = ["gpt2", "gpt_bigcode", "biogpt"]
OWN = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 64, "embedding": "learned", "length": LEARNED}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("words") / "teacher")


def source_of(family: str, tokenizer: Path, folder: Path, **more: Any) -> Path:
    sizes = {"num_layers": 2, "attention_types": [[["global"], 2]]} if family == "gpt_neo" else {"word_embed_proj_dim": 32}
    sizes = sizes if family in ("gpt_neo", "opt") else {}
    small(family, vocab_size=64, **{"max_position_embeddings": LEARNED, **sizes, **more}).save_pretrained(folder)
    return with_words(folder, tokenizer)


def with_words(folder: Path, tokenizer: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    return folder


def up_to_its_end(folder: Path) -> None:
    """Prompts have four tokens, and as many tokens as positions, after which one more is written."""
    answer = composer.generate(str(folder), PROMPT, max_new_tokens=LEARNED - 3)
    assert answer.prompt_tokens == 4
    assert answer.new_tokens == LEARNED - 3
    tokens = "too few for 26 tokens, 4 of the prompt and 22 to write"
    wanted = rf"{folder.name} has learned 24 positions, {tokens}: .* the largest possible sum is 25\."
    with pytest.raises(ComposerError, match=wanted):
        composer.generate(str(folder), PROMPT, max_new_tokens=LEARNED - 2)


@pytest.mark.parametrize("family", SOURCES)
def test_sources_generate_up_to_their_maximum_length(family: str, tokenizer: Path, tmp_path: Path) -> None:
    up_to_its_end(source_of(family, tokenizer, tmp_path / "source", eos_token_id=None))


@pytest.mark.parametrize("family", STUDENTS)
def test_students_generate_up_to_their_maximum_length(family: str, tokenizer: Path, tmp_path: Path) -> None:
    composer.build_folder("lawcat", source_of(family, tokenizer, tmp_path / "source", eos_token_id=None), tmp_path / "student")
    up_to_its_end(tmp_path / "student")


def test_models_with_a_composed_trunk_generate_up_to_their_maximum_length(tokenizer: Path, tmp_path: Path) -> None:
    spec = {"compose": 1, "name": "own", "extends": "lawcat", "trunk": OWN}
    composer.build_folder(spec, out=tmp_path / "own", fresh=True)
    up_to_its_end(with_words(tmp_path / "own", tokenizer))


def test_sampled_texts_are_bounded_by_the_maximum_length(tokenizer: Path, tmp_path: Path) -> None:
    source = source_of("gpt2", tokenizer, tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": "once"}))
    composer.sample(str(source), tmp_path / "texts.jsonl", texts=1, batch=16, length=LEARNED + 1)
    with pytest.raises(DataError, match="too few for 26 tokens: .*; the largest possible `length` is 25"):
        composer.sample(str(source), tmp_path / "more.jsonl", texts=1, batch=16, length=LEARNED + 2)
    assert not (tmp_path / "more.jsonl").exists()


def test_inspected_texts_are_bounded_by_the_maximum_length(tokenizer: Path, tmp_path: Path) -> None:
    """The limit is that of a student, and of a teacher of another family."""
    learned = source_of("gpt2", tokenizer, tmp_path / "learned")
    rotated = source_of("llama", tokenizer, tmp_path / "turned", num_key_value_heads=4, head_dim=8, max_position_embeddings=512)
    text = "once upon a time there was a cat " * 4
    for name, source in (("shorter", learned), ("longer", rotated)):
        composer.build_folder("lawcat", source, tmp_path / name)
    composer.inspect(tmp_path / "shorter", text=text, length=LEARNED, queries=2)
    with pytest.raises(InspectionError, match="shorter has learned 24 .* 25 tokens: the largest possible `length` is 24"):
        composer.inspect(tmp_path / "shorter", text=text, length=LEARNED + 1, queries=2)
    composer.inspect(tmp_path / "longer", text=text, length=LEARNED + 1, queries=2)
    with pytest.raises(InspectionError, match="The teacher learned has learned 24 positions, too few for 25 tokens"):
        composer.inspect(tmp_path / "longer", text=text, length=LEARNED + 1, queries=2, teacher=learned)
