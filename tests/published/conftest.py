"""A command to run in an empty folder."""

from __future__ import annotations

from tests.composer.cli.conftest import compose

__all__ = ["compose"]
