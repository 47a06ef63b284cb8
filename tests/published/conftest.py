"""A command in an empty folder, and a Llama on which published checkpoints are based."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import llama
from tests.composer.cli.conftest import compose
from tests.published.layers import CONFIG

__all__ = ["compose"]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source in float64, so that merged weights can be compared exactly."""
    return llama(tmp_path_factory.mktemp("meta") / "Llama", dtype="float64", **CONFIG)
