"""A local Hub, an empty cache, and a student to push."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composer.cli.conftest import compose, student, teacher
from tests.hub_server import LocalHub, local_hub

__all__ = ["compose", "student", "teacher"]


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    with local_hub(str(tmp_path_factory.mktemp("hub-cache"))) as served:
        yield served


@pytest.fixture(scope="session")
def exported(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the student."""
    import composer
    from tests.composer.exporting.models import uncompared

    with uncompared():
        return composer.export(student, tmp_path_factory.mktemp("exports") / "alone").out
