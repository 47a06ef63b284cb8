"""A command to run in an empty folder, and a Llama that others' checkpoints stand on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import llama
from tests.composer.cli.conftest import compose
from tests.published.layers import CONFIG

__all__ = ["compose"]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float64, so that what is merged into it can be compared to the last digits."""
    return llama(tmp_path_factory.mktemp("meta") / "Llama", dtype="float64", **CONFIG)
