"""Sources to build from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import llama
from tests.composer.cli.conftest import compose, teacher

__all__ = ["compose", "teacher"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama(tmp_path / "source")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return llama(tmp_path / "sharded", sharded=True)
