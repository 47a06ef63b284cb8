"""A random teacher of two layers, texts in its vocabulary, and specs whose stages have two steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.composer.ablation.variants import request_for
from tests.composer.training.runs import make_teacher, write_texts


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("teachers") / "teacher")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts.jsonl", 24)


@pytest.fixture(scope="session")
def ablation_request(teacher: Path, texts: Path) -> object:
    """Return a request with both stages, the comparison and a task."""
    return request_for(teacher, texts)
