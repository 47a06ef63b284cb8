"""A teacher and a student of it in folders, and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from matplotlib.figure import Figure

from tests.composer.training.runs import make_student, make_teacher, write_texts
from tests.composer.training.stages import STAGES, log, run

DOT = b"\x89PNG\r\n\x1a\n"
"""How a picture begins."""


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _pictures_unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses' picture, a good part of a tiny run, is put together and written as every time; what its dots are is of no
    concern where it is not the thing tested."""
    if request.path.name == "test_journal.py":
        return
    monkeypatch.setattr(Figure, "savefig", lambda figure, target, **_: Path(target).write_bytes(DOT))


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("teachers") / "teacher")


@pytest.fixture(scope="session")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A window and a state, not trained, with a recipe of both stages."""
    return make_student(tmp_path_factory.mktemp("students") / "tiny", teacher)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts.jsonl")


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the stages come to where nothing stops them, and their logs."""
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp(name) for name in STAGES}
    return {name: (run(folders[name], stage), log(folders[name])) for name, stage in STAGES.items()}
