"""Tiny checkpoints, and the errors of opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

from converters.errors import ConverterError
from converters.source import open_source
from tests.checkpoints import llama


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return llama(tmp_path / "single")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return llama(tmp_path / "sharded", sharded=True)


def refusal(folder: Path, kind: type[ConverterError]) -> str:
    with pytest.raises(kind) as caught:
        open_source(folder)
    return str(caught.value)
