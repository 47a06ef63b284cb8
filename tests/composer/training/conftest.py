"""A teacher and a student of it in folders, and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.composer.training.runs import make_student, make_teacher, write_texts
from tests.composer.training.stages import STAGES, log, run


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("teachers") / "teacher")


@pytest.fixture(scope="session")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained student with a window and a state, and a recipe of both stages."""
    return make_student(tmp_path_factory.mktemp("students") / "tiny", teacher)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts.jsonl", 40)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of uninterrupted stages, and their logs."""
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp(name) for name in STAGES}
    return {name: (run(folders[name], stage), log(folders[name])) for name, stage in STAGES.items()}
