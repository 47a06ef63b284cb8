"""Tiny models in folders without a tokenizer: a Llama and two students of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import composer
from tests.checkpoints import llama


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of the teacher, LAWCAT and LoLCATs, without tokenizers."""
    folder = tmp_path_factory.mktemp("models")
    teacher = llama(folder / "teacher")
    for path in teacher.glob("tokenizer*"):
        path.unlink()
    for spec in ("lawcat", "lolcats"):
        composer.build_folder(spec, teacher, folder / spec)
    return [teacher, folder / "lawcat", folder / "lolcats"]
