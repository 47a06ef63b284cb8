"""The teacher and the student of the command line's tests."""

from __future__ import annotations

from tests.composer.cli.conftest import student, teacher

__all__ = ["student", "teacher"]
